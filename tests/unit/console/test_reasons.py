"""What pages say about jobs that do not run: why, since when, who did it, and what an operator can press."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from fileq.actions.bulk import JobAction, revival
from fileq.brokers.batches import NewBatch
from fileq.brokers.types import Entry, OpenBreaker, Record, WorkerInfo
from fileq.commands.acknowledgements import acknowledge_group
from fileq.commands.action_log import ActionLog
from fileq.commands.admin.pauses import NOTES, set_paused
from fileq.core.job import Claim, State, Version, encode, file_job, rfc3339_ms, wall_clock_ms
from fileq.core.settlement import Settlement, bury, complete
from fileq.core.webhook import DELIVERY_TYPE
from fileq.queries.documents import AttemptDocument, JobDocument, job_document
from fileq.queries.job_selection import matching
from fileq.server.console.job_steps import steps_of
from fileq.server.console.job_views import longest_first
from fileq.server.console.view import died_since
from fileq.server.hidden_paths import without_paths
from fileq.testing.conformance.builders import a_job
from fileq.worker.breakers import reason_of
from tests.support.console_jobs import (
    HOSTILE,
    QUEUES,
    ROUTE,
    SLOT,
    dies,
    end,
    held,
    in_order,
    pages_with_worker,
    shown,
    words,
)


def test_jobs_that_a_breaker_holds_back_are_counted_and_every_page_says_why() -> None:
    pages = pages_with_worker()
    pages.broker.create_batch(NewBatch("nightly", "nightly"))
    end(pages, replace(a_job("a"), batch_id="nightly"), held, joins=True)
    end(pages, a_job("b"), held)
    overview, listed, one, batch, dead, workers, groups, scheduled = shown(
        *(pages, "", "/jobs?status=deferred", "/jobs/a", "/batches/nightly", "/dead?probe=b", "/workers", "/dead"),
        "/scheduled",
    )
    reason = f"the circuit breaker of {ROUTE} is open"
    assert f"The breaker of {ROUTE} is open in 1 worker process" in overview
    assert re.search(
        r"2 jobs are deferred\. Next try in \d+ min , at \d\d:\d\d:\d\d UTC . If it succeeds", words(overview)
    )
    assert "and 2 deferred" in overview
    assert listed.count(f"{reason}") == 2
    assert '<option selected value="deferred">deferred' in listed
    assert "state retrying" not in listed + scheduled, "they were never tried"
    assert scheduled.count('class="state deferred"') == 2
    assert f"Deferred: {reason}" in one
    assert re.search("deferred once so far, at [-0-9: ]+ UTC", one)
    assert re.search(f"<dd>once at [-0-9: ]+ UTC: {re.escape(reason)}</dd>", one)
    assert "waited" not in one
    assert f"1 job is deferred: {reason}" in words(batch)
    assert f"Deferred: {reason}" in dead
    assert f"The breaker of {ROUTE} is open: too many of its jobs failed. Its other jobs are deferred" in groups
    for text in (one, dead):
        assert re.search(r"Next try in 9 min , at \d\d:\d\d:\d\d UTC ,", words(text)), "in how long, and when"
        assert "<code>fileq breaker reset</code>" in text, "what to do if the cause is fixed"
    assert re.search(r"Next try in \d+ min", words(workers))


def test_a_try_that_is_overdue_is_not_in_the_past() -> None:
    pages = pages_with_worker()
    late = OpenBreaker(ROUTE, "open", "", 1.0, wall_clock_ms() - 5000)
    pages.broker.register({SLOT: WorkerInfo("host", 7, 1, "1", QUEUES, breaker="open", breakers=(late,))})
    for text in shown(pages, "", "/workers"):
        assert "Next try as soon as a slot is free" in text


def test_a_batch_and_a_job_in_a_paused_queue_say_so_and_offer_to_resume_it() -> None:
    pages = pages_with_worker()
    pages.broker.create_batch(NewBatch("nightly", "nightly"))
    pages.broker.enqueue([Entry(replace(a_job("a"), batch_id="nightly"), "high", joins=True)])
    assert 'data-action="POST /queues' not in shown(pages, "/batches/nightly")[0]
    assert "is paused" not in shown(pages, "/batches")[0]
    set_paused(pages.broker, "high", QUEUES, paused=True, by=f"olga {HOSTILE}")
    for text in shown(pages, "/batches/nightly", "/jobs/a"):
        assert 'data-action="POST /queues/high/resume"' in text
        assert "is paused" in words(text)
        assert "fileq resume" not in text, "a page has a button"
    listed, batch = shown(pages, "/batches", "/batches/nightly")
    assert "queue high is paused" in words(listed)
    assert "by olga &lt;script&gt;" in batch
    assert "Its pending job starts as soon as a slot is free." in batch
    overview, queues = shown(pages, "", "/queues")
    assert re.search(r"Paused: high \(since [-\d]+ [:\d]+ UTC by olga &lt;script&gt;.*\)\. 1 pending job", overview)
    assert "by olga &lt;script&gt;" in queues
    set_paused(pages.broker, "high", QUEUES, paused=True, by="another")
    assert NOTES.all(pages.broker)["high"].by.startswith("olga"), "it was paused already"
    set_paused(pages.broker, "high", QUEUES, paused=False, by="olga")
    assert NOTES.all(pages.broker) == {}
    pages.broker.pause("high")
    assert "by another program" in shown(pages, "/queues")[0]


def test_conditions_without_a_field_are_shown_survive_the_form_and_can_be_removed() -> None:
    pages = pages_with_worker()
    pages.broker.create_batch(NewBatch("b-1", f"monday {HOSTILE}"))
    [text] = shown(pages, "/jobs?batch=b-1&priority=high&tag.k=v&status=pending&worker=w%22%3E")
    assert "batch: monday &lt;script&gt;" in text
    for name, value in (("batch", "b-1"), ("priority", "high"), ("tag.k", "v"), ("worker", "w&#34;&gt;")):
        assert f'<input type="hidden" name="{name}" value="{value}">' in text
    [chip] = re.findall(r'class="chip" href="([^"]*)"[^>]*>priority: high', text)
    assert sorted(re.findall(r"[?;]([a-z.]+)=", chip)) == ["batch", "status", "tag.k", "worker"]
    assert 'class="chip"' not in shown(pages, "/jobs?status=pending&q=x&since=2h")[0]
    assert "batch: gone" in shown(pages, "/jobs?batch=gone")[0]


def test_the_latest_jobs_are_those_that_changed_last_without_deliveries_of_webhooks() -> None:
    pages = pages_with_worker()
    now = [wall_clock_ms() - 60_000]
    pages.broker.store.clock = lambda: now[0]
    for id, how in (("first", complete), ("second", dies), ("third", complete)):
        now[0] += 1000
        end(pages, a_job(id), how)
    for number in range(12):
        now[0] += 1000
        end(pages, replace(a_job(f"hook-{number}"), type=DELIVERY_TYPE), complete, is_own=True)
    [text] = shown(pages, "")
    latest = text[text.index("Latest jobs") :]
    assert in_order(latest, 'data-row="third"', 'data-row="second"', 'data-row="first"')
    assert "hook-" not in latest


def test_an_acknowledgement_is_seen_wherever_its_cause_is() -> None:
    pages = pages_with_worker()
    end(pages, a_job("a"), dies)
    [record] = pages.broker.records(["a"])
    assert record is not None
    acknowledge_group(pages.broker, record.fingerprint, f"the supplier {HOSTILE}", "olga", wall_clock_ms())
    for text in shown(pages, "", "/jobs/a", "/dead", "/dead?by=kind"):
        assert "the supplier &lt;script&gt;" in text
        assert "olga" in text
    [dead] = shown(pages, "/dead")
    assert 'class="button main"' not in dead.partition("</article>")[0], "nothing urges to retry"
    assert in_order(dead, ">Type</dt>", ">Fingerprint</dt>", f">{record.fingerprint}</dd>")
    assert "died <time" in dead, "the list says when they died"


def test_how_many_died_since_an_acknowledgement() -> None:
    times = ["2026-05-01T12:00:03Z", "2026-05-01T12:00:02Z", None, "2026-05-01T11:00:00Z"]
    assert died_since(times, "2026-05-01T12:00:00Z", 9) == "2 of them died since"
    assert died_since(times[:2], "2026-05-01T12:00:00Z", 9) == "2 or more of them died since"
    assert died_since(times[:2], "2026-05-01T12:00:00Z", 2) == "all 2 died since"
    assert died_since(times, "2026-05-01T13:00:00Z", 9) == ""


def document(state: State = State.PENDING, attempts: Sequence[AttemptDocument] = (), **fields: Any) -> JobDocument:
    made = job_document(Record("a", state, encode(a_job("a")), "low", created_ms=1_700_000_000_000))
    return replace(made, attempts=tuple(attempts), attempt_count=len(attempts), **fields)


def at(second: float) -> str:
    return rfc3339_ms(1_700_000_000_000 + round(second * 1000))


def test_a_timeline_tells_attempts_from_waits() -> None:
    first = AttemptDocument(1, at(10), at(310), 299.0, "w", "failed", "E")
    second = AttemptDocument(2, at(400), at(400.024), 0.017, "w", "completed", "")
    done = document(State.COMPLETED, (first, second), completed_at=at(400.024), started_at=at(400))
    created, one, two, ended = steps_of(done)
    assert (created.word, created.notes) == ("created", ())
    assert one.notes == ("waited 10 s", "took 5 min, 4 min 59 s of it in the handler: failed")
    assert two.word == "attempt 2 started"
    assert two.notes == ("1 min 30 s after attempt 1", "took 24 ms, 17 ms of it in the handler: completed")
    assert (ended.word, ended.at) == ("completed", at(400.024))
    given_back = replace(first, outcome="released", reason="interrupted: its worker was stopping")
    requeued = steps_of(document(attempts=[given_back]))[1].notes[-1]
    assert requeued == "requeued after 5 min: interrupted: its worker was stopping"
    running = steps_of(document(State.RUNNING, started_at=at(10)))
    assert (running[-1].word, running[-1].notes) == ("started", ("waited 10 s", "running now"))
    assert steps_of(document())[-1].notes == ("since it was created",)
    lost = replace(done, attempts=(second,))
    assert [step.word for step in steps_of(lost)][1] == "1 earlier attempt is no longer listed"


def test_a_dead_job_that_was_retried_by_hand_did_not_wait_while_it_ran() -> None:
    pages = pages_with_worker()
    end(pages, a_job("a"), dies)
    [stored] = matching(pages.broker, pages.broker.peek("dead_letter", 1), "dead_letter")
    pages.broker.revive([revival(stored, "low")])
    [text] = shown(pages, "/jobs/a")
    steps = ("created", "started", ": failed", "died", "retried manually", "pending since")
    assert in_order(words(text), "Timeline", *steps)


def test_a_timeline_says_who_retried_and_cancelled_a_job_and_why_it_was_held_back() -> None:
    pages = pages_with_worker()
    log = ActionLog(pages.broker, wall_clock_ms)
    end(pages, a_job("b"), held)
    pages.broker.cancel(["b"])
    log.add(JobAction.CANCEL, "olga", ["b"])
    [text] = shown(pages, "/jobs/b")
    assert in_order(words(text).partition("Timeline")[2], "created", "cancelled", "by olga", "Details")
    job = file_job(b"/in/a.csv", size=1, priority="low", now=datetime.now(UTC), signature="1-1", id="a")
    end(pages, job, held, version=Version(b"/in/a.csv", "1-1"))
    pages.broker.due_now(["a"])
    [claim] = pages.broker.settle_and_claim([], [SLOT]).claims
    pages.broker.settle_and_claim([dies(claim)], [])
    [stored] = matching(pages.broker, pages.broker.peek("dead_letter", 1), "dead_letter")
    pages.broker.revive([revival(stored, "low")])
    log.add(JobAction.RETRY, f"maria {HOSTILE}", ["a"])
    pages.broker.settle_and_claim([], [SLOT])
    pages.broker.cancel(["a"])
    log.add(JobAction.CANCEL, "olga", ["a"])
    steps = (
        "created",
        "started",
        "was deferred once at ",
        f" UTC: {reason_of(ROUTE).replace(' is ', ' was ')}",
        "died",
        "retried manually",
        "by maria &lt;script&gt;",
        "cancellation requested",
        "by olga",
    )
    for text in shown(pages, "/jobs/a", "/files/trace?path=/in/a.csv"):
        assert in_order(words(text).partition("Timeline")[2], *steps), text


def test_the_page_of_an_action_shows_what_became_of_its_jobs() -> None:
    pages = pages_with_worker()
    end(pages, a_job("done"), complete)
    end(pages, a_job("again"), dies)
    pages.broker.enqueue([Entry(a_job("waits"), "low")])
    log = ActionLog(pages.broker, wall_clock_ms)
    ids = ["done", "again", "waits", "gone"]
    id = log.add(JobAction.RETRY, f"maria {HOSTILE}", ids, count=9, conditions={"match": HOSTILE})
    page = f"/admin/operations/{id}"
    text, dead, listed, jobs, group = shown(pages, page, f"{page}?status=dead", "/admin/operations", "/jobs", "/dead")
    assert HOSTILE not in text + listed + jobs + group
    assert "Showing the first 4" in words(text)
    assert in_order(words(text), "9 jobs retried", "1 completed", "1 waiting", "1 dead again", "1 expired")
    assert all(f'data-row="{one}"' in text for one in ids[:3])
    assert ('data-row="again"' in dead, 'data-row="done"' in dead) == (True, False)
    for other in (listed, jobs, group):
        assert f'href="/dashboard{page}"' in other, "pages lead to it"
    assert pages.show(["/admin/operations/none"])[0][0] == 404
    old = ActionLog(pages.broker, lambda: wall_clock_ms() - 3_600_000)
    pages.broker.remove_document("job-actions", id)
    old.add(JobAction.RETRY, "maria", ids)
    assert "were retried" not in shown(pages, "/jobs")[0], "an hour ago is no news"


def test_a_group_has_a_headline_without_the_name_of_one_file_and_whole_times() -> None:
    pages = pages_with_worker()

    def dies_of_its_file(claim: Claim) -> Settlement:
        assert claim.job is not None
        error = f"ValueError: page 3 of {claim.job.filepath} can't be read"
        died_ms = wall_clock_ms() - (70_000 if claim.id == "a" else 65_000)
        raw = encode(claim.job.but(error=error, failed_at=rfc3339_ms(died_ms)))
        return replace(bury(claim, raw, error=error, kind="ValueError"), fingerprint="0123456789ab")

    for name in ("a", "b"):
        now = datetime.now(UTC)
        path = f"/in/{name}.pdf".encode()
        end(pages, file_job(path, size=1, priority="low", now=now, signature="1-1", id=name), dies_of_its_file)
    dead, overview = shown(pages, "/dead", "")
    assert in_order(words(dead), "ValueError: page … of … can&#39;t be read", "For example:", "page 3 of /in/b.pdf")
    assert "ValueError: page … of … can&#39;t be read" in words(overview)
    moment = r"1 min ago (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC"
    assert re.search(f"Died first {moment} last {moment} Over time", words(dead)), "times that can be handed over"
    assert "1 min ago to" not in words(dead)


def test_the_longest_running_job_is_first_and_its_duration_goes_on() -> None:
    jobs = [document(State.RUNNING, id="young", started_at=at(9)), document(id="waits")]
    old = document(State.RUNNING, id="old", started_at=at(1))
    assert [job.id for job in longest_first([*jobs, old])] == ["old", "young", "waits"]
    pages = pages_with_worker()
    pages.broker.enqueue([Entry(a_job("a"), "low"), Entry(a_job("b"), "low")])
    pages.broker.settle_and_claim([], [SLOT])
    [text] = shown(pages, "/jobs")
    assert re.search(r'data-label="Running for" class="number">\d+', text)
    assert "sorted by status" in text


def test_a_reason_that_names_a_root_is_hidden_with_the_paths() -> None:
    reason = "the root /srv/in is missing (not mounted?)"
    assert without_paths({"deferred": reason, "path": "/srv/in/a"}) == {"deferred": "a root is missing", "path": ""}
    assert without_paths({"deferred": reason_of(ROUTE)}) == {"deferred": reason_of(ROUTE)}
