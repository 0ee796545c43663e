"""How waiting jobs leave their places on Redis: cancelled by their ids or near the front of a queue, or buried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fileq.brokers.redis.encoding import settlement_args, settlement_keys
from fileq.brokers.redis.entry_encoding import extra_args, extra_keys
from fileq.brokers.redis.keys import Keys
from fileq.brokers.redis.list_search import PROOF_FIELDS, SearchedJob, SearchScript, proof_of, run_searching
from fileq.brokers.redis.scripts import Argument
from fileq.brokers.redis.store import RedisStore
from fileq.brokers.types import CLEAR_REACH, CancelResult
from fileq.core.job import decode_or_none
from fileq.core.outcome import FollowUp
from fileq.core.settlement import Settlement, SettleResult


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
    keys = store.keys
    own_keys = (keys.record(id), *extra_keys(follow_ups, keys))
    return SearchedJob(
        own_keys, extra_args(follow_ups, keys), _list_with(keys, values), values[1] or b"", proof_of(values)
    )


def _list_with(keys: Keys, values: Sequence[bytes | None]) -> str:
    """The list that holds the job of a record with these PROOF_FIELDS; "" if it is in none."""
    state, queue = values[0], (values[2] or b"").decode(errors="replace")
    return keys.list_of(queue) or "" if state == b"pending" and queue in keys.queue_numbers else ""


def bury_overdue(store: RedisStore, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
    script, keys = SearchScript("bury_overdue", removes=frozenset([b"done"]), takes_proofs=True), store.keys

    def describe(numbers: Sequence[int]) -> list[SearchedJob]:
        some = [settlements[i] for i in numbers]
        found = store.calls_in_batches([("HMGET", keys.record(s.claim.id), *PROOF_FIELDS) for s in some])
        return [
            SearchedJob(
                settlement_keys(s, keys),
                settlement_args(s, keys),
                _list_with(keys, values),
                s.claim.raw,
                proof_of(values),
            )
            for s, values in zip(some, found, strict=True)
        ]

    return tuple(SettleResult(word.decode()) for word in run_searching(store, script, len(settlements), describe))


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
