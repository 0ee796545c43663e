"""What the pages tell a person who is new to them: schedules of the configuration, keys, the audit, wrong addresses."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from msgspec.structs import replace

from fileq.brokers.schedule_definitions import broker_now_ms, define
from fileq.brokers.types import Entry, WorkerInfo
from fileq.client.options import WantedSchedule
from fileq.client.schedule_changes import add_schedule, run_now
from fileq.commands.admin.schedules import list_schedules
from fileq.commands.api_keys import KeyOptions
from fileq.commands.audit_entries import TEXT_MAX, AuditChange, AuditEntry, changes_between
from fileq.commands.server_checks import SOON_MS, expiring
from fileq.commands.webhooks import latest_deliveries
from fileq.core.api_key import Scope, StoredKey
from fileq.core.job import typed_job, wall_clock_ms
from fileq.core.schedule import FROM_CONFIGURATION, ScheduleDefinition, ScheduleDocument
from fileq.core.settlement import cancel, complete, retry
from fileq.core.webhook import DELIVERY_TYPE
from fileq.server.api.access_endpoints import without_files
from fileq.server.console.admin_views import in_words
from fileq.server.console.charts import axis_times, line_chart, shown_labels
from fileq.server.console.view import clock_time
from fileq.server.event_hub import LiveEvent, tick_of
from fileq.testing.conformance.builders import a_job
from tests.support.console_jobs import dies, end, pages_with_worker, shown, words
from tests.support.console_pages import ConsolePages

NOW_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
DAY_MS = 86_400_000
NIGHTLY = ScheduleDefinition(cron="0 2 * * *", type="report", payload={"region": "north"}, max_retries=7)


def scheduled() -> ConsolePages:
    """A schedule of the configuration, which was run by hand once."""
    pages = ConsolePages()
    document = ScheduleDocument(definition=NIGHTLY, source=FROM_CONFIGURATION)
    define(pages.broker, "nightly", document, broker_now_ms(pages.broker))
    run_now(pages.broker, pages.config, "nightly")
    return pages


def test_a_schedule_of_the_configuration_shows_what_it_does_and_can_be_copied() -> None:
    [(_, listed), (status, page), (_, copy)] = scheduled().show(
        ["/scheduled", "/scheduled/edit/nightly", "/scheduled/new?copy=nightly"]
    )
    assert 'href="/dashboard/scheduled/edit/nightly">Details</a>' in listed
    assert status == 200
    for text in ("configuration file", "schedules.nightly", "north", "<dd>7</dd>", "Duplicate", "manual"):
        assert text in page, text
    assert "data-send" not in page, "there is no form that can't be saved"
    assert 'value="0 2 * * *"' in copy
    assert 'data-is-new="yes"' in copy
    assert 'id="s-name"' in copy


def test_a_schedule_that_was_run_by_hand_says_so_and_is_not_changed_by_it() -> None:
    pages = ConsolePages()
    for name in ("report", "other"):
        add_schedule(pages.broker, pages.config, name, WantedSchedule("0 2 * * *", "report"), where="a test")
    [(_, listed), (_, before)] = pages.show(["/scheduled", "/scheduled/edit/report"])
    assert listed.count("not due yet") == 2
    id = run_now(pages.broker, pages.config, "report")
    [(_, listed), (_, after)] = pages.show(["/scheduled", "/scheduled/edit/report"])
    row, other = (listed.split(f'<tr data-row="{name}">')[1].split("</tr>")[0] for name in ("report", "other"))
    assert "not due yet" in other
    assert "not due yet" not in row
    assert re.search(r">manual</div><time [^>]*>[^<]*</time><div", row)
    assert f'href="/dashboard/jobs/{id}"' in row
    assert 'class="state pending"' in row
    assert "0 runs on schedule" in row
    assert 'href="/dashboard/jobs?schedule=report"' in row
    etags = {tuple(re.findall(r'data-etag="([^"]+)"', text)) for text in (before, after)}
    assert [len(one) for one in etags] == [1], "the same: a form that is open can be saved"
    add_schedule(pages.broker, pages.config, "report", WantedSchedule("0 3 * * *", "report"), where="a test")
    assert list_schedules(pages.broker)[1].by_hand_job_id == id, "another definition keeps the note"


def test_a_key_that_may_only_read_gets_no_form() -> None:
    addresses = ["/scheduled", "/scheduled/new", "/scheduled/edit/nightly", "/webhooks"]
    listed, new, page, webhooks = (text for _, text in scheduled().show(addresses, Scope.READ))
    assert "/dashboard/scheduled/new" not in listed + page
    assert not [text for text in (listed, new, page, webhooks) if "data-send" in text]
    assert "scope <code>admin</code>" in new
    assert "below" not in webhooks


def test_without_an_admin_key_the_page_of_keys_says_what_to_do_before_it_is_too_late() -> None:
    pages = ConsolePages()
    pages.keys.create(KeyOptions("viewer", (Scope.READ,)))
    pages.keys.create(KeyOptions("a session", (Scope.ADMIN,), is_login=True))
    warning = "No key has the scope"
    key = pages.keys.create(KeyOptions("short", (Scope.ADMIN,), wall_clock_ms() + DAY_MS))
    assert warning not in pages.show(["/admin"])[0][1]
    for one in [key.id, *(id for id, known in pages.keys.load().items() if known.name.startswith("key-"))]:
        pages.keys.revoke(one)
    session = pages.keys.create(KeyOptions("another session", (Scope.ADMIN,), is_login=True))
    [(status, text)] = pages.show_with(session.key, ["/admin"])
    assert (status, warning in text, "fileq keys create NAME --scope admin" in text) == (200, True, True)


def test_a_key_that_was_made_for_a_week_is_not_reported_at_once() -> None:
    now_ms = wall_clock_ms()

    def made(days_ago: float, days_left: float) -> StoredKey:
        created, expires = now_ms - round(days_ago * DAY_MS), now_ms + round(days_left * DAY_MS)
        return StoredKey("ann", "0" * 64, (Scope.READ,), created, expires)

    assert not list(expiring([made(0, 7), made(0.1, 1), made(100, 20), StoredKey("bob", "0" * 64, (), now_ms)]))
    assert [one.detail for one in expiring([made(6, 1), made(80, SOON_MS / DAY_MS - 1)])] == [
        "'ann' expires in 1.0 days",
        "'ann' expires in 13.0 days",
    ]


@pytest.mark.parametrize(
    ("action", "target", "words", "page"),
    [
        ("put_schedule", "/schedules/a b", "add or change a schedule", "/dashboard/scheduled/edit/a%20b"),
        ("run_schedule", "/schedules/a/run", "run a schedule now", "/dashboard/scheduled/edit/a"),
        ("retry_job", "/jobs/x/y/retry", None, "/dashboard/jobs/x%2Fy"),
        ("act_on_jobs", "/jobs/actions", None, "/dashboard/jobs"),
        ("create_key", "/keys", "create a key", "/dashboard/admin"),
        ("later", "/moon", "later", ""),
        ("put_note", "/dead/groups/0123/acknowledgement", None, "/dashboard/dead?fingerprint=0123"),
        ("pause_queue", "/queues/high/pause", "pause a queue", "/dashboard/queues"),
    ],
)
def test_an_entry_of_the_audit_is_in_words_and_leads_to_its_target(
    action: str, target: str, words: str | None, page: str
) -> None:
    found = in_words(AuditEntry("2026-05-01T12:00:00.000Z", "me", "id", action, target, 1, 412, "r"))
    assert (found.view, found.result) == (page, "refused")
    assert words is None or found.action == words
    assert found.jobs is None, "nothing was changed"


def test_an_entry_of_the_audit_names_the_job_and_leads_to_what_became_of_many() -> None:
    made = AuditEntry("2026-05-01T12:00:00.000Z", "me", "id", "retry_job", "/jobs/x/retry", 1, 200, "r")
    one = in_words(replace(made, job_id="x", path="/in/a.pdf"))
    assert (one.target, one.view, one.jobs) == ("/in/a.pdf", "/dashboard/jobs/x", 1)
    assert in_words(replace(made, job_id="x", type="report")).target == "report x"
    many = in_words(
        replace(made, target="/jobs/actions", count=7, action_id="a-1", detail="action: retry, status: dead, match: *")
    )
    assert (many.action, many.detail, many.jobs) == ("retry jobs", "status: dead, match: *", 7)
    assert (many.target, many.view) == ("results", "/dashboard/admin/operations/a-1")
    paused = replace(made, target="/queues/high/pause", changes=changes_between({"paused": False}, {"paused": True}))
    assert (in_words(paused).target, in_words(paused).jobs) == ("high", None)


def test_a_server_that_hides_paths_hides_them_in_the_audit() -> None:
    entry = AuditEntry("2026-05-01T12:00:00.000Z", "me", "id", "upload", "/uploads/a/b.pdf", 1, 200, "r")
    entry = replace(entry, path="/in/a.pdf", detail="under: /in", changes=(AuditChange("path_prefix", None, "/in"),))
    assert not re.search("/in|b.pdf", str(without_files(entry)))
    cron = AuditChange("cron", "@daily", "@hourly")
    assert without_files(replace(entry, changes=(*entry.changes, cron))).changes == (cron,)


def test_changes_are_short_texts_without_keys_and_without_what_stayed() -> None:
    old = {"cron": "@daily", "retries": 3, "payload": {}, "gone": "x", "same": [1]}
    new = {"cron": "@hourly", "retries": None, "payload": {"k": "fq_abcdefgh_" + "s" * 43}, "same": [1]}
    assert changes_between(old, new) == (
        AuditChange("cron", "@daily", "@hourly"),
        AuditChange("retries", "3", None),
        AuditChange("payload", None, '{"k":"fq_abcdefgh_***"}'),
        AuditChange("gone", "x", None),
    )
    assert len(changes_between({}, {"note": "n" * 1000})[0].new or "") == TEXT_MAX


def test_a_wrong_value_is_said_once_and_can_be_typed_anew() -> None:
    [(status, text)] = ConsolePages().show(["/jobs?since=banana&status=dead&type="])
    assert status == 422
    assert text.count("since is") == 1
    assert 'name="since" value="banana"' in text
    assert '<input type="hidden" name="status" value="dead">' in text
    assert 'href="/dashboard/jobs?status=dead">Clear' in text
    [(status, text)] = ConsolePages().show(["/jobs?colour=red"])
    assert (status, "colour" in text, 'name="colour"' in text) == (422, True, False)


def test_an_unknown_job_or_file_leads_to_pages_and_not_to_commands() -> None:
    for _, text in ConsolePages().show(["/jobs/nothing%3Cb%3E", "/files/trace?path=/in/nothing.pdf"]):
        assert "fileq list" not in text
        assert "include_globs" not in text
        assert "/dashboard/jobs?q=nothing" in text
        assert "<b>" not in text


def test_a_cancelled_job_is_no_error_and_can_be_run_again() -> None:
    pages = ConsolePages()
    pages.broker.register({"s": WorkerInfo("host", 7, NOW_MS, "1", ("high", "low"))})
    job = typed_job("report", {"day": 1}, priority="high", now=datetime.now(UTC), id="r")
    pages.broker.enqueue([Entry(job, "high")])
    [claim] = pages.broker.settle_and_claim([], ["s"]).claims
    [(_, before), (_, unasked)] = pages.show(["/jobs/r", "/workers"])
    pages.broker.cancel(["r"])
    for _, running in pages.show(["/jobs/r", "/workers"]):
        assert ">Cancelling…</button>" in running
        assert 'data-action="DELETE /jobs/r"' not in running
    assert 'data-action="DELETE /jobs/r"' in before
    assert 'data-doing="Cancelling…"' in unasked, "the script says it before the page does"
    pages.broker.settle_and_claim([cancel(claim)], [])
    [(_, ended)] = pages.show(["/jobs/r"])
    assert "cancelling" not in ended.lower()
    assert "<h2>Error</h2>" not in ended
    assert "Run again" in ended
    assert "fileq.Client().job(&#34;r&#34;).status()" in ended


def test_a_delivery_that_is_retried_has_the_last_answer() -> None:
    pages = ConsolePages()
    pages.broker.register({"s": WorkerInfo("host", 7, NOW_MS, "1", ("high", "low"))})
    payload = {"webhook": "alerts", "body": {"type": "job.dead"}}
    job = typed_job(DELIVERY_TYPE, payload, priority="low", now=datetime.now(UTC))
    pages.broker.enqueue([Entry(job, "low", is_own=True)])
    [claim] = pages.broker.settle_and_claim([], ["s"]).claims
    error = "the receiver answered 503: come back later"
    pages.broker.settle_and_claim([retry(claim, claim.raw, delay_ms=60_000, error=error, kind="HTTP503")], [])
    [found] = latest_deliveries(pages.broker, pages.config, 3)["alerts"]
    assert (found.status, found.answer_status) == ("retrying", 503)


def test_a_time_has_its_weekday_and_its_zone_and_another_year() -> None:
    assert clock_time("2027-01-18T02:00:00+00:00", NOW_MS) == "Mon 18 Jan, 02:00 UTC"
    assert clock_time("2027-07-18T02:00:00+02:00", NOW_MS) == "Sun 18 Jul, 02:00 +02:00"
    assert clock_time("2028-02-29T23:30:00-03:30", NOW_MS) == "Tue 29 Feb 2028, 23:30 -03:30"


def test_labels_of_a_chart_are_at_equal_distances() -> None:
    minutes = ["16:26"] * 5 + [f"16:{minute}" for minute in range(27, 43) for _ in range(12)]
    shown = shown_labels(minutes)
    assert {after - before for before, after in pairwise(shown)} == {36}
    assert shown[0] == 5, "the first minute is not whole"
    assert len(shown_labels([f"{hour:02}:00" for hour in range(24)])) <= 7
    assert shown_labels([]) == []


def test_a_chart_leaves_time_without_samples_empty() -> None:
    labels = axis_times(["2026-11-17T16:41:55Z", "2026-11-17T16:42:00Z"], 720, 5.0)
    assert (len(labels), labels[0], labels[-2:]) == (720, "15:42", ["16:41", "16:42"])
    chart = line_chart([("a", [1.0, 1.0])], labels, title="jobs")
    assert re.findall(r"\d\d:\d\d(?=</text>)", chart)[:2] == ["15:43", "15:52"], "the whole axis has its times"
    first = float(chart.split('polyline class="line a" points="')[1].split(",")[0])
    assert first > 700
    labels = [float(part.split('"')[0]) for part in chart.split('<text x="')[1:] if "middle" in part.split(">")[0]]
    assert max(labels[3:]) <= 720 - 34, "no label is over the edge"


def test_a_tick_names_the_job_that_died_last_and_no_hidden_path() -> None:
    def event(number: int, name: str, data: bytes) -> LiveEvent:
        return LiveEvent(number, name, data, f"job-{number}", "report", "low", "/in/private.pdf")

    shown = [
        event(1, "job.dead", b"{}"),
        event(2, "job.dead", b'{"filepath":"/in/a.pdf"}'),
        event(3, "job.created", b"{}"),
    ]
    tick = tick_of(shown, 0)
    assert tick is not None
    assert (tick.last_dead, tick.last_dead_name) == ("job-2", "a.pdf")
    hidden = tick_of(shown[:1], 0)
    assert hidden is not None
    assert (hidden.last_dead, hidden.last_dead_name) == ("job-1", "report")
    calm = tick_of(shown[2:], 0)
    assert calm is not None
    assert calm.last_dead == ""


def test_the_form_of_a_schedule_speaks_plainly_and_deletes_last() -> None:
    pages = ConsolePages()
    options = WantedSchedule("30 6 * * mon-fri", "report", timezone="Europe/Berlin", missed="all:3")
    add_schedule(pages.broker, pages.config, "report", options, where="a test")
    addresses = ["/scheduled/edit/report", "/scheduled", "/scheduled/preview?cron=06:30+weekdays"]
    [(_, form), (_, listed), (_, wrong)] = pages.show(addresses)
    assert '<option value="all:3" selected>run each of the last 3</option>' in form, "a value that only programs set"
    assert '<option value="last">' in form
    assert "<option>Europe/Berlin</option>" in form
    assert "US/Eastern" not in form, "an old name"
    assert form.index("Latest jobs") < form.index('data-action="DELETE /schedules/report"')
    assert re.search(r"06:30 CES?T<", listed)
    assert "A cron line has five fields" in wrong
    assert "wrong-cron" in wrong, "the field is marked"
    assert "@hourly" not in wrong, "the examples are beside the field"


def test_a_zone_without_letters_is_named_by_its_city() -> None:
    assert clock_time("2027-07-18T02:00:00+02:00", NOW_MS, "Europe/Berlin") == "Sun 18 Jul, 02:00 CEST"
    assert clock_time("2027-07-18T02:00:00-03:00", NOW_MS, "America/Sao_Paulo") == "Sun 18 Jul, 02:00 in Sao Paulo"


def test_the_configuration_leaves_out_brokers_that_are_not_used() -> None:
    [(_, text)] = ConsolePages().show(["/admin/configuration"])
    assert "worker.count" in text
    assert "redis.addr" not in text


def test_the_success_rate_says_that_it_counts_attempts() -> None:
    pages = pages_with_worker()
    end(pages, a_job("a"), complete)
    end(pages, a_job("b"), dies)
    [overview] = shown(pages, "")
    assert "Success rate 50.0 % of attempts, last 24 h" in words(overview)
