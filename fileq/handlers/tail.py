"""The last bytes of a stream, for records and errors: bounded, however much is written."""

from __future__ import annotations


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.is_cut = False

    def add(self, chunk: bytes) -> None:
        self._kept += chunk
        if len(self._kept) > self._limit:
            del self._kept[: -self._limit]
            self.is_cut = True

    def text(self) -> str:
        kept = bytes(self._kept)
        if self.is_cut:
            kept = kept.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that was cut
        return ("…" if self.is_cut else "") + kept.decode("utf-8", "replace")
