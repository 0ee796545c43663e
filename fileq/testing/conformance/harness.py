"""The interface between the conformance tests and one broker under test.

A test knows only a Harness, never the broker behind it. The harness controls the broker's clock: time stands still
until a test calls `advance`. It also does what no method of a broker does: it writes as another program would, and it
damages the store for the tests of repairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Protocol

from fileq.brokers.protocol import FullBroker
from fileq.config import Config, config_from

# In the middle of an hour, so that a test does not cross the border between two hourly counters.
START_MS = 1_800_000_000_000 + 20 * 60 * 1000


class FakeClock:
    """Milliseconds since the epoch; they change only when a test changes them."""

    def __init__(self, ms: int = START_MS) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


class Harness(ABC):
    """One empty broker and what a test may do to it. Implement this class for the broker under test.

    `config` is the broker's configuration, `broker` the client that most tests use."""

    broker: FullBroker
    # Whether leases and rate-limit windows end to the millisecond of the fake clock. Set it to False for a store whose
    # server expires them by its own clock; a test then accepts a remaining time that is a little shorter.
    is_exact = True

    def __init__(self, config: Config, clock: FakeClock | None = None) -> None:
        self.config = config
        self.clock = clock or FakeClock()
        self._others: list[FullBroker] = []

    def advance(self, seconds: float) -> None:
        """Lets time pass on every clock that the broker reads; override it for a store with a clock of its own."""
        self.clock.ms += round(seconds * 1000)

    @abstractmethod
    def open(self) -> FullBroker:
        """Opens another client of the same store, as another process would."""

    def another(self) -> FullBroker:
        """Opens another client and closes it together with the harness."""
        other = self.open()
        self._others.append(other)
        return other

    @abstractmethod
    def push_raw(self, queue: str, raw: bytes) -> None:
        """Puts bytes at the end of a queue without the broker, as another program does."""

    @abstractmethod
    def schedule_raw(self, raw: bytes, due_ms: int) -> None:
        """Puts bytes into `scheduled` without the broker, as another program does."""

    @abstractmethod
    def remove_registration(self, slot: str) -> None:
        """Removes a slot from the registry and leaves its lease and its job, as a failover that loses one write."""

    @abstractmethod
    def remove_record(self, id: str) -> None:
        """Removes the record of a job and nothing else."""

    @abstractmethod
    def remove_raw(self, place: str, raw: bytes, slot: str = "") -> None:
        """Removes a job from a queue, `scheduled`, `dead_letter` or the slot's `processing`, and nothing else."""

    @abstractmethod
    def change_counter(self, name: str, by: int) -> None:
        """Adds `by` to a counter, which is wrong from then on."""

    def close(self) -> None:
        for other in self._others:
            other.close()
        self.broker.close()


class OpenHarness(Protocol):
    """What the fixture `open_harness` returns: opens a harness on a new, empty store."""

    def __call__(self, settings: Mapping[str, Any], clock: FakeClock | None = None) -> Harness: ...


MakeHarness = Callable[..., Harness]


@contextmanager
def harness_maker(open_harness: OpenHarness) -> Iterator[MakeHarness]:
    """Yields make(**{"worker.completed_max": 5}), which opens a harness with these settings; closes all at the end."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Harness:
            return stack.enter_context(closing(open_harness(settings)))

        yield make


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Turns {"worker.count": 2} into the tree of a configuration file."""
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree


def config_of(kind: str, settings: Mapping[str, Any]) -> Config:
    """The configuration for a broker of this kind with dotted settings: {"worker.count": 2}."""
    return config_from(nested({"broker": kind, **settings}))
