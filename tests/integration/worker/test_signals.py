"""Signals that stop a program are never missed, at any moment and in any thread that receives them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Runs in a separate process, because StopSignals changes the signal handlers of its process.
PROLOGUE = """
import os, signal, threading, time
from fileq.runtime.roles import StopSignals
signals = StopSignals()
def send(number=signal.SIGTERM): os.kill(os.getpid(), number)
"""


def output_of(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROLOGUE + code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_signal_received_before_the_wait_ends_it() -> None:
    assert output_of("send(); print(signals.wait())") == "True"


def test_the_signal_that_ended_the_wait_has_a_name() -> None:
    assert output_of("send(signal.SIGHUP); signals.wait(); print(signals.last_name)") == "SIGHUP"
    assert output_of("signals.end_wait(); signals.wait(); print(signals.last_name)") == "None"


def test_each_signal_ends_one_wait() -> None:
    assert output_of("send(); send(signal.SIGINT); print(signals.wait(), signals.wait())") == "True True"


def test_a_wait_that_is_no_longer_needed_ends_without_a_signal() -> None:
    assert output_of("threading.Timer(0.1, signals.end_wait).start(); print(signals.wait())") == "False"


def test_a_signal_delivered_to_another_thread_ends_the_wait() -> None:
    """Such a signal does not interrupt the main thread, which would wait for a lock for ever."""
    code = """
def send_here():
    time.sleep(0.02)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
for _ in range(20):
    threading.Thread(target=send_here).start()
    assert signals.wait()
print("all")
"""
    assert output_of(code) == "all"


def test_after_the_stop_no_signal_changes_the_exit_code() -> None:
    """Also while the interpreter shuts down: pressing Ctrl-C twice does not change the exit code."""
    code = """
flood = f"while kill -TERM {os.getpid()} && kill -INT {os.getpid()}; do :; done"
os.posix_spawn("/bin/sh", ["sh", "-c", flood], {}, file_actions=[(os.POSIX_SPAWN_CLOSE, fd) for fd in (1, 2)])
assert signals.wait()
signals.close()
print("ended")
"""
    assert [output_of(code) for _ in range(5)] == ["ended"] * 5


RELOADS = """
signals.close()
signal.signal(signal.SIGHUP, {before})
signals = StopSignals(reloads=True)
signals.on_hangup = lambda: print("hangup")
send(signal.SIGHUP)
threading.Timer(0.2, signals.end_wait).start()
print(signals.wait())
"""


def test_sighup_stops_a_program_that_can_not_reload() -> None:
    assert output_of("send(signal.SIGHUP); print(signals.wait())") == "True"


def test_sighup_reloads_a_program_without_a_terminal() -> None:
    assert output_of("os.setsid()" + RELOADS.format(before="signal.SIG_DFL")).split() == ["hangup", "False"]


def test_sighup_stops_a_program_that_has_a_terminal() -> None:
    code = """
os.setsid()
import fcntl, termios
_, terminal = os.openpty()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
"""
    assert output_of(code + RELOADS.format(before="signal.SIG_DFL")) == "True"


def test_sighup_stays_ignored_under_nohup() -> None:
    assert output_of("os.setsid()" + RELOADS.format(before="signal.SIG_IGN")) == "False"
