"""dramatiq. See workload.py."""

import dramatiq
import workload
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=workload.REDIS_URL))


@dramatiq.actor(actor_name="work")
def work(kind, value):
    workload.run(kind, value)


if __name__ == "__main__":
    workload.client(work.send)
