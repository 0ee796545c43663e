"""The handlers of fileq and its client. See workload.py."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import workload


def typed(job, context):
    workload.run(job.type, job.payload)


def on_file(job, context):
    with job.open() as file:
        file.read()
    workload.run("noop", None)


if __name__ == "__main__":
    from fileq.brokers import open_broker
    from fileq.brokers.types import Entry
    from fileq.config import config_from
    from fileq.core.job import typed_job

    broker = open_broker(config_from(json.loads(Path(os.environ["BENCH_CONFIG"]).read_text())))

    def many(jobs):
        now = datetime.now(UTC)
        broker.enqueue([Entry(typed_job(kind, value, priority="low", now=now), "low") for kind, value in jobs])

    workload.client(lambda kind, value: many([(kind, value)]), many)
