"""Each task runs in a process or in a thread, as its route says."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fileq.brokers.types import Record
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable, ConfigError
from fileq.core.job import Job, State, decode, encode
from fileq.core.outcome import Cancelled, Done, Refused, Released
from fileq.core.own_jobs import origin_of
from fileq.core.webhook import DELIVERY_ROUTE
from fileq.handlers.routes import Routes
from fileq.runtime.handlers_program import handlers_program
from fileq.webhooks.subscriptions import Subscriptions
from fileq.worker.executors.by_isolation import ExecutorsByIsolation
from fileq.worker.executors.protocol import Run
from tests.support.executor_driver import ExecutorDriver
from tests.support.thread_executor import handler_threads


def where(_job: Any, _context: Any) -> list[int]:
    return [os.getpid(), threading.get_ident()]


async def on_a_loop(_job: Any, _context: Any) -> list[str]:
    return [threading.current_thread().name, str(os.getpid())]


left: list[asyncio.Task[None]] = []


async def leaves_a_task(_job: Any, _context: Any) -> list[Any]:
    """Leaves a task behind, and the threads of asyncio.to_thread(); returns the pid and the tasks that still run."""
    running = len([task for task in left if not task.done()])
    left.append(asyncio.get_running_loop().create_task(asyncio.sleep(600)))
    await asyncio.to_thread(int)
    return [os.getpid(), running]


def raw(type: str, payload: bytes = b"{}") -> bytes:
    created = "2026-01-02T03:04:05.678Z"
    return encode(Job("1", "", 0, "low", 0, created, "", "", type=type, payload=msgspec.Raw(payload)))


Start = Callable[..., ExecutorDriver]


@pytest.fixture
def start() -> Iterator[Start]:
    executors: list[ExecutorsByIsolation] = []

    def start(*isolations: str, use: str = f"{__name__}:where", count: int = 2) -> ExecutorDriver:
        routes = [{"type": f"t{i}", "use": use, "isolation": isolation} for i, isolation in enumerate(isolations)]
        config = config_from({"worker": {"count": count}, "handlers": routes})
        table = Routes.load(config, app_dir=str(Path(__file__).parents[3]))
        program = handlers_program(config, app_dir=str(Path(__file__).parents[3]))
        executors.append(ExecutorsByIsolation(config.worker, table, program))
        return ExecutorDriver(executors[-1])

    yield start
    for executor in executors:
        executor.close()
        executor.close()


def answer(driver: ExecutorDriver, number: int) -> list[Any]:
    outcome = driver.outcome(driver.submit(raw(f"t{number}"), name=f"{number}", route=number))
    assert isinstance(outcome, Done), outcome
    found: list[Any] = eval(outcome.result)
    return found


def test_each_task_runs_where_its_route_wants_it(start: Start) -> None:
    driver = start("process", "thread", "process")
    pids = [answer(driver, number)[0] for number in range(3)]
    assert [pid == os.getpid() for pid in pids] == [False, True, False]


def own_record(origin: str) -> Callable[[Sequence[str]], list[Record | None]]:
    return lambda ids: [Record(id, State.RUNNING, b"", "low", origin=origin) for id in ids]


def away(ids: Sequence[str]) -> list[Record | None]:
    raise BrokerUnavailable("the broker is away")


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        (own_record(origin_of(decode(raw("fileq.x")))), Done),
        (own_record(origin_of(decode(raw("fileq.x", b'{"a":1}')))), Refused),
        (own_record("fileq"), Refused),
        (own_record(""), Refused),
        (lambda ids: [None for _ in ids], Refused),
        (away, Released),
        (None, Refused),
    ],
    ids=["its own", "another payload", "another kind", "none", "no record", "broker away", "no broker"],
)
def test_a_job_of_fileqs_own_runs_only_with_its_origin(
    records: Callable[[Sequence[str]], list[Record | None]] | None, outcome: type
) -> None:
    """C1: it is dead at once without one. While the broker is away it goes back, and no attempt is counted."""
    config, ran = config_from({"worker": {"count": 1}}), list[str]()
    routes = Routes.load(config, app_dir=str(Path(__file__).parents[3]))
    routes = routes.with_built_in({"fileq.x": lambda job, context: ran.append(job.id)}, config)
    deliver: Run = lambda task, cancelled: ran.append("1") or Done()  # noqa: E731
    routes.enable_deliveries(Subscriptions(config.paths, "low"))
    program = handlers_program(config, app_dir=str(Path(__file__).parents[3]))
    executor = ExecutorsByIsolation(config.worker, routes, program, deliver=deliver, records=records)
    try:
        driver = ExecutorDriver(executor)
        for number in (len(routes) - 1, DELIVERY_ROUTE):
            ended = driver.outcome(driver.submit(raw("fileq.x"), name=f"{number}", route=number))
            assert isinstance(ended, outcome), ended
    finally:
        executor.close()
    assert ran == (["1", "1"] if outcome is Done else [])


def test_without_process_isolation_there_is_no_fork_server(start: Start) -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    driver = start("thread")
    assert answer(driver, 0)[0] == os.getpid()
    assert children.read_text() == before


def test_without_thread_isolation_there_are_no_threads(start: Start) -> None:
    driver = start("process")
    assert answer(driver, 0)[0] != os.getpid()
    assert handler_threads() == []


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_async_handlers_run_in_the_thread_of_the_event_loop(start: Start, isolation: str) -> None:
    driver = start(isolation, isolation, use=f"{__name__}:on_a_loop")
    thread, pid = answer(driver, 0)
    assert thread == "async"
    assert (int(pid) == os.getpid()) == (isolation == "thread")


def test_tasks_in_processes_and_in_threads_are_cancelled_abandoned_and_released(start: Start) -> None:
    driver = start("process", "thread", use="fileq.handlers:simulate")
    endless = [raw(f"t{i}", b'{"hang": true}') for i in range(2)]
    for i in range(2):
        driver.cancel(driver.submit(endless[i], name=f"cancelled-{i}", route=i))
        assert driver.outcome(f"cancelled-{i}") == Cancelled()
        driver.abandon(driver.submit(endless[i], name=f"abandoned-{i}", route=i))
        driver.submit(endless[i], name=f"released-{i}", route=i)
    deadline_s = driver.executor.next_deadline_s()
    assert deadline_s is not None
    driver.executor.quit(5.0)
    assert [driver.outcome(f"released-{i}") for i in range(2)] == [Released(), Released()]
    assert driver.ended == {}


def test_handlers_that_only_children_cannot_import_are_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fickle.py").write_text("def handle(job, context):\n    pass\n")
    config = config_from({"handlers": [{"match": "**/*", "use": "fickle:handle"}]})
    routes = Routes.load(config, app_dir=str(tmp_path))
    (tmp_path / "fickle.py").write_text("import nowhere\n")
    with pytest.raises(ConfigError, match="nowhere"):
        ExecutorsByIsolation(config.worker, routes, handlers_program(config, app_dir=str(tmp_path)))


def test_a_task_that_a_coroutine_left_in_its_child_is_cancelled_and_the_child_is_kept(start: Start) -> None:
    driver = start("process", use=f"{__name__}:leaves_a_task", count=1)
    answers = []
    for i in range(3):
        outcome = driver.outcome(driver.submit(raw("t0"), name=f"{i}"))
        assert isinstance(outcome, Done)
        answers.append(msgspec.json.decode(outcome.result or b""))
    assert answers == [[answers[0][0], 0]] * 3
