"""What the figures must be for fileq to be ahead; docs/benchmarks.md says what they mean for a user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.results import Results

PROCESS, THREAD = "fileq process 16", "fileq thread 16"


@dataclass(frozen=True)
class Goal:
    """`figure` is None while something that it needs was not measured."""

    text: str
    figure: Callable[[Results], float | None]
    wanted: Literal["≥", "≤", "<"]
    limit: float

    def is_met(self, figure: float) -> bool:
        return {"≥": figure >= self.limit, "≤": figure <= self.limit, "<": figure < self.limit}[self.wanted]


def ratio(of: float | None, to: float | None) -> float | None:
    return of / to if of is not None and to else None


def _to_peer(system: str, column: str, peer: str) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.value(system, column), results.value(peer, column))


def _bullmq(results: Results, column: str, better: Literal["more", "less"]) -> float | None:
    """At its best concurrency."""
    figures = [figure for name in ("bullmq", "bullmq 50") if (figure := results.value(name, column)) is not None]
    best = max if better == "more" else min
    return best(figures, default=None)


def _to_bullmq(system: str, column: str, better: Literal["more", "less"]) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.value(system, column), _bullmq(results, column, better))


def _of(system: str, column: str) -> Callable[[Results], float | None]:
    return lambda results: results.value(system, column)


def _two_by_one(system: str) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.value(system, "drain_2"), results.value(system, "drain_1"))


def _two_by_one_with_room(results: Results) -> float | None:
    """Only where a second worker has cores of its own: one worker with its server uses two."""
    return _two_by_one(PROCESS)(results) if results.data["about"]["cores"] >= 4 else None


GOALS = (
    Goal("process mode drain ÷ BullMQ", _to_bullmq(PROCESS, "drain_1", "more"), "≥", 1.0),
    Goal("process mode drain ÷ celery prefork", _to_peer(PROCESS, "drain_1", "celery"), "≥", 10.0),
    Goal(
        "thread mode drain at its best slot count ÷ BullMQ",
        lambda results: ratio(results.best_fileq("drain_1", "more", "thread"), _bullmq(results, "drain_1", "more")),
        "≥",
        2.0,
    ),
    Goal("total CPU a job in process mode ÷ BullMQ", _to_bullmq(PROCESS, "cpu_total", "less"), "≤", 1.0),
    Goal("process mode, two workers ÷ one", _two_by_one(PROCESS), "≥", 1.0),
    Goal("process mode, two workers ÷ one, with cores for both", _two_by_one_with_room, "≥", 1.5),
    Goal("thread mode, two workers ÷ one", _two_by_one(THREAD), "≥", 1.0),
    Goal(
        "pickup p50 in process mode ÷ best peer",
        lambda results: ratio(results.value(PROCESS, "pickup_p50"), results.best_peer("pickup_p50", "less")),
        "≤",
        1.2,
    ),
    Goal(
        "enqueue one by one ÷ best peer",
        lambda results: ratio(results.value(PROCESS, "enqueue_one"), results.best_peer("enqueue_one", "more")),
        "≥",
        1.0,
    ),
    Goal("process mode drain with 1,000,000 waiting ÷ 1,000 waiting", _of(PROCESS, "depth_kept"), "≥", 0.9),
    Goal("process mode drain with 2 ms latency ÷ without", _of(PROCESS, "latency_kept"), "≥", 0.5),
    Goal("files end to end ÷ celery with a walk in front", _to_peer(PROCESS, "files_rate", "celery"), "≥", 3.0),
    Goal("rescan of known files ÷ find", _of(PROCESS, "rescan_by_find"), "≤", 3.0),
    Goal("SQLite drain in process mode ÷ huey", _to_peer(f"{PROCESS} sqlite", "drain_1", "huey sqlite"), "≥", 5.0),
    Goal("1,000 idle workers: server, % of a core", _of(THREAD, "fleet_cpu"), "≤", 5.0),
    Goal("1,000 idle workers ÷ 250: commands a second", _of(THREAD, "fleet_commands"), "≤", 4.4),
    Goal("1,000 workers: wakes a push", _of(THREAD, "fleet_wakes"), "≤", 2.0),
    Goal("300 of 1,000 workers killed: seconds until their jobs are back", _of(THREAD, "fleet_back_s"), "≤", 55.0),
    Goal("1,000 workers ÷ 1: pickup p99", _of(THREAD, "fleet_pickup"), "≤", 1.5),
    Goal("100 processes ÷ 1: pickup p99", _of(THREAD, "fleet_pickup_processes"), "≤", 1.5),
    Goal("idle CPU %, process mode", _of(PROCESS, "idle_cpu"), "<", 1.0),
    Goal("idle PSS MB, process mode", _of(PROCESS, "idle_pss"), "≤", 110.0),
)
