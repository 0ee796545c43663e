"""The operations of clients on batches, through a server. The rules are the server's; nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from fileq.brokers.batches import BatchPage, BatchView
from fileq.client.http_connection import HttpReply
from fileq.client.http_documents import BatchReply, JobReply
from fileq.client.http_problems import error_of
from fileq.client.http_requests import job_fields
from fileq.client.transport import BatchRequest, BatchRetry, DeadPage

Call = Callable[..., HttpReply]


class _Changed(Struct, frozen=True):
    has_changed: bool


class _BatchList(Struct, frozen=True):
    batches: tuple[BatchReply, ...]
    next_cursor: str | None = None


class _MemberList(Struct, frozen=True):
    jobs: tuple[JobReply, ...]
    next_cursor: str | None = None


class HttpBatches:
    """Implements BatchTransport."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def create(self, request: BatchRequest) -> None:
        body: dict[str, Any] = {
            "id": request.id,
            "name": request.name,
            "parent": request.parent,
            "allow_failures": request.allow_failures,
            "priority": request.priority,
            **{one.kind.value: job_fields(one.job) for one in request.callbacks},
        }
        reply = self._call("POST", "/batches", body=msgspec.json.encode(body))
        if reply.status not in (200, 201):
            raise error_of(reply)

    def by_id(self, ids: Sequence[str]) -> list[BatchView | None]:
        return [self._one(id) for id in ids]

    def page(self, cursor: str, limit: int, *, unfinished: bool) -> BatchPage:
        query = [("limit", str(limit)), *([("cursor", cursor)] if cursor else [])]
        query += [("unfinished", "true")] if unfinished else []
        found = self._decoded(self._call("GET", "/batches", query=query), _BatchList)
        return BatchPage(tuple(one.view() for one in found.batches), found.next_cursor or "")

    def seal(self, id: str) -> bool:
        return self._change(id, "seal")

    def cancel(self, id: str) -> bool:
        return self._change(id, "cancel")

    def retry(self, id: str) -> BatchRetry:
        found: BatchRetry = self._decoded(self._call("POST", f"{_path(id)}/retry"), BatchRetry)
        return found

    def dead_page(self, id: str, cursor: str) -> DeadPage:
        query = [("cursor", cursor)] if cursor else []
        found = self._decoded(self._call("GET", f"{_path(id)}/dead", query=query), _MemberList)
        return DeadPage(tuple(one.record() for one in found.jobs), found.next_cursor or "")

    def _one(self, id: str) -> BatchView | None:
        reply = self._call("GET", _path(id))
        return None if reply.status == 404 else self._decoded(reply, BatchReply).view()

    def _change(self, id: str, verb: str) -> bool:
        reply = self._call("POST", f"{_path(id)}/{verb}")
        if reply.status == 404:
            return False
        # The answer to the first try may be lost: then the change is this caller's own.
        return self._decoded(reply, _Changed).has_changed or reply.is_repeat

    def _decoded(self, reply: HttpReply, type: type[Any]) -> Any:
        if reply.status != 200:
            raise error_of(reply)
        return msgspec.json.decode(reply.body, type=type)


def _path(id: str) -> str:
    return f"/batches/{quote(id, safe='')}"
