"""`fileq try` runs a handler as a worker would: timeout, memory limit, isolation, report of a crash, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.program import command, environment, run
from tests.support.waiting import wait_until

MODULE = """
import os, signal, subprocess, sys, threading, time

def busy(job, context):
    print("begun", flush=True)
    while True:
        pass

async def blocking(job, context):
    print("begun", flush=True)
    time.sleep(60)

def hungry(job, context):
    kept = bytearray(200 << 20)
    for i in range(0, len(kept), 4096):
        kept[i] = 1
    time.sleep(60)

def leaving(job, context):
    print("last words", flush=True)
    os._exit(3)

def segfault(job, context):
    os.kill(os.getpid(), signal.SIGSEGV)

def where(job, context):
    return {"main": threading.current_thread() is threading.main_thread(), "path": job.path}

def parent(job, context):
    child = subprocess.Popen(["sleep", "600"])
    with open("pids.tmp", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename("pids.tmp", "pids")
    context.cancelled.wait()
    print("asked to stop", flush=True)
    time.sleep(600)
"""
CONFIG = """
producer: {scan_dir: ./inbox}
worker: {max_memory: 100MB}
observability: {log_format: json}
handlers:
  - {match: "*.busy", use: "tried:busy", timeout: 1s}
  - {match: "*.lazy", use: "tried:busy", timeout: 1s, isolation: thread}
  - {match: "*.blocking", use: "tried:blocking", timeout: 1s}
  - {match: "*.mem", use: "tried:hungry"}
  - {match: "*.exit", use: "tried:leaving"}
  - {match: "*.exit-thread", use: "tried:leaving", isolation: thread}
  - {match: "*.segv", use: "tried:segfault"}
  - {match: "*.ok", use: "tried:where"}
  - {match: "*.thread", use: "tried:where", isolation: thread}
  - {match: "*.parent", use: "tried:parent"}
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "tried.py").write_text(MODULE)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "inbox").mkdir()
    return tmp_path


def tried(app: Path, name: str) -> subprocess.CompletedProcess[str]:
    (app / name).write_bytes(b"abc")
    return run("try", name, cwd=app, timeout_s=30.0)


@pytest.mark.parametrize(
    ("name", "place"), [("a.busy", "in busy"), ("a.lazy", "in busy"), ("a.blocking", "in blocking")]
)
def test_a_busy_handler_is_ended_at_its_timeout_and_shown_with_the_place_where_it_was(
    name: str, place: str, app: Path
) -> None:
    ended = tried(app, f"inbox/{name}")
    assert ended.returncode == 1
    assert ended.stdout == ""
    *head, last = ended.stderr.splitlines()
    assert "begun" in head
    stack = head[head.index("Stack at the timeout (most recent call last):") + 1 :]
    assert [line for line in stack if line.endswith(place)] == stack[:1]
    assert "/fileq/" not in "".join(stack)
    assert last.endswith("a worker would retry it: timed out after 1s")


def test_a_handler_that_takes_too_much_memory_is_ended(app: Path) -> None:
    ended = tried(app, "inbox/a.mem")
    assert ended.returncode == 1
    assert "more than worker.max_memory, 100MB" in ended.stderr.splitlines()[-1]


CRASHED = "crashed: the handler process"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inbox/a.exit", f"a worker would rerun it up to 3 times: {CRASHED} exited with status 3"),
        ("inbox/a.segv", f"a worker would rerun it up to 3 times: {CRASHED} was killed by signal SIGSEGV"),
        ("inbox/a.exit-thread", f"the worker would crash with it (isolation: thread): {CRASHED} exited with status 3"),
    ],
)
def test_a_crash_is_reported(name: str, text: str, app: Path) -> None:
    ended = tried(app, name)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith(text)
    assert ended.stdout == ""
    assert ("last words" in ended.stderr.splitlines()) == ("exit" in name)


@pytest.mark.parametrize(("name", "is_main"), [("a.ok", "true"), ("a.thread", "false")])
def test_a_handler_gets_the_kind_of_thread_that_its_isolation_gives(name: str, is_main: str, app: Path) -> None:
    ended = tried(app, f"inbox/{name}")
    assert ended.returncode == 0
    assert f'"main": {is_main}' in ended.stdout


def test_a_file_outside_of_scan_dir_is_tried_with_a_note(app: Path) -> None:
    (app / "desk").mkdir()
    ended = tried(app, "desk/sample.ok")
    assert ended.returncode == 0, ended.stderr
    assert str(app / "desk" / "sample.ok") in ended.stdout
    note = ended.stderr.splitlines()[0]
    assert note == f"note: the file is outside {app / 'inbox'}; routes are matched against its name only"


def test_a_file_that_a_worker_has_moved_has_the_route_that_it_had_before(app: Path) -> None:
    moves = 'worker: {after: {dead: "move:failed"}}\nhandlers: [{match: "sub/*.ok", use: "tried:where"}]\n'
    (app / "config.yaml").write_text(f"producer: {{scan_dir: ./inbox}}\n{moves}")
    (app / "failed" / "sub").mkdir(parents=True)
    ended = tried(app, "failed/sub/a.ok")
    assert ended.returncode == 0, ended.stderr
    assert "note:" not in ended.stderr


def test_ctrl_c_ends_the_handler_and_the_processes_that_it_started(app: Path) -> None:
    (app / "inbox" / "a.parent").touch()
    trial = subprocess.Popen(
        command("try", "inbox/a.parent"),
        cwd=app,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (app / "pids").exists(), 20, "the handler")
        pids = [int(word) for word in (app / "pids").read_text().split()]
        os.killpg(trial.pid, signal.SIGINT)  # as a terminal does
        out, err = trial.communicate(timeout=20)
    finally:
        trial.kill()
    assert trial.returncode == 130
    assert out == ""
    assert err.splitlines()[1:] == ["asked to stop"]
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
