"""deploy/grafana/fileq.json: a valid dashboard; a real Prometheus answers every query."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from fileq.observe.metrics import METRICS
from tests.support.program import REPOSITORY, Program
from tests.support.prometheus import Prometheus
from tests.support.servers import Server, available_servers
from tests.support.waiting import wait_until

DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy" / "grafana" / "fileq.json").read_text())
ALERTS = REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"
SCALED = REPOSITORY / "deploy" / "k8s" / "components" / "keda" / "scaledobject.yaml"
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
TARGETS = {f"{panel['title']}/{target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
JOB = "fileq"


def filled(expression: str, **values: str) -> str:
    """The expression with its variables replaced, as Grafana does."""
    known = {"job": JOB, "instance": ".*", "__rate_interval": "1m"} | values
    return re.sub(r"\$\{?(\w+)\}?", lambda found: known[found[1]], expression)


# What Grafana needs


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken.get((x, y))}"
                taken[x, y] = panel["title"]


def test_every_panel_has_a_description_a_unit_and_the_selected_data_source() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == source
        assert panel["targets"], panel["title"]
        assert all(target["datasource"] == source for target in panel["targets"])
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles)


def test_data_source_job_and_instance_can_be_selected() -> None:
    assert list(VARIABLES) == ["datasource", "job", "instance"]
    assert (VARIABLES["datasource"]["type"], VARIABLES["datasource"]["query"]) == ("datasource", "prometheus")
    assert VARIABLES["job"]["multi"] is False
    assert (VARIABLES["instance"]["multi"], VARIABLES["instance"]["allValue"]) == (True, ".*")
    assert (DASHBOARD["uid"], DASHBOARD.get("id")) == ("fileq", None)


def test_the_panels_show_every_metric_and_no_other() -> None:
    text = " ".join(TARGETS.values())
    shown = set(re.findall(r"\b([a-z_]+)\{", text))
    names = {metric.name for metric in METRICS}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in shown} == names


def test_gauges_that_are_equal_in_every_process_are_never_summed() -> None:
    for title, expression in TARGETS.items():
        for gauge in ("queue_length", "queue_oldest_age_seconds"):
            asked = [found.end() for found in re.finditer(gauge, expression)]
            whole = re.findall(rf"max(?: by \(queue\))? ?\({gauge}\{{", expression)
            assert len(asked) == len(whole), title


def test_every_query_selects_the_job() -> None:
    for title, expression in TARGETS.items():
        selectors = re.findall(r"\{([^{}]*)\}", expression)
        assert selectors, title
        assert all(selector.startswith('job="$job"') for selector in selectors), title


# What it shows


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Program, Program]]:
    """A producer and a worker, scraped by Prometheus while jobs completed, failed and died."""
    directory = tmp_path_factory.mktemp("watched")
    inbox = directory / "in"
    inbox.mkdir()
    binary = available_servers()["valkey"]
    assert binary is not None
    with Server(binary) as server:
        settings = {
            "redis.addr": server.address,
            "handlers": '[{match: "**/*", use: "fileq.handlers:simulate"}]',
            "worker.max_retries": 1,
            "worker.backoff.base": "50ms",
            "producer.settle": "50ms",
            "producer.settle_unclosed": "100ms",
            "producer.rescan_interval": "1s",
            "producer.rate_limit_per_sec": 0,
        }
        with (
            Program("worker", str(inbox), cwd=directory, settings=settings) as worker,
            Program("producer", str(inbox), cwd=directory, settings=settings) as producer,
        ):
            targets = [f"127.0.0.1:{program.port}" for program in (worker, producer)]
            with Prometheus(directory, {JOB: targets}, [ALERTS]) as prometheus:
                seen = f'sum(count_over_time(worker_active{{job="{JOB}"}}[1m])) >= 4'
                wait_until(lambda: prometheus.query(seen), 30, "the first scrapes", every_s=0.1)
                for name in ("a.txt", "b.txt", "c.pdf", "fail-1.txt", "permanent.txt", "fail.txt", "no.tmp"):
                    (inbox / name).write_text(name)
                worker.wait_for("job.dead", count=2)
                worker.wait_for("job.completed", count=4)
                counted = f'sum(jobs_dead_letter_total{{job="{JOB}"}}) == 2'
                wait_until(lambda: prometheus.query(counted), 30, "a scrape of all that", every_s=0.1)
                yield prometheus, worker, producer


def value_of(prometheus: Prometheus, title: str) -> float:
    [(_, value)] = prometheus.query(filled(TARGETS[f"{title}/A"]))
    return value


@pytest.mark.parametrize("title", TARGETS)
def test_the_query_returns_data(watched: tuple[Prometheus, Program, Program], title: str) -> None:
    prometheus, *_ = watched

    def answered() -> bool:
        values = [value for _, value in prometheus.query(filled(TARGETS[title]))]
        return bool(values) and not all(math.isnan(value) for value in values)

    wait_until(answered, 20, f"data for {TARGETS[title]}", every_s=0.2)


def test_the_numbers_are_correct(watched: tuple[Prometheus, Program, Program]) -> None:
    prometheus, worker, _ = watched
    # the gauges of the broker are read at most every two seconds
    wait_until(lambda: value_of(prometheus, "Dead letters") == 2, 20, "both dead letters", every_s=0.1)
    assert value_of(prometheus, "Waiting") == 0
    assert value_of(prometheus, "Running") == 0
    assert value_of(prometheus, "Broker") == 1
    assert value_of(prometheus, "Slots") == worker.metric("worker_active") == 16
    # 4 attempts of fail.txt, fail-1.txt and permanent.txt failed; 4 files were processed
    assert value_of(prometheus, "Failure ratio") == pytest.approx(4 / 8, abs=0.05)


def test_the_variables_offer_what_is_scraped(watched: tuple[Prometheus, Program, Program]) -> None:
    prometheus, worker, producer = watched

    def choices(name: str) -> list[str]:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", VARIABLES[name]["query"]["query"])
        assert found
        values: list[str] = prometheus.ask(f"label/{found[2]}/values", **{"match[]": filled(found[1])})
        return values

    assert choices("job") == [JOB]
    assert set(choices("instance")) == {f"127.0.0.1:{program.port}" for program in (worker, producer)}


def test_the_query_that_keda_scales_by_counts_waiting_and_running_jobs(
    watched: tuple[Prometheus, Program, Program],
) -> None:
    prometheus, *_ = watched
    query: str = yaml.safe_load(SCALED.read_text())["spec"]["triggers"][0]["metadata"]["query"]
    places = prometheus.query(query.replace('namespace="fileq", ', "").removeprefix("sum(").removesuffix(")"))
    assert {labels["queue"] for labels, _ in places} == {"high", "low", "processing"}
    assert prometheus.query(query.replace('namespace="fileq", ', "")) == [({}, 0.0)]


def test_the_alerts_are_loaded_and_see_the_dead_letters(watched: tuple[Prometheus, Program, Program]) -> None:
    prometheus, *_ = watched

    def firing() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}

    wait_until(lambda: "FileqDeadLettersGrowing" in firing(), 20, "the alert", every_s=0.2)
    [group] = prometheus.ask("rules")["groups"]
    assert [rule["health"] for rule in group["rules"]] == ["ok"] * len(group["rules"])
