"""The handlers of the tests that give several tasks to one child: those of executor_tasks.py, and some more.

The argument of the loader kills one child at one point: `after-token N FILE` when it has taken its Nth token,
`before-token N FILE` when it is about to take it. It makes the file, and while that exists no child is killed. Each
task notes in the file `runs` of its directory that it ran.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fileq.core.outcome import Done, Ran, Task
from fileq.handlers.outcomes import failed
from fileq.worker.executors.process.messages import WAKE_SIGNAL, TokenReader
from fileq.worker.executors.protocol import Run
from tests.support import executor_tasks

LOADER = "tests.support.bundle_tasks:load"


def load(argument: bytes) -> Run:
    match argument.decode().split():
        case ["after-token" | "before-token" as when, number, path]:
            _kill_at_token(int(number), path, is_taken=when == "after-token")
        case ["threads"]:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
    return run


def run(task: Task, cancelled: threading.Event) -> Ran:
    note_run(task)
    word, *arguments = task.raw.split()
    try:
        if word == b"wake_itself":
            return wake_itself(cancelled)
        if word.decode() in WORDS:
            return WORDS[word.decode()](*arguments) or Done()
        return executor_tasks.run(task, cancelled)
    except BaseException as error:
        return failed(error)


def note_run(task: Task) -> None:
    """`path` of a task is its directory. One write, so that children do not mix their lines."""
    fd = os.open(task.path + b"/runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{task.key.slot} {os.getpid()}\n".encode())
    os.close(fd)


def runs(directory: Path) -> list[tuple[str, int]]:
    """The name of each task that ran and the pid of its child, in order."""
    path = directory / "runs"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, int(pid)) for name, pid in map(str.split, lines)]


def run_counts(directory: Path) -> Counter[str]:
    return Counter(name for name, _ in runs(directory))


def _kill_at_token(number: int, path: str, *, is_taken: bool) -> None:
    count = 0
    take_one = TokenReader.take

    def take(reader: TokenReader, wanted: bytes | bytearray) -> bool:
        nonlocal count
        if count + 1 == number and not is_taken:
            _kill_once(path)
        is_mine = take_one(reader, wanted)
        count += is_mine
        if count == number and is_taken:
            _kill_once(path)
        return is_mine

    TokenReader.take = take  # type: ignore[method-assign]


def _kill_once(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def wake_itself(cancelled: threading.Event) -> Ran:
    """Has the child look for a cancellation of this task."""
    os.kill(os.getpid(), WAKE_SIGNAL)
    return Done(b"cancelled" if cancelled.wait(0.3) else b"not cancelled")


def speak(text: bytes) -> None:
    print(text.decode())


def speak_and_fail(text: bytes) -> None:
    print(text.decode())
    raise ValueError(text.decode())


def fail_silently() -> None:
    raise ValueError("silent")


def speak_and_hang(text: bytes) -> None:
    print(text.decode())
    time.sleep(1000)


def close_tokens(path: bytes = b"") -> None:
    """Closes all pipes but the standard streams; with a path, a file takes the place of each."""
    file = os.open(path, os.O_RDWR | os.O_CREAT) if path else -1
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and _is_pipe(fd):
            if path:
                os.dup2(file, fd)
            else:
                os.close(fd)


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False


def fork_and_linger() -> None:
    """Returns in the child and in a copy of it, which lives on for a while."""
    if not os.fork():
        time.sleep(0.05)


def leave_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def kill_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def write_half_a_message() -> None:
    """To each socket: the beginning of a message that does not fit."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.write(int(name), b"\xff" * 16)
        except OSError:
            continue


WORDS: dict[str, Callable[..., Ran | None]] = {
    function.__name__: function
    for function in (
        speak,
        speak_and_fail,
        fail_silently,
        speak_and_hang,
        close_tokens,
        fork_and_linger,
        leave_thread,
        kill_server,
        write_half_a_message,
    )
}
