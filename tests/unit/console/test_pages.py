"""What pages of the console make of the API's answers: globs of facets, states of groups, trees, previews."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

import pytest
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Overview
from fileq.commands.acknowledgements import (
    ACKNOWLEDGEMENTS,
    ACKNOWLEDGEMENTS_MAX,
    Acknowledgement,
    acknowledge_group,
    group_state,
)
from fileq.commands.action_log import ACTIONS, IDS_EACH, IDS_KEPT, ActionLog, actions_on
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.queries.dead_jobs import DeadGroup, timeline
from fileq.queries.documents import BreakerDocument
from fileq.queries.file_pages import DirectoryCounts
from fileq.queries.job_filter import path_matcher
from fileq.server.console.charts import line_chart, spark_bars
from fileq.server.console.file_views import PREVIEW_IMAGE, hex_dump, preview_of_head, trail, tree_rows, upload_target
from fileq.server.console.job_views import address_of, cause_of, directory_match, extension_match
from fileq.server.console.state_views import breaker_banners
from fileq.server.problems import ApiProblem
from fileq.server.services import LiveSamples
from fileq.worker.breakers import reason_of
from tests.support.console_pages import ConsolePages

KNOWN = Acknowledgement("0123456789ab", "known", "ops", "2026-05-01T12:00:00.000Z")


def test_a_group_comes_back_with_a_death_after_its_acknowledgement() -> None:
    assert group_state(None, "2026-05-01T12:00:00.000Z") == "new"
    assert group_state(KNOWN, "2026-05-01T12:00:00.000Z") == "acknowledged"
    assert group_state(KNOWN, "2026-05-01T12:00:00.001Z") == "again"
    assert group_state(KNOWN, "2026-05-01T14:00:00.001+03:00") == "acknowledged", "another zone, an hour before"
    assert group_state(KNOWN, None) == "acknowledged"


def test_the_newest_acknowledgements_are_kept() -> None:
    broker = MemoryBroker(config_from({"broker": "memory"}))
    for number in range(ACKNOWLEDGEMENTS_MAX + 2):
        acknowledge_group(broker, f"{number:012x}", "", "ops", 1_001 + number)
    kept = ACKNOWLEDGEMENTS.all(broker)
    assert sorted(kept) == [f"{number:012x}" for number in range(2, ACKNOWLEDGEMENTS_MAX + 2)]
    made = acknowledge_group(broker, f"{2:012x}", "another note", "ops", 9_000)
    assert made == ACKNOWLEDGEMENTS.get(broker, f"{2:012x}")
    assert [ACKNOWLEDGEMENTS.remove(broker, f"{2:012x}") for _ in range(2)] == [True, False]
    broker.put_document("acknowledgements", f"{3:012x}", b"of a later version")
    assert f"{3:012x}" not in ACKNOWLEDGEMENTS.all(broker)


def test_a_timeline_counts_every_death_once() -> None:
    assert timeline([0, 1, 9], 0, 9, 5) == (2, 0, 0, 0, 1)
    assert timeline([7, 7], 7, 7, 3) == (2, 0, 0), "all in the same millisecond"
    assert sum(timeline(range(1000), 0, 999, 24)) == 1000
    assert timeline([], 5, 6, 2) == (0, 0)


def test_a_time_is_written_once_below_a_chart() -> None:
    chart = line_chart([("a", [0.0] * 12)], ["15:23"] * 6 + ["15:24"] * 6, title="jobs")
    assert (chart.count(">15:23<"), chart.count(">15:24<")) == (1, 1)


def test_a_breaker_that_several_workers_opened_is_one_banner() -> None:
    def opened(route: str, next_probe: str | None) -> BreakerDocument:
        return BreakerDocument(route, "open", "", 1.0, next_probe)

    soon, later = "2026-05-01T12:00:05Z", "2026-05-01T12:00:09Z"
    breakers = [opened("*.mail", later), opened("*.pdf", None), opened("*.mail", soon)]
    mail, scans = breaker_banners(breakers, {reason_of("*.mail"): 50}, is_more=True)
    assert "breaker of *.mail is open in 2 worker processes" in mail.text
    assert ("50 or more jobs are deferred" in mail.text, mail.until) == (True, soon)
    assert ("deferred" in scans.text, scans.until) == (False, None)
    assert "breaker of *.pdf is open in 1 worker process:" in scans.text
    reported = [BreakerDocument("*.mail", "open", "", 1.0, soon, deferred=count) for count in (1_200, 800)]
    [mail] = breaker_banners(reported, {reason_of("*.mail"): 50}, is_more=True)
    assert "2\u202f000 jobs are deferred" in mail.text, "the page itself looks at the first 50 only"


def test_small_bars_show_every_value_above_zero() -> None:
    assert spark_bars([0, 1, 1000], title="<deaths>").count("<rect") == 2
    assert "&lt;deaths&gt;" in spark_bars([], title="<deaths>")


@pytest.mark.parametrize(
    ("directory", "path", "is_met"),
    [
        ("/in/a", b"/in/a/x.pdf", True),
        ("/in/a", b"/in/a/b/x.pdf", False),
        ("/in/[a]{b,c}*", b"/in/[a]{b,c}*/x.pdf", True),
        ("/in/\\xff", b"/in/\xff/x.pdf", True),
        ("/", b"/x.pdf", True),
    ],
)
def test_a_facet_of_a_directory_matches_its_files(directory: str, path: bytes, is_met: bool) -> None:
    assert path_matcher(directory_match(directory, None))(path) is is_met


@pytest.mark.parametrize(
    ("pattern", "is_met"),
    [
        ("*.pdf", True),
        ("a/x.pdf", True),
        ("in/**/*.pdf", True),
        ("/in/a/*.pdf", True),
        ("/a/x.pdf", False),
        ("b/x.pdf", False),
    ],
)
def test_a_pattern_without_a_slash_in_front_matches_the_end_of_a_path(pattern: str, is_met: bool) -> None:
    assert path_matcher(pattern)(b"/in/a/x.pdf") is is_met


def test_facets_of_directory_and_extension_add_up() -> None:
    assert extension_match(".pdf", None) == "*.pdf"
    assert extension_match(".pdf", directory_match("/in", None)) == "/in/*.pdf"
    assert directory_match("/in", extension_match(".pdf", None)) == "/in/*.pdf"
    assert extension_match("(none)", None) == ""


def test_tags_are_parameters_of_an_address() -> None:
    assert address_of({"type": "a", "tag": {"k": "v"}}) == {"type": "a", "tag.k": "v"}


def counts(directory: str) -> DirectoryCounts:
    return DirectoryCounts(directory, 1, 0, 0, 0, 0, None, None)


def test_rows_of_a_tree_know_their_level_and_a_long_tree_has_one_level_only() -> None:
    rows = tree_rows([counts(path) for path in ("/in", "/in/a", "/in/a/b")], "/in/")
    assert [(row.name, row.level) for row in rows] == [("/in", 0), ("a", 1), ("b", 2)]
    assert [row.level for row in tree_rows([counts("/"), counts("/in")], "/")] == [0, 1]
    many = [counts("/in"), *(counts(f"/in/a/{n}") for n in range(100))]
    assert [row.level for row in tree_rows(many, "/in")] == [0]


def test_the_trail_leads_to_every_directory_above() -> None:
    assert trail("/srv/in/") == [("/", "/"), ("srv", "/srv"), ("in", "/srv/in")]
    assert trail("/") == [("/", "/")]


def test_uploads_go_to_the_chosen_directory_if_it_is_below_that_for_uploads() -> None:
    assert upload_target("/srv/in", "/srv/in/a/b") == "a/b/"
    assert [upload_target("/srv/in", under) for under in ("/srv/in", "/srv/inner", "/", "/srv")] == [""] * 4
    assert upload_target("", "/srv/in") == ""
    assert upload_target("/srv/in", "/srv/in/\\xff") == "", "not UTF-8"


def test_previews_are_text_hexadecimal_or_images() -> None:
    text = preview_of_head(b"<svg onload=alert(1)>\tx", 23)
    assert (text.kind, text.text, text.is_cut) == ("text", "<svg onload=alert(1)>   x", False)
    cut = preview_of_head("aä".encode()[:2], 3)
    assert (cut.kind, cut.text, cut.is_cut) == ("text", "a", True)
    assert preview_of_head(b"%PDF-1.7\x00\xff", 10).kind == "hex"
    png = b"\x89PNG\r\n\x1a\n"
    assert [preview_of_head(png, size).kind for size in (8, PREVIEW_IMAGE + 1)] == ["image", "none"]
    assert (preview_of_head(b"", 0).kind, preview_of_head(b"", 0).size) == ("text", 0)


def test_a_hex_dump_has_offsets_digits_and_printable_characters() -> None:
    first, second = hex_dump(b"<script>\x00\xff" + b"x" * 10).split("\n")
    assert first == "000000  3c 73 63 72 69 70 74 3e 00 ff 78 78 78 78 78 78  <script>..xxxxxx"
    assert second == f"000010  78 78 78 78{' ' * 36}  xxxx"


def test_a_page_has_the_theme_that_the_browser_was_told_and_no_other_text() -> None:
    pages = ConsolePages()
    for cookie, tag in (
        ("", '<html lang="en">'),
        ("fileq_theme=light", '<html lang="en" data-theme="light">'),
        ('fileq_theme="><script>', '<html lang="en">'),
    ):
        for _, text in pages.show(["/queues", "/nothing"], cookie=cookie):
            assert text.splitlines()[1] == tag, cookie


def test_a_page_from_memory_says_so_while_as_many_searches_run_as_may(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = ConsolePages()
    answers = iter([pages.broker.overview()])

    def once(*given: object, **options: object) -> Overview:
        if (answer := next(answers, None)) is None:
            raise ApiProblem("busy", "two searches run already")
        return answer

    monkeypatch.setattr(pages.broker, "overview", once)
    (_, live), (status, again), (refused, first) = pages.show(["/queues", "/queues", "/workers"])
    assert (status, again) == (200, live.replace('data-state="live"', 'data-state="kept"'))
    assert "Showing a cached page" in again
    assert (refused, "Two searches run already" in first) == (503, True), "there is nothing to show"


def test_a_broker_that_refuses_a_page_makes_it_show_what_it_showed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = ConsolePages()
    answers = iter([pages.broker.overview()])

    def once(*given: object, **options: object) -> Overview:
        if (answer := next(answers, None)) is None:
            raise BrokerUnavailable("connection refused")
        return answer

    monkeypatch.setattr(pages.broker, "overview", once)
    (_, live), (status, again), (other, first) = pages.show(["/queues", "/queues", "/workers"])
    assert 'data-state="live"' in live
    assert (status, again) == (200, live.replace('data-state="live"', 'data-state="away"'))
    assert (other, 'data-state="away"' in first, "Nothing cached for this page" in first) == (200, True, True)


@pytest.mark.parametrize(("has_answered", "state"), [(True, "live"), (False, "away")])
def test_a_page_that_was_never_shown_waits_for_a_slow_broker_that_has_answered_a_moment_ago(
    monkeypatch: pytest.MonkeyPatch, has_answered: bool, state: str
) -> None:
    pages, slow = ConsolePages(), threading.Event()
    overview, census = pages.broker.overview(), pages.broker.census()

    def answer(value: object) -> Callable[[], object]:
        return lambda *given, **options: slow.wait(10) and value

    monkeypatch.setattr(pages.broker, "overview", answer(overview))
    monkeypatch.setattr(pages.broker, "census", answer(census))
    monkeypatch.setattr("tests.support.console_pages.BUSY_S", 0.01)
    monkeypatch.setattr(LiveSamples, "is_recent", has_answered)
    if has_answered:
        threading.Timer(0.3, slow.set).start()
    [(status, text)] = pages.show(["/queues"])
    slow.set()
    assert (status, f'data-state="{state}"' in text) == (200, True)


def test_the_log_of_actions_keeps_the_newest_and_a_bounded_number_of_ids() -> None:
    pages, now = ConsolePages(), count(1_800_000_000_000)
    log = ActionLog(pages.broker, lambda: next(now))
    assert log.add(JobAction.RETRY, "me", []) == "", "nothing was changed"
    for number in range(1_000):
        log.add(JobAction.RETRY, "me", [f"job-{number}"])
    assert len(log.all()) < 1_000, "now and then the oldest are removed"
    ACTIONS.trim(pages.broker)
    assert [one.ids for one in log.all()] == [(f"job-{999 - n}",) for n in range(IDS_KEPT // IDS_EACH)]
    for _ in range(8):
        log.add(JobAction.RETRY, "me", [f"job-{n}" for n in range(3000)])
    ACTIONS.trim(pages.broker)
    assert sum(len(one.ids) for one in log.all()) == IDS_KEPT
    log.add(JobAction.CANCEL, "me", count=1, conditions={"batch": "nightly"})
    assert [one.action for one in actions_on(log.all(), "any", "nightly")] == [JobAction.CANCEL]


def test_a_headline_that_would_say_nothing_is_none() -> None:
    error = "KeyError: 'customer_id' (at tasks.py:31 in table)"
    two = DeadGroup("k", 2, "k", error, "KeyError", None, None, None, (), (), "a", "/in/a.pdf")
    assert (cause_of(two), cause_of(replace(two, error="ValueError: no page"))) == ("", "")
    assert cause_of(replace(two, error="no row 7 in /in/a.pdf")) == "no row … in …"
    assert cause_of(replace(two, error="no row 7 in /in/a.pdf", count=1)) == ""
