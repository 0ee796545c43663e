"""taskiq. See workload.py."""

import workload
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker(workload.REDIS_URL)


@broker.task(task_name="work")
async def work(kind, value):
    workload.run(kind, value)


if __name__ == "__main__":
    workload.client(lambda kind, value: work.kiq(kind, value))
