"""Which jobs no worker would take, by what running workers say of themselves. Imports no handler: decorated ones are
known only from what workers report. Another machine may have the handler, so none of this is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from fileq.brokers.local_processes import this_process
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import WorkerInfo, WorkerView
from fileq.config import Config
from fileq.core.errors import BrokerUnavailable, FileqError
from fileq.core.job import Job
from fileq.core.own_jobs import is_own_type
from fileq.core.text import did_you_mean, quoted_path
from fileq.files.paths import below_root

if TYPE_CHECKING:
    from fileq.files.globs import Globs

REREAD_S = 2.0
NOTED_MAX = 10_000  # types
Known = Callable[[WorkerInfo], tuple[str, ...] | None]  # what a worker says of itself; None if it does not


def note_of_unknown_types(types: Iterable[str], config: Config, workers: Iterable[WorkerView]) -> str:
    """Names the types that no living worker takes; "" if there is none, or if that is unknown. Without workers it is
    known only of a configuration that imports no module."""
    configured = {route.type for route in config.handlers if route.type is not None}
    configured |= {"command"} if config.worker.allow_commands else set()
    who, known = _taken(workers, lambda info: info.types, config, configured)
    if known is None:
        return ""
    lost = [type for type in dict.fromkeys(types) if type not in known and not is_own_type(type)]
    if not lost:
        return ""
    advice = did_you_mean(lost[0], known, "start or reload a worker with that task first")
    return f"{who} jobs of type {', '.join(map(repr, lost))}; they will die when a worker claims them; {advice}"


def note_of_unrouted_files(paths: Iterable[bytes], config: Config, workers: Iterable[WorkerView]) -> str:
    """The same for files, of which it names the first."""
    configured = {route.match for route in config.handlers if route.match is not None}
    who, globs = _taken(workers, lambda info: info.globs, config, configured)
    if globs is None:
        return ""
    from fileq.files.globs import Globs

    match = Globs(globs).match
    names = ((path, config.paths.relative(path).rpartition("/")) for path in dict.fromkeys(paths))
    lost = [path for path, (parent, slash, name) in names if not match(parent + slash, name)]
    if not lost:
        return ""
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return f"{who} {quoted_path(lost[0])}{more}; its job will die when a worker claims it; add a route that matches it"


def _taken(
    workers: Iterable[WorkerView], of: Known, config: Config, configured: set[str]
) -> tuple[str, set[str] | None]:
    """Who does not take the others, and what all living worker processes say together that they take: None if one does
    not say it. Without workers it is what the configuration says, if that alone says it."""
    living = [view.info for view in workers if view.is_alive]
    if not living:
        return "no route takes", configured if config.handlers_are_given and not config.imports else None
    said = [found for info in living if (found := of(info)) is not None]
    is_whole = len(said) == len({(info.host, info.pid, info.loaded_ms) for info in living})
    return "no running worker takes", {one for found in said for one in found} if is_whole else None


class UntakenJobs:
    """Warns of new jobs that no worker takes, and names the worker that takes a job which this one does not. Asks the
    broker only about such a job, and once in REREAD_S: neither may cost a round trip for each job. A broker that can't
    be asked is no error here."""

    def __init__(self, broker: FullBroker, config: Config, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._config = config
        self._monotonic = monotonic
        self._taken: set[str] = set()
        self._workers: Sequence[WorkerView] | None = None
        self._until_s = 0.0

    def warning(self, type: str | None, path: bytes) -> str:
        """About one job: of this type, or else of the file at this path; "" if nothing is wrong or known."""
        if type is not None and (type in self._taken or is_own_type(type)):
            return ""
        workers = self._current() or ()
        if type is None:
            return note_of_unrouted_files([path], self._config, workers)
        note = note_of_unknown_types([type], self._config, workers)
        if not note and workers and len(self._taken) < NOTED_MAX:
            self._taken.add(type)
        return note

    def taker(self, job: Job, queue: str) -> WorkerInfo | None:
        """A running worker of another process whose published routes and roots take this job, and which claims from
        this queue. Raises FileqError if the broker can't be asked."""
        if (workers := self._current()) is None:
            raise BrokerUnavailable("the registry of workers can't be read")
        own = this_process()
        for info in (view.info for view in workers if view.is_alive and queue in view.info.queues):
            if info.process != own and self._takes(info, job):
                return info
        return None

    def _takes(self, info: WorkerInfo, job: Job) -> bool:
        # Both: a worker with the root alone and one with the route alone would leave the job to each other for ever.
        below = below_root(job.path, info.roots) if job.filepath else ""
        if below is None:
            return False
        if job.type is not None:
            return job.type in (info.types or ())
        if not job.filepath or not info.globs:
            return False
        parent, slash, name = below.rpartition("/")
        return _matcher(info.globs).match(parent + slash, name)

    def _current(self) -> Sequence[WorkerView] | None:
        """None if the broker can't be asked."""
        if self._monotonic() >= self._until_s:
            try:
                self._workers = tuple(self._broker.workers())
            except FileqError:
                self._workers = None
            self._until_s = self._monotonic() + REREAD_S
        return self._workers


@lru_cache(maxsize=64)
def _matcher(globs: tuple[str, ...]) -> Globs:
    from fileq.files.globs import Globs

    return Globs(globs)
