"""deploy/prometheus: the alerts are valid, fire when they should and only then, and each is documented."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import require
from tests.support.program import REPOSITORY

PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
GUIDE = (REPOSITORY / "docs" / "production.md").read_text()


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = require("prometheus", shutil.which("promtool"))
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_rules_are_valid() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", PROMETHEUS / "alerts.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(alerts())} rules found" in checked.stdout


def test_they_fire_when_they_should_and_only_then() -> None:
    tested = promtool("test", "rules", PROMETHEUS / "alerts_test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


# One mistake for each alert, which the tests must detect.
MISTAKES = {
    "FileqBrokerDown": ("min by (job) (fileq_broker_up) == 0\n", "max by (job) (fileq_broker_up) == 0\n"),
    "FileqNoWorkers": (" or absent(worker_active)", ""),
    "FileqQueueOld": ("max by (job, queue)", "max by (job)"),
    "FileqDeadLettersGrowing": ("increase(jobs_dead_letter_total[15m])", "jobs_dead_letter_total"),
    "FileqBreakerOpen": ("(fileq_breaker_state) > bool 0", "(fileq_breaker_state) > bool 2"),
    "FileqRecoveries": ("(increase(reaper_recovered_total[15m])) > 3", "(increase(reaper_recovered_total[15m])) > 0"),
    "FileqProducerStalled": ("unless on (job) (min by (job) (fileq_broker_up) == 0)", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_one_would_be_found(name: str, tmp_path: Path) -> None:
    right, wrong = MISTAKES[name]
    text = (PROMETHEUS / "alerts.yaml").read_text()
    assert text.count(right) == 1
    (tmp_path / "alerts.yaml").write_text(text.replace(right, wrong))
    cases = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())
    cases["tests"] = [case for case in cases["tests"] if name in str(case) or "silent" in case["name"]]
    (tmp_path / "alerts_test.yaml").write_text(yaml.safe_dump(cases))
    tested = promtool("test", "rules", tmp_path / "alerts_test.yaml")
    assert (tested.returncode, name in tested.stdout + tested.stderr) == (1, True), tested.stdout + tested.stderr


def test_every_alert_has_its_mistake_its_severity_and_its_paragraph() -> None:
    assert {alert["alert"] for alert in alerts()} == MISTAKES.keys()
    headings = re.findall(r"^### (\w+)$", GUIDE, re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["runbook"] == f"docs/production.md#{alert['alert'].lower()}"


def test_compose_gives_prometheus_a_valid_configuration(tmp_path: Path) -> None:
    """With the files at the paths where its volumes mount them."""
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    for volume in compose["services"]["prometheus"]["volumes"]:
        source, target = volume.split(":")[:2]
        if source.startswith("./"):
            shutil.copy(REPOSITORY / source, tmp_path / Path(target).name)
    config = tmp_path / "prometheus.yml"
    config.write_text(config.read_text().replace("/etc/prometheus", str(tmp_path)))
    checked = promtool("check", "config", config)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(alerts())} rules found" in checked.stdout
    scraped = yaml.safe_load(config.read_text())["scrape_configs"][0]["dns_sd_configs"][0]["names"]
    assert set(scraped) == {"producer", "worker"} <= compose["services"].keys()
