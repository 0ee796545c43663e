"""The events of the REST server."""

from __future__ import annotations

from fileq.core.events import Event


class ServerOpened(Event, frozen=True):
    """The REST server listens. `url` is its address as seen from this machine."""

    name = "server.opened"

    url: str
    is_read_only: bool


class ServerWarned(Event, frozen=True):
    """The web server reports something, such as a request that it can't read."""

    name = "server.warned"
    level = "warning"

    reason: str


class UploadsRemoved(Event, frozen=True):
    """Incomplete uploads were removed from server.upload_dir. The server that had received them was killed."""

    name = "uploads.removed"

    count: int
    directory: str


class RequestAudited(Event, frozen=True):
    """A request that may change something: who sent it, what it did, to how many things, and the answer's status."""

    name = "request.audited"

    who: str
    caller_id: str
    action: str
    target: str
    count: int
    result: int
    request_id: str


class LoginsFailed(Event, frozen=True):
    """Passwords, keys or one-time links were wrong: how many, and from how many addresses. Those that come together are
    one event, at most one in ten minutes. `address` and `how` (basic, key or link) are those of the last one."""

    name = "logins.failed"
    level = "warning"

    failures: int
    addresses: int
    address: str
    how: str


class RequestFailed(Event, frozen=True):
    """A defect in fileq: a request was answered with status 500."""

    name = "request.failed"
    level = "error"
    hidden = ("exception",)

    action: str
    request_id: str
    error: str
    exception: BaseException


class OperationStarted(Event, frozen=True):
    """A server works on an operation from now on. `is_resumed`: another server, or this one before a restart, had begun
    it; `done` jobs are changed already."""

    name = "operation.started"

    id: str
    action: str
    matched: int
    done: int
    is_resumed: bool


class OperationEnded(Event, frozen=True):
    """An operation has ended. `state` is completed, stopped or failed. `refused` jobs could not be changed."""

    name = "operation.ended"

    id: str
    action: str
    state: str
    done: int
    refused: int
    error: str
