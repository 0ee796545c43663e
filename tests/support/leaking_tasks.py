"""Tasks that change the state of their process and leave it so, and one that reports the state."""

from __future__ import annotations

import io
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from fileq.core.outcome import Done, Ran, Task
from fileq.handlers.outcomes import failed
from fileq.worker.executors.protocol import Run

LOADER = "tests.support.leaking_tasks:load"
started: list[threading.Thread] = []


def load(_argument: bytes) -> Run:
    os.environ["FROM_IMPORT"] = "1"
    return run


def run(task: Task, _cancelled: threading.Event) -> Ran:
    word, *arguments = task.raw.decode().split()
    try:
        if word == "look":
            return Done(msgspec.json.encode({"pid": os.getpid(), "state": look()}))
        LEAKS[word](*arguments)
        return Done()
    except BaseException as error:
        return failed(error)


def look() -> dict[str, Any]:
    """Everything that the leaks below change."""
    umask = os.umask(0)
    os.umask(umask)
    print("a line")
    return {
        "directory": os.getcwd(),
        "umask": umask,
        "environment": dict(os.environ),
        "program's environment": os.popen("env | sort | grep -v '^_='").read(),
        "zone": time.strftime("%Z", time.localtime(0)),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "limits": [resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)],
        "threads": threading.active_count(),
        "user": [os.getresuid(), os.getresgid()],
        "descriptors": [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)],
        "streams": [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)],
    }


def environment(*_: str) -> None:
    os.environ["LEFT"] = "1"
    os.environ["FROM_IMPORT"] = "2"
    del os.environ["PATH"]


def zone(*_: str) -> None:
    os.environ["TZ"] = "UTC+3"
    time.tzset()


def handlers(*_: str) -> None:
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def thread(*_: str) -> None:
    started.append(threading.Thread(target=threading.Event().wait, daemon=True))
    started[-1].start()


def ended_thread(*_: str) -> None:
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()


def descriptors(path: str) -> None:
    """What shell scripts and daemons do: standard streams become a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for fd in (0, 1, 2):
        os.dup2(file, fd)
    print("of this job")
    print("without a newline", end="")


def stream(path: str) -> None:
    sys.stdout = open(path, "a")  # noqa: SIM115
    print("of this job")


LEAKS: dict[str, Callable[..., object]] = {
    "directory": lambda: os.chdir("/"),
    "removed_directory": lambda path: (os.mkdir(path), os.chdir(path), os.rmdir(path)),
    "umask": lambda: os.umask(0o123),
    "environment": environment,
    "other_environment": lambda: setattr(os, "environ", {"A": "b"}),
    "cleared_environment": lambda: os.environ.clear(),
    "zone": zone,
    "handlers": handlers,
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM]),
    "alarm": lambda: signal.alarm(1000),
    "timer": lambda: signal.setitimer(signal.ITIMER_REAL, 1000, 1),
    "descriptors": descriptors,
    "stream": stream,
    "memory_stream": lambda: setattr(sys, "stdout", io.StringIO()),
    "ended_thread": ended_thread,
    "thread": thread,
    "limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)),
    "core_limit": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "user": lambda: os.seteuid(65534),
    "closed_stream": lambda: sys.stdout.close(),
}
