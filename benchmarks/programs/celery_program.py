"""celery, prefork. See workload.py."""

import workload
from celery import Celery

app = Celery("bench", broker=workload.REDIS_URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=16, broker_connection_retry_on_startup=True)


@app.task(name="work")
def work(kind, value):
    workload.run(kind, value)


if __name__ == "__main__":
    workload.client(work.delay)
