"""What worker tests have in common: a broker, handlers that keep a diary, and the program on both."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census, Entry, Record
from fileq.config import config_from
from fileq.core.job import Job, State, Version, decode, file_job, typed_job
from tests.support.program import Program
from tests.support.waiting import wait_until

HANDLERS = Path(__file__).with_name("worker_handlers.py")
MODULE = "worker_handlers"
# Short, so that deaths are noticed quickly; 3 s is the shortest heartbeat there is.
TTL_S, REAP_S = 3.0, 1.0
QUICK: Mapping[str, object] = {
    "imports": MODULE,
    "worker.heartbeat_ttl": f"{TTL_S}s",
    "worker.reap_interval": f"{REAP_S}s",
    "worker.backoff.base": "50ms",
    "producer.rate_limit_per_sec": 0,
    "producer.settle": "50ms",
    "producer.settle_unclosed": "200ms",
}


class Line(Struct, frozen=True):
    """One line of the diary: what a handler did, for which job, in which process, and when by the wall clock."""

    word: str
    id: str
    pid: int
    at_s: float


class WorkerSetup:
    """A broker that workers and the test share; a directory for files, handlers and what these tell."""

    def __init__(self, directory: Path, settings: Mapping[str, object], kind: str = "valkey") -> None:
        self.directory = directory
        self.settings = settings
        self.kind = kind
        self.inbox = directory / "in"
        self.inbox.mkdir()
        (directory / f"{MODULE}.py").write_text(HANDLERS.read_text())
        self._programs = contextlib.ExitStack()
        self.broker: FullBroker = open_broker(config_from(self._as_tree()))

    def _as_tree(self) -> dict[str, dict[str, object]]:
        tree: dict[str, dict[str, object]] = {}
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            tree.setdefault(section, {})[name] = value
        return tree

    def close(self) -> None:
        self._programs.close()
        self.broker.close()

    # the program

    def worker(self, *arguments: str, wait: bool = True, role: str = "worker", **settings: object) -> Program:
        """`fileq worker` on this broker; settings of the worker by their names, others as producer__scan_dir."""
        program = Program(
            role,
            *(arguments or (str(self.inbox),)),
            "--app-dir",
            str(self.directory),
            cwd=self.directory,
            settings=self.all_settings(**settings),
            wait=wait,
        )
        return self._programs.enter_context(program)

    def all_settings(self, **settings: object) -> dict[str, object]:
        """By their names below `worker`, but for `handlers` and those with a section: producer__scan_dir."""
        named = {
            key.replace("__", ".") if "__" in key or key == "handlers" else f"worker.{key}": value
            for key, value in settings.items()
        }
        return {**QUICK, **self.settings, **named}

    def freeze(self, program: Program) -> None:
        """SIGSTOP; on SQLite never in the midst of a transaction, for which everybody would have to wait."""
        with contextlib.ExitStack() as stack:
            if "sqlite.path" in self.settings:
                lock = stack.enter_context(open(f"{self.settings['sqlite.path']}-lock", "rb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            program.signal(signal.SIGSTOP)
            wait_until(lambda: _state(program.process.pid) == "T", 10, "it stands still")

    # jobs

    def enqueue(self, type: str, *ids: str, queue: str = "low", payload: Any = None, **changes: Any) -> list[str]:
        """Jobs of a type, in this order."""
        jobs = [typed_job(type, payload, priority=queue, now=datetime.now(UTC), id=id).but(**changes) for id in ids]
        self.broker.enqueue([Entry(job, queue) for job in jobs])
        return list(ids)

    def enqueue_file(self, path: bytes | Path, id: str = "", *, queue: str = "low", known: bool = True) -> str:
        """A job for the version of this file that is there now, as a producer would make it."""
        name = os.fsencode(path)
        status = os.stat(name)
        signature = f"{status.st_size}-{status.st_mtime_ns}"
        job = file_job(
            name, size=status.st_size, priority=queue, now=datetime.now(UTC), signature=signature, id=id or "file"
        )
        self.broker.enqueue([Entry(job, queue, version=Version(name, signature) if known else None)])
        return job.id

    def record(self, id: str) -> Record:
        record = self.broker.records([id])[0]
        assert record is not None, f"there is no record of {id}"
        return record

    def job(self, id: str) -> Job:
        return decode(self.record(id).raw)

    def states(self, ids: list[str]) -> Counter[str]:
        return Counter("none" if r is None else r.state.value for r in self.broker.records(ids))

    def wait_for(self, state: State, ids: list[str], timeout_s: float = 30.0) -> None:
        """Until all of these are in that state."""
        try:
            wait_until(lambda: self.states(ids)[state] == len(ids), timeout_s)
        except TimeoutError:
            raise AssertionError(f"wanted {len(ids)} {state}, got {self.states(ids)}") from None

    def wait_ended(self, ids: list[str], timeout_s: float = 30.0) -> Counter[str]:
        """Until each of these has ended, one way or another; how many in which state."""
        over = (State.COMPLETED, State.DEAD, State.CANCELLED)
        try:
            wait_until(lambda: sum(self.states(ids)[state] for state in over) == len(ids), timeout_s)
        except TimeoutError:
            raise AssertionError(f"not all have ended: {self.states(ids)}") from None
        return self.states(ids)

    def census(self) -> Census:
        return self.broker.census(sweep=True)

    # the log of the handlers

    def handler_log(self, word: str = "") -> list[Line]:
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in (self.directory / "handler_log").read_text().splitlines()]
            return [Line(w, id, int(pid), float(at)) for w, id, pid, at in lines if word in ("", w)]
        return []

    def logged(self, word: str) -> list[str]:
        """The ids with that word, in order."""
        return [line.id for line in self.handler_log(word)]

    def wait_logged(self, word: str, count: int, timeout_s: float = 20.0) -> list[str]:
        try:
            wait_until(lambda: len(self.handler_log(word)) >= count, timeout_s)
        except TimeoutError:
            raise AssertionError(
                f"wanted {count} × {word!r}, got {Counter(x.word for x in self.handler_log())}"
            ) from None
        return self.logged(word)

    def open_gate(self, name: str = "gate") -> None:
        """Handlers that wait at this gate go on."""
        (self.directory / name).touch()


@contextlib.contextmanager
def open_worker_setup(
    directory: Path, settings: Mapping[str, object], *, kind: str = "valkey"
) -> Iterator[WorkerSetup]:
    setup = WorkerSetup(directory, settings, kind)
    try:
        yield setup
    finally:
        setup.close()


def on_files(function: str, **options: object) -> str:
    """The setting `handlers`: every file to this function of the handlers' module."""
    more = "".join(f", {name}: {json.dumps(value)}" for name, value in options.items())
    return f'[{{match: "**/*", use: "{MODULE}:{function}"{more}}}]'


def ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{n}" for n in range(count)]


def is_running(pid: int) -> bool:
    """Whether there is such a process; a zombie is not running."""
    return _state(pid) not in ("", "Z")


def is_still_running(line: Line) -> bool:
    """Whether the process that wrote this line runs, and not another one, or a thread, that got its number."""
    ticks = _status(line.pid)[19:20]
    if not ticks or not is_running(line.pid):
        return False
    age_s = float(Path("/proc/uptime").read_text().split()[0]) - int(ticks[0]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s < line.at_s + 0.1


def _state(pid: int) -> str:
    """As the kernel has it, in a letter; "" if there is no such process."""
    return "".join(_status(pid)[:1])


def _status(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def let_time_pass(seconds: float) -> None:
    """Lets time go by, where the time itself is what is tested."""
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until_s, seconds + 5)
