"""The broker on Redis under repair. Every repair is one script, which looks again before it changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from fileq.brokers.redis.link import Link
from fileq.brokers.redis.names import Names
from fileq.brokers.redis.scripts import Scripts
from fileq.brokers.types import UnrecordedJob

SCAN_COUNT = 1000
_ESCAPE = str.maketrans({c: f"\\{c}" for c in "*?[]\\^"})


class RedisMending:
    link: Link
    names: Names
    scripts: Scripts

    def orphans(self) -> list[str]:
        """Slots that have a processing list and no registry entry."""
        before, after, _, _ = self.names.pattern_halves()
        registered = {slot.decode() for slot in self.link.call("HKEYS", self.names.workers)}
        found = {
            key.decode()[len(before) : len(key.decode()) - len(after)]
            for keys in self._scan(f"{before.translate(_ESCAPE)}*{after.translate(_ESCAPE)}", "list")
            for key in keys
        }
        return sorted(found - registered)

    def _scan(self, pattern: str, kind: str) -> Iterator[list[bytes]]:
        cursor: bytes | int = 0
        while True:
            cursor, keys = self.link.call("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", kind)
            yield keys
            if int(cursor) == 0:
                return

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        prefix = self.names.records
        for keys in self._scan(f"{prefix.translate(_ESCAPE)}*", "hash"):
            found = [key.decode(errors="replace")[len(prefix) :] for key in keys]
            for start in range(0, len(found), size):
                yield found[start : start + size]

    def lost(self, ids: Sequence[str]) -> list[bool]:
        return self._reinstate("look", ids)

    def restore(self, ids: Sequence[str]) -> list[bool]:
        return self._reinstate("mend", ids)

    def _reinstate(self, word: str, ids: Sequence[str]) -> list[bool]:
        if not ids:
            return []
        keys = [self.names.record(id) for id in ids]
        return [bool(n) for n in self.scripts.one("restore", keys, (word, *self.names.pattern_halves()[:2]))]

    def unrecorded(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        return self._rerecord("look", strays)

    def create_record(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        return self._rerecord("mend", strays)

    def _rerecord(self, word: str, strays: Sequence[UnrecordedJob]) -> list[bool]:
        if not strays:
            return []
        keys = chain.from_iterable((self.names.record(stray.record.id), self._key_of(stray)) for stray in strays)
        args = chain.from_iterable(self._stray_args(stray) for stray in strays)
        return [bool(n) for n in self.scripts.one("create_record", tuple(keys), (word, *args))]

    def _key_of(self, stray: UnrecordedJob) -> str:
        if stray.place == "processing":
            return self.names.processing(stray.record.slot)
        return self.names.place(stray.place) or self.names.scheduled

    def _stray_args(self, stray: UnrecordedJob) -> tuple[bytes | str | int, ...]:
        record = stray.record
        number = self.names.number.get(stray.place, 0)
        times = (record.created_ms, record.started_ms, record.ended_ms)
        error = record.error.encode(errors="backslashreplace")
        return (record.raw, number, record.state.value, record.queue, record.slot, *times, error)

    def balance(self, drift: int, becomes: int = 0) -> bool:
        lists = [self.names.processing(slot) for slot in self.orphans()]
        return bool(self.scripts.one("balance", lists, (*self.names.pattern_halves()[:2], drift, becomes)))
