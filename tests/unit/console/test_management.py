"""The pages of queues, workers, schedules, batches, webhooks and administration: what they compute, what they show."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from fileq.brokers.batches import NewBatch
from fileq.brokers.schedule_definitions import known_schedules
from fileq.brokers.types import Entry, Record, WorkerInfo
from fileq.client.options import WantedReprocess, WantedSchedule
from fileq.client.schedule_changes import add_schedule
from fileq.commands.admin.fsck.check import fsck
from fileq.commands.admin.fsck.report import Problem, Report
from fileq.commands.admin.schedules import list_schedules
from fileq.commands.api_keys import KeyOptions
from fileq.core.api_key import Scope
from fileq.core.delivery import CHECK_TYPE
from fileq.core.job import Job, State, encode, stamp, typed_job
from fileq.core.settlement import bury, complete
from fileq.core.webhook import Webhook, WebhookFilter
from fileq.queries.documents import BatchDocument, job_document
from fileq.server.console import admin_views
from fileq.server.console.batch_views import failures_of, parts_bar, progress
from fileq.server.console.console_app import VIEWS
from fileq.server.console.schedule_views import cron_of, form_of, json_text, upcoming
from fileq.server.console.state_views import ENDED, ended_a_minute, out_a_minute, process_of
from fileq.server.console.view import lines
from fileq.server.services import LiveSamples
from fileq.webhooks.store import WebhookStore
from tests.support.console_jobs import in_order
from tests.support.console_pages import ConsolePages

NOW_MS = 1_800_000_000_000
HOSTILE = '<script>alert(1)</script>"><svg onload=alert(1)>\u202e{{7*7}}'
DELAYS = range(60_000, 360_000, 60_000)
# Every page of these, with names that exist once `filled` has run.
ADDRESSES = (
    "/queues",
    "/workers",
    "/scheduled",
    "/scheduled/new",
    "/scheduled/edit/report",
    "/scheduled/edit/inbox",
    "/scheduled/edit/again",
    "/scheduled/preview?cron=0+6+*+*+*&timezone=Asia/Tokyo",
    "/batches",
    "/batches/nightly",
    "/webhooks",
    "/webhooks/alerts",
)
ADMIN_ADDRESSES = (
    "/admin",
    "/admin/audit",
    "/admin/configuration",
    "/admin/consistency?run=true",
    "/admin/environment?run=true",
)
BATCH = BatchDocument(
    id="b",
    name="nightly",
    parent=None,
    status="sealed",
    is_finished=False,
    is_cancelled=False,
    is_success=False,
    allow_failures=False,
    priority="",
    total=10,
    waiting=5,
    running=1,
    completed=3,
    dead=1,
    cancelled=0,
    deleted=0,
    created_at=stamp(NOW_MS - 60_000),
    sealed_at=None,
    finished_at=None,
    first_dead=None,
    first_error=None,
)


def new_job(type: str) -> Job:
    return typed_job(type, {}, priority="high", now=datetime.now(UTC))


def record(slot: str, ended_ms: int) -> Record:
    return Record("id", State.COMPLETED, b"{}", "high", slot=slot, ended_ms=ended_ms)


# what pages compute


def test_the_rest_of_a_batch_takes_as_long_for_each_job_as_those_that_ended() -> None:
    found = progress(BATCH, NOW_MS)
    assert (BATCH.ended, found.eta_s, found.word) == (4, 90.0, "running")
    assert progress(replace(BATCH, running=0), NOW_MS).word == "waiting"
    assert progress(replace(BATCH, status="open"), NOW_MS).word == "open"
    assert progress(replace(BATCH, waiting=9, running=1, completed=0, dead=0), NOW_MS).eta_s is None, "no speed yet"
    done = replace(BATCH, status="finished", is_finished=True, waiting=0, running=0, completed=10, dead=0)
    assert progress(done, NOW_MS).word == "finished"
    assert progress(done, NOW_MS).eta_s is None
    quick = replace(BATCH, total=10_000, waiting=0, running=1, completed=9_999, dead=0)
    assert progress(quick, NOW_MS).eta_s == 1.0, "not 0 while a job runs"
    assert progress(replace(done, is_success=True), NOW_MS).word == "completed"
    assert progress(replace(BATCH, is_cancelled=True), NOW_MS).word == "cancelled"
    empty = replace(BATCH, total=0, waiting=0, running=0, completed=0, dead=0)
    assert (empty.ended, progress(empty, NOW_MS).eta_s) == (0, None)


def test_the_bar_of_a_batch_shows_dead_members_apart() -> None:
    parts = parts_bar(replace(BATCH, total=1000, completed=997, dead=1, cancelled=2))
    assert re.findall(r'class="(a|b|gone)" x="([-\d.]+)" width="([\d.]+)"', parts) == [
        ("a", "-1.7", "99.7"),
        ("gone", "98.0", "1.0"),
        ("b", "99.0", "1.0"),
    ]
    assert "997 completed, 1 dead, 2 cancelled or deleted, of 1000" in parts


def test_files_that_a_delivery_lacks_are_apart_from_other_failures_and_each_has_its_own_problem() -> None:
    error = "missing: /in/a does not exist; also: missing: b"
    of_check = Record("1", State.DEAD, encode(new_job(CHECK_TYPE)), "high", error=error)
    missing, failed = job_document(of_check), job_document(replace(of_check, raw=encode(new_job("t")), error="x"))
    wrong_files, dead = failures_of(replace(BATCH, failures=(missing, failed)))
    assert [problem for problem, _ in wrong_files] == ["missing: /in/a does not exist"]
    assert dead == [failed]


def test_jobs_a_minute_are_those_of_the_last_minute_by_process() -> None:
    def rates(records: list[Record | None]) -> dict[str, float]:
        return ended_a_minute(records, NOW_MS, ENDED, lambda record: process_of(record.slot))

    old = record("host-a-7-0-ffff", NOW_MS - 61_000)
    found = [record("host-a-7-0-ffff", NOW_MS - 1000), record("b-9-1-eeee", NOW_MS), None, old]
    assert rates(found) == {"host-a-7": 1.0, "b-9": 1.0}
    many: list[Record | None] = [record("a-1-0-ffff", NOW_MS - 6000)] * ENDED
    assert rates(many) == {"a-1": ENDED * 10}, "there were more than the page looks at"
    assert rates([]) == {}
    assert process_of("my-host-12-3-ab12cd34") == "my-host-12"


def test_what_goes_out_of_a_queue_is_what_was_completed_and_what_died() -> None:
    pages = ConsolePages()
    broker = pages.broker
    broker.register({"s": WorkerInfo("host", 7, NOW_MS, "1", ("high", "low"))})
    for queue, jobs in (("high", 3), ("low", 2)):
        broker.enqueue([Entry(new_job("report"), queue) for _ in range(jobs)])
        for number in range(jobs):
            [claim] = broker.settle_and_claim([], ["s"]).claims
            broker.settle_and_claim([complete(claim) if number else bury(claim, claim.raw, error="E: x")], [])
    assert out_a_minute(broker, broker.overview(1, jobs=ENDED), lambda record: record.queue)[0] == {
        "high": 3.0,
        "low": 2.0,
    }
    assert out_a_minute(broker, broker.overview(1), lambda record: record.queue)[0] == {}


def test_the_change_of_a_queue_is_per_minute_and_unknown_before_the_second_sample() -> None:
    pages, times = ConsolePages(), count(NOW_MS, 30_000)
    samples = LiveSamples(pages.broker)
    pages.broker.census = _censuses(pages, times)  # type: ignore[method-assign]
    assert samples.waiting_change(12) == {}
    samples.take()
    assert samples.waiting_change(12) == {}
    pages.broker.enqueue([Entry(new_job("report"), "high"), Entry(new_job("report"), "high")])
    samples.take()
    assert samples.waiting_change(12) == {"high": 4.0, "low": 0.0}


def _censuses(pages: ConsolePages, times):  # type: ignore[no-untyped-def]
    real = pages.broker.census
    return lambda: replace(real(), now_ms=next(times))


def test_a_schedule_has_the_time_that_the_broker_has_and_the_two_after_it() -> None:
    pages = filled()
    views = {view.name: view for view in list_schedules(pages.broker)}
    times = upcoming(views["report"], NOW_MS)
    assert times[0] == views["report"].next
    assert len(times) == 3
    assert [one.utc for one in times] == sorted({one.utc for one in times})
    assert upcoming(replace(views["report"], status="paused"), NOW_MS) == ()


def test_the_form_of_a_schedule_has_what_the_api_takes() -> None:
    known = {name: one.document for name, one in known_schedules(filled().broker).items()}
    forms = {name: form_of(document.definition) for name, document in known.items() if document is not None}
    assert forms["report"].payload == {"x": HOSTILE}
    assert (forms["report"].scan, forms["report"].reprocess) == (None, None)
    assert (forms["inbox"].type, forms["inbox"].scan) == (None, "/srv/inbox")
    assert forms["again"].reprocess == WantedReprocess("*.pdf", "2h")
    assert (forms["report"].within, forms["report"].timeout) == ("10m", "1m30s")


def test_a_payload_in_the_form_reads_as_the_same_payload() -> None:
    for payload in ({"x": HOSTILE}, {"x": "\x7f\U000e0001"}, {"name": "Jürgen"}):
        text = json_text(payload)
        assert json.loads(text) == payload
        assert lines(text) == text, "the page shows it as it is"
    assert "Jürgen" in json_text({"name": "Jürgen"})
    [(_, page)] = filled().show(["/scheduled/edit/report"])
    assert "can't show" in page, "its type would not be the same after saving"


def test_settings_are_listed_by_section_with_their_dotted_paths() -> None:
    found = admin_views.sections_of({"broker": "sqlite", "worker": {"count": 2, "retry": {"base": "1s"}}, "tags": {}})
    assert found == {
        "": [("broker", "sqlite"), ("tags", "{}")],
        "worker": [("worker.count", "2"), ("worker.retry.base", "1s")],
    }


# what pages show


def filled(**config: Any) -> ConsolePages:
    """Names that try to be more than text, wherever one can be given."""
    pages = ConsolePages(**config)
    broker = pages.broker
    info = WorkerInfo(HOSTILE, 7, NOW_MS, "1", ("high", "low"), lost_roots=(HOSTILE,), lease_ms=30_000)
    broker.register({"slot-7-0-ffff": info})
    broker.create_batch(NewBatch("nightly", "nightly", allow_failures=True))
    for type in (HOSTILE, CHECK_TYPE):
        broker.enqueue([Entry(replace(new_job(type), batch_id="nightly"), "high", joins=True, is_own=True)])
        [claim] = broker.settle_and_claim([], ["slot-7-0-ffff"]).claims
        error = f"missing: /in/{HOSTILE}; also: missing: /in/b"
        broker.settle_and_claim([bury(claim, claim.raw, error=error, kind="ValueError")], [])
    broker.enqueue([Entry(new_job(HOSTILE), "high"), *(Entry(new_job(HOSTILE), "high", delay_ms=n) for n in DELAYS)])
    broker.settle_and_claim([], ["slot-7-0-ffff"])
    for name, options in {
        "report": WantedSchedule("0 * * * *", HOSTILE, {"x": HOSTILE}, "Asia/Tokyo", timeout="90s"),
        "inbox": WantedSchedule("@every 15m", scan="/srv/inbox"),
        "again": WantedSchedule("30 6 * * mon-fri", reprocess=WantedReprocess("*.pdf", "2h")),
    }.items():
        add_schedule(broker, pages.config, name, options, where="a test")
    pages.keys.create(KeyOptions("<b>key</b>", (Scope.READ,), allowed_types=(HOSTILE,), path_prefix=f"/{HOSTILE}"))
    WebhookStore(broker, pages.config.webhooks, lambda: NOW_MS).add(
        Webhook("alerts", "https://example.org/<script>?token=s3cret", ("job.dead",), WebhookFilter(match=HOSTILE))
    )
    return pages


def test_every_page_shows_hostile_names_as_text() -> None:
    pages = filled()
    addresses = [*ADDRESSES, *ADMIN_ADDRESSES]
    for address, (status, text) in zip(addresses, pages.show(addresses), strict=True):
        assert status == 200, (address, pages.events.events)
        assert [found for found in ("<script>alert", "<svg onload", "<b>key", "\u202e") if found in text] == [], address
        assert "s3cret" not in text, address
    shown = pages.show(["/workers", "/scheduled", "/batches/nightly", "/webhooks", "/admin"])
    assert all("&lt;script&gt;alert(1)&lt;/script&gt;" in text for _, text in shown), "they are there, as text"


def test_a_batch_shows_the_files_that_its_delivery_lacks_before_its_dead_members() -> None:
    [(_, text)] = filled().show(["/batches/nightly"])
    assert 0 < text.index("Missing or changed files") < text.index("Dead jobs")
    assert text.count("also: missing") == 1, "only the other dead member has the whole error"


def test_a_server_that_hides_paths_hides_those_of_deliveries_and_of_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_problem(*given: Any) -> Report:
        return replace(fsck(*given), problems=(Problem("lost", "job-1", "pending", "/in/private.pdf"),))

    monkeypatch.setattr(admin_views, "fsck", with_problem)
    for files, is_shown in (("names", True), ("none", False)):
        pages = filled(server={"files": files})
        [(_, batch), (_, check)] = pages.show(["/batches/nightly", "/admin/consistency?run=true"])
        delivery = batch.partition("Dead jobs")[0]
        assert ("missing: /in/" in delivery, "/in/private.pdf" in check) == (is_shown, is_shown), files
        assert ">missing" in delivery
        assert "job-1" in check


def test_every_page_without_anything_says_what_to_do() -> None:
    addresses = [address for address in ADDRESSES if address.count("/") == 1]
    for address, (status, text) in zip(addresses, ConsolePages().show(addresses), strict=True):
        assert status == 200, address
        assert 'class="empty"' in text, address


def test_a_caller_without_the_scope_gets_disabled_buttons_and_no_page_of_administrators() -> None:
    pages = filled()
    for address, (status, text) in zip(ADDRESSES, pages.show(ADDRESSES, Scope.READ), strict=True):
        assert status == 200, address
        buttons = [tag for tag in text.split("<button")[1:] if "data-action" in tag.split(">")[0]]
        assert all(" disabled" in tag.split(">")[0] for tag in buttons), address
    for address, (status, text) in zip(ADMIN_ADDRESSES, pages.show(ADMIN_ADDRESSES, Scope.READ), strict=True):
        assert (status, "<html" in text) == (403, True), address
    [(_, text)] = pages.show(["/queues"], Scope.READ)
    assert 'href="/dashboard/admin"' not in text, "the navigation has what the caller may see"


def test_a_wrong_time_is_explained_in_the_preview() -> None:
    crons = ["cron=99+*+*+*+*", "cron=@daily&timezone=Mars", "cron=06:30+weekdays", "cron=%3Cb%3E"]
    answers = ConsolePages().show([f"/scheduled/preview?{one}" for one in [*crons, "cron=@daily&timezone=Berlin"]])
    assert {status for status, _ in answers} == {200}
    wrong_time, wrong_zone, spoken, hostile, near_zone = (text for _, text in answers)
    assert "its minute is invalid" in wrong_time
    assert "Unknown time zone “Mars”" in wrong_zone
    assert 'data-fill="#s-cron" value="30 6 * * 1-5"' in spoken
    assert "five fields" in hostile
    assert "<b>" not in hostile
    zone_part = near_zone.partition('id="s-zone-hint" hx-swap-oob="true"')[2]
    assert in_order(zone_part, "Berlin is in the zone Europe/Berlin", 'data-fill="#s-zone" value="Europe/Berlin"')
    assert "wrong-timezone" not in near_zone, "a city is what the field asks for"
    assert 'wrong-timezone"' in wrong_zone.partition('id="s-zone-hint"')[2]
    assert "<html" not in wrong_time, "it is a part of a page"


@pytest.mark.parametrize(
    ("said", "cron"),
    [
        ("6:30", "30 6 * * *"),
        ("Weekdays at 06:30", "30 6 * * 1-5"),
        ("18:00 sat, sun", "0 18 * * 6,0"),
        ("07:15 Monday to Friday", "15 7 * * 1-5"),
        ("22:00 every day", "0 22 * * *"),
        ("every friday 9.05", "5 9 * * 5"),
        ("9:00 friday to monday", ""),
        ("25:00", ""),
        ("06:30:15", ""),
        ("06:30 sometimes", ""),
        ("0 6 * * *", ""),
    ],
)
def test_a_time_as_people_say_it_is_offered_as_an_expression(said: str, cron: str) -> None:
    assert cron_of(said) == cron


def test_one_check_of_the_consistency_runs_at_a_time() -> None:
    with admin_views.fsck_runs:
        [(status, text)] = ConsolePages().show(["/admin/consistency?run=true"])
    assert status == 409
    assert "already running" in text


def test_letters_of_pages_are_used_once() -> None:
    letters = [page.letter for page in VIEWS if page.letter]
    assert len(letters) == len(set(letters))
