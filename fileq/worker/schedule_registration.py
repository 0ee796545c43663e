"""Keeps the schedules of a configuration on the broker: written when a worker starts or reloads, looked at each minute.

Any worker fires any schedule, whichever configuration it comes from. A definition with the same text changes nothing.
Of workers whose configurations have different texts under one name, the one that started last wins.

A schedule that was deleted from a configuration: the worker that starts without it marks it as unclaimed, which stops
nothing. A running worker whose configuration has it removes the mark within a minute. If none does for CLAIM_S, any
worker removes the schedule. So workers with different configurations leave each other's schedules alone.

What a kill -9 leaves: some schedules written and others not; half of one is repaired within a minute (see
brokers/schedule_definitions.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedule_definitions import KIND, KnownSchedule, define, known_schedules, remove, repair
from fileq.config import Config
from fileq.core.errors import BrokerRemoved, BrokerUnavailable, Conflict
from fileq.core.events import Emit, ScheduleBroken, ScheduleDefined, ScheduleRemoved, ScheduleUnclaimed, ignore
from fileq.core.schedule import FROM_CONFIGURATION, ScheduleDocument, encode_document

LOOK_EVERY_S = 60.0
CLAIM_S = 300.0


class ScheduleRegistration:
    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        *,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._emit = emit
        self._monotonic = monotonic
        self._own = {
            name: ScheduleDocument(definition=settings.definition, source=FROM_CONFIGURATION, is_paused=settings.paused)
            for name, settings in config.schedules.items()
        }
        self._looks_s = monotonic()
        self._is_written = False
        self._broken: set[str] = set()

    def turn(self, now_ms: int) -> None:
        """Costs nothing but once a minute, then one call if there is no schedule at all. Raises BrokerUnavailable."""
        if self._monotonic() < self._looks_s:
            return
        if self._own or self._broker.catalog_revision(KIND):
            known = known_schedules(self._broker)
            if not self._is_written:
                self._write(known, now_ms)
            else:
                self._maintain(known, now_ms)
        self._is_written = True
        self._looks_s = self._monotonic() + LOOK_EVERY_S

    def _write(self, known: dict[str, KnownSchedule], now_ms: int) -> None:
        for name, document in self._own.items():
            found = known.get(name)
            is_same = found is not None and found.document is not None and found.document.without_note == document
            if found is None or not is_same or not found.is_complete:
                self._try(name, self._define, document, now_ms)
        for name, found in known.items():
            other = found.document
            if name in self._own or other is None or not other.is_configured or other.unclaimed_ms:
                continue
            self._emit(ScheduleUnclaimed(name, CLAIM_S))
            marked = encode_document(replace(other, unclaimed_ms=now_ms))
            self._try(name, self._put, marked, found)

    def _maintain(self, known: dict[str, KnownSchedule], now_ms: int) -> None:
        for name, document in self._own.items():
            found = known.get(name)
            if found is None or (found.document is not None and found.document.unclaimed_ms):
                self._try(name, self._define, document, now_ms)
        for name, found in known.items():
            unclaimed_ms = found.document.unclaimed_ms if found.document is not None else 0
            if name not in self._own and unclaimed_ms and now_ms - unclaimed_ms >= CLAIM_S * 1000:
                self._try(name, self._remove, found)
            else:
                self._try(name, self._repair, found, now_ms)

    def _define(self, name: str, document: ScheduleDocument, now_ms: int) -> None:
        define(self._broker, name, document, now_ms)
        self._emit(ScheduleDefined(name, document.definition.cron, document.definition.timezone))

    def _put(self, name: str, body: bytes, found: KnownSchedule) -> None:
        self._broker.put_document(KIND, name, body, found.catalog_revision)

    def _remove(self, name: str, found: KnownSchedule) -> None:
        if remove(self._broker, name, found.catalog_revision):
            self._emit(ScheduleRemoved(name))

    def _repair(self, name: str, found: KnownSchedule, now_ms: int) -> None:
        repair(self._broker, found, now_ms)

    def _try(self, name: str, step: Callable[..., None], *arguments: object) -> None:
        """One schedule that can't be written stops only itself, and is reported once."""
        try:
            step(name, *arguments)
        except (BrokerUnavailable, BrokerRemoved):
            raise
        except Conflict:
            pass  # another worker changed it at the same moment; the next look sees what it is now
        except Exception as error:
            if name not in self._broken:
                self._broken.add(name)
                self._emit(ScheduleBroken(name, str(error)))
        else:
            self._broken.discard(name)
