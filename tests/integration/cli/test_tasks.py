"""`fileq tasks` on the real program."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.program import run

MODULE = """
import fileq


@fileq.task("b", timeout=30, max_retries=5, priority="high", give_up_on=[KeyError], retry_if=lambda error: True)
def second(job: fileq.JobView[dict[str, int]], context: fileq.Context) -> None: ...


@fileq.task()
def first(job: fileq.JobView, context: fileq.Context) -> None: ...


@fileq.task("taken")
def third(job: fileq.JobView[None], context: fileq.Context) -> None: ...
"""


def test_tasks_are_listed_with_their_options(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(MODULE)
    config = 'imports: [app]\nhandlers: [{type: taken, command: ["true"]}]\n'
    (tmp_path / "config.yaml").write_text(config)
    shown = run("tasks", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["name", "function", "payload", "queue", "timeout", "retries", "gives", "up", "on"],
        ["app.first", "app:first", "low", "5m", "3"],
        ["b", "app:second", "dict[str,", "int]", "high", "30s", "5", "builtins.KeyError,", "retry_if"],
        ["taken", "app:third", "None", "low", "5m", "3"],
    ]
    assert shown.stderr == "fileq: a route in `handlers` takes the jobs of type taken; the task never runs\n"
    tasks = json.loads(run("tasks", "--json", cwd=tmp_path).stdout)["tasks"]
    assert [(task["name"], task["is_shadowed"]) for task in tasks] == [
        ("app.first", False),
        ("b", False),
        ("taken", True),
    ]


def test_two_tasks_of_one_name_and_no_task_at_all(tmp_path: Path) -> None:
    assert "no module in `imports` has a task" in run("tasks", cwd=tmp_path).stdout
    (tmp_path / "app.py").write_text(MODULE)
    (tmp_path / "other.py").write_text(MODULE)
    (tmp_path / "config.yaml").write_text("imports: [app, other]\n")
    refused = run("tasks", cwd=tmp_path)
    assert refused.returncode == 2
    assert "two tasks are named 'b': app:second and other:second" in refused.stderr


def test_a_job_that_is_enqueued_by_type_goes_to_the_queue_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(MODULE)
    (tmp_path / "config.yaml").write_text("imports: [absent, app]\n")
    for *words, queue in (
        ("--type", "b", "--payload", "{}", "high"),
        ("--type", "b", "--payload", "{}", "--priority", "low", "low"),
        ('{"type": "b", "payload": {}}', "high"),
        ('{"type": "b", "payload": {}, "priority": "low"}', "low"),
        ("--type", "app.first", "low"),
        ("--type", "elsewhere", "low"),
    ):
        [job] = json.loads(run("enqueue", *words, "--json", cwd=tmp_path).stdout)["jobs"]
        assert job["queue"] == queue, words
