"""How waiting jobs are cancelled on Redis: by their ids, or near the front of a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fileq.brokers.redis.entry_encoding import extra_args, extra_keys
from fileq.brokers.redis.list_search import PROOF_FIELDS, SearchedJob, SearchScript, proof_of, run_searching
from fileq.brokers.redis.scripts import Argument
from fileq.brokers.redis.store import RedisStore
from fileq.brokers.types import CLEAR_REACH, CancelResult
from fileq.core.follow_up import FollowUp
from fileq.core.job import decode_or_none


def cancel_by_id(
    store: RedisStore, ids: Sequence[str], follow_ups: Mapping[str, Sequence[FollowUp]]
) -> list[CancelResult]:
    removes, head_keys = frozenset([b"cancelled"]), (store.keys.cancels,)
    script = SearchScript("cancel_by_id", removes=removes, takes_proofs=True, head_keys=head_keys)

    def describe(numbers: Sequence[int]) -> list[SearchedJob]:
        some = [ids[i] for i in numbers]
        found = store.calls_in_batches([("HMGET", store.keys.record(id), *PROOF_FIELDS) for id in some])
        return [_cancellable(store, id, values, follow_ups.get(id, ())) for id, values in zip(some, found, strict=True)]

    return [CancelResult(word.decode()) for word in run_searching(store, script, len(ids), describe)]


def _cancellable(
    store: RedisStore, id: str, values: Sequence[bytes | None], follow_ups: Sequence[FollowUp]
) -> SearchedJob:
    state, raw, queue = values[0], values[1] or b"", (values[2] or b"").decode(errors="replace")
    keys = store.keys
    key = keys.list_of(queue) if state == b"pending" and queue in keys.queue_numbers else None
    own_keys = (keys.record(id), *extra_keys(follow_ups, keys))
    return SearchedJob(own_keys, extra_args(follow_ups, keys), key or "", raw, proof_of(values))


def clear(
    store: RedisStore, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]]
) -> list[bool]:
    """One script call. Bytes that are not a job stay."""
    keys: list[str] = []
    args: list[Argument] = [store.keys.queue_numbers[queue], CLEAR_REACH]
    sent: list[int] = []
    for i, raw in enumerate(raws):
        if (job := decode_or_none(raw)) is not None:
            some = follow_ups.get(job.id, ())
            keys += (store.keys.record(job.id), *extra_keys(some, store.keys))
            args += (raw, *extra_args(some, store.keys))
            sent.append(i)
    answers = dict(zip(sent, store.run("clear", keys, args) if keys else (), strict=True))
    return [bool(answers.get(i)) for i in range(len(raws))]
