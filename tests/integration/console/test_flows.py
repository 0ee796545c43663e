"""The web pages in a real browser: what an operator does with them, from the first start to an outage of the broker."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import ServerPool, require
from tests.support.browser import Tab, chromium
from tests.support.console_operator import call, confirm, without_problems
from tests.support.console_program import ConsoleProgram, console_program
from tests.support.servers import Server, available_servers

pytestmark = pytest.mark.timeout(300)
FILES = 100  # of each kind
WORKING = "main [data-action]:not(:disabled), main [data-bulk]:not(:disabled), main [data-send] button:not(:disabled)"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with chromium(require("chromium", shutil.which("chromium"))) as tab:
        yield tab


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProgram]:
    with console_program(tmp_path_factory.mktemp("console")) as program:
        yield program


@pytest.fixture(scope="module")
def operator(tab: Tab, program: ConsoleProgram) -> Tab:
    """The browser, logged in by the link that the first start prints."""
    tab.resize(1280, 900)
    tab.open(program.link)
    tab.until("location.pathname === '/dashboard'")
    assert tab.text("h1") == "Overview"
    tab.until("document.querySelector('[data-do=live]').getAttribute('aria-pressed') === 'true'")
    return tab


@pytest.fixture(autouse=True)
def _without_problems(tab: Tab) -> Iterator[None]:
    with without_problems(tab):
        yield


def test_a_dropped_file_completes_on_the_page_without_a_reload(operator: Tab, program: ConsoleProgram) -> None:
    tab = operator
    tab.open(f"{program.base}/dashboard/jobs")
    tab.until_text("No jobs yet")
    tab.run("window.isSamePage = true")
    program.drop("words.txt")
    tab.until_text("words.txt", "[data-live]")
    tab.until_text("completed", "[data-live]")
    assert tab.run("window.isSamePage") is True


def test_failed_files_are_two_groups_and_a_probe_and_a_retry_bring_them_back(
    operator: Tab, program: ConsoleProgram
) -> None:
    tab = operator
    program.drop(*(f"{n}.pdf" for n in range(FILES)), *(f"{n}.csv" for n in range(FILES)))
    tab.open(f"{program.base}/dashboard/dead")
    tab.until_text(f"{2 * FILES} dead jobs, 2 groups", timeout_s=60)
    tab.run("window.isSamePage = true")
    assert "ValueError" in tab.text("main")
    assert "KeyError" in tab.text("main")
    program.repair()
    tab.click("article:first-of-type button", "Retry one (probe)")
    tab.until("location.search.includes('probe=')")
    tab.until_text("Completed")
    tab.click("article button", "Retry all")
    confirm(tab, "Retry them")
    tab.click("#toasts a", "Results")
    tab.until_text(f"{FILES - 1} completed", timeout_s=60)
    assert re.search("cause: (ValueError|KeyError)", tab.text("main")), "no digits that nobody knows"
    tab.open(f"{program.base}/dashboard/dead")
    tab.until_text(f"{FILES} dead jobs, 1 group", timeout_s=60)
    tab.click("article button", "Acknowledge")
    tab.until("document.querySelector('#confirm').open")
    tab.fill("#confirm-note", "the supplier <b>knows</b>")
    tab.fill("#confirm-name", "Olga")
    tab.click("#confirm button", "Acknowledge")
    tab.until_text("Olga (one-time link) · Change your name", "footer")
    tab.until_text("the supplier <b>knows</b>", "article")
    tab.until_text("Olga (one-time link) acknowledged this", "article")
    assert tab.run("document.querySelector('#confirm-name')") is None, "the name is asked for once"
    tab.click("article button", "Retry all")
    confirm(tab, "Retry them")
    tab.until_text("No dead jobs", timeout_s=60)


def test_jobs_are_cancelled_run_and_selected_by_keys(operator: Tab, program: ConsoleProgram) -> None:
    tab = operator
    call(tab, "POST", "/jobs", {"type": "slow", "id": "runs"})
    call(tab, "POST", "/jobs", {"type": "report", "id": "later", "delay": "1h"})
    tab.open(f"{program.base}/dashboard/jobs/runs")
    tab.until_text("running", "[data-live]")
    tab.click("[data-page-actions] button", "Cancel")
    confirm(tab, "Cancel job")
    tab.until_text("cancelled", "[data-live]")
    tab.open(f"{program.base}/dashboard/jobs?status=scheduled")
    tab.until_text("report", "table")
    tab.press("j")
    tab.press("x")
    tab.until_text("1 selected")
    tab.press("e")
    tab.until_text("No jobs match", "[data-live]")
    tab.press("g")
    tab.press("q")
    tab.until("location.pathname === '/dashboard/queues' && document.readyState === 'complete'")
    tab.press("?")
    tab.until("document.querySelector('#help').open")
    tab.click("#help button", "Close")


def test_a_queue_is_paused_with_a_reason_and_resumed(operator: Tab, program: ConsoleProgram) -> None:
    tab = operator
    tab.open(f"{program.base}/dashboard/queues")
    tab.click('tr[data-row="low"] button', "Pause")
    tab.until_text("Reason, signed", "#confirm")
    tab.fill("#confirm-note", "the disk is full")
    confirm(tab, "Pause queue")
    tab.until_text("paused", 'tr[data-row="low"]')
    tab.open(f"{program.base}/dashboard")
    tab.until_text("Paused: low")
    tab.until_text("the disk is full")
    tab.open(f"{program.base}/dashboard/queues")
    tab.click('tr[data-row="low"] button', "Resume")
    confirm(tab, "Resume")
    tab.until_text("active", 'tr[data-row="low"]')


def test_a_schedule_is_made_with_a_preview_while_typing(operator: Tab, program: ConsoleProgram) -> None:
    tab = operator
    tab.open(f"{program.base}/dashboard/scheduled/new")
    tab.fill("#s-name", "nightly")
    tab.fill("#s-cron", "30 6 * * mon-fri")
    tab.until_text("06:30", "#preview")
    tab.fill("#s-cron", "61 * * * *")
    tab.until_text("its minute is invalid", "#preview")
    tab.fill("#s-cron", "06:30 weekdays")
    tab.click("#preview button", "Use 30 6 * * 1-5")
    tab.until_text("Weekdays at", "#preview")
    tab.fill("#s-zone", "Berlin")
    tab.click("#s-zone-hint button", "Use Europe/Berlin")
    tab.until_text("CE", "#preview")
    tab.fill("#s-cron", "@every 15m")
    tab.fill("#s-type", "report")
    tab.click("form button", "Save")
    tab.until("location.pathname === '/dashboard/scheduled'")
    tab.until_text("nightly")
    tab.open(f"{program.base}/dashboard/scheduled/new?copy=nightly")
    tab.fill("#s-name", "nightly")
    tab.click("form button", "Save")
    tab.until("document.activeElement.id === 's-name' && document.activeElement.ariaInvalid === 'true'")
    assert "This name is taken" in tab.text("form .bad")
    tab.fill("#s-name", "weekly")
    assert "taken" not in tab.text("form")
    tab.drain()
    tab.problems.clear()  # the browser reports the refused request as an error
    assert "nightly" in json.dumps(call(tab, "GET", "/schedules/nightly"))


def test_a_batch_shows_its_progress(operator: Tab, program: ConsoleProgram) -> None:
    tab = operator
    made = call(tab, "POST", "/batches", {"name": "morning"})
    assert isinstance(made, dict)
    tab.open(f"{program.base}/dashboard/batches/{made['id']}")
    tab.until_text("morning")
    call(tab, "POST", f"/batches/{made['id']}/jobs", {"jobs": [{"type": "report"} for _ in range(3)]})
    call(tab, "POST", f"/batches/{made['id']}/seal")
    tab.until_text("finished", "[data-live]", timeout_s=60)


def test_a_file_is_uploaded_by_dropping_it(operator: Tab, program: ConsoleProgram) -> None:
    tab = operator
    tab.open(f"{program.base}/dashboard/files?match=dropped*")
    tab.run(
        """(() => {
            const data = new DataTransfer();
            data.items.add(new File(["some words"], "dropped by hand.txt"));
            const area = document.querySelector("[data-upload]");
            area.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        })()"""
    )
    tab.until_text("Uploaded dropped by hand.txt")
    tab.until_text("dropped by hand.txt", "[data-live]")
    tab.until("document.querySelector('[data-upload] .state').textContent === 'completed'")
    assert tab.run("document.querySelector('[data-upload] a').search").endswith("dropped%20by%20hand.txt")
    assert (program.inbox / "dropped by hand.txt").read_text() == "some words"


def made_key(tab: Tab, name: str, scope: str) -> str:
    made = call(tab, "POST", "/keys", {"name": name, "scopes": [scope]})
    assert isinstance(made, dict)
    return str(made["key"])


def log_in(tab: Tab, key: str) -> None:
    tab.until("location.pathname === '/login'")
    tab.fill("#key", key)
    tab.click("form button", "Log in")
    tab.until("location.pathname === '/dashboard'")


def test_a_key_that_may_only_read_sees_no_button_that_works(operator: Tab, program: ConsoleProgram) -> None:
    tab = operator
    call(tab, "POST", "/jobs", {"type": "report", "id": "waits", "delay": "1h"})
    key, key_to_come_back = (made_key(tab, name, scope) for name, scope in (("reader", "read"), ("me", "admin")))
    cookies = tab.call("Network.getAllCookies")["cookies"]
    tab.click(".tools button", "Log out")
    tab.until_text("a one-time link. To log in again", "#confirm")
    confirm(tab, "Log out")
    log_in(tab, key)
    for path in ("/dashboard/jobs?status=scheduled", "/dashboard/queues", "/dashboard/scheduled", "/dashboard/files"):
        tab.open(program.base + path)
        open_buttons = (
            "main [data-action]:not(:disabled), main [data-bulk]:not(:disabled), main form[data-send] :enabled"
        )
        assert tab.run(f"document.querySelectorAll({json.dumps(open_buttons)}).length") == 0, path
    status = tab.run("fetch('/api/v1/jobs/waits', {method: 'DELETE'}).then((answer) => answer.status)")
    assert status == 403
    tab.drain()
    tab.problems.clear()  # the browser reports the refused request as an error
    tab.call(
        "Network.setCookies",
        cookies=[{name: one[name] for name in ("name", "value", "domain", "path")} for one in cookies],
    )
    tab.open(f"{program.base}/dashboard")
    log_in(tab, key_to_come_back)  # logging out has ended the session, also for a copy of its cookie


def test_while_the_broker_is_away_pages_show_the_last_state(
    tab: Tab, server_pool: ServerPool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    binary = available_servers()["valkey"]
    assert binary is not None
    # With an append-only file: the session and the jobs are there after the kill.
    for server in server_pool.lend("valkey with aof", lambda: Server(binary, aof=True)):
        settings = {"redis.addr": server.address}
        with console_program(tmp_path_factory.mktemp("away"), settings) as program:
            tab.open(program.link)
            tab.open(f"{program.base}/dashboard/jobs")
            program.drop("before.txt")
            tab.until_text("completed", "[data-live]")
            for leave, come_back in ((server.pause, server.resume), (server.kill, server.start)):
                leave()
                tab.open(f"{program.base}/dashboard/jobs")
                tab.until("document.body.dataset.state === 'away'")
                assert "before.txt" in tab.text("[data-live]")
                assert "Broker unreachable" in tab.text("main")
                come_back()
                tab.until("document.body.dataset.state === 'live'", timeout_s=60)
                program.drop(f"after {leave.__name__}.txt")
                tab.until_text(f"after {leave.__name__}.txt", "[data-live]", timeout_s=60)
            tab.open("about:blank")  # or its page would ask for events of a program that has stopped
            tab.drain()
            tab.problems.clear()  # requests that were refused during the outage
