"""The parts of `make bench` that compute: readings of /proc, percentiles, ratios, tables, the choice of what runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.goals import GOALS, Goal
from benchmarks.measures import ALL, Column
from benchmarks.proc import TICK_US, ProcessTimes, TreeTimes, parse_pss_kb, parse_stat, times_of
from benchmarks.report import BEGIN, END, PAGE, cell, report, table, with_report
from benchmarks.results import Results
from benchmarks.selection import UnknownWord, select
from benchmarks.summary import percentile
from benchmarks.systems import all_systems

STAT = "42 (a (b) c) S 7 42 42 0 -1 4194560 100 200 0 0 11 22 33 44 20 0 1 0 5 6 7"


def results_with(figures: dict[str, dict[str, list[float]]], cores: int = 2) -> Results:
    about = {"date": "2026-11-17", "cores": cores, "server": "redis 7", "python": "3.11", "rounds": 3}
    systems = {
        name: {
            "settings": "s",
            "store": "sqlite" if "sqlite" in name else "redis",
            "is_fileq": name.startswith("fileq"),
        }
        for name in figures
    }
    about |= {"quick": False, "load_before": 0.0}
    return Results({"about": about, "systems": systems, "figures": figures, "failures": [], "runs": {}})


def test_a_stat_line_is_read_behind_the_name_whatever_the_name_contains() -> None:
    assert parse_stat(STAT) == ProcessTimes(42, 7, 33 * TICK_US, 77 * TICK_US)


def test_the_times_of_a_tree_include_grandchildren_and_ended_children_and_no_others() -> None:
    tree = [ProcessTimes(1, 0, 10, 1), ProcessTimes(2, 1, 20, 2), ProcessTimes(3, 2, 40, 0), ProcessTimes(9, 0, 99, 99)]
    assert times_of(1, tree) == TreeTimes(root_us=10, below_us=63)


def test_the_proportional_set_size_is_read() -> None:
    assert parse_pss_kb("55d0-7ffc ---p 0 00:00 0 [rollup]\nRss:  900 kB\nPss:  321 kB\nPss_Dirty:  5 kB\n") == 321


@pytest.mark.parametrize(("share", "value"), [(50, 50), (95, 95), (99, 99), (100, 100)])
def test_percentiles_are_values_that_were_measured(share: float, value: float) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 99) == 7.0


def test_a_percentile_of_few_values_is_not_below_its_share_of_them() -> None:
    assert percentile([1, 2, 3, 4], 95) == 4


def test_a_table_has_text_on_the_left_and_figures_on_the_right() -> None:
    assert table(["", "a"], [["x", "1"]]) == "|  | a |\n| --- | --: |\n| x | 1 |"


@pytest.mark.parametrize(
    ("value", "reference", "text"), [(1234.5, 1000.0, "1,234.5 (1.23)"), (2.0, None, "2.0"), (None, 1.0, "–")]
)
def test_a_cell_has_its_ratio_to_the_reference(value: float | None, reference: float | None, text: str) -> None:
    assert cell(value, Column("k", "t", 1), reference) == text


def test_the_report_has_medians_and_ratios_to_the_best_peer_of_the_same_store() -> None:
    results = results_with(
        {
            "fileq process 16": {"drain_1": [100, 300, 200], "pickup_p50": [2]},
            "celery": {"drain_1": [10], "pickup_p50": [4]},
            "bullmq": {"drain_1": [100]},
            "huey sqlite": {"drain_1": [999]},
        }
    )
    lines = report(results).splitlines()
    assert "| fileq process 16 | 200 (2.00) | 2.00 (0.50) |" in lines
    assert "| bullmq | 100 (1.00) | – |" in lines
    assert "| huey sqlite | 999 (1.00) |" in lines
    assert "| process mode drain ÷ celery prefork | 20.00 | ≥ 10 | yes |" in lines


def test_a_goal_that_is_missed_is_marked_and_one_without_figures_is_left_out() -> None:
    text = report(results_with({"fileq process 16": {"idle_cpu": [1.5]}}))
    assert "| idle CPU %, process mode | 1.50 | < 1 | **no** |" in text
    assert "PSS" not in text


def test_a_second_worker_must_help_only_where_it_has_cores() -> None:
    figures: dict[str, Any] = {"fileq process 16": {"drain_1": [100], "drain_2": [120]}}
    assert "with cores for both | 1.20 | ≥ 1.5 | **no**" in report(results_with(figures, cores=4))
    assert "with cores for both" not in report(results_with(figures, cores=2))


@pytest.mark.parametrize(("wanted", "met"), [("≥", True), ("≤", True), ("<", False)])
def test_a_goal_compares_with_its_limit(wanted: Any, met: bool) -> None:
    assert Goal("g", lambda _: None, wanted, 1.0).is_met(1.0) is met


def test_every_goal_reads_columns_and_systems_that_exist() -> None:
    """Each goal has a figure if everything was measured."""
    keys = [column.key for measure in ALL for column in measure.columns]
    everything = {system.name: {key: [1.0] for key in keys} for system in all_systems()}
    assert [goal.text for goal in GOALS if goal.figure(results_with(everything, cores=4)) is None] == []


def test_a_failure_is_reported_with_its_first_line() -> None:
    results = results_with({"rq": {}})
    results.add_failure("rq", "drain", "it stalled\nlong output")
    assert report(results).endswith("### Failed\n\n- rq, drain: it stalled\n")


def test_words_choose_measures_and_systems() -> None:
    measures, systems = select(["drain", "fileq thread", "huey sqlite"], all_systems())
    assert [measure.name for measure in measures] == ["drain"]
    names = [system.name for system in systems]
    assert names == ["fileq thread 4", "fileq thread 16", "fileq thread 64", "fileq thread 16 sqlite", "huey sqlite"]


def test_a_whole_name_chooses_that_system_only() -> None:
    assert [system.name for system in select(["huey"], all_systems())[1]] == ["huey"]
    assert [system.name for system in select(["sqlite huey"], all_systems())[1]] == ["huey sqlite"]


def test_without_words_everything_is_chosen() -> None:
    systems = all_systems()
    assert select([], systems) == (list(ALL), systems)


def test_an_unknown_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownWord, match="'drian' is neither a measure nor a system; measures: enqueue, drain"):
        select(["drian"], all_systems())


def test_results_survive_their_file_and_count_runs(tmp_path: Path) -> None:
    results = results_with({"rq": {}})
    results.add("rq", "drain", {"drain_1": 5.0})
    results.add_failure("rq", "drain", "stalled")
    results.write(tmp_path / "new" / "bench.json")
    again = Results.read(tmp_path / "new" / "bench.json")
    assert (again.runs("rq", "drain"), again.runs("rq", "idle"), again.value("rq", "drain_1")) == (2, 0, 5.0)


def test_the_tables_replace_what_is_between_the_markers() -> None:
    assert with_report(f"a\n{BEGIN}\nold\n{END}\nb\n", "new\n") == f"a\n{BEGIN}\n\nnew\n\n{END}\nb\n"
    with pytest.raises(ValueError, match="has no"):
        with_report("a page without markers", "new")


def test_the_page_has_the_markers_and_explains_every_measure() -> None:
    page = PAGE.read_text()
    assert with_report(page, "x") != page
    assert [measure.name for measure in ALL if f"`{measure.name}`" not in page] == []


def test_the_payload_has_270_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_LOG", "/dev/null")
    from benchmarks.programs import workload

    assert len(json.dumps(workload.PAYLOAD, separators=(",", ":"))) == 270


def test_pinned_versions_name_no_host() -> None:
    for name in ("peers.txt", "package.json"):
        assert "://" not in (PAGE.parents[1] / "benchmarks" / name).read_text()
