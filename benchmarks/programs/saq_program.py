"""saq. See workload.py."""

import workload
from saq import Queue

queue = Queue.from_url(workload.REDIS_URL)


async def work(context, *, kind, value):
    workload.run(kind, value)


settings = {"queue": queue, "functions": [work], "concurrency": workload.SLOTS, "dequeue_timeout": 1}


async def one(kind, value):
    await queue.enqueue("work", kind=kind, value=value, ttl=60)


if __name__ == "__main__":
    workload.client(one)
