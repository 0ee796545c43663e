"""Schedules as a whole: the definition of each in the catalog, and the state that belongs to it.

No single step changes the two together. The definition is written first when a schedule is defined and removed first
when it is removed, and a process that reads both reads the states first. So a state without a definition is left from a
schedule that was being removed, and a definition without a state, or with one of another revision, from one that was
being defined: `repair` completes both, in any process, any number of times. What a kill -9 leaves between two steps is
repaired when the schedule is due, or within a minute.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.catalog import check_name
from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedules import ScheduleState
from fileq.core.schedule import NEVER_MS, ScheduleDocument, decode_document, encode_document, is_same_times, next_slot

KIND = "schedules"  # in the catalog


class KnownSchedule(Struct, frozen=True):
    """What the broker has of one schedule. `problem` says why there is a definition that can't be read."""

    name: str
    state: ScheduleState | None
    document: ScheduleDocument | None
    problem: str = ""
    catalog_revision: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether definition and state belong together, so that it fires."""
        if self.state is None or self.document is None:
            return False
        return self.state.revision == self.document.definition.revision and not self._is_half_paused

    @property
    def _is_half_paused(self) -> bool:
        state, document = self.state, self.document
        return bool(state and document and document.is_paused and not state.is_paused and state.next_ms == NEVER_MS)


def known_schedules(broker: FullBroker) -> dict[str, KnownSchedule]:
    """All schedules by name."""
    states = broker.schedules()  # first: see above
    documents = broker.documents(KIND)
    found = {name: KnownSchedule(name, state, None) for name, state in states.items() if name not in documents}
    for name, document in documents.items():
        try:
            readable = decode_document(document.body)
            found[name] = KnownSchedule(name, states.get(name), readable, catalog_revision=document.revision)
        except ValueError as error:
            found[name] = KnownSchedule(name, states.get(name), None, str(error), document.revision)
    return dict(sorted(found.items()))


def broker_now_ms(broker: FullBroker) -> int:
    """The broker's clock."""
    return broker.promote(0).now_ms


def define(broker: FullBroker, name: str, document: ScheduleDocument, now_ms: int, expected: int | None = None) -> None:
    """Defines a schedule, or replaces its definition and keeps its last and, for the same times, its next slot. The
    note about its last run by hand stays.

    Raises InvalidCron or InvalidZone, and BrokerError for a wrong name, before anything changes; Conflict if the
    document has another revision than `expected`."""
    check_name("schedule", name)
    next_slot(document.definition, now_ms=now_ms)
    known = known_schedules(broker).get(name) or KnownSchedule(name, None, None)
    was = known.document
    # A change of `paused` comes first: repeated after a kill -9, it is still seen as a change.
    if was is not None and known.state is not None and was.is_paused != document.is_paused:
        if document.is_paused:
            broker.pause_schedule(name)
        else:
            broker.resume_schedule(name, next_slot(document.definition, now_ms=now_ms, last_ms=known.state.last_ms))
            known = KnownSchedule(name, broker.schedules().get(name), was)
    noted = document if was is None else replace(document, by_hand_ms=was.by_hand_ms, by_hand_id=was.by_hand_id)
    broker.put_document(KIND, name, encode_document(noted), expected)
    _set_state(broker, name, document, known.state, was, now_ms)


def repair(broker: FullBroker, known: KnownSchedule, now_ms: int) -> None:
    """Completes what a process that was killed has begun. Nothing for a schedule that is complete, or unreadable."""
    if known.is_complete or known.problem:
        return
    if known.document is None:
        broker.remove_schedule(known.name)
    else:
        _set_state(broker, known.name, known.document, known.state, None, now_ms)


def _set_state(
    broker: FullBroker,
    name: str,
    document: ScheduleDocument,
    state: ScheduleState | None,
    was: ScheduleDocument | None,
    now_ms: int,
) -> None:
    definition = document.definition
    if state is None:
        # Paused before it could fire: define_schedule() and pause_schedule() are two steps.
        next_ms = NEVER_MS if document.is_paused else next_slot(definition, now_ms=now_ms)
        state = broker.define_schedule(name, definition.revision, next_ms)
    elif state.revision != definition.revision:
        next_ms = state.next_ms
        if was is None or not is_same_times(was.definition, definition):
            next_ms = next_slot(definition, now_ms=now_ms, last_ms=state.last_ms, was_next_ms=state.next_ms)
        state = broker.define_schedule(name, definition.revision, next_ms)
    if document.is_paused and state.next_ms == NEVER_MS:
        broker.pause_schedule(name)


def remove(broker: FullBroker, name: str, expected: int | None = None) -> bool:
    """Removes a schedule; its jobs stay. False if there is none. Raises Conflict if its definition was changed."""
    was_defined = broker.remove_document(KIND, name, expected)
    return broker.remove_schedule(name) or was_defined


def resume(broker: FullBroker, known: KnownSchedule, now_ms: int) -> bool:
    """Ends a pause; what was due in it is not made up. False if the schedule is not paused."""
    assert known.document is not None
    assert known.state is not None
    next_ms = next_slot(known.document.definition, now_ms=now_ms, last_ms=known.state.last_ms)
    return broker.resume_schedule(known.name, next_ms)
