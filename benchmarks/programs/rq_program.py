"""rq. See workload.py."""

import redis
import workload
from rq import Queue


def work(kind, value):
    workload.run(kind, value)


if __name__ == "__main__":
    queue = Queue(connection=redis.Redis.from_url(workload.REDIS_URL))

    def one(kind, value):
        queue.enqueue("rq_program.work", kind, value, result_ttl=0)

    def many(jobs):
        queue.enqueue_many([Queue.prepare_data("rq_program.work", job, result_ttl=0) for job in jobs])

    workload.client(one, many)
