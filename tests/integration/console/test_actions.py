"""The web pages in a real browser: every action that the other flows do not try, and how a page stays up to date."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.config import config_from
from fileq.config.http_settings import WebhookSettings
from fileq.core.job import wall_clock_ms
from fileq.queries.job_filter import JobFilter
from fileq.server.operations import Operation, OperationStore
from fileq.webhooks.store import WebhookStore
from tests.conftest import require
from tests.support.browser import Tab, chromium
from tests.support.console_operator import call, confirm, without_problems
from tests.support.console_program import ConsoleProgram, console_program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
# Counts how often the live part is fetched, swapped and put off; keeps the streams; lets a test stop the page's clock.
WATCHED = """
window.swaps = 0; window.fetches = 0; window.putOff = 0; window.streams = []; window.stopped_at = 0;
document.addEventListener("htmx:afterSwap", () => { swaps += 1; });
document.addEventListener("htmx:beforeRequest", () => { fetches += 1; });
const now = Date.now.bind(Date);
Date.now = () => stopped_at || now();
const later = window.setTimeout.bind(window);
window.setTimeout = (work, ms) => { if (work.name === "refresh") putOff += 1; return later(work, ms); };
window.EventSource = class extends EventSource { constructor(url) { super(url); streams.push(this); } };
"""
REFRESH = "import(document.querySelector('script[type=module]').src).then((console) => { console.refresh(); })"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProgram]:
    with console_program(tmp_path_factory.mktemp("actions"), {"worker.heartbeat_ttl": "3s"}) as program:
        yield program


@pytest.fixture(scope="module")
def tab(program: ConsoleProgram) -> Iterator[Tab]:
    """The browser, logged in."""
    with chromium(require("chromium", shutil.which("chromium"))) as tab:
        tab.resize(1280, 900)
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCHED)
        tab.open(program.link)
        tab.until("location.pathname === '/dashboard'")
        yield tab


@pytest.fixture(autouse=True)
def _without_problems(tab: Tab) -> Iterator[None]:
    with without_problems(tab):
        yield


def state_of(tab: Tab, id: str) -> str:
    return str(call(tab, "GET", f"/jobs/{id}")["status"])


def test_a_page_is_not_refreshed_while_text_in_it_is_selected_or_typed(tab: Tab, program: ConsoleProgram) -> None:
    tab.open(f"{program.base}/dashboard/queues")
    for begin, end in (
        ("getSelection().selectAllChildren(document.querySelector('#live h1, #live h2'))", "getSelection().empty()"),
        (
            "document.querySelector('#live').prepend(Object.assign(document.createElement('input'), {id: 'typed'})); "
            "document.querySelector('#typed').focus()",
            "document.querySelector('#typed').blur()",
        ),
    ):
        tab.run("swaps = putOff = 0")
        tab.run(begin)
        tab.run(REFRESH)
        tab.until("putOff >= 3")  # it looked three times if it may
        assert tab.run("swaps") == 0, begin
        tab.run(end)
        tab.until("swaps > 0")


def test_a_page_is_refreshed_at_most_once_a_second_and_keeps_the_focus(tab: Tab, program: ConsoleProgram) -> None:
    tab.open(f"{program.base}/dashboard/queues")
    tab.run("document.querySelector('tr[data-row=high] button').focus()")
    tab.run("stopped_at = Date.now() + 5000")  # more than a second after any refresh
    call(tab, "POST", "/queues/high/pause")
    call(tab, "POST", "/jobs", {"type": "report", "priority": "high"})  # so that the row has a link more than before
    for _ in range(3):
        tab.run(f"Promise.all([1, 2, 3].map(() => {REFRESH}))")
        tab.until("swaps > 0 && !document.querySelector('.htmx-request')")
        tab.run("stopped_at += 999; fetches = putOff = 0")
        tab.run(REFRESH)
        tab.until("putOff >= 3")  # it looked three times if it may
        assert tab.run("fetches") == 0, "the second is not over"
        tab.run("stopped_at += 1; swaps = 0")
    tab.until("document.activeElement.closest('tr')?.dataset.row === 'high'")
    assert tab.run("document.activeElement.innerText") == "Resume"
    call(tab, "POST", "/queues/high/resume")


def test_a_page_in_the_background_costs_nothing_and_catches_up(tab: Tab, program: ConsoleProgram) -> None:
    key = call(tab, "POST", "/keys", {"name": "watcher", "scopes": ["read", "enqueue"]})["key"]
    other = program.client(key)
    tab.open(f"{program.base}/dashboard/jobs")
    tab.until("streams.length && streams.at(-1).readyState === 1")
    front = tab.call("Target.createTarget", url="about:blank")["targetId"]
    tab.until("document.hidden")
    assert tab.run("streams.map((one) => one.readyState)") == [2], "the stream is closed"
    tab.drain()
    tab.requests.clear()
    other.post("/jobs", {"type": "report", "id": "in-the-background"})
    wait_until(lambda: other.get("/jobs/in-the-background")["status"] == "completed", 30, "the job", every_s=0.2)
    tab.run(REFRESH)
    tab.drain()
    assert tab.requests == []
    tab.call("Target.closeTarget", targetId=front)
    tab.until("!document.hidden")
    tab.until("!!document.querySelector('[data-row=in-the-background]')")


def test_the_chosen_theme_is_in_the_page_that_the_server_sends(tab: Tab, program: ConsoleProgram) -> None:
    tab.prefer("dark")
    tab.open(f"{program.base}/dashboard/queues")
    tab.press("t")
    tab.until("document.documentElement.dataset.theme === 'light'")
    sent = tab.run("fetch(location).then((answer) => answer.text())")
    assert '<html lang="en" data-theme="light">' in sent
    tab.press("t")
    tab.open(f"{program.base}/dashboard/queues")
    assert tab.run("document.documentElement.dataset.theme") == "dark"


def test_a_batch_is_retried_and_cancelled(tab: Tab, program: ConsoleProgram) -> None:
    made = call(tab, "POST", "/batches", {"name": "mixed", "allow_failures": True})
    jobs = [{"type": "audit"}, {"type": "slow", "id": "slow-1"}, {"type": "report", "id": "held", "delay": "1h"}]
    assert call(tab, "POST", f"/batches/{made['id']}/jobs", {"jobs": jobs})["enqueued"] == 3
    tab.open(f"{program.base}/dashboard/batches/{made['id']}")
    tab.click("[data-page-actions] button", "Retry dead")
    confirm(tab, "Retry jobs")
    tab.until_text("Back in their queues", "#toasts")
    tab.click("[data-page-actions] button", "Cancel")
    confirm(tab, "Cancel batch")
    tab.until_text("cancelled", ".head")
    wait_until(
        lambda: state_of(tab, "slow-1") == state_of(tab, "held") == "cancelled", 30, "cancelled jobs", every_s=0.2
    )


def test_a_running_job_is_cancelled_on_the_page_of_workers(tab: Tab, program: ConsoleProgram) -> None:
    call(tab, "POST", "/jobs", {"type": "slow", "id": "slow-2"})
    tab.open(f"{program.base}/dashboard/workers")
    tab.until_text("slow", "[data-live]")
    tab.click("[data-live] button", "Cancel")
    confirm(tab, "Cancel job")
    tab.until("document.querySelector('.toast a')?.pathname === '/dashboard/jobs/slow-2'")
    wait_until(lambda: state_of(tab, "slow-2") == "cancelled", 30, "a cancelled job", every_s=0.2)
    tab.until("!!document.querySelector('[data-live] tr[data-row=slow-2] .cancelled')")


def test_a_schedule_runs_now_is_paused_resumed_changed_and_deleted(tab: Tab, program: ConsoleProgram) -> None:
    made = {"cron": "@daily", "type": "report"}
    call(tab, "PUT", "/schedules/weekly", made)
    tab.open(f"{program.base}/dashboard/scheduled")
    row, foot = "[data-row=weekly]", "document.querySelector('footer').getBoundingClientRect().bottom"
    before = tab.run(foot)
    tab.click(f"{row} button", "Run now")
    confirm(tab, "Run now")
    tab.until_text("Job enqueued", "#toasts")
    assert tab.run(foot) == before, "a toast moves nothing"
    wait_until(
        lambda: call(tab, "GET", "/jobs?schedule=weekly&status=completed")["jobs"], 30, "the job of the schedule"
    )
    tab.click("#toasts a", "Open the job")
    tab.until("location.pathname.startsWith('/dashboard/jobs/sched.weekly.manual.')")
    tab.open(f"{program.base}/dashboard/scheduled/edit/weekly")
    assert "manual" in tab.text("#runs")
    assert "completed" in tab.text("#runs")
    tab.open(f"{program.base}/dashboard/scheduled")
    tab.click(f"{row} button", "Pause")
    tab.until_text("paused", row)
    tab.click(f"{row} button", "Resume")
    tab.until_text("active", row)
    tab.click(f"{row} a", "Edit")
    tab.until("document.querySelector('#s-cron')?.value === '@daily'")
    tab.fill("#s-cron", "@every 15m")
    tab.until_text("Every 15 minutes", "#preview")
    tab.click("form button", "Save")
    tab.until("location.pathname === '/dashboard/scheduled'")
    assert "@every 15m" in json.dumps(call(tab, "GET", "/schedules/weekly"))
    tab.open(f"{program.base}/dashboard/scheduled/edit/weekly")
    tab.click("main > .row button", "Delete schedule")
    confirm(tab, "Delete schedule")
    tab.until("location.pathname === '/dashboard/scheduled'")
    tab.until("!document.querySelector('[data-row=weekly]')")


def test_a_key_is_made_shown_once_and_revoked(tab: Tab, program: ConsoleProgram) -> None:
    tab.open(f"{program.base}/dashboard/admin")
    tab.fill("#k-name", "robot")
    tab.click("form button", "Create key")
    key = tab.until("document.querySelector('#secret').textContent.trim()")
    assert program.client(str(key)).get("/queues")["queues"]
    assert "The new key robot" in tab.text("[data-reveal]:not([hidden]) h2")
    tab.until_text("robot", "[data-live]")
    assert str(key) not in tab.run("fetch(location).then((answer) => answer.text())")
    tab.run("document.querySelectorAll('[data-live] tr').forEach((row) => { row.dataset.name = row.innerText; })")
    tab.click("tr[data-name*=robot] button", "Revoke")
    confirm(tab, "Revoke key")
    tab.until("!document.querySelector('[data-live]').innerText.includes('robot')")
    wait_until(
        lambda: program.client(str(key)).call("GET", "/queues").status == 401, 30, "the key is refused", every_s=0.2
    )


def test_a_webhook_that_was_disabled_is_enabled(tab: Tab, program: ConsoleProgram) -> None:
    call(tab, "POST", "/webhooks", {"name": "gone", "url": "https://example.com/hook", "events": ["job.dead"]})
    with opened_broker(program) as broker:
        WebhookStore(broker, WebhookSettings(), wall_clock_ms).disable("gone", "the receiver answered 410")
    tab.open(f"{program.base}/dashboard/webhooks/gone")
    tab.until_text("the receiver answered 410")
    tab.click("main button", "Enable")
    tab.until_text("enabled", "[data-live]")
    assert "410" not in tab.text("[data-live]")


def test_on_a_phone_the_menu_is_in_view_and_a_death_has_a_link_and_swallows_no_tap(
    tab: Tab, program: ConsoleProgram
) -> None:
    tab.resize(390, 844, is_mobile=True)
    tab.open(f"{program.base}/dashboard/words")
    tab.run("document.querySelector('main').append(...Array.from({length: 99}, () => document.createElement('hr')))")
    tab.run("scrollTo(0, 1500)")
    tab.click(".menu", "Menu")
    link = "document.querySelector('nav a[data-go=q]')"
    touched = "((box) => document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2))"
    assert tab.run(f"scrollY > 1000 && {touched}({link}.getBoundingClientRect()) === {link}"), "it can be touched"
    assert tab.run("document.elementFromPoint(195, 700).closest('main')") is None, "the page is behind it"
    tab.run("document.querySelector('main').click()")
    assert tab.run(f"{link}.offsetParent") is None, "a tap beside the menu closes it"
    tab.open(f"{program.base}/dashboard/queues")
    tab.until("streams.length && streams.at(-1).readyState === 1")
    program.drop("broken.pdf")
    tab.until_text("broken.pdf died.", "#toasts")
    text = "document.querySelector('.toast span')"
    assert tab.run(f"!!{touched}({text}.getBoundingClientRect()).closest('#toasts')") is False, "a tap goes through"
    places = "['h1', '#toasts'].map((one) => document.querySelector(one).getBoundingClientRect())"
    assert tab.run(f"(([title, toasts]) => toasts.top >= title.bottom)({places})"), "search, menu and title are free"
    tab.click(".menu", "Menu")
    above = "['#toasts', 'nav', '.top'].map((one) => Number(getComputedStyle(document.querySelector(one)).zIndex))"
    assert tab.run(f"(([toasts, menu, top]) => toasts < menu && toasts < top)({above})"), "the open menu lies above it"
    tab.run("document.querySelector('main').click()")
    tab.click(".toast a", "See why")
    tab.until_text("ValueError", "main")
    tab.fill("#search", "broken")
    tab.click(".search button")
    tab.until("location.pathname === '/dashboard/jobs' && location.search === '?q=broken'")
    tab.resize(1280, 900)
    call(tab, "DELETE", "/dead")


def test_the_dead_jobs_of_a_group_are_deleted(tab: Tab, program: ConsoleProgram) -> None:
    program.drop(*(f"{number}.pdf" for number in range(3)), "one.csv")
    tab.open(f"{program.base}/dashboard/dead")
    tab.until("[...document.querySelectorAll('article')].some((one) => /3 jobs/.test(one.innerText))", 60)
    tab.until_text("KeyError", "main")
    tab.run("[...document.querySelectorAll('article')].find((one) => /3 jobs/.test(one.innerText)).id = 'largest'")
    tab.click("#largest button", "Delete all")
    confirm(tab, "Delete them")
    tab.until_text("3 deleted", "#toasts")
    tab.until("!document.querySelector('main').innerText.includes('page 3')")
    assert "KeyError" in tab.text("main")


def test_an_operation_is_stopped(tab: Tab, program: ConsoleProgram) -> None:
    now_ms, filter = wall_clock_ms(), JobFilter(type="none")
    running = Operation("long", JobAction.CANCEL, filter, {"type": "none"}, 5000, now_ms, now_ms, "a test")
    with opened_broker(program) as broker:  # of a server that has just died: another takes it over in 5 s
        OperationStore(broker, wall_clock_ms).save(replace(running, owner="another", state="running"))
    tab.open(f"{program.base}/dashboard/admin/operations")
    tab.click("tr[data-row=long] button", "Stop")
    confirm(tab, "Stop operation")
    tab.until_text("stopped", "tr[data-row=long]")


@contextmanager
def opened_broker(program: ConsoleProgram) -> Iterator[FullBroker]:
    """The broker of the program, as another process on the same machine has it."""
    broker = open_broker(config_from({"broker": "sqlite", "sqlite": {"path": str(program.directory / "fileq.db")}}))
    try:
        yield broker
    finally:
        broker.close()
