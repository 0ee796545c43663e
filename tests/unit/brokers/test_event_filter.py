"""Which `job:started` the lines of `fileq events` leave out, and when the others appear. The test moves the clock."""

from __future__ import annotations

import msgspec

from fileq.brokers.types import WireEvent
from fileq.cli.follow_events import HOLD_S, EventFilter
from tests.support.clocks import ManualClocks


class Setup:
    def __init__(self, hold_s: float = HOLD_S) -> None:
        self.clocks = ManualClocks()
        self.shown: list[str] = []
        self.events = EventFilter(self._show, hold_s, monotonic=self.clocks.monotonic)

    def _show(self, event: bytes) -> None:
        e = msgspec.json.decode(event, type=WireEvent)
        self.shown.append(f"{e.event.removeprefix('job:')} {e.job_id}")

    def add(self, *words: str) -> None:
        for word in words:
            name, id = word.split()
            event = WireEvent(f"job:{name}", id, None, "low", "w1", 0, "", 0)
            self.events.add(msgspec.json.encode(event))


def test_a_start_that_ends_in_a_deferral_is_left_out() -> None:
    setup = Setup()
    setup.add("created a", "started a", "deferred a", "started a", "deferred a")
    assert setup.shown == ["created a", "deferred a", "deferred a"]


def test_a_start_appears_after_a_moment_or_when_its_job_has_ended() -> None:
    setup = Setup()
    setup.add("started a", "completed a", "started b", "created c")
    assert setup.shown == ["started a", "completed a"], "the others keep their order"
    assert setup.events.wait_s() == HOLD_S
    setup.clocks.advance(HOLD_S)
    assert setup.events.wait_s() == 0.0
    setup.events.show_due()
    assert setup.shown[2:] == ["started b", "created c"]
    setup.add("deferred b")
    assert setup.shown[4:] == ["deferred b"]


def test_at_the_end_everything_that_is_held_appears() -> None:
    setup = Setup()
    setup.add("started a", "started b", "deferred b")
    setup.events.show_all()
    assert setup.shown == ["started a", "deferred b"]


def test_without_a_hold_every_event_is_passed_on_at_once() -> None:
    setup = Setup(hold_s=0.0)
    setup.add("started a", "deferred a")
    assert setup.shown == ["started a", "deferred a"]
