// BullMQ: `worker SLOTS`, or a client as in workload.py: `enqueue one|bulk KIND COUNT`, `pickup COUNT`.
import { closeSync, fstatSync, openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

const { Queue, Worker } = createRequire(`${process.env.BENCH_NODE}/`)("bullmq");
const connection = { host: "127.0.0.1", port: Number(process.env.BENCH_REDIS_PORT), maxRetriesPerRequest: null };
const payload = { text: "x".repeat(244), number: 12345 };
const keep = { removeOnComplete: { count: 10000 } }; // as fileq's worker.completed_max
const log = openSync(process.env.BENCH_LOG, "a");
const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC, as time.monotonic_ns() of Python

async function run(job) {
  if (job.name === "pickup") {
    writeSync(log, `${String(now() - BigInt(job.data.sent)).padStart(15)}\n`);
    return;
  }
  writeSync(log, ".");
}

async function grownTo(size) {
  while (fstatSync(log).size < size) await new Promise((resolve) => setTimeout(resolve, 1));
}

async function client(command, ...words) {
  const queue = new Queue("bench", { connection });
  await queue.add("noop", payload, keep);
  const started = now();
  if (command === "pickup") {
    await grownTo(1);
    for (let n = 0; n < Number(words[0]); n++) {
      await new Promise((resolve) => setTimeout(resolve, 5));
      await queue.add("pickup", { sent: String(now()) }, keep);
      await grownTo(1 + (n + 1) * 16);
    }
  } else {
    const [how, kind, count] = words;
    if (how === "one") for (let n = 0; n < Number(count); n++) await queue.add(kind, payload, keep);
    for (let left = how === "bulk" ? Number(count) : 0; left > 0; left -= 1000)
      await queue.addBulk(Array.from({ length: Math.min(left, 1000) }, () => ({ name: kind, data: payload, opts: keep })));
  }
  console.log(JSON.stringify({ seconds: Number(now() - started) / 1e9 }));
  closeSync(log);
  process.exit(0);
}

const [command, ...words] = process.argv.slice(2);
if (command === "worker") new Worker("bench", run, { connection, concurrency: Number(words[0]) });
else await client(command, ...words);
