"""What the page of a job tells of its life: who acted, times that fit together, and the past as what it is."""

from __future__ import annotations

import re

from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers.types import Entry, Record
from fileq.client.broker_transport import BrokerTransport
from fileq.client.options import WantedSchedule
from fileq.client.schedule_changes import add_schedule, run_now
from fileq.commands.action_log import ActionLog
from fileq.core.job import Claim, State, encode, wall_clock_ms
from fileq.core.outcome import Done, Failed, FinalOutcome, Released
from fileq.core.schedule import job_id_of, schedule_of
from fileq.core.settlement import Policy, decide
from fileq.queries.documents import AttemptDocument, job_document
from fileq.server.console.job_steps import deferred_times, reasons_of, steps_of
from fileq.testing.conformance.builders import a_job
from fileq.worker.breakers import reason_of
from tests.support.console_jobs import HOSTILE, SLOT, in_order, pages_with_worker, shown, words
from tests.support.console_pages import ConsolePages

NOON = "2026-05-01T12:00:00.100Z"


def test_a_job_that_was_run_by_hand_names_its_schedule_and_who_ran_it() -> None:
    pages = pages_with_worker()
    add_schedule(pages.broker, pages.config, "sales.daily", WantedSchedule("0 2 * * *", "report"), where="a test")
    id = run_now(pages.broker, pages.config, "sales.daily")
    ActionLog(pages.broker, wall_clock_ms).add(JobAction.RUN, f"olga {HOSTILE}", [id])
    [text] = shown(pages, f"/jobs/{id}")
    assert in_order(words(text), "Timeline", "created", "manual run by olga &lt;script&gt;", "Details")
    assert "made due" not in text
    assert 'href="/dashboard/scheduled/edit/sales.daily">sales.daily</a>, manual run' in text
    assert schedule_of(id) == ("sales.daily", True)
    assert schedule_of(job_id_of("a.manual.b", 0)) == ("a.manual.b", False)
    assert schedule_of("sched.nightly") is None


def test_a_job_that_runs_has_an_attempt_a_time_limit_and_ages_that_fit() -> None:
    pages = pages_with_worker()
    pages.broker.enqueue([Entry(a_job("a"), "low")])
    pages.broker.settle_and_claim([], [SLOT])
    [text] = shown(pages, "/jobs/a")
    assert "Attempts 1, running now" in words(text)
    assert "Time limit Handler default (5 min)" in words(text)
    timeline = text.partition("Timeline")[2].partition("Details")[0]
    assert timeline.count('<time datetime="') == timeline.count('Z"') == 2
    assert "." not in timeline.partition('datetime="')[2][:20], "steps of the same second have the same age"


def test_a_job_that_was_cancelled_while_it_ran_still_says_when_that_was_requested() -> None:
    attempt = AttemptDocument(1, NOON, "2026-05-01T12:00:09.000Z", 8.0, "w", "cancelled", "cancelled")
    made = job_document(Record("a", State.CANCELLED, encode(a_job("a")), "low", created_ms=1_700_000_000_000))
    job = replace(made, attempts=(attempt,), attempt_count=1, completed_at=attempt.ended_at)
    pages = pages_with_worker()
    log = ActionLog(pages.broker, lambda: 1_777_636_805_000)  # 12:00:05
    log.add(JobAction.CANCEL, "olga", ["a"])
    *_, requested, cancelled = steps_of(job, log.all())
    assert (requested.word, requested.at, requested.notes) == (
        "cancellation requested",
        "2026-05-01T12:00:05.000Z",
        ("by olga",),
    )
    assert (cancelled.word, cancelled.at, cancelled.notes) == ("cancelled", attempt.ended_at, ())
    waited = replace(job, attempts=(), attempt_count=0)
    assert [step.word for step in steps_of(waited, log.all())] == ["created", "cancelled"]


def test_a_reason_that_is_over_is_in_the_past_and_has_a_time() -> None:
    attempt = AttemptDocument(1, NOON, NOON, 1.0, "w", "completed", "", deferred=reason_of("*.csv"))
    made = job_document(Record("a", State.COMPLETED, encode(a_job("a")), "low", created_ms=1))
    job = replace(made, attempts=(attempt,), attempt_count=1, deferred_count=3)
    assert reasons_of(job) == ["the circuit breaker of *.csv was open"]
    assert reasons_of(replace(job, deferred=reason_of("*.csv")))[-1] == "the circuit breaker of *.csv is open"
    timed = replace(job, first_deferred_at="2026-05-01T11:40:10.000Z", last_deferred_at="2026-05-01T11:41:05.000Z")
    assert deferred_times(timed) == "3 times between 2026-05-01 11:40:10 and 11:41:05 UTC"
    said = "was deferred 3 times between 2026-05-01 11:40:10 and 11:41:05 UTC: "
    assert any(note.startswith(said) for note in steps_of(timed)[1].notes)
    assert deferred_times(replace(timed, deferred_count=1)) == "once at 2026-05-01 11:40:10 UTC"


def test_the_attempts_of_a_job_that_was_retried_by_hand_fit_its_limit() -> None:
    """Those before the retry are still listed, and counted beside it."""
    pages = pages_with_worker()
    worker = PageWorker(pages)
    pages.broker.enqueue([Entry(replace(a_job("a"), max_retries=0), "low")])
    worker.fail()
    assert facts_of(pages, "a")["Attempts"] == "1, at most 1"
    BrokerTransport(pages.broker, pages.config).retry("a")
    assert facts_of(pages, "a")["Attempts"] == "0, at most 1; 1 in total"
    worker.claim()
    assert facts_of(pages, "a")["Attempts"] == "1, running now, at most 1; 2 in total"
    worker.fail()
    assert facts_of(pages, "a")["Attempts"] == "1, at most 1; 2 in total"
    BrokerTransport(pages.broker, pages.config).retry("a")
    worker.end(Released())
    worker.end(Done())
    assert facts_of(pages, "a")["Attempts"] == "1, at most 1; 4 in total"


class PageWorker:
    """A worker that claims the only job and ends it."""

    def __init__(self, pages: ConsolePages) -> None:
        self._pages = pages
        self._claim: Claim | None = None

    def claim(self) -> Claim:
        if self._claim is None:
            [self._claim] = self._pages.broker.settle_and_claim([], [SLOT]).claims
        return self._claim

    def end(self, outcome: FinalOutcome) -> None:
        policy = Policy(max_retries=3, max_recoveries=3, backoff=self._pages.config.worker.backoff)
        settlement = decide(self.claim(), outcome, policy, now_ms=wall_clock_ms(), duration_ms=5)
        self._pages.broker.settle_and_claim([settlement], [])
        self._claim = None

    def fail(self) -> None:
        self.end(Failed("ValueError: no", "ValueError"))


def facts_of(pages: ConsolePages, id: str) -> dict[str, str]:
    [text] = shown(pages, f"/jobs/{id}")
    pairs = re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", text)
    return {name: words(value).strip() for name, value in pairs}
