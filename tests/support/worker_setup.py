"""The setup of the worker tests: a broker, handlers that log what they do, and the program that uses both."""

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
from tests.support.sqlite_store import push_raw
from tests.support.waiting import wait_until

HANDLERS = Path(__file__).with_name("worker_handlers.py")
MODULE = "worker_handlers"
# Short, so that a death is found quickly; 3 s is the shortest heartbeat that the configuration accepts.
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
    """One line in the log of the handlers: what a handler did, for which job, in which process, at which time."""

    word: str
    id: str
    pid: int
    at_s: float


class WorkerSetup:
    """A broker that workers and the test share, and a directory for files, handlers and their log."""

    def __init__(self, directory: Path, settings: Mapping[str, object], kind: str = "valkey") -> None:
        self.directory = directory
        self.settings = settings
        self.kind = kind
        self.inbox = directory / "in"
        self.inbox.mkdir()
        (directory / f"{MODULE}.py").write_text(HANDLERS.read_text())
        self._programs = contextlib.ExitStack()
        self.config = config_from(self._as_tree())
        self.broker: FullBroker = open_broker(self.config)

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

    def worker(
        self,
        *arguments: str,
        wait: bool = True,
        role: str = "worker",
        variables: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Program:
        """Starts `fileq worker` on this broker; a setting of another section is named as producer__scan_dir."""
        program = Program(
            role,
            *(arguments or (str(self.inbox),)),
            "--app-dir",
            str(self.directory),
            cwd=self.directory,
            settings=self.all_settings(**settings),
            wait=wait,
            variables=variables,
        )
        return self._programs.enter_context(program)

    def all_settings(self, **settings: object) -> dict[str, object]:
        """All settings by dotted key. A name without a section belongs to `worker`."""
        named = {
            key.replace("__", ".") if "__" in key or key in ("handlers", "imports") else f"worker.{key}": value
            for key, value in settings.items()
        }
        return {**QUICK, **self.settings, **named}

    def freeze(self, program: Program) -> None:
        """Sends SIGSTOP; on SQLite never within a transaction, which would block all other processes."""
        with contextlib.ExitStack() as stack:
            if "sqlite.path" in self.settings:
                lock = stack.enter_context(open(f"{self.settings['sqlite.path']}-lock", "rb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            program.signal(signal.SIGSTOP)
            wait_until(lambda: _state(program.process.pid) == "T", 10, "the program is stopped")

    # jobs

    def enqueue(self, type: str, *ids: str, queue: str = "low", payload: Any = None, **changes: Any) -> list[str]:
        """Enqueues jobs of a type in this order; returns their ids."""
        jobs = [typed_job(type, payload, priority=queue, now=datetime.now(UTC), id=id).but(**changes) for id in ids]
        self.broker.enqueue([Entry(job, queue) for job in jobs])
        return list(ids)

    def enqueue_file(self, path: bytes | Path, id: str = "", *, queue: str = "low", known: bool = True) -> str:
        """Enqueues a job for the current version of this file, as a producer does; returns its id."""
        name = os.fsencode(path)
        status = os.stat(name)
        signature = f"{status.st_size}-{status.st_mtime_ns}"
        job = file_job(
            name, size=status.st_size, priority=queue, now=datetime.now(UTC), signature=signature, id=id or "file"
        )
        self.broker.enqueue([Entry(job, queue, version=Version(name, signature) if known else None)])
        return job.id

    def push(self, queue: str, *raws: bytes) -> None:
        """Pushes bytes as another program would."""
        if self.broker.kind == "redis":
            self.server_client().lpush(self.config.worker.queues[queue], *raws)
        else:
            for raw in raws:
                push_raw(self.broker, queue, raw)

    def server_client(self) -> Any:
        """A plain client of the Redis server."""
        from redis import Redis

        host, _, port = str(self.settings["redis.addr"]).partition(":")
        return Redis(host=host, port=int(port), db=int(str(self.settings.get("redis.db", 0))))

    def record(self, id: str) -> Record:
        record = self.broker.records([id])[0]
        assert record is not None, f"there is no record of {id}"
        return record

    def job(self, id: str) -> Job:
        return decode(self.record(id).raw)

    def states(self, ids: list[str]) -> Counter[str]:
        return Counter("none" if r is None else r.state.value for r in self.broker.records(ids))

    def wait_for(self, state: State, ids: list[str], timeout_s: float = 30.0) -> None:
        """Waits until all of these jobs are in that state."""
        try:
            wait_until(lambda: self.states(ids)[state] == len(ids), timeout_s)
        except TimeoutError:
            raise AssertionError(f"wanted {len(ids)} {state}, got {self.states(ids)}") from None

    def wait_ended(self, ids: list[str], timeout_s: float = 30.0) -> Counter[str]:
        """Waits until each of these jobs has ended; returns how many are in which state."""
        ended = (State.COMPLETED, State.DEAD, State.CANCELLED)
        try:
            wait_until(lambda: sum(self.states(ids)[state] for state in ended) == len(ids), timeout_s)
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
        """The ids of the jobs that were logged with that word, in order."""
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
        """Lets the handlers that wait for this file continue."""
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
    """The setting `handlers` that routes every file to this function of the module with the handlers."""
    more = "".join(f", {name}: {json.dumps(value)}" for name, value in options.items())
    return f'[{{match: "**/*", use: "{MODULE}:{function}"{more}}}]'


def ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{n}" for n in range(count)]


def is_running(pid: int) -> bool:
    """Whether this process exists and is not a zombie."""
    return _state(pid) not in ("", "Z")


def is_still_running(line: Line) -> bool:
    """Whether the process that wrote this line still runs; another process with the same pid does not count."""
    ticks = _status(line.pid)[19:20]
    if not ticks or not is_running(line.pid):
        return False
    age_s = float(Path("/proc/uptime").read_text().split()[0]) - int(ticks[0]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s < line.at_s + 0.1


def _state(pid: int) -> str:
    """The state of a process as a letter of /proc; "" if it does not exist."""
    return "".join(_status(pid)[:1])


def _status(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def let_time_pass(seconds: float) -> None:
    """Waits, in a test about the time itself."""
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until_s, seconds + 5)
