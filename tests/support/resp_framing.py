"""Where a request of the Redis protocol ends, and how many replies have arrived."""

import hiredis


class RequestReader:
    """Cuts what a client sends into requests: arrays of bulk strings, or lines."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_midway(self) -> bool:
        return bool(self._rest)

    def feed(self, chunk: bytes) -> list[bytes]:
        data, start, requests = self._rest + chunk, 0, []
        while (end := self._end(data, start)) is not None:
            requests.append(data[start:end])
            start = end
        self._rest = data[start:]
        return requests

    @staticmethod
    def _end(data: bytes, start: int) -> int | None:
        """Where the request that begins at `start` ends; None if it is not all there."""
        at = data.find(b"\n", start) + 1
        if at == 0:
            return None
        parts = int(data[start + 1 : at]) if data[start : start + 1] == b"*" else 0
        for _ in range(parts):
            line_end = data.find(b"\n", at) + 1
            if line_end == 0:
                return None
            at = line_end + int(data[at + 1 : line_end]) + 2
        return at if at <= len(data) else None


class ReplyCounter:
    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=self)

    def feed(self, chunk: bytes) -> int:
        """How many replies this completes; pushed messages are none."""
        self._reader.feed(chunk)
        count = 0
        while (reply := self._reader.gets()) is not self:
            count += not isinstance(reply, hiredis.PushNotification)
        return count
