"""The processes of command handlers: timeouts, cancellation, and that nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fileq.core.outcome import Failed, Ran
from fileq.handlers.run import run_task
from tests.support.handler_runs import (
    command,
    failure,
    python,
    result,
    routes_of,
    run,
    typed_task,
)
from tests.support.waiting import wait_until


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_timeout_kills_the_whole_group_at_once(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(pids)!r}, 'w') as file: file.write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    started_s = time.monotonic()
    ended = failure(run(typed_task("t", timeout_s=1.0), python(code)))
    assert ended == Failed("timed out after 1s", "Timeout")
    assert time.monotonic() - started_s < 3
    wait_until(lambda: not [pid for pid in map(int, pids.read_text().split()) if is_running(pid)])


def in_thread(route: dict[str, Any], cancelled: threading.Event) -> tuple[threading.Thread, list[Ran]]:
    routes, outcomes = routes_of(route), []
    thread = threading.Thread(target=lambda: outcomes.append(run_task(routes, typed_task("t"), cancelled)))
    thread.start()
    return thread, outcomes


def test_a_cancelled_command_gets_sigterm_and_may_clean_up(tmp_path: Path) -> None:
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"
    code = (
        "import pathlib, signal, sys, time\n"
        f"def stop(*_): pathlib.Path({str(cleaned)!r}).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    cancelled = threading.Event()
    thread, outcomes = in_thread(python(code), cancelled)
    wait_until(ready.exists)
    cancelled.set()
    thread.join(10)
    assert failure(outcomes[0]).kind == "InterruptedError"
    assert cleaned.exists()


def test_a_cancelled_command_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.handlers.command_handler.TERM_GRACE_S", 0.2)
    ready = tmp_path / "ready"
    code = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).write_text(str(os.getpid()))\n"
        "while True: time.sleep(600)\n"
    )
    cancelled = threading.Event()
    thread, outcomes = in_thread(python(code), cancelled)
    wait_until(lambda: ready.exists() and ready.read_text())
    cancelled.set()
    thread.join(10)
    assert failure(outcomes[0]).kind == "InterruptedError"
    assert not is_running(int(ready.read_text()))


def test_a_process_that_exits_kills_the_commands_of_its_threads(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import threading, time\n"
        "from pathlib import Path\n"
        "from tests.support.handler_runs import run, typed_task\n"
        f"route = {{'type': 't', 'command': ['sh', '-c', 'echo $$ > {pid}; exec sleep 600']}}\n"
        "threading.Thread(target=run, args=(typed_task('t'), route), daemon=True).start()\n"
        f"while not (Path({str(pid)!r}).exists() and Path({str(pid)!r}).read_text()): time.sleep(0.005)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    wait_until(lambda: not is_running(int(pid.read_text())))


def test_after_a_success_the_rest_of_the_group_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    started_s = time.monotonic()
    ended = result(run(typed_task("t"), command("sh", "-c", "sleep 600 & echo $!")))
    assert time.monotonic() - started_s < 5
    wait_until(lambda: not is_running(int(ended["stdout"])))


def test_a_process_that_left_the_group_and_holds_the_output_is_not_waited_for() -> None:
    code = (
        "import os, sys, time\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); os.write(w, b'x')\n"
        "    time.sleep(600)\n"
        "os.read(r, 1)\n"  # the copy has left the group
        "sys.stdout.write(open('/proc/self/task/%d/children' % os.getpid()).read()); sys.stdout.flush(); os._exit(0)\n"
    )
    started_s = time.monotonic()
    ended = result(run(typed_task("t"), python(code)))
    assert time.monotonic() - started_s < 5
    left = int(ended["stdout"])
    assert is_running(left), "in a worker the executor kills it"
    os.kill(left, signal.SIGKILL)


def test_a_program_that_closes_its_output_is_still_waited_for() -> None:
    code = "import os, time; os.close(1); os.close(2); time.sleep(0.2); os._exit(7)"
    assert failure(run(typed_task("t"), python(code))).kind == "exit 7"


def test_the_exit_is_noticed_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError("not supported")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert result(run(typed_task("t"), command("echo", "x")))["stdout"] == "x\n"


def test_an_exit_code_that_other_code_reaped_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: Any) -> None:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", taken)
    assert failure(run(typed_task("t"), command("true"))).error == "true has ended, and its exit code was lost"


def test_many_commands_run_in_threads_at_the_same_time() -> None:
    routes = routes_of(command("sh", "-c", 'echo "$FILEQ_JOB_ATTEMPT"; echo "$FILEQ_JOB_ATTEMPT" >&2'))
    outcomes: dict[int, Ran] = {}

    def one(number: int) -> None:
        outcomes[number] = run_task(routes, typed_task("t", attempt=number), threading.Event())

    threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {n: result(ended)["stdout"] for n, ended in outcomes.items()} == {n: f"{n}\n" for n in range(1, 17)}
