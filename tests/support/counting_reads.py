"""A broker that counts what lists read from it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fileq.brokers.place_pages import Page
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.core.job import State


class CountingReads:
    """`read` counts the records, outlines and states that the broker has returned, and the pages of each place."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self.read = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        self.read["records"] += len(ids)
        return self._broker.records(ids)

    def outlines(self, ids: Sequence[str]) -> list[Record | None]:
        self.read["outlines"] += len(ids)
        return self._broker.outlines(ids)

    def states(self, ids: Sequence[str]) -> list[State | None]:
        self.read["states"] += len(ids)
        return self._broker.states(ids)

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        self.read[place] += 1
        return self._broker.page(place, cursor, size)
