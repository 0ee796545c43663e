"""How jobs that come in travel to the scripts: entries, follow-ups and outputs, in the order of lua/prelude/entries.lua
and lua/prelude/follow_ups.lua."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fileq.brokers.redis.keys import Keys
from fileq.brokers.redis.scripts import Argument
from fileq.brokers.types import Entry, entry_of, origin_of_entry
from fileq.core.job import Version, encode
from fileq.core.outcome import FollowUp, Output

_NO_VERSION = Version(b"", "")
_encoder = msgspec.json.Encoder()


def entry_args(entry: Entry, keys: Keys) -> tuple[Argument, ...]:
    job, version = entry.job, entry.version or _NO_VERSION
    return (
        job.id,
        encode(job),
        keys.queue_numbers[entry.queue],
        version.path,
        version.signature,
        version.device,
        ("a" if entry.always else "") + ("d" if entry.fills_delivery else ""),
        entry.delay_ms,
        entry.at_ms,
        job.unique_key or "",
        (job.batch_id or "") if entry.joins else "",
        origin_of_entry(entry),
        "" if (deadline_ms := job.deadline_ms) is None else deadline_ms,
    )


def is_plain_entry(entry: Entry) -> bool:
    """Whether lua/enqueue_plain.lua can enqueue it."""
    is_due = not entry.delay_ms and not entry.at_ms
    is_special = entry.joins or entry.is_own or entry.job.deadline is not None
    return is_due and entry.version is None and entry.job.unique_key is None and not is_special


def extra_keys(follow_ups: Sequence[FollowUp], keys: Keys, outputs: Sequence[Output] = ()) -> tuple[str, ...]:
    records = (keys.record(follow_up.job.id) for follow_up in follow_ups)
    return keys.unique, *records, *(keys.made(output.path) for output in outputs)


def extra_args(follow_ups: Sequence[FollowUp], keys: Keys, outputs: Sequence[Output] = ()) -> tuple[Argument, ...]:
    args: list[Argument] = [len(follow_ups)]
    for follow_up in follow_ups:
        args += entry_args(entry_of(follow_up), keys)
    return *args, len(outputs), _encoder.encode(outputs) if outputs else b""
