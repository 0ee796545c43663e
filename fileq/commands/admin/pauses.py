"""Pauses and resumes queues. Beside each pause is a note: who paused it, when and why, and the pauses before. A note
decides nothing: a queue without one may be paused, because another program paused it.

A note is written after its queue was paused. Before the queue is resumed, the pause is added to the queue's history and
its note is removed. So a kill -9 leaves no note of a pause that has ended, and at most a pause without a note; the
same pause is never twice in the history. Notes and histories are documents of the catalog, by the name of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from msgspec import Struct

from fileq.brokers.catalog import Catalog, Table, is_name
from fileq.brokers.protocol import FullBroker
from fileq.core.documented import means
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.job import stamp

REASON_LENGTH = 1_000
PAST_MAX, PAST_TEXT_MAX = 20, 200  # pauses in the history of a queue; characters of each of their texts


class PauseNote(Struct, frozen=True):
    by: str
    at: str
    reason: Annotated[str, means("empty if none was given")] = ""


class PastPause(Struct, frozen=True):
    """A pause that has ended. Its texts are shortened."""

    start: str
    end: str
    by: str
    reason: str = ""


NOTES = Table[PauseNote]("pauses", PauseNote)
HISTORIES = Table[tuple[PastPause, ...]]("past-pauses", tuple[PastPause, ...])  # the oldest pause first


def end_note(catalog: Catalog, queue: str, note: PauseNote | None, now_ms: int) -> None:
    """Adds the pause to the history, then removes its note. A full broker takes no history: the queue is resumed all
    the same."""
    if not is_name(queue):
        return
    if note is not None:
        ended = PastPause(note.at, stamp(now_ms) or "", _short(note.by), _short(note.reason))

        def added(known: tuple[PastPause, ...] | None) -> tuple[PastPause, ...]:
            """Another process may add the same pause at this moment: then the one that was first stays."""
            known = known or ()
            return known if any(one.start == ended.start for one in known) else (*known, ended)[-PAST_MAX:]

        with suppress(BrokerError):
            HISTORIES.change(catalog, queue, added)
    NOTES.remove(catalog, queue)


def _short(text: str) -> str:
    return text if len(text) <= PAST_TEXT_MAX else f"{text[: PAST_TEXT_MAX - 1]}…"


class PauseResult(Struct, frozen=True):
    queue: str
    is_paused: Annotated[bool, means("the state after the command")]
    has_changed: Annotated[bool, means("false if it already was")]
    waiting: Annotated[int, means("jobs in the queue")]
    reason: Annotated[str, means("why it is paused; empty if unknown")] = ""
    old_reason: Annotated[str, means("why it was paused before the command")] = ""


def check_queues(named: Sequence[str], queues: Sequence[str]) -> None:
    """ConfigError for names that are not queues, all of them at once."""
    known = ", ".join(queues)
    if unknown := [name for name in named if name not in queues]:
        raise ConfigError([f"no queue is named {name!r}; the queues are {known}" for name in unknown])


def set_paused(
    broker: FullBroker, queue: str, queues: Sequence[str], *, paused: bool, by: str, reason: str = ""
) -> PauseResult:
    """Pauses or resumes a queue. Idempotent. `by` is who does it: others see who has paused a queue, and the reason. A
    reason for a queue that is paused already replaces the one before."""
    check_queues([queue], queues)
    census = broker.census()
    has_changed = (queue in census.paused) != paused
    note = NOTES.get(broker, queue)
    old_reason = note.reason if note is not None and queue in census.paused else ""
    if not paused:
        end_note(broker, queue, note if has_changed else None, census.now_ms)
        broker.resume(queue)
        return PauseResult(queue, False, has_changed, census.pending[queue], "", old_reason)
    broker.pause(queue)
    reason = reason.strip()
    if has_changed or note is None:
        note = PauseNote(by, stamp(census.now_ms) or "", reason) if has_changed or reason else None
    elif reason:
        note = PauseNote(note.by, note.at, reason)
    if note is not None and is_name(queue):  # another name can't be that of a document
        NOTES.put(broker, queue, note)
    new_reason = note.reason if note is not None else ""
    return PauseResult(queue, True, has_changed, census.pending[queue], new_reason, old_reason)
