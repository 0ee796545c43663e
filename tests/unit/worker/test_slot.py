"""The state machine of a slot: every transition that is allowed, and none other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from fileq.brokers.types import WorkerInfo
from fileq.core.job import Claim, ClaimKey, encode, file_job
from fileq.core.settlement import complete
from fileq.worker.pump import Free, Gone, Running, Settling, Slot, SlotDefect, Slots, SlotState
from tests.support.pump_setup import PumpSetup


def running(slot: str = "slot", token: int = 1) -> Running:
    job = file_job(b"/data/a", size=1, priority="low", now=datetime.now(UTC), id="a")
    return Running(Claim(slot, token, "low", encode(job), job, job.id), 0, 0.0, None)


TRANSITIONS: dict[str, Callable[[Slot], object]] = {
    "run": lambda slot: slot.run(running(slot.id)),
    "settle": lambda slot: slot.settle(complete(running(slot.id).claim)),
    "finish": Slot.finish,
    "lose": Slot.lose,
    "leave": Slot.leave,
}
WAYS: dict[type[SlotState], list[str]] = {
    Free: [],
    Running: ["run"],
    Settling: ["run", "settle"],
    Gone: ["leave"],
}
ALLOWED: dict[tuple[type[SlotState], str], type[SlotState]] = {
    (Free, "run"): Running,
    (Free, "settle"): Settling,
    (Free, "leave"): Gone,
    (Running, "run"): Running,
    (Running, "settle"): Settling,
    (Running, "lose"): Free,
    (Running, "leave"): Gone,
    (Settling, "finish"): Free,
    (Settling, "leave"): Gone,
}


def slot_in(slots: Slots, state: type[SlotState]) -> Slot:
    slot = next(iter(slots.by_id.values()))
    for transition in WAYS[state]:
        TRANSITIONS[transition](slot)
    return slot


@pytest.mark.parametrize("transition", TRANSITIONS)
@pytest.mark.parametrize("state", WAYS)
def test_a_slot_makes_the_listed_transitions_only(state: type[SlotState], transition: str) -> None:
    slots = Slots(3)
    slot = slot_in(slots, state)
    becomes = ALLOWED.get((state, transition))
    if becomes is None:
        with pytest.raises(SlotDefect, match=state.__name__):
            TRANSITIONS[transition](slot)
    else:
        TRANSITIONS[transition](slot)
    assert type(slot.state) is (becomes or state)
    assert (slot in slots.free()) == isinstance(slot.state, Free)
    assert (slot in slots.settling) == isinstance(slot.state, Settling)
    assert slots.running_count == isinstance(slot.state, Running)


def test_settlements_are_listed_in_the_order_in_which_the_attempts_ended() -> None:
    slots = Slots(3)
    first, second, third = slots.free()
    for slot in (third, first, second):
        slot.settle(complete(running(slot.id).claim))
    assert list(slots.settling) == [third, first, second]
    first.finish()
    assert list(slots.settling) == [third, second]


def test_a_running_slot_is_found_by_the_key_of_its_claim_only() -> None:
    slots = Slots(1)
    slot = slot_in(slots, Free)
    state = running(slot.id, token=7)
    slot.run(state)
    assert slots.running(ClaimKey(slot.id, 7)) == (slot, state)
    assert slots.running(ClaimKey(slot.id, 6)) is None, "an earlier claim of the same slot"
    assert slots.running(ClaimKey("another", 7)) is None
    slot.lose()
    assert slots.running(ClaimKey(slot.id, 7)) is None


@pytest.mark.parametrize("state", [Free, Running, Settling])
def test_a_replaced_slot_has_a_new_id_and_is_free(state: type[SlotState]) -> None:
    slots = Slots(2)
    slot = slot_in(slots, state)
    new = slots.replace(slot)
    assert isinstance(slot.state, Gone)
    assert isinstance(new.state, Free)
    assert (new.number, new.id == slot.id) == (slot.number, False)
    assert slot.id not in slots.by_id
    assert len(slots.by_id) == 2
    assert slots.is_idle


def registered(setup: PumpSetup) -> WorkerInfo:
    return setup.broker.workers()[0].info


def test_the_slots_say_since_when_their_process_works() -> None:
    before_ms = time.time_ns() // 1_000_000
    setup = PumpSetup()
    info = registered(setup)
    assert before_ms <= info.loaded_ms <= time.time_ns() // 1_000_000
    assert before_ms - 86_400_000 < info.started_ms <= info.loaded_ms
    setup.advance_to_renewal()
    setup.pump.turn()
    assert registered(setup).loaded_ms == info.loaded_ms
    reloaded = registered(PumpSetup())
    assert reloaded.started_ms == info.started_ms, "the same for as long as the process runs"
    assert (info.pid, info.queues) == (os.getpid(), tuple(setup.config.worker.priorities))
