"""A schedule that is due every second, while workers are killed and the server is restarted: no second is forgotten.

On Redis the clock of one of the workers is an hour ahead."""

from __future__ import annotations

import os
import random
import time

from msgspec import Struct

from fileq.brokers.schedule_definitions import broker_now_ms, define
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State
from fileq.core.schedule import ScheduleDefinition, ScheduleDocument, job_id_of
from tests.support.program import Program, environment
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

NAME = "second"
HANDLERS = '[{type: t, use: "fileq.handlers:simulate"}]'
TURN_S = 0.25
WRONG_CLOCK = """
import time

time.time = lambda real=time.time: real() + 3600
time.time_ns = lambda real=time.time_ns: real() + 3600 * 10**9
"""


class ScheduleFigures(Struct, frozen=True):
    slots: int  # seconds that have ended
    fired: int
    missed: int
    kills: int
    restarts: int


def fire_each_second(
    setup: WorkerSetup, workers: int, seconds: float, seed: int, server: Server | None = None
) -> ScheduleFigures:
    """Raises AssertionError unless each second has one job or is counted as missed, and each job has run."""
    chance = random.Random(seed)
    definition = ScheduleDefinition(
        cron="@every 1s", type="t", payload={"sleep": 0}, overlap="allow", missed="skip", within_s=2
    )
    first_ms = broker_now_ms(setup.broker) // 1000 * 1000 + 1000
    define(setup.broker, NAME, ScheduleDocument(definition=definition), first_ms - 1)
    # On SQLite all workers are on one machine, so they have one clock, which is the broker's.
    variables = [_clock_an_hour_ahead(setup) if server is not None and index == 0 else {} for index in range(workers)]
    programs = [_worker(setup, variables[index]) for index in range(workers)]
    for program in programs:
        program.wait_for("role.started", 60)
    kills = restarts = 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if chance.random() < 0.5:
            index = chance.randrange(workers)
            programs[index].kill()
            programs[index] = _worker(setup, variables[index])
            kills += 1
        elif server is not None and chance.random() < 0.15:
            server.kill()
            server.start()
            restarts += 1
        turn_s = time.monotonic() + TURN_S
        wait_until(lambda turn_s=turn_s: time.monotonic() >= turn_s, TURN_S + 5)
    return _judged(setup, first_ms, kills, restarts)


def _worker(setup: WorkerSetup, variables: dict[str, str]) -> Program:
    return setup.worker(wait=False, count=1, handlers=HANDLERS, variables=variables)


def _clock_an_hour_ahead(setup: WorkerSetup) -> dict[str, str]:
    """The variables for a program whose wall clock is wrong."""
    directory = setup.directory / "clock"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(WRONG_CLOCK)
    return {"PYTHONPATH": os.pathsep.join([str(directory), environment()["PYTHONPATH"]])}


def _judged(setup: WorkerSetup, first_ms: int, kills: int, restarts: int) -> ScheduleFigures:
    def paused() -> bool:
        try:
            return setup.broker.pause_schedule(NAME)
        except BrokerUnavailable:  # the server has just been restarted
            return False

    wait_until(paused, 30)
    state = setup.broker.schedules()[NAME]
    assert state.next_ms <= broker_now_ms(setup.broker) + 1000, f"a second of the future has ended: {state}"
    ids = [job_id_of(NAME, slot_ms) for slot_ms in range(first_ms, state.next_ms, 1000)]
    fired = [id for id, record in zip(ids, setup.broker.records(ids), strict=True) if record is not None]
    assert len(fired) == state.runs, f"{len(fired)} jobs, {state}"
    assert state.runs + state.missed == len(ids), f"{len(ids)} seconds, {state}"
    setup.wait_for(State.COMPLETED, fired, 60)
    assert setup.census().drift == 0
    return ScheduleFigures(len(ids), state.runs, state.missed, kills, restarts)
