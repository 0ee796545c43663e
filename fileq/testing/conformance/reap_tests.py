"""reap: the job of a dead slot is settled once, no matter how many reapers run."""

import subprocess

from fileq.brokers.local_processes import this_process
from fileq.brokers.types import LeaseStatus, Suspect, WorkerInfo
from fileq.core.fingerprint import fingerprint
from fileq.core.job import Claim, State, decode, encode
from fileq.core.settlement import SettleResult, bury, complete, retry
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    foreign,
    ids_in,
    job_of,
    names,
    places_of,
    raws_in,
    reap_all,
    record_of,
    recovered,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness


def slots_of(harness: Harness) -> list[str]:
    return [view.slot for view in harness.broker.workers()]


def test_a_live_slot_is_no_suspect(harness: Harness) -> None:
    running(harness, "a")
    harness.advance(29.999)
    assert harness.broker.suspects() == []
    assert harness.broker.suspects(sweep=True) == []


def test_a_lease_ends_exactly_after_the_ttl(harness: Harness) -> None:
    running(harness, "a")
    harness.advance(30)
    [suspect] = harness.broker.suspects()
    assert suspect.slot == "w1"
    [claim] = suspect.claims
    assert (claim.slot, claim.queue, claim.raw, claim.job) == ("w1", "low", encode(a_job("a")), a_job("a"))


def test_listing_suspects_changes_nothing(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    before = snapshot(harness, "a")
    harness.broker.suspects()
    harness.broker.suspects(sweep=True)
    assert snapshot(harness, "a") == before


def test_only_slots_without_a_heartbeat_are_suspects(harness: Harness) -> None:
    enqueue(harness, "a", "b", "c")
    first, second, _ = claims_of(harness, "w1", "w2", "w3")
    harness.advance(20)
    harness.broker.renew([("w1", first.raw), ("w2", second.raw)])
    harness.advance(20)
    assert [suspect.slot for suspect in harness.broker.suspects()] == ["w3"]


def test_a_dead_slots_job_goes_to_the_front_of_its_queue(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    claim = claim_one(harness)
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    assert harness.broker.reap("w1", [recovered(suspect.claims[0])]) == (SettleResult.DONE,)
    assert ids_in(harness, "low") == ["a", "b"]
    assert raws_in(harness, "low")[0] == encode(job_of(claim).but(recoveries=1))
    record = record_of(harness, "a")
    assert (record.state, record.error, record.attempts[0].outcome) == (State.PENDING, "worker died", "died")
    assert record.attempts[0].duration_ms is None
    assert counter(harness, "recovered") == 1
    assert slots_of(harness) == []
    assert drift(harness) == 0


def test_a_second_death_waits_out_a_backoff(harness: Harness) -> None:
    running(harness, "a", queue="high")
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    raw = encode(job_of(suspect.claims[0]).but(recoveries=2))
    settlement = retry(suspect.claims[0], raw, delay_ms=700, error="worker died", died=True)
    assert harness.broker.reap("w1", [settlement]) == (SettleResult.DONE,)
    assert places_of(harness, "a") == ["scheduled"]
    assert record_of(harness, "a").due_ms == harness.clock.ms + 700
    harness.advance(0.7)
    harness.broker.promote()
    assert places_of(harness, "a") == ["high"]
    assert drift(harness) == 0


def test_after_too_many_deaths_the_job_is_buried(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    raw = encode(job_of(suspect.claims[0]).but(recoveries=4, error="worker died"))
    assert harness.broker.reap("w1", [bury(suspect.claims[0], raw, error="worker died", died=True)]) == (
        SettleResult.DONE,
    )
    assert raws_in(harness, "dead_letter") == [raw]
    assert record_of(harness, "a").fingerprint == fingerprint("worker died", path=decode(raw).filepath)
    assert (counter(harness, "dead"), counter(harness, "recovered"), counter(harness, "failed")) == (1, 1, 0)
    assert drift(harness) == 0


def test_a_live_slot_is_not_reaped(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.advance(29.999)
    before = snapshot(harness, "a")
    assert harness.broker.reap("w1", [recovered(claim)]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before


def test_a_slot_that_came_back_between_suspects_and_reap_is_left_alone(harness: Harness) -> None:
    claim = running(harness, "a")
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    harness.broker.renew([("w1", claim.raw)])
    before = snapshot(harness, "a")
    assert harness.broker.reap("w1", [recovered(suspect.claims[0])]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before


def test_an_idle_slot_that_died_is_removed(harness: Harness) -> None:
    register(harness, "w1")
    expire_leases(harness)
    assert harness.broker.suspects() == [Suspect("w1")]
    assert harness.broker.reap("w1", []) == ()
    assert slots_of(harness) == []
    assert harness.broker.suspects(sweep=True) == []


def test_an_idle_slot_that_lives_is_not_removed(harness: Harness) -> None:
    register(harness, "w1")
    assert harness.broker.reap("w1", []) == ()
    assert slots_of(harness) == ["w1"]


def test_a_slot_that_still_holds_a_job_is_not_removed(harness: Harness) -> None:
    """The reaper listed the suspects before the claim; only a settlement of the job frees the slot."""
    running(harness, "a")
    expire_leases(harness)
    assert harness.broker.reap("w1", []) == ()
    assert slots_of(harness) == ["w1"]
    assert places_of(harness, "a") == ["processing:w1"]
    assert drift(harness) == 0


def test_a_settlement_for_a_job_the_slot_no_longer_holds_is_fenced(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    first = claim_one(harness)
    harness.broker.settle_and_claim([complete(first)], ["w1"])
    expire_leases(harness)
    assert harness.broker.reap("w1", [recovered(first)]) == (SettleResult.FENCED,)
    assert places_of(harness, "a") == ["completed"]
    assert places_of(harness, "b") == ["processing:w1"]
    assert slots_of(harness) == ["w1"]


def test_reaping_an_unknown_slot_changes_nothing(harness: Harness) -> None:
    claim = running(harness, "a", "w1")
    before = snapshot(harness, "a")
    assert harness.broker.reap("w9", []) == ()
    forged = recovered(Claim("w9", 0, claim.queue, claim.raw, claim.job, claim.record_id))
    assert harness.broker.reap("w9", [forged]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before


def test_the_same_call_twice_reaps_once(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    settlement = recovered(suspect.claims[0])
    harness.broker.reap("w1", [settlement])
    before = snapshot(harness, "a")
    assert harness.broker.reap("w1", [settlement]) == (SettleResult.FENCED,)
    assert snapshot(harness, "a") == before


def test_a_job_named_twice_in_one_call_is_moved_once(harness: Harness) -> None:
    claim = running(harness, "a")
    expire_leases(harness)
    settlement = recovered(claim)
    assert harness.broker.reap("w1", [settlement, settlement]) == (SettleResult.DONE, SettleResult.FENCED)
    assert places_of(harness, "a") == ["low"]
    assert (counter(harness, "recovered"), drift(harness)) == (1, 0)


def test_two_reapers_at_the_same_time_move_each_job_once(harness: Harness) -> None:
    slots = names(30, "slot")
    enqueue(harness, *names(30))
    claims_of(harness, *slots)
    expire_leases(harness)
    other = harness.another()
    first, second = run_concurrently(lambda: reap_all(harness), lambda: reap_all(harness, broker=other))
    assert (first + second).count(SettleResult.DONE) == 30
    assert sorted(ids_in(harness, "low")) == names(30)
    assert counter(harness, "recovered") == 30
    assert slots_of(harness) == []
    assert drift(harness) == 0


def test_a_reaped_slot_learns_it_at_its_next_call(harness: Harness) -> None:
    stale = running(harness, "a")
    expire_leases(harness)
    reap_all(harness)
    answer = harness.broker.settle_and_claim([burial(stale)], ["w1"])
    assert (answer.settled, answer.gone, answer.claims) == ((SettleResult.FENCED,), ("w1",), ())


def test_a_foreign_job_is_reaped_like_our_own(harness: Harness) -> None:
    harness.push_raw("high", foreign("a", x_note="kept"))
    claim_one(harness)
    expire_leases(harness)
    assert reap_all(harness) == [SettleResult.DONE]
    [raw] = raws_in(harness, "high")
    assert b"x_note" in raw
    assert drift(harness) == 0


def test_bytes_that_are_not_a_job_are_reaped_byte_for_byte(harness: Harness) -> None:
    harness.push_raw("low", b"\xff not a job")
    claim_one(harness)
    expire_leases(harness)
    [suspect] = harness.broker.suspects()
    assert (suspect.claims[0].job, suspect.claims[0].raw) == (None, b"\xff not a job")
    assert suspect.claims[0].defect
    assert harness.broker.reap("w1", [burial(suspect.claims[0])]) == (SettleResult.DONE,)
    assert raws_in(harness, "dead_letter") == [b"\xff not a job"]
    assert drift(harness) == 0


def test_a_processing_list_without_a_registered_slot_is_found_by_a_sweep(harness: Harness) -> None:
    """A failover lost the registration; the job in the list must not be lost with it."""
    running(harness, "a")
    harness.remove_registration("w1")
    expire_leases(harness)
    assert harness.broker.suspects() == []
    [suspect] = harness.broker.suspects(sweep=True)
    assert suspect.slot == "w1"
    assert harness.broker.reap("w1", [recovered(suspect.claims[0])]) == (SettleResult.DONE,)
    assert places_of(harness, "a") == ["low"]
    assert harness.broker.suspects(sweep=True) == []
    assert drift(harness) == 0


def test_a_sweep_leaves_the_list_of_a_slot_with_a_heartbeat(harness: Harness) -> None:
    running(harness, "a")
    harness.remove_registration("w1")
    assert harness.broker.suspects(sweep=True) == []


def test_a_sweep_also_finds_the_registered(harness: Harness) -> None:
    running(harness, "a", "w1")
    register(harness, "w2")
    expire_leases(harness)
    assert [(s.slot, len(s.claims)) for s in harness.broker.suspects(sweep=True)] == [("w1", 1), ("w2", 0)]


def test_a_thousand_dead_slots(harness: Harness) -> None:
    enqueue(harness, *names(1000))
    claims_of(harness, *names(1000, "slot"))
    expire_leases(harness)
    suspects = harness.broker.suspects()
    assert [suspect.slot for suspect in suspects] == names(1000, "slot")
    assert reap_all(harness) == [SettleResult.DONE] * 1000
    assert sorted(ids_in(harness, "low")) == names(1000)
    assert slots_of(harness) == []
    assert drift(harness) == 0


def test_a_job_that_was_reaped_can_be_finished_by_another(harness: Harness) -> None:
    running(harness, "a", "w1")
    expire_leases(harness)
    reap_all(harness)
    claim = claim_one(harness, "w2")
    assert job_of(claim).recoveries == 1
    assert settle(harness, complete(claim)) is SettleResult.DONE
    assert [a.outcome for a in record_of(harness, "a").attempts] == ["died", "completed"]
    assert drift(harness) == 0


# processes that are gone


def of_process(pid: int, boot_id: str = "boot", namespaces: str = "1-2", pid_start: int = 5) -> WorkerInfo:
    return WorkerInfo("host", pid, 0, "0", ("low",), boot_id=boot_id, namespaces=namespaces, pid_start=pid_start)


def test_a_slot_whose_process_is_gone_is_a_suspect_although_it_has_a_heartbeat(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    claims_of(harness, "w1", "w2")
    harness.broker.register({"w1": of_process(7), "w2": of_process(8)})
    [suspect] = harness.broker.suspects(gone=[of_process(7).process])
    assert (suspect.slot, [claim.id for claim in suspect.claims], suspect.is_gone) == ("w1", ["a"], True)
    assert harness.broker.suspects() == []


def test_a_silent_slot_is_no_suspect_among_those_of_processes_that_are_gone(harness: Harness) -> None:
    running(harness, "a")
    expire_leases(harness)
    assert [suspect.is_gone for suspect in harness.broker.suspects()] == [False]
    assert harness.broker.suspects(gone=[of_process(7).process]) == []


def test_the_processes_of_a_machine_are_known_to_each_other(harness: Harness) -> None:
    here, beside, elsewhere = (of_process(7), of_process(8), of_process(7, boot_id="another"))
    register_as(harness, w1=here, w2=beside, w3=elsewhere)
    assert set(harness.broker.processes(here.process)) == {here.process, beside.process}
    assert harness.broker.processes(elsewhere.process) == [elsewhere.process]


def test_a_process_that_is_forgotten_is_no_neighbour_any_more(harness: Harness) -> None:
    here, beside = of_process(7), of_process(8)
    register_as(harness, w1=here, w2=beside)
    harness.broker.deregister(["w2"])
    for _ in range(2):
        harness.broker.forget_process(beside.process)
    assert harness.broker.processes(here.process) == [here.process]


def register_as(harness: Harness, **slots: WorkerInfo) -> None:
    """As worker processes do at their start."""
    for slot, info in slots.items():
        harness.broker.register({slot: info})
        harness.broker.processes(info.process)


# leases of duties


def test_a_lease_has_one_holder(harness: Harness) -> None:
    other = harness.another()
    assert harness.broker.lease("duty", "one", 60_000) == "one"
    assert other.lease("duty", "two", 60_000) == "one"
    assert other.lease("another duty", "two", 60_000) == "two"
    assert harness.broker.lease("duty", "one", 60_000) == "one"


def test_a_lease_that_was_given_back_goes_to_the_next(harness: Harness) -> None:
    harness.broker.lease("duty", "one", 60_000)
    assert harness.broker.lease("duty", "two", 0) == "one", "only its holder can give it back"
    assert harness.broker.lease("duty", "one", 0) == ""
    assert harness.broker.lease("duty", "two", 60_000) == "two"


def test_a_lease_that_is_not_renewed_ends(harness: Harness) -> None:
    harness.broker.lease("duty", "one", 10_000)
    harness.advance(10)
    assert harness.broker.lease("duty", "two", 60_000) == "two"


def test_a_lease_that_lasts_longer_than_asked_for_is_free(harness: Harness) -> None:
    """The clock has stepped back, or a server took over whose clock is behind: a dead holder would have it for long."""
    harness.broker.lease("duty", "dead", 3_600_000)
    assert harness.broker.lease("duty", "two", 0) == "dead", "only its holder can give it back"
    assert harness.broker.lease("duty", "two", 60_000) == "two"
    assert harness.broker.lease("duty", "three", 60_000) == "two"


def test_a_lease_can_be_taken_from_a_holder_that_is_gone(harness: Harness) -> None:
    harness.broker.lease("duty", "gone", 60_000)
    assert harness.broker.lease("duty", "two", 60_000, instead_of="another") == "gone"
    assert harness.broker.lease("duty", "two", 60_000, instead_of="gone") == "two"
    assert harness.broker.lease("duty", "three", 60_000, instead_of="gone") == "two", "another was faster"


def test_a_slot_whose_process_is_gone_is_reaped_although_it_has_a_heartbeat(harness: Harness) -> None:
    claim = running(harness, "a")
    assert harness.broker.reap("w1", [recovered(claim)], is_gone=True) == (SettleResult.DONE,)
    assert places_of(harness, "a") == ["low"]
    assert (slots_of(harness), harness.broker.census().heartbeats) == ([], 0)
    assert (counter(harness, "recovered"), drift(harness)) == (1, 0)


def test_if_its_process_lives_after_all_it_is_fenced_and_its_slot_is_gone(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.reap("w1", [recovered(claim)], is_gone=True)
    before = snapshot(harness, "a")
    [renewal] = harness.broker.renew([("w1", claim.raw)])
    assert renewal.status is LeaseStatus.GONE
    reply = harness.broker.settle_and_claim([complete(claim)], ["w1"])
    assert (reply.settled, reply.gone, reply.claims) == ((SettleResult.FENCED,), ("w1",), ())
    assert snapshot(harness, "a") == before


def test_a_slot_that_claimed_since_the_look_keeps_the_job_and_loses_its_heartbeat(harness: Harness) -> None:
    """A call that the process sent before it died was executed between suspects and reap."""
    running(harness, "a")
    assert harness.broker.reap("w1", [], is_gone=True) == ()
    assert places_of(harness, "a") == ["processing:w1"]
    [suspect] = harness.broker.suspects()
    assert reap_all(harness) == [SettleResult.DONE]
    assert (suspect.slot, slots_of(harness), drift(harness)) == ("w1", [], 0)


def test_a_slot_whose_process_on_this_machine_is_gone_is_not_alive(harness: Harness) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    own = this_process()
    here = own.boot_id, own.namespaces, own.pid_start
    infos = {"w1": of_process(ended.pid, *here), "w2": of_process(own.pid, *here)}
    harness.broker.register(infos)
    expected = [("w1", False), ("w2", True)]
    assert [(view.slot, view.is_alive) for view in harness.broker.workers()] == expected
    assert [(view.slot, view.is_alive) for view in harness.broker.overview().workers] == expected
