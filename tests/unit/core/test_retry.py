"""The retry policy: two budgets, four backoff strategies, changed files. No random numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.config.schema import BackoffSettings
from fileq.core.fingerprint import fingerprint
from fileq.core.job import Claim, decode, encode, file_job
from fileq.core.outcome import WORKER_DIED, Cancelled, Died, Done, Failed, FinalOutcome, Refused, Released
from fileq.core.settlement import ERROR_MAX, Policy, Settlement, Verb, decide, decide_changed, delay_s

NOW_MS = 1_800_000_000_000
POLICY = Policy(max_retries=3, max_recoveries=3, backoff=BackoffSettings(base=0.5, max=10.0, jitter=0.0))


def claim_of(**fields: object) -> Claim:
    job = file_job(b"/data/a", size=1, priority="low", now=datetime.now(UTC), id="a").but(**fields)
    return Claim("w", 1, "low", encode(job), job, job.id)


@pytest.mark.parametrize(("own", "retries", "verb"), [(99, 3, Verb.BURY), (99, 2, Verb.RETRY), (1, 1, Verb.BURY)])
def test_a_limited_key_can_lower_the_retries_of_the_route_and_not_raise_them(
    own: int, retries: int, verb: Verb
) -> None:
    """A8: a key that may only enqueue made its jobs hold slots as long as it wanted."""
    tags = msgspec.Raw(b'{"fileq.made_by":"k1"}')
    found = decide(claim_of(max_retries=own, retries=retries, tags=tags), Failed("boom", "E"), POLICY, now_ms=NOW_MS)
    assert isinstance(found, Settlement)
    assert found.verb is verb


@pytest.mark.parametrize(
    ("strategy", "base", "delays"),
    [
        ("exponential", 0.5, [0.5, 1, 2, 4, 8, 10, 10]),
        ("linear", 0.5, [0.5, 1, 1.5, 2, 2.5]),
        ("fixed", 0.5, [0.5, 0.5, 0.5]),
        ("power", 2.0, [2, 4, 8, 10]),
    ],
)
def test_each_strategy_grows_by_its_formula(strategy: str, base: float, delays: list[float]) -> None:
    backoff = BackoffSettings(strategy=strategy, base=base, max=10.0, jitter=0.0)
    assert [delay_s(backoff, n) for n in range(1, len(delays) + 1)] == delays


def test_a_list_of_delays_is_used_unchanged_and_its_last_entry_repeats() -> None:
    backoff = BackoffSettings.from_list((1.0, 5.0, 30.0))
    assert [delay_s(backoff, n) for n in (1, 2, 3, 4, 99)] == [1.0, 5.0, 30.0, 30.0, 30.0]


def test_jitter_is_applied_before_the_cap() -> None:
    backoff = BackoffSettings(base=9.0, max=10.0, jitter=0.2)
    assert delay_s(backoff, 1, chance=lambda low, high: high) == 10.0
    assert delay_s(backoff, 1, chance=lambda low, high: low) == pytest.approx(7.2)


@given(st.sampled_from(["exponential", "linear", "fixed", "power"]), st.integers(0, 10**6), st.floats(0, 1))
def test_no_number_of_failures_gives_a_delay_beyond_the_cap(strategy: str, failures: int, jitter: float) -> None:
    backoff = BackoffSettings(strategy=strategy, base=1.5, max=10.0, jitter=jitter)
    assert 0 <= delay_s(backoff, failures) <= 10.0


def test_a_failure_counts_one_retry_and_waits() -> None:
    settled = decide(claim_of(retries=1), Failed("ValueError: no", "ValueError"), POLICY, now_ms=NOW_MS, duration_ms=7)
    assert (settled.verb, settled.delay_ms) == (Verb.RETRY, 1000)
    assert (settled.error, settled.kind) == ("ValueError: no", "ValueError")
    assert decode(settled.next_raw).retries == 2
    assert settled.duration_ms == 7
    assert not settled.died


def test_a_job_runs_at_most_max_retries_plus_one_times() -> None:
    verbs = [decide(claim_of(retries=n), Failed("x", "X"), POLICY, now_ms=NOW_MS).verb for n in range(4)]
    assert verbs == [Verb.RETRY, Verb.RETRY, Verb.RETRY, Verb.BURY]


def test_a_dead_job_carries_its_error_and_when_it_failed() -> None:
    settled = decide(claim_of(retries=3), Failed("ValueError: no", "ValueError"), POLICY, now_ms=NOW_MS)
    fields = json.loads(settled.next_raw)
    assert (fields["retries"], fields["error"]) == (4, "ValueError: no")
    assert fields["failed_at"] == "2027-01-15T08:00:00.000Z"


def test_a_jobs_own_limit_takes_precedence_over_the_policy() -> None:
    assert decide(claim_of(max_retries=0), Failed("x", "X"), POLICY, now_ms=NOW_MS).verb is Verb.BURY
    assert decide(claim_of(retries=8, max_retries=9), Failed("x", "X"), POLICY, now_ms=NOW_MS).verb is Verb.RETRY


def test_a_permanent_failure_is_not_tried_again() -> None:
    assert decide(claim_of(), Failed("x", "X", is_permanent=True), POLICY, now_ms=NOW_MS).verb is Verb.BURY


def test_a_handler_may_choose_the_delay_even_beyond_the_cap() -> None:
    assert decide(claim_of(), Failed("x", "X", after_s=90.0), POLICY, now_ms=NOW_MS).delay_ms == 90_000


def test_the_first_death_counts_one_recovery_and_has_no_delay() -> None:
    settled = decide(claim_of(retries=2), Died("killed by SIGKILL"), POLICY, now_ms=NOW_MS)
    assert (settled.verb, settled.died) == (Verb.RELEASE, True)
    assert (decode(settled.next_raw).recoveries, decode(settled.next_raw).retries) == (1, 2)


@pytest.mark.parametrize("recoveries", [0, 1, 3])
@pytest.mark.parametrize(("cause", "kind"), [("exited with status 1", "Crash"), (f"{WORKER_DIED})", "WorkerDied")])
def test_every_death_has_a_kind_and_is_no_failure(recoveries: int, cause: str, kind: str) -> None:
    settled = decide(claim_of(recoveries=recoveries), Died(cause), POLICY, now_ms=NOW_MS)
    assert (settled.kind, settled.is_failure) == (kind, False)


def test_after_later_deaths_a_job_waits_for_its_backoff() -> None:
    settled = [decide(claim_of(recoveries=n), Died("x"), POLICY, now_ms=NOW_MS) for n in (1, 2)]
    assert [(s.verb, s.delay_ms, s.died) for s in settled] == [(Verb.RETRY, 500, True), (Verb.RETRY, 1000, True)]


def test_past_max_recoveries_a_job_is_dead_with_the_cause_of_its_last_death() -> None:
    settled = decide(claim_of(recoveries=3, retries=1), Died("killed by SIGSEGV"), POLICY, now_ms=NOW_MS)
    job = decode(settled.next_raw)
    assert (settled.verb, job.error, job.recoveries, job.retries) == (
        Verb.BURY,
        "crashed: the handler process was killed by SIGSEGV",
        4,
        1,
    )


def test_a_release_changes_nothing_about_the_job() -> None:
    claim = claim_of(retries=1)
    assert decide(claim, Released(), POLICY, now_ms=NOW_MS).next_raw == claim.raw


@pytest.mark.parametrize("outcome", [Done(), Failed("no", "E"), Died("SIGKILL"), Released(), Cancelled()])
def test_every_settlement_carries_how_long_the_attempt_took(outcome: FinalOutcome) -> None:
    assert decide(claim_of(), outcome, POLICY, now_ms=NOW_MS, duration_ms=1500).duration_ms == 1500


def test_a_cancelled_job_is_cancelled_and_a_done_one_completed_with_its_result() -> None:
    assert decide(claim_of(), Cancelled(), POLICY, now_ms=NOW_MS).verb is Verb.CANCEL
    done = decide(claim_of(), Done(b"{}"), POLICY, now_ms=NOW_MS)
    assert (done.verb, done.result, done.superseded) == (Verb.COMPLETE, b"{}", False)


VANISHED = Failed("file vanished", "FileVanished", is_permanent=True, is_sample=False, is_vanished=True)


def test_a_vanished_file_is_a_dead_letter_at_once_without_a_failure() -> None:
    settled = decide(claim_of(retries=1), VANISHED, POLICY, now_ms=NOW_MS)
    job = decode(settled.next_raw)
    assert (settled.verb, settled.outcome, settled.is_failure) == (Verb.BURY, "vanished", False)
    assert (job.error, job.retries, settled.kind) == ("file vanished", 1, "FileVanished")


def test_the_first_error_of_a_job_that_was_put_back_is_kept_when_its_file_vanished() -> None:
    error = "ValueError: no"
    for _ in range(2):
        settled = decide(claim_of(first_error=error), VANISHED, POLICY, now_ms=NOW_MS)
        job = decode(settled.next_raw)
        error = job.error or ""
        assert (error, job.first_error) == ("ValueError: no; retried, but file vanished", None)
    other = decode(decide(claim_of(first_error=error, retries=3), Failed("x", "X"), POLICY, now_ms=NOW_MS).next_raw)
    assert (other.error, other.first_error) == ("x", None)


@pytest.mark.parametrize("later", [Failed("other", "E"), Died("other")])
@pytest.mark.parametrize("first", [Failed("no", "E"), Died("no")])
def test_the_first_error_of_a_retried_job_is_kept_when_its_file_vanished(
    first: Failed | Died, later: Failed | Died
) -> None:
    claim = claim_of()
    for outcome in (first, later):
        job = decode(decide(claim, outcome, POLICY, now_ms=NOW_MS).next_raw)
        claim = Claim("w", 1, "low", encode(job), job, job.id)
    error = f"{first.error}; retried, but file vanished"
    assert decode(decide(claim, VANISHED, POLICY, now_ms=NOW_MS).next_raw).error == error
    again = decide(claim_of(first_error=error), VANISHED, POLICY, now_ms=NOW_MS)
    assert decode(again.next_raw).error == error


def test_a_retried_job_carries_only_the_beginning_of_a_long_error() -> None:
    job = decode(decide(claim_of(), Failed("x" * 5000, "E"), POLICY, now_ms=NOW_MS).next_raw)
    assert job.first_error == "x" * 500


def test_a_vanished_file_can_be_skipped() -> None:
    policy = msgspec.structs.replace(POLICY, skips_vanished=True)
    claim = claim_of(retries=1)
    settled = decide(claim, VANISHED, policy, now_ms=NOW_MS)
    assert (settled.verb, settled.outcome, settled.next_raw) == (Verb.COMPLETE, "skipped", claim.raw)


@pytest.mark.parametrize("may_run", [True, False])
def test_a_changed_file_whose_version_has_its_own_job_is_superseded(may_run: bool) -> None:
    decision = decide_changed(claim_of(), "newer", may_run=may_run)
    assert decision is not None
    assert (decision.verb, decision.superseded, decision.outcome) == (Verb.COMPLETE, True, "superseded")


@pytest.mark.parametrize("its_job", [None, "a"])
def test_a_changed_file_that_no_other_job_is_for_is_run_or_released_when_the_worker_stops(
    its_job: str | None,
) -> None:
    assert decide_changed(claim_of(), its_job, may_run=True) is None
    decision = decide_changed(claim_of(), its_job, may_run=False)
    assert decision is not None
    assert (decision.verb, decision.next_raw) == (Verb.RELEASE, decision.claim.raw)


def test_a_refused_job_is_dead_with_the_reason_and_no_attempt_counted() -> None:
    settled = decide(claim_of(retries=2), Refused("no handler", "NoHandler"), POLICY, now_ms=NOW_MS)
    assert (settled.verb, settled.refused, settled.is_failure) == (Verb.BURY, True, False)
    assert (settled.error, settled.kind, settled.outcome) == ("no handler", "NoHandler", "refused")
    fields = json.loads(settled.next_raw)
    assert (fields["retries"], fields["error"]) == (2, "no handler")
    assert fields["failed_at"] == "2027-01-15T08:00:00.000Z"
    assert "recoveries" not in fields


@pytest.mark.parametrize(
    "outcome",
    [Refused("not a job: x", "Undecodable"), Failed("not a job: x", "Undecodable"), Died("its worker died")],
)
def test_bytes_that_are_not_a_job_are_buried_unchanged(outcome: Refused | Failed | Died) -> None:
    claim = Claim("w", 1, "low", b"\xff", None, defect="not a job: x")
    settled = decide(claim, outcome, POLICY, now_ms=NOW_MS)
    assert (settled.verb, settled.next_raw, settled.error) == (Verb.BURY, b"\xff", "not a job: x")
    assert not settled.is_failure


def test_whatever_buries_a_job_gives_it_a_fingerprint() -> None:
    policy = msgspec.structs.replace(POLICY, max_retries=0, max_recoveries=0, handler="papers")
    trace = 'Traceback (most recent call last):\n  File "/srv/jobs.py", line 3, in convert\n'

    def of(outcome: FinalOutcome, **fields: object) -> str:
        return decide(claim_of(**fields), outcome, policy, now_ms=NOW_MS).fingerprint

    failure = Failed("ValueError: row 3", "ValueError", traceback=trace)
    assert of(failure) == fingerprint("ValueError: row 3", "papers", trace) != of(failure, type="mail")
    assert of(failure, type="mail") == fingerprint("ValueError: row 3", "mail", trace)
    assert of(Failed("file vanished", "FileVanished", is_vanished=True)) == fingerprint("file vanished", "papers")
    assert of(Died("killed by SIGKILL")) == fingerprint(Died("killed by SIGKILL").error, "papers")
    assert of(Refused("no handler", "NoHandler")) == fingerprint("no handler")
    assert of(Done()) == of(Cancelled()) == ""
    assert decide(claim_of(), failure, POLICY, now_ms=NOW_MS).fingerprint == ""  # it is retried


def test_a_long_error_is_cut() -> None:
    assert len(decide(claim_of(), Failed("x" * 10**6, "X"), POLICY, now_ms=NOW_MS).error) == ERROR_MAX


def test_unknown_fields_of_a_job_survive_its_retry() -> None:
    raw = encode(claim_of().job)[:-1] + b',"later":[1.10]}'  # type: ignore[arg-type]
    claim = Claim("w", 1, "low", raw, decode(raw), "a")
    assert decide(claim, Failed("x", "X"), POLICY, now_ms=NOW_MS).next_raw.endswith(b'"later":[1.10]}')
