"""The pictures of docs/console.md and the README: taken in a real browser, of a server on which something has failed.

FILEQ_GUIDE_PICTURES=docs/console takes them anew; otherwise they go to a temporary directory. They are the same in
every run but for ids and times."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fileq.brokers.types import Entry, WorkerInfo
from fileq.core.job import file_job, wall_clock_ms
from fileq.core.settlement import bury, complete
from tests.conftest import require
from tests.support.api_client import ADMIN_KEY, ServedApi, served_api
from tests.support.browser import Tab, chromium
from tests.support.program import REPOSITORY
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)
SCREEN, PHONE = (1200, 760), (390, 760)
MOST_BYTES = 150_000
WORKERS = ("scanner-1", "scanner-2")
# The name of the handler, the error, and the files that died of it.
CAUSES = (
    ("pdf", "ValueError: page 3 of {} can't be read (at tasks.py:14 in pdf)", "/srv/scans/2026/invoice-{:04}.pdf", 41),
    ("csv", "KeyError: 'customer_id' (at tasks.py:31 in table)", "/srv/exports/north/customers-{:02}.csv", 17),
    ("csv", "UnicodeDecodeError: invalid start byte (at tasks.py:29 in table)", "/srv/exports/south/orders-{}.csv", 3),
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tab, str]]:
    directory = tmp_path_factory.mktemp("pictures")
    settings = {"broker": "memory", "producer": {"scan_dir": "/srv"}}
    with chromium(require("chromium", shutil.which("chromium"))) as tab, served_api(directory, settings) as api:
        fill(api)
        base = f"http://127.0.0.1:{api.client.port}"
        tab.prefer("dark")
        tab.resize(*SCREEN)
        tab.open(f"{base}/login")
        tab.fill("#key", ADMIN_KEY)
        tab.click("form button", "Log in")
        tab.until("location.pathname === '/dashboard'")
        yield tab, base


def fill(api: ServedApi) -> None:
    """Jobs that were completed, jobs that died of three causes within two hours, and some that wait."""
    queues = tuple(api.config.worker.priorities)
    store = api.broker.store
    api.broker.register({slot: WorkerInfo(slot, 4711, 0, "0", queues) for slot in WORKERS})
    for handler, error, name, count in CAUSES:
        for number in range(count):
            store.clock = lambda since=count - number: wall_clock_ms() - since * 3 * 60_000
            path = name.format(number)
            enqueue(api, path)
            [claim] = api.broker.settle_and_claim([], WORKERS[:1]).claims
            ending = bury(claim, claim.raw, error=error.format(path), kind=error.partition(":")[0], handler=handler)
            api.broker.settle_and_claim([ending], [])
    store.clock = wall_clock_ms
    for number in range(230):
        enqueue(api, f"/srv/scans/2026/letter-{number:04}.pdf")
        if number < 190:
            [claim] = api.broker.settle_and_claim([], WORKERS[:1]).claims
            api.broker.settle_and_claim([complete(claim, result=b'{"pages":12}', duration_ms=140)], [])


def enqueue(api: ServedApi, path: str) -> None:
    job = file_job(path.encode(), size=48_213, priority="high", now=datetime.now(UTC))
    api.broker.enqueue([Entry(job, "high")])


def take(tab: Tab, name: str, directory: Path) -> None:
    kept = os.environ.get("FILEQ_GUIDE_PICTURES")
    picture = (Path(kept) if kept else directory) / name
    tab.screenshot(picture, is_whole=False)
    assert picture.stat().st_size < MOST_BYTES


def test_the_overview_shows_the_causes_without_scrolling(shown: tuple[Tab, str], tmp_path: Path) -> None:
    tab, base = shown
    tab.resize(*SCREEN)

    def has_samples() -> bool:
        tab.open(f"{base}/dashboard")
        return "First sample" not in tab.text("main")

    if os.environ.get("FILEQ_GUIDE_PICTURES"):
        wait_until(has_samples, 30, "samples of the last hour")
    tab.open(f"{base}/dashboard")
    assert tab.run("document.querySelector('main table').getBoundingClientRect().bottom < innerHeight")
    take(tab, "overview.png", tmp_path)


def test_the_largest_cause_and_its_retry_are_on_the_first_screen(shown: tuple[Tab, str], tmp_path: Path) -> None:
    tab, base = shown
    for size, name in ((SCREEN, "dead.png"), (PHONE, "phone.png")):
        tab.resize(*size, is_mobile=size == PHONE)
        tab.open(f"{base}/dashboard/dead")
        assert "41 jobs" in tab.text("article")
        retry = "document.querySelector('article [data-bulk=retry]')"
        assert tab.run(f"{retry}.getBoundingClientRect().bottom < innerHeight"), name
        take(tab, name, tmp_path)


def test_the_note_of_a_cached_page_moves_nothing(shown: tuple[Tab, str]) -> None:
    tab, base = shown
    for size in (SCREEN, PHONE):
        tab.resize(*size, is_mobile=size == PHONE)
        tab.open(f"{base}/dashboard/dead")
        top_of = "document.querySelector('h1').getBoundingClientRect().top"
        before = tab.run(f"document.body.dataset.state = 'live'; {top_of}")
        assert tab.run(f"document.body.dataset.state = 'kept'; {top_of}") == before
        shown_note = "document.querySelector('.kept-note').getBoundingClientRect()"
        assert tab.run(f"{shown_note}.height > 0 && {shown_note}.bottom <= {top_of}")


def test_the_guide_shows_pictures_that_are_small() -> None:
    guide = (REPOSITORY / "docs" / "console.md").read_text()
    pictures = sorted((REPOSITORY / "docs" / "console").glob("*.png"))
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < MOST_BYTES, picture
        assert f"(console/{picture.name})" in guide
