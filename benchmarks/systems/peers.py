"""The Python peers, each with settings that its documentation recommends for many short jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from benchmarks.systems.system import PROGRAMS, Command, Place, System, common_environment

SLOTS = 16
# Without extra output, which costs CPU; fileq logs at its default level.
CELERY = "-A celery_program worker -c 16 --without-gossip --without-mingle --without-heartbeat -l WARNING"
DRAMATIQ = "dramatiq_program --processes 1 --threads 16"
HUEY = "huey_program.huey -k process -w 16 -n -q -C"
RQ = "worker-pool -n 16 -w rq.worker.SimpleWorker -q -P ."
SAQ = "saq_program.settings -q"
TASKIQ = "worker taskiq_program:broker --workers 1 --max-async-tasks 16 --no-parse --log-level WARNING"
HUEY_SQLITE = "huey_program.huey -k thread -w 16 -n -q -C"
SETTINGS = {
    "celery": "prefork, 16 children, prefetch 16 a child; no results, gossip, heartbeat; acknowledged at the start",
    "dramatiq": "1 process, 16 threads; acknowledged at the end",
    "huey": "16 processes; no results, no periodic tasks; at most once",
    "huey sqlite": "16 threads; no results, no periodic tasks; at most once",
    "rq": "a pool of 16 SimpleWorker, which do not fork for each job; results are not kept",
    "saq": "1 process, 16 coroutines; dequeue_timeout 1; results are kept for 60 s",
    "taskiq": "1 process, 16 coroutines; ListQueueBroker; no results, no parsing; at most once",
}


def peer_systems(environment: Path) -> list[System]:
    """`environment`: the virtual environment of the peers."""

    def peer(name: str, program: str, settings: str, *, share: float, has_bulk: bool = False) -> System:
        return System(
            name=name,
            settings=settings,
            worker=_command(environment, program),
            client=_command(environment, f"python {PROGRAMS / name}_program.py"),
            has_bulk=has_bulk,
            share=share,
        )

    return [
        peer("celery", f"celery {CELERY}", SETTINGS["celery"], share=0.15),
        peer("dramatiq", f"dramatiq {DRAMATIQ}", SETTINGS["dramatiq"], share=0.2),
        peer("huey", f"huey_consumer {HUEY}", SETTINGS["huey"], share=0.3),
        peer("rq", f"rq {RQ}", SETTINGS["rq"], share=0.1, has_bulk=True),
        peer("saq", f"saq {SAQ}", SETTINGS["saq"], share=0.2),
        peer("taskiq", f"taskiq {TASKIQ}", SETTINGS["taskiq"], share=0.3),
        System(
            name="huey sqlite",
            settings=SETTINGS["huey sqlite"],
            worker=_command(environment, f"huey_consumer {HUEY_SQLITE}", "sqlite"),
            client=_command(environment, f"python {PROGRAMS}/huey_program.py", "sqlite"),
            store="sqlite",
            has_bulk=False,
            share=0.3,
        ),
    ]


def _command(environment: Path, line: str, store: Literal["redis", "sqlite"] = "redis") -> Callable[[Place], Command]:
    program, *words = line.split(" ")

    def command(place: Place) -> Command:
        variables = common_environment(place, SLOTS)
        if store == "sqlite":
            variables["BENCH_SQLITE"] = str(place.database)
        elif program == "rq":
            variables["RQ_REDIS_URL"] = f"redis://127.0.0.1:{place.redis_port}/0"
        return Command((str(environment / "bin" / program), *words), variables)

    return command
