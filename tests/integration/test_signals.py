"""Signals that stop a program are never missed, whenever they come and whichever thread the system gives them to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# In a process of its own: what StopSignals takes over stays with it.
PROLOGUE = """
import os, signal, threading, time
from fileq.runtime.signals import StopSignals
signals = StopSignals()
def send(number=signal.SIGTERM): os.kill(os.getpid(), number)
"""


def answers(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROLOGUE + code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_one_that_came_before_the_wait_ends_it() -> None:
    assert answers("send(); print(signals.wait())") == "True"


def test_each_is_waited_for_once() -> None:
    assert answers("send(); send(signal.SIGINT); print(signals.wait(), signals.wait())") == "True True"


def test_a_wait_that_nobody_needs_any_more_ends_without_one() -> None:
    assert answers("threading.Timer(0.1, signals.end_wait).start(); print(signals.wait())") == "False"


def test_one_that_the_system_gives_to_another_thread_ends_the_wait() -> None:
    """The main thread is not interrupted then, and a lock that it waits for would keep it for ever."""
    code = """
def send_here():
    time.sleep(0.02)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
for _ in range(20):
    threading.Thread(target=send_here).start()
    assert signals.wait()
print("all")
"""
    assert answers(code) == "all"


def test_after_the_end_none_of_them_does_anything_to_the_very_last() -> None:
    """Also while the interpreter itself ends: somebody who presses Ctrl-C twice still gets the exit code."""
    code = """
flood = f"while kill -TERM {os.getpid()} && kill -INT {os.getpid()}; do :; done"
os.posix_spawn("/bin/sh", ["sh", "-c", flood], {}, file_actions=[(os.POSIX_SPAWN_CLOSE, fd) for fd in (1, 2)])
assert signals.wait()
signals.close()
print("ended")
"""
    assert [answers(code) for _ in range(5)] == ["ended"] * 5
