"""huey on Redis, or on SQLite if BENCH_SQLITE names a file. See workload.py."""

import workload
from huey import RedisHuey, SqliteHuey

if workload.SQLITE:
    huey = SqliteHuey("bench", filename=workload.SQLITE, results=False)
else:
    huey = RedisHuey("bench", url=workload.REDIS_URL, results=False)


@huey.task(name="work")
def work(kind, value):
    workload.run(kind, value)


if __name__ == "__main__":
    from huey_program import work as as_the_worker_names_it  # huey names a task by its module

    workload.client(as_the_worker_names_it)
