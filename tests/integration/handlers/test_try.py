"""`fileq try` runs the handler of a file in the foreground: its result goes to stdout, all else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from fileq.cli import main
from fileq.cli.definitions.enqueue_command import try_and_print
from fileq.config import load
from fileq.core.errors import ConfigError
from fileq.handlers import extensions, registry

MODULE = """
import asyncio
import fileq

def fine(job, context):
    context.log.warning("page.odd", page=3)
    return {"name": job.path.rpartition("/")[2], "attempt": context.attempt}

def failing(job, context):
    inner()

def inner():
    raise ValueError("bad header")

async def failing_later(job, context):
    await asyncio.sleep(0)
    inner()

def hopeless(job, context):
    raise fileq.Permanent("no such customer")

def busy(job, context):
    raise fileq.Retry("busy", after=90)

def unkept(job, context):
    return object()

def making(job, context):
    context.enqueue("index", {"n": 1})
    context.enqueue_file(job.path)
    context.output(job.path)

@fileq.middleware
def around(job, context, call):
    result = call()
    return [result] if job.path.endswith(".around") else result

@fileq.handler("**/*.deco")
def decorated(job, context):
    return "decorated"
"""
CONFIG = """
producer: {scan_dir: ./inbox}
observability: {log_format: json}
imports: [tried]
handlers:
  - {match: "**/*.ok", use: "tried:fine"}
  - {match: "**/*.around", use: "tried:fine"}
  - {match: "**/*.making", use: "tried:making", on_completed: command}
  - {match: "**/*.bad", use: "tried:failing"}
  - {match: "**/*.later", use: "tried:failing_later"}
  - {match: "**/*.permanent", use: "tried:hopeless", timeout: 7s}
  - {match: "**/*.busy", use: "tried:busy"}
  - {match: "**/*.once", use: "tried:busy", max_retries: 0}
  - {match: "**/*.unkept", use: "tried:unkept"}
  - {match: "**/*.sh", command: ["sh", "-c", "echo oops >&2; exit 3"], give_up_on: [3]}
  - {match: "**/*.steps", command: ["sh", "-c", "echo step 1; echo step 2; echo two >&2; echo lines >&2; exit 3"]}
  - {match: "**/*.hanging", command: ["sh", "-c", "echo step 1; sleep 60"], timeout: 1s}
  - {match: "sub/*.cat", command: ["cat", "{filepath}"]}
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    registry.REGISTRY.reset()
    monkeypatch.setattr(extensions, "EXTENSIONS", extensions.Extensions())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tried.py").write_text(MODULE)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "inbox" / "sub").mkdir(parents=True)
    yield tmp_path
    sys.modules.pop("tried", None)
    structlog.reset_defaults()


def tried(name: str, content: bytes = b"abc") -> int:
    if name.startswith("inbox/"):
        Path(name).write_bytes(content)
    return try_and_print(load(environ={}), name)


def test_the_result_is_on_stdout_and_the_route_and_the_logs_on_stderr(
    app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tried("inbox/a.ok") == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"name": "a.ok", "attempt": 1}
    assert len(out.splitlines()) == 4, "for people to read"
    first, log, last = err.splitlines()
    assert first == "handlers[0]: **/*.ok → tried:fine (timeout 5m)"
    assert json.loads(log)["page"] == 3
    assert last.startswith("done in ")


def test_what_a_worker_would_enqueue_and_record_is_shown(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/a.making") == 0
    path = app / "inbox" / "a.making"
    assert capfd.readouterr().err.splitlines()[1:-1] == [
        'would enqueue a job of type index with {"n":1}',
        f"would enqueue {path}",
        f"created {path} (3 bytes)",
        "would enqueue a job of type command (on_completed)",
    ]


def test_a_name_that_is_not_utf8_is_shown_by_its_bytes(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"inbox/caf\xe9.making")
    assert tried(name) == 0
    err = capfd.readouterr().err
    assert f"would enqueue {app}/inbox/caf\\xe9.making\n" in err
    assert f"created {app}/inbox/caf\\xe9.making (3 bytes)\n" in err
    assert main(["try", os.fsdecode(b"inbox/none\xe9.ok")]) == 2
    assert capfd.readouterr().err.startswith("fileq: 'inbox/none\\xe9.ok' can't be read: ")
    Path(os.fsdecode(b"inbox/caf\xe9.unrouted")).touch()
    assert main(["try", os.fsdecode(b"inbox/caf\xe9.unrouted")]) == 2
    assert f"no handler for '{app}/inbox/caf\\xe9.unrouted'" in capfd.readouterr().err


def test_middleware_runs_around_the_handler(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/a.around") == 0
    assert json.loads(capfd.readouterr().out) == [{"name": "a.around", "attempt": 1}]


@pytest.mark.parametrize("name", ["inbox/a.bad", "inbox/a.later"])
def test_an_error_is_shown_with_the_traceback_of_the_handler(
    name: str, app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tried(name) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback (most recent call last)" in err
    lines = [line for line in err.splitlines() if line.startswith("  File ")]
    assert len(lines) == 3, "the middleware, the handler and what it calls"
    assert all(str(app / "tried.py") in line for line in lines), "no lines of fileq"
    last = err.splitlines()[-1]
    assert last.startswith("failed after ")
    assert "; a worker would retry it: ValueError: bad header" in last


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inbox/a.permanent", "a worker would not retry it: Permanent: no such customer"),
        ("inbox/a.busy", "a worker would retry it after 1m30s: Retry: busy"),
        ("inbox/a.once", "a worker would not retry it: Retry: busy"),
        ("inbox/a.sh", "a worker would not retry it: sh exited with 3: oops"),
    ],
)
def test_the_next_step_of_a_worker_is_shown(name: str, text: str, app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried(name) == 1
    err = capfd.readouterr().err
    assert err.splitlines()[-1].endswith(text)
    assert ("Traceback" in err) == (not name.endswith(".sh"))


def test_the_failure_of_a_command_needs_no_traceback(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/a.sh") == 1
    _, printed, last = capfd.readouterr().err.splitlines()
    assert printed == "oops"
    assert last.endswith("sh exited with 3: oops")


def test_what_a_command_prints_is_shown_as_it_is(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/a.steps") == 1
    out, err = capfd.readouterr()
    assert out == ""
    _, *printed, last = err.splitlines()
    assert sorted(printed) == ["lines", "step 1", "step 2", "two"]
    assert last.endswith("sh exited with 3: two | lines")


def test_what_a_command_printed_before_its_timeout_is_shown(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/a.hanging") == 1
    _, printed, last = capfd.readouterr().err.splitlines()
    assert printed == "step 1"
    assert last.endswith("timed out after 1s")


def test_a_command_is_tried_like_a_function(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/sub/a.cat", "ü".encode()) == 0
    assert json.loads(capfd.readouterr().out) == {"exit": 0, "stdout": "ü", "stderr": ""}


def test_a_dropped_result_is_reported(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/a.unkept") == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "the result was dropped: it is not JSON" in err


def test_a_decorated_handler_is_found_too(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tried("inbox/a.deco") == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == "decorated"
    assert "@fileq.handler on tried:decorated" in err


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("config.yaml", "add a route that matches it"),
        ("inbox/link.ok", "leads outside the allowed roots"),
        ("inbox/none.ok", "can't be read: No such file or directory"),
        ("inbox/a.other", "add a route that matches it"),
        ("inbox/a.cat", "add a route that matches it"),
        ("inbox", "not a regular file"),
        ("inbox/sub", "not a regular file"),
    ],
)
def test_a_file_without_a_handler_is_an_error_of_one_line(path: str, line: str, app: Path) -> None:
    for name in ("a.other", "a.cat"):
        (app / "inbox" / name).touch()
    (app / "inbox" / "link.ok").symlink_to(app / "config.yaml")
    with pytest.raises(ConfigError) as caught:
        try_and_print(load(environ={}), path)
    assert len(caught.value.problems) == 1
    assert line in caught.value.problems[0]


def test_without_handlers_a_file_is_checksummed(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (app / "config.yaml").write_text("producer: {scan_dir: ./inbox}\n")
    assert tried("inbox/a.txt") == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["bytes"] == 3
    assert err.startswith("the default: **/* → fileq.handlers:checksum")
