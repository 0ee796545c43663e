"""Batches on Redis: batches.Batches over a RedisStore.

A hash has the facts and counts of a batch, sets have the ids of its members. Every verb is one script. What a script
does when a job ends is in lua/prelude/batches.lua. A kill -9 leaves each call executed or not received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fileq.brokers.batches import (
    CHILDREN_CANCELLED,
    MEMBERS_PAGE,
    BatchPage,
    JoinResult,
    MemberPage,
    NewBatch,
    check_new_batch,
    parent_refused,
    too_deep,
)
from fileq.brokers.catalog import check_name, is_name
from fileq.brokers.redis.scripts import Argument
from fileq.brokers.redis.store import RedisStore
from fileq.core.batch import Batch, BatchState, Callback, CallbackKind
from fileq.core.errors import BrokerError
from fileq.core.job import decode

_PAGE = 500
_COUNTS = ("total", "completed", "dead", "cancelled", "deleted")
_VIEWS = 100  # batches that one script call reads


class RedisBatches:
    """batches.Batches on Redis."""

    _store: RedisStore

    def create_batch(self, new: NewBatch) -> bool:
        store = self._store
        check_new_batch(new, store.queues)
        keys = self._keys_of(new.id)
        if new.parent:
            keys += store.keys.of_batch(new.parent)
        reply, is_repeated = store.link.reply_of(store.scripts.command("create_batch", keys, _creation_args(new)))
        word = reply.decode()
        if word not in ("created", "taken"):
            raise _refusal(new, word)
        return word == "created" or (is_repeated and self._is_created_as(new))

    def _is_created_as(self, new: NewBatch) -> bool:
        """Whether the first sending, whose reply was lost, has created the batch. The bytes of callbacks differ from
        caller to caller."""
        fields = self._store.call("HGETALL", self._store.keys.of_batch(new.id)[0])
        stored = dict(zip(fields[::2], fields[1::2], strict=True))
        wanted = {b"name": new.name.encode(), b"parent": new.parent.encode(), b"info": new.info}
        wanted |= {b"callback:" + c.kind.encode(): c.raw for c in new.callbacks}
        return stored.items() >= wanted.items()

    def seal_batch(self, id: str) -> bool:
        return bool(self._run("seal_batch", id))

    def cancel_batch(self, id: str, *, untouched_since_ms: int | None = None) -> bool:
        since: Argument = "" if untouched_since_ms is None else untouched_since_ms
        return bool(self._run("cancel_batch", id, (self._store.keys.cancels,), (since, CHILDREN_CANCELLED)))

    def join_batch(self, id: str, job_ids: Sequence[str]) -> list[JoinResult]:
        pages = (job_ids[start : start + _PAGE] for start in range(0, len(job_ids), _PAGE))
        words = (word for page in pages for word in self._run("join_batch", id, self._records(page), page))
        return [JoinResult(word.decode()) for word in words]

    def count_members(self, id: str, job_ids: Sequence[str]) -> int:
        counted: int = self._run("count_members", id, self._records(job_ids), job_ids)
        return counted

    def _run(self, script: str, id: str, keys: Sequence[str] = (), args: Sequence[Argument] = ()) -> Any:
        check_name("batch", id)
        return self._store.run(script, (*self._keys_of(id), *keys), (id, *args))

    def _keys_of(self, id: str) -> tuple[str, ...]:
        keys = self._store.keys
        return *keys.of_batch(id), keys.batches, keys.unfinished_batches

    def _records(self, ids: Sequence[str]) -> list[str]:
        return [self._store.keys.record(id) for id in ids]

    # what is read

    def batches_by_id(self, ids: Sequence[str]) -> list[Batch | None]:
        possible = [id for id in ids if is_name(id)]
        pages = (possible[start : start + _VIEWS] for start in range(0, len(possible), _VIEWS))
        batches = iter([batch for page in pages for batch in self._read(page)])
        return [next(batches) if is_name(id) else None for id in ids]

    def _read(self, ids: Sequence[str]) -> list[Batch | None]:
        keys: list[str] = []
        for id in ids:
            batch, members, _, _, children = self._store.keys.of_batch(id)
            keys += (batch, members, children)
        rows = self._store.run("batch_views", keys, (*self._store.keys.split_patterns()[:2], *ids))
        return [_as_batch(id, row) for id, row in zip(ids, rows, strict=True)]

    def batch_page(self, cursor: str = "", limit: int = 100, *, unfinished: bool = False) -> BatchPage:
        """The cursor is the time of the last batch, and how many of the same time came before: ids keep their order."""
        keys = self._store.keys
        key = keys.unfinished_batches if unfinished else keys.batches
        time, _, skipped = cursor.partition(".")
        window = ("BYSCORE", "REV", "LIMIT", skipped or 0, limit, "WITHSCORES")
        flat = self._store.call("ZRANGE", key, time or "+inf", "-inf", *window)
        ids = [id.decode() for id in flat[::2]]
        batches = tuple(filter(None, self.batches_by_id(ids)))
        if len(ids) < limit:
            return BatchPage(batches)
        last = flat[-1].decode()
        before = sum(score == flat[-1] for score in flat[1::2])
        return BatchPage(batches, f"{last}.{before + int(skipped or 0) if last == time else before}")

    def unfinished_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._member_page(self._store.keys.of_batch(check_name("batch", id))[1], cursor, limit)

    def dead_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        return self._member_page(self._store.keys.of_batch(check_name("batch", id))[2], cursor, limit)

    def _member_page(self, key: str, cursor: str, limit: int) -> MemberPage:
        next_cursor, ids = self._store.call("SSCAN", key, cursor or "0", "COUNT", limit)
        found = tuple(id.decode(errors="replace") for id in ids)
        return MemberPage(found, next_cursor.decode() if int(next_cursor) else "")


def _refusal(new: NewBatch, word: str) -> BrokerError:
    """The error for an answer of create_batch.lua."""
    if word == "deep":
        return too_deep(new.id)
    if word == "unknown":
        return parent_refused(new.id, None, new.parent)
    is_cancelled = word == "cancelled"
    state = BatchState.OPEN if is_cancelled else BatchState(word)
    return parent_refused(new.id, Batch(new.parent, state=state, is_cancelled=is_cancelled), new.parent)


def _creation_args(new: NewBatch) -> list[Argument]:
    args: list[Argument] = [new.id, new.name, new.parent, int(new.allow_failures), new.info]
    for callback in new.callbacks:
        deadline_ms = decode(callback.raw).deadline_ms
        args += (callback.kind.value, callback.queue, callback.raw, "" if deadline_ms is None else deadline_ms)
    return args


def _as_batch(id: str, row: Sequence[Any]) -> Batch | None:
    flat, unfinished, running = row
    if not flat:
        return None
    fields: Mapping[str, bytes] = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    words = {name: value.decode(errors="replace") for name, value in fields.items()}
    facts: dict[str, Any] = {name: int(words[name]) for name in _COUNTS}
    facts |= {f"{name}_ms": int(words[name]) for name in ("created", "touched", "sealed", "finished")}
    facts |= {name: words[name] for name in ("name", "parent", "dead_id", "dead_error")}
    facts |= {name: words[name] == "1" for name in ("allow_failures", "is_cancelled", "is_counted")}
    return Batch(
        id=id,
        state=BatchState(words["state"]),
        unfinished=unfinished,
        running=running,
        callbacks=tuple(
            Callback(kind, fields[f"callback:{kind}"], words[f"queue:{kind}"])
            for kind in CallbackKind
            if f"callback:{kind}" in fields
        ),
        fired=tuple(CallbackKind(kind) for kind in words["fired"].split()),
        info=fields["info"],
        **facts,
    )
