"""Schedules on Redis: schedules.Schedules over a RedisStore.

A hash has the state of each schedule, and a sorted set the next slot of those that are not paused. What an operator
changes is read, changed here, and replaced if it is still what was read; a repeat finds it done.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import astuple, replace

from fileq.brokers.catalog import check_name
from fileq.brokers.redis.inspector import cancel_by_id
from fileq.brokers.redis.layout import from_one_line, in_one_line
from fileq.brokers.redis.scripts import Argument, entry_args, extras
from fileq.brokers.redis.store import RedisStore
from fileq.brokers.schedules import Fire, FireResult, ScheduleState, check_fire, defined
from fileq.brokers.types import entry_of
from fileq.core.errors import BrokerUnavailable

_TRIES = 100  # each time another process changes the same schedule


class RedisSchedules:
    """schedules.Schedules on Redis."""

    _store: RedisStore

    def schedules(self) -> dict[str, ScheduleState]:
        flat = self._store.call("HGETALL", self._store.keys.schedule_states)
        found = {name.decode(): _unpack(state) for name, state in zip(flat[::2], flat[1::2], strict=True)}
        return dict(sorted(found.items()))

    def define_schedule(self, name: str, revision: str, next_ms: int) -> ScheduleState:
        check_name("schedule", name)

        def define(was: ScheduleState | None) -> ScheduleState:
            if was is not None and was.revision == revision:
                return was
            return defined(was or ScheduleState("", 0), revision, next_ms)

        _, state = self._change(name, define)
        assert state is not None
        return state

    def remove_schedule(self, name: str) -> bool:
        was, _ = self._change(name, lambda _: None)
        return was is not None

    def pause_schedule(self, name: str) -> bool:
        was, _ = self._change(name, lambda was: was and replace(was, is_paused=True))
        return was is not None

    def resume_schedule(self, name: str, next_ms: int) -> bool:
        def resume(was: ScheduleState | None) -> ScheduleState | None:
            return replace(was, is_paused=False, next_ms=next_ms) if was is not None and was.is_paused else was

        was, _ = self._change(name, resume)
        return was is not None and was.is_paused

    def _change(
        self, name: str, change: Callable[[ScheduleState | None], ScheduleState | None]
    ) -> tuple[ScheduleState | None, ScheduleState | None]:
        """The state before and after the change. It is tried again if another process changes the state meanwhile."""
        store, keys = self._store, self._store.keys
        tried: tuple[ScheduleState | None, ScheduleState | None] | None = None
        for _ in range(_TRIES):
            text = store.call("HGET", keys.schedule_states, name) or b""
            was = _unpack(text) if text else None
            if tried is not None and was == tried[1]:
                return tried  # the reply to the first sending was lost
            tried = was, (becomes := change(was))
            if becomes == was:
                return tried
            next_ms: Argument = "" if becomes is None or becomes.is_paused else becomes.next_ms
            args = (name, text, _pack(becomes) if becomes is not None else b"", next_ms)
            if store.run("update_schedule", (keys.schedules, keys.schedule_states), args):
                return tried
        raise BrokerUnavailable(f"schedule {name} is changed all the time by other processes")

    def fire(self, fire: Fire) -> FireResult:
        store, keys = self._store, self._store.keys
        check_fire(fire, store.queues)
        own_keys = [keys.schedules, keys.schedule_states, keys.unique, keys.cancels]
        last_ms = fire.last_ms or fire.slot_ms
        args: list[Argument] = [fire.name, in_one_line(fire.revision), fire.slot_ms, fire.next_ms, last_ms]
        args += (fire.missed, fire.overlap.value, int(fire.entry is not None))
        if fire.entry is not None:
            own_keys.append(keys.record(fire.entry.job.id))
            args += entry_args(entry_of(fire.entry), keys)
        extra_keys, extra_args = extras(fire.cancel_follow_ups, keys)
        own_keys += extra_keys
        args += extra_args
        (word, far), is_repeated = store.link.reply_of(store.scripts.command("fire", own_keys, args))
        if far:
            id = far.decode()
            cancel_by_id(store, [id], {id: fire.cancel_follow_ups})
        result = FireResult(word.decode())
        is_lost = result is FireResult.STALE and is_repeated
        return FireResult.FIRED if is_lost and self._has_fired(fire) else result

    def _has_fired(self, fire: Fire) -> bool:
        """Whether the first sending, whose reply was lost, has enqueued the job of this slot. If the id is made of the
        slot, another scheduler may have done it: the job is enqueued all the same."""
        text = self._store.call("HGET", self._store.keys.schedule_states, fire.name)
        return bool(text) and fire.entry is not None and _unpack(text).last_job_id == fire.entry.job.id


def _pack(state: ScheduleState) -> bytes:
    """A line for each field, in their order: lua/fire.lua reads and writes the same."""
    lines = (in_one_line(value) if isinstance(value, str) else f"{value:d}" for value in astuple(state))
    return "".join(f"{line}\n" for line in lines).encode()


def _unpack(text: bytes) -> ScheduleState:
    revision, next_ms, last_ms, last_job_id, *numbers = text.decode().split("\n")[:-1]
    is_paused, runs, missed = map(int, numbers)
    ids = from_one_line(revision), from_one_line(last_job_id)
    return ScheduleState(ids[0], int(next_ms), int(last_ms), ids[1], bool(is_paused), runs, missed)
