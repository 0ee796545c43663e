"""The tables of docs/metrics.md and docs/events.md are the program's: nothing more, nothing less."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from fileq.brokers.types import Event
from fileq.observe.metrics import METRICS, REASONS

REPOSITORY = Path(__file__).parents[2]
LOOPS = ("producer", "scheduler", "reaper")  # each tells of "<its name>.failed"
LEVELS = ("debug", "info", "warning", "error", "none")
IDS = {"job_id", "trace_id", "span_id"}


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of the table under this header line."""
    text = (REPOSITORY / "docs" / page).read_text()
    table = text[text.index(header) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# metrics


def test_the_table_of_metrics_is_the_programs() -> None:
    documented = rows("metrics.md", "| metric | type | label | meaning |")
    assert documented == [[f"`{m.name}`", m.type, f"`{m.label}`" if m.label else "", m.help] for m in METRICS]


def test_the_reasons_are_documented() -> None:
    text = (REPOSITORY / "docs/metrics.md").read_text()
    assert words(text[text.index("- `reason` is one of") :].partition("\n")[0])[1:] == list(REASONS)


# events


class Emitted(Struct):
    levels: set[str]
    fields: set[str]


def emitted() -> dict[str, Emitted]:
    """What every call of an emit in the program tells, as far as it is written there."""
    found: dict[str, Emitted] = {}
    for path in sorted((REPOSITORY / "fileq").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or _name(call.func) not in ("emit", "_emit") or not call.args:
                continue
            keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            levels = set(_texts(keywords.pop("level"))) & {*LEVELS} if "level" in keywords else {"info"}
            fields = {*keywords} - {"job"} | (IDS if "job" in keywords else set())
            for name in _names(call.args[0]):
                known = found.setdefault(name, Emitted(set(), set()))
                known.levels |= levels
                known.fields |= fields
    return found


def settled() -> dict[str, str]:
    """The events of settlements, which are told by their verb: each is written beside its level."""
    return {
        node.elts[0].value: node.elts[1].value
        for path in sorted((REPOSITORY / "fileq/worker").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Tuple)
        and len(node.elts) == 2
        and all(isinstance(element, ast.Constant) for element in node.elts)
        and str(node.elts[0].value).startswith("job.")
    }


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _names(expression: ast.expr) -> Iterator[str]:
    if isinstance(expression, ast.JoinedStr):
        assert list(_texts(expression)) == [".failed"], "an event that is put together: name its parts in this test"
        yield from (f"{loop}.failed" for loop in LOOPS)
    else:
        yield from (text for text in _texts(expression) if "." in text)


def documented() -> dict[str, Emitted]:
    table = rows("events.md", "| event | level | fields | tells |")
    return {words(name)[0]: Emitted(set(levels.split(", ")), set(words(fields))) for name, levels, fields, _ in table}


def test_every_event_is_documented_and_every_documented_one_can_happen() -> None:
    assert {*emitted(), *settled()} == set(documented())


def test_levels_and_fields_are_as_documented() -> None:
    table = documented()
    verbs = settled()
    assert verbs.keys() == {f"job.{end}" for end in ("completed", "failed", "dead", "released", "cancelled")}
    for name, told in emitted().items():
        assert told.fields <= table[name].fields, name
        if name not in verbs and name != "job.recovered":
            assert told.levels == table[name].levels, name
    assert {name: table[name].levels for name in verbs} == {name: {level} for name, level in verbs.items()}


def test_every_event_about_a_job_has_its_ids() -> None:
    assert [name for name, row in documented().items() if name.startswith("job.") and not row.fields >= IDS] == []


def test_the_table_is_in_order_and_each_event_is_in_the_past_tense_of_a_thing() -> None:
    names = list(documented())
    assert names == sorted(names)
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in names)


def test_the_events_of_brokers_are_documented() -> None:
    source = (REPOSITORY / "fileq/brokers/wire_events.py").read_text()
    names = {text for text in _texts(ast.parse(source)) if text.startswith("job:")}  # type: ignore[arg-type]
    assert {words(name)[0] for name, _ in rows("events.md", "| event | when |")} == names
    assert [words(name)[0] for name, _ in rows("events.md", "| field | holds |")] == list(Event.__struct_fields__)
