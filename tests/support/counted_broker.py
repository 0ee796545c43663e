"""A broker that counts the round trips of each of its calls, and knows which of them belong to a scan of a list."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from fileq.commands.webhooks import deliveries, latest_deliveries
from fileq.queries.dead_jobs import group_dead
from fileq.queries.file_pages import file_page, file_tree_and_page
from fileq.queries.job_queries import _RecordSearch
from fileq.queries.job_selection import job_page
from tests.support.fault_proxy import FaultProxy

# Each looks at a bounded number of jobs or files, page by page, and reads the records of those that it returns.
SCANS = (job_page, group_dead, file_page, file_tree_and_page, _RecordSearch.run, deliveries, latest_deliveries)
_CODES = {scan.__code__ for scan in SCANS}


class CountedCall(NamedTuple):
    """`scan` is the call of a function of SCANS that made this one; None outside of them."""

    verb: str
    round_trips: int
    scan: FrameType | None


class CountedBroker:
    """`broker` is connected through the proxy, and no other one is."""

    def __init__(self, broker: Any, proxy: FaultProxy) -> None:
        self._broker = broker
        self._proxy = proxy
        self.calls: list[CountedCall] = []

    @property
    def scans(self) -> int:
        return len({id(call.scan) for call in self.calls if call.scan is not None})  # kept, so no id is used twice

    @property
    def round_trips(self) -> int:
        """Outside of scans."""
        return sum(call.round_trips for call in self.calls if call.scan is None)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._broker, name)
        if not callable(value):
            return value

        def counted(*args: Any, **options: Any) -> Any:
            answer, scan = self._count(name, lambda: value(*args, **options))
            return self._each(name, answer, scan) if isinstance(answer, Iterator) else answer

        return counted

    def _count(self, name: str, call: Any) -> tuple[Any, FrameType | None]:
        before, scan = self._proxy.round_trips, _scan_around()
        answer = call()
        self.calls.append(CountedCall(name, self._proxy.round_trips - before, scan))
        return answer, scan

    def _each(self, name: str, pages: Iterator[Any], scan: FrameType | None) -> Iterator[Any]:
        """The pages of an iterator, which asks the server only when the next one is taken."""
        end = object()
        while True:
            before = self._proxy.round_trips
            page = next(pages, end)
            self.calls.append(CountedCall(name, self._proxy.round_trips - before, scan))
            if page is end:
                return
            yield page


def _scan_around() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _CODES:
        frame = frame.f_back
    return frame
