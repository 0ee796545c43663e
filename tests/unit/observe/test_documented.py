"""The tables of docs/metrics.md and docs/events.md are the program's: nothing more, nothing less."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from fileq.brokers.types import WireEvent
from fileq.core import events
from fileq.core.events import Event, SkipReason
from tests.support.reference_tables import event_types, published_names, with_tables

REPOSITORY = Path(__file__).parents[3]


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of the table under this header line."""
    text = (REPOSITORY / "docs" / page).read_text()
    table = text[text.index(header) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# metrics


def test_the_table_of_metrics_is_written_from_the_program() -> None:
    page = (REPOSITORY / "docs/metrics.md").read_text()
    assert page == with_tables(page), "run `make docs`"


def test_the_reasons_are_documented() -> None:
    text = (REPOSITORY / "docs/metrics.md").read_text()
    assert words(text[text.index("- `reason` is one of") :].partition("\n")[0])[1:] == list(SkipReason)


# events


def test_the_table_of_log_events_is_written_from_the_event_classes() -> None:
    page = (REPOSITORY / "docs/events.md").read_text()
    assert page == with_tables(page), "run `make docs`"


def test_every_event_has_a_dotted_name_a_level_and_a_meaning() -> None:
    for kind in event_types():
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", kind.name), kind
        if "level" not in kind.__struct_fields__:  # else each event has its own
            assert kind.level in ("debug", "info", "warning", "error", "none"), kind
        assert (kind.__doc__ or "").endswith("."), kind


def test_no_two_events_share_a_name() -> None:
    kinds = [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, Event) and hasattr(kind, "name")
    ]
    assert len({kind.name for kind in kinds}) == len(set(kinds)) == len(event_types())


def test_every_event_about_a_job_has_its_ids() -> None:
    for kind in event_types():
        if kind.name.startswith("job."):
            assert kind.__struct_fields__[:5] == ("job_id", "filepath", "type", "trace_id", "span_id")


def test_every_event_class_is_emitted_somewhere() -> None:
    count: Counter[str] = Counter()
    for path in (REPOSITORY / "fileq").rglob("*.py"):
        count.update(re.findall(r"\w+", path.read_text()))
    for kind in event_types():
        assert count[kind.__name__] > 1, kind


def test_the_events_of_brokers_are_documented() -> None:
    in_the_log = {words(name)[0]: words(log)[0] for name, log, _ in rows("events.md", "| event | in the log | when |")}
    assert in_the_log == published_names()
    assert [words(name)[0] for name, _ in rows("events.md", "| field | holds |")] == list(WireEvent.__struct_fields__)
