"""A client's transport on a server: the calls of the REST API that do what a broker would do.

Every call can be repeated, so a lost answer is no reason to fail: the id of a new job is made before the first try.
What a kill -9 leaves: each job enqueued completely or not at all; of several requests the first ones.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from fileq.brokers.types import CancelResult, EnqueueResult, Record
from fileq.client.http_batches import HttpBatches
from fileq.client.http_connection import GivenUp, HttpConnections, HttpReply
from fileq.client.http_documents import JobReply
from fileq.client.http_events import HttpSubscription
from fileq.client.http_problems import error_of, problem_in
from fileq.client.http_requests import filter_query, job_fields, trace_headers
from fileq.client.job_endings import RETRY_S, JobEnding, ending_in
from fileq.client.job_filter import JobFilter, StoredJob
from fileq.client.queries import FileTrace
from fileq.client.schedule_options import ScheduleOptions
from fileq.client.server_address import ServerAddress
from fileq.client.transport import BATCH, VETOED, Accepted, JobRequest
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError, JobError
from fileq.core.job import State

WAIT_S = 25.0  # how long one request waits for the end of a job
PAGE = 200  # jobs of one page of a list
WRITES = 5  # tries to define a schedule that others change meanwhile
T = TypeVar("T")


class _JobList(Struct, frozen=True):
    jobs: tuple[JobReply, ...]
    next_cursor: str | None = None


class _BulkItem(Struct, frozen=True):
    id: str
    result: str


class _BulkReply(Struct, frozen=True):
    jobs: tuple[_BulkItem, ...]


class _Stats(Struct, frozen=True):
    queues: dict[str, int]


class _Cancelled(Struct, frozen=True):
    result: CancelResult


class _Cleared(Struct, frozen=True):
    cleared: int
    is_partial: bool


class HttpTransport:
    """Implements Transport. Owns its connections."""

    def __init__(self, address: ServerAddress) -> None:
        self._connections = HttpConnections(address)
        self._call: Callable[..., HttpReply] = self._connections.call

    def enqueue(self, requests: Sequence[JobRequest]) -> list[Accepted]:
        ids = [request.options.id or str(uuid.uuid4()) for request in requests]
        bodies = [{**job_fields(request), "id": id} for request, id in zip(requests, ids, strict=True)]
        if len(requests) == 1:
            return [self._enqueue_one(requests[0], ids[0], bodies[0])]
        accepted: list[Accepted] = []
        for start in range(0, len(requests), BATCH):
            body = msgspec.json.encode({"jobs": bodies[start : start + BATCH]})
            reply = self._call("POST", "/jobs/bulk", body=body, headers=trace_headers(requests[start]))
            found = _decoded(reply, _BulkReply, (200, 201)).jobs
            for item, request, id in zip(found, requests[start:], ids[start:], strict=False):
                accepted.append(Accepted(item.id or id, _fate(item.result, item.id, request, id, reply)))
        return accepted

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        return [self._record(id) for id in ids]

    def ending(self, id: str, timeout_s: float | None, is_stopped: Callable[[], bool]) -> JobEnding | None:
        """By requests that the server answers when the job has ended. Outages are waited out."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_stopped():
            left_s = WAIT_S if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                found = self._wait(id, min(WAIT_S, left_s), is_stopped)
                if found is not None:
                    return found
            except GivenUp:
                return None
            except BrokerUnavailable:
                time.sleep(min(RETRY_S, left_s))
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError
        return None

    def subscribe(self) -> HttpSubscription:
        return HttpSubscription(self._connections)

    def select(self, wanted: JobFilter) -> Iterator[StoredJob]:
        return islice(self._pages(wanted), wanted.limit)

    def local_path(self, path: bytes) -> bytes:
        """As the server shows it: this machine may have the file elsewhere, or not at all."""
        return path

    def trace(self, path: bytes) -> FileTrace:
        reply = self._call("GET", "/files/trace", query=[("path", path.decode(errors="surrogateescape"))])
        return _decoded(reply, FileTrace)

    def size(self, queue: str) -> int:
        queues = _decoded(self._call("GET", "/stats"), _Stats).queues
        if queue not in queues:
            raise ConfigError(f"no queue is named {queue!r}; the queues are {', '.join(queues)}")
        return queues[queue]

    def clear(self, queue: str) -> int:
        """Stops after as many jobs as waited at the beginning, as each request has a limit."""
        left, cleared = self.size(queue), 0
        while left > 0:
            reply = self._call("POST", f"/queues/{quote(queue, safe='')}/clear", query=[("limit", str(left))])
            done = _decoded(reply, _Cleared)
            cleared += done.cleared
            left -= done.cleared
            if not done.is_partial:
                break
        return cleared

    def cancel(self, id: str) -> CancelResult:
        reply = self._call("DELETE", _job_path(id))
        if reply.status == 404:
            return CancelResult.UNKNOWN
        if problem_in(reply).slug == "conflict":
            return CancelResult.ENDED
        result = _decoded(reply, _Cancelled, (200, 202)).result
        return CancelResult.CANCELLED if reply.is_repeat and result is CancelResult.ENDED else result

    def retry(self, id: str, *, is_probe: bool = False) -> None:
        reply = self._call("POST", f"{_job_path(id)}/retry{'?probe=true' if is_probe else ''}")
        slug = problem_in(reply).slug
        if slug == "conflict" and reply.is_repeat:
            record = self._record(id)
            if record is not None and record.state is not State.DEAD:
                return  # the answer to the first try was lost
        if slug in ("conflict", "not-found"):
            raise JobError(problem_in(reply).detail)
        if reply.status != 200:
            raise error_of(reply)

    def schedule(self, name: str, options: ScheduleOptions) -> None:
        path, body = f"/schedules/{quote(name, safe='')}", msgspec.json.encode(options.values())
        for _ in range(WRITES):
            found = self._call("GET", path)
            if found.status not in (200, 404):
                raise error_of(found)
            condition = {"If-Match": found.headers["etag"]} if found.status == 200 else {"If-None-Match": "*"}
            reply = self._call("PUT", path, body=body, headers=condition)
            if reply.status in (200, 201):
                return
            if reply.status != 412:
                raise error_of(reply)
        raise BrokerError(f"schedule {name} was not defined: another program changed it at each try; try again")

    @property
    def batches(self) -> HttpBatches:
        return HttpBatches(self._call)

    def close(self) -> None:
        self._connections.close()

    def _enqueue_one(self, request: JobRequest, id: str, body: dict[str, Any]) -> Accepted:
        reply = self._call("POST", "/jobs", body=msgspec.json.encode(body), headers=trace_headers(request))
        if problem_in(reply).slug == "vetoed":
            return Accepted(id, VETOED)
        if problem_in(reply).slug == "duplicate":
            return Accepted(id, EnqueueResult.DUPLICATE)  # of a job that this key does not see
        found = _decoded(reply, JobReply, (200, 201))
        fate = EnqueueResult.ENQUEUED if reply.status == 201 else EnqueueResult.DUPLICATE
        return Accepted(found.id, _fate(fate, found.id, request, id, reply))

    def _record(self, id: str) -> Record | None:
        reply = self._call("GET", _job_path(id))
        return None if reply.status == 404 else _decoded(reply, JobReply).record()

    def _wait(self, id: str, wait_s: float, is_stopped: Callable[[], bool]) -> JobEnding | None:
        query = [("timeout", f"{wait_s:.3f}")]
        reply = self._call("GET", f"{_job_path(id)}/wait", query=query, is_stopped=is_stopped)
        if reply.status == 404:
            return ending_in(id, None)
        return ending_in(id, _decoded(reply, JobReply, (200, 202)).record())

    def _pages(self, wanted: JobFilter) -> Iterator[StoredJob]:
        query, cursor = filter_query(wanted), ""
        query.append(("limit", str(min(PAGE, wanted.limit or PAGE))))
        while True:
            reply = self._call("GET", "/jobs", query=[*query, *([("cursor", cursor)] if cursor else [])])
            page = _decoded(reply, _JobList)
            yield from (job.stored() for job in page.jobs)
            cursor = page.next_cursor or ""
            if not cursor:
                return


def _decoded(reply: HttpReply, type: type[T], statuses: Sequence[int] = (200,)) -> T:
    """Raises what error_of() says for another status."""
    if reply.status not in statuses:
        raise error_of(reply)
    try:
        return msgspec.json.decode(reply.body, type=type)
    except (msgspec.DecodeError, ValueError) as error:
        raise BrokerError(f"the answer of the server can't be read: {error}; is it a fileq server?") from error


def _fate(fate: str, found_id: str, request: JobRequest, id: str, reply: HttpReply) -> str:
    """A duplicate with an id that was made here is this caller's own job: the answer to an earlier try was lost."""
    is_own = reply.is_repeat and fate == EnqueueResult.DUPLICATE and found_id == id and not request.options.id
    return EnqueueResult.ENQUEUED if is_own else fate


def _job_path(id: str) -> str:
    return f"/jobs/{quote(id, safe='')}"
