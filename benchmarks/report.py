"""The tables, in Markdown: for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.goals import GOALS, ratio
from benchmarks.measures import MAIN, OTHERS, Column, Measure
from benchmarks.results import Results

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: float | None, column: Column, reference: float | None) -> str:
    """The value, and its ratio to the reference in parentheses."""
    if value is None:
        return "–"
    text = f"{value:,.{column.digits}f}"
    by_reference = ratio(value, reference)
    return text if by_reference is None else f"{text} ({by_reference:.2f})"


def figures_table(results: Results, measures: Sequence[Measure], store: str) -> str:
    """One row a system, one column a figure; columns and systems without figures are left out."""
    columns = [column for measure in measures for column in measure.columns]
    names = [name for name in results.systems(store) if any(results.value(name, c.key) is not None for c in columns)]
    columns = [column for column in columns if any(results.value(name, column.key) is not None for name in names)]
    if not columns:
        return ""
    best = {c.key: results.best_peer(c.key, c.better, store) if c.better else None for c in columns}
    rows = [[name, *(cell(results.value(name, c.key), c, best[c.key]) for c in columns)] for name in names]
    return table(["", *(column.title for column in columns)], rows)


def goals_table(results: Results) -> str:
    rows = []
    for goal in GOALS:
        figure = goal.figure(results)
        if figure is not None:
            verdict = "yes" if goal.is_met(figure) else "**no**"
            rows.append([goal.text, f"{figure:,.2f}", f"{goal.wanted} {goal.limit:g}", verdict])
    return table(["goal", "figure", "wanted", "met"], rows) if rows else ""


def settings_list(results: Results) -> str:
    return "\n".join(f"- {name}: {about['settings']}" for name, about in results.data["systems"].items())


def report(results: Results) -> str:
    """All tables, each with its heading."""
    about = results.data["about"]
    intro = (
        f"Measured {about['date'][:10]} on {about['cores']} cores, {about['server']}, Python {about['python']}; "
        f"medians of {about['rounds']}; load average at the start: {about['load_before']:.1f}."
    )
    if about["quick"]:
        intro += " **Quick form: the sizes are too small for figures that mean anything.**"
    sections = [
        ("Main figures, on Redis", figures_table(results, MAIN, "redis")),
        ("Main figures, on SQLite", figures_table(results, MAIN, "sqlite")),
        *((measure.title, figures_table(results, [measure], "redis")) for measure in OTHERS),
        ("Goals", goals_table(results)),
        ("Settings", settings_list(results)),
    ]
    parts = [intro, *(f"### {title}\n\n{body}" for title, body in sections if body)]
    failures = [
        f"- {one['system']}, {one['measure']}: {one['error'].splitlines()[0]}" for one in results.data["failures"]
    ]
    if failures:
        parts.append("### Failed\n\n" + "\n".join(failures))
    return "\n\n".join(parts) + "\n"


def with_report(page: str, text: str) -> str:
    """The page with `text` between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"
