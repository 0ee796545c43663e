"""Every web page in a real browser, wide and narrow, dark and light: no error in the developer tools, nothing that runs
over the edge, nothing too low for a finger on a phone, and no serious finding of axe-core.

FILEQ_SCREENSHOTS=DIRECTORY keeps a picture of each, to look at."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import pytest

from fileq.brokers.types import WorkerInfo
from fileq.core.settlement import bury, complete
from fileq.server.console.console_app import VIEWS
from tests.conftest import require
from tests.support.api_client import ADMIN_KEY, ServedApi, served_api
from tests.support.browser import Tab, chromium

pytestmark = pytest.mark.timeout(300)
WIDE, NARROW = (1280, 900), (390, 844)
BETWEEN = (700, 900)  # tables are wider than their cards, and scroll there
NAMES = ("invoice-0017.pdf", "<script>alert(1)<script>.pdf", '"><svg onload=alert(1)>.pdf', "{{7*7}}.pdf", "n" * 255)
SERIOUS = ("serious", "critical")
# What is touched on a phone and is lower than 40 px. Boxes to tick have a label or a margin around them.
LOW_TARGETS = """[...document.querySelectorAll(
    "button, .button, select, textarea, input:not([type=checkbox]), .tabs a, .choices a")]
    .filter((one) => one.offsetParent && one.getBoundingClientRect().height < 40)
    .map((one) => `${one.tagName} ${one.name || one.textContent.trim()}`)"""


class Shown(NamedTuple):
    """A server with something on every page, and the addresses of all pages."""

    tab: Tab
    base: str
    paths: dict[str, str]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    directory = tmp_path_factory.mktemp("pages")
    settings = {"server": {"files": "download", "upload_dir": str(directory)}}
    with chromium(require("chromium", shutil.which("chromium"))) as tab, served_api(directory, settings) as api:
        paths = filled(api, directory)
        base = f"http://127.0.0.1:{api.client.port}"
        tab.resize(*WIDE)
        tab.open(f"{base}/login")
        tab.fill("#key", ADMIN_KEY)
        tab.click("form button", "Log in")
        tab.until("location.pathname === '/dashboard'")
        yield Shown(tab, base, paths)


def filled(api: ServedApi, directory: Path) -> dict[str, str]:
    """Puts jobs in every state, a schedule, a batch and a webhook on the broker; returns a path for each template."""
    client, broker = api.client, api.broker
    for name in NAMES:
        (directory / name).write_text(f"the content of {name}\n")
        made = client.post("/jobs", {"path": str(directory / name)})
        assert made.status in (200, 201), made.body
    for number in range(3):
        client.post("/jobs", {"type": "report", "id": f"report-{number}", "payload": {"number": number}})
    client.post("/jobs", {"type": "later", "id": "later", "delay": "1h"})
    broker.register({"w1": WorkerInfo("host", 4711, 0, "0", tuple(api.config.worker.priorities))})
    for number in range(6):
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        error = "ValueError: page 3 can't be read" if number % 2 else f"KeyError: {NAMES[2]!r}"
        ending = bury(claim, claim.raw, error=error) if number < 4 else complete(claim, result=b'{"pages":12}')
        broker.settle_and_claim([ending], [])
    batch = client.post("/batches", {"name": "morning"}).json
    client.post(f"/batches/{batch['id']}/jobs", {"jobs": [{"type": "report"}, {"type": "report"}]})
    schedule = {"cron": "30 6 * * mon-fri", "timezone": "Europe/Berlin", "type": "report"}
    client.call("PUT", "/schedules/nightly", schedule, {"If-None-Match": "*"})
    client.post("/webhooks", {"name": "receiver", "url": "https://example.com/hook", "events": ["job.dead"]})
    cancel = {"action": "cancel", "ids": ["report-1", "report-2"], "dry_run": False}
    action = client.post("/jobs/actions", cancel).json["action_id"]
    dead = client.get("/dead")["jobs"][0]
    given = {"id": dead["id"], "name": "nightly"}
    special = {
        "/batches/{id}": f"/batches/{batch['id']}",
        "/webhooks/{name}": "/webhooks/receiver",
        "/admin/operations/{id}": f"/admin/operations/{action}",
        "/files/trace": f"/files/trace?path={directory / NAMES[0]}",
    }
    whole = [page for page in VIEWS if page.open_path != "/scheduled/preview"]  # which is a part of a page
    return {page.open_path or "/": special.get(page.open_path, page.open_path.format(**given)) for page in whole}


def over_the_edge(tab: Tab) -> list[str]:
    wide = tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [f"{wide} px over the edge of {tab.run('innerWidth')} px"] if wide > 0 else []


def checked(shown: Shown, page: str, size: tuple[int, int], scheme: str, directory: str) -> None:
    tab, problems = shown.tab, list[str]()
    tab.problems.clear()
    tab.resize(*size, is_mobile=size == NARROW)
    tab.prefer(scheme)
    tab.open(f"{shown.base}/dashboard{shown.paths[page].rstrip('/')}")
    problems += over_the_edge(tab)
    if size == NARROW:
        problems += [f"{one} is lower than a finger needs" for one in tab.run(LOW_TARGETS)]
    axe = files("axe_core_python").joinpath("axe.min.js").read_text()
    tab.run(f"{axe}; true")
    found = json.loads(
        tab.run("axe.run({resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations))")
    )
    for one in found:
        if one["impact"] in SERIOUS:
            places = [node["target"] for node in one["nodes"]][:3]
            problems.append(f"{one['id']}: {one['help']} {places} {one['nodes'][0].get('failureSummary', '')}")
    tab.drain()
    if directory:
        name = (page.strip("/") or "overview").replace("/", "-").replace("{", "").replace("}", "")
        tab.screenshot(Path(directory) / f"{name}-{size[0]}.png")
    if size == WIDE:
        tab.resize(*BETWEEN)
        problems += over_the_edge(tab)
    assert problems + tab.problems == [], f"{page} at {size[0]} px, {scheme}"


@pytest.mark.parametrize(
    "page", [page.open_path or "/" for page in VIEWS if page.open_path != "/scheduled/preview"]
)  # a part of one
def test_a_page_has_no_error_no_overflow_and_no_serious_finding(shown: Shown, page: str) -> None:
    directory = os.environ.get("FILEQ_SCREENSHOTS", "")
    checked(shown, page, WIDE, "dark", directory)
    checked(shown, page, NARROW, "light", directory)
