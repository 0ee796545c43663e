"""The handlers of the executors' tests: `raw` of a task is a word and its arguments, and each word is a function below.

Also a worker that tests kill: `python -m tests.support.executor_tasks TASK…` runs these tasks until a line on stdin
closes it. With `--fork` a copy of the process lives on, as if a handler in one of its threads had forked.
"""

import ctypes
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory

from fileq.core.errors import ConfigError
from fileq.core.job import ClaimKey
from fileq.core.outcome import Done, Ran, Task
from fileq.handlers.outcomes import failed
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import Run

LOADER = "tests.support.executor_tasks:load"


def load(argument: bytes) -> Run:
    """Does what importing the user's handlers might do; the argument says which."""
    match argument.decode().split():
        case ["threads", *paths]:
            if any(map(os.path.exists, paths)):
                raise ValueError("not now")
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        case ["processes"]:
            global helper
            helper = subprocess.Popen(["sleep", "1000"])
        case ["fails"]:
            raise ConfigError(["handlers[0] is wrong", "handlers[1] is wrong"])
        case ["raises"]:
            raise ValueError("two\nlines")
        case ["hangs"]:
            threading.Event().wait()
        case ["exits"]:
            os._exit(5)
        case ["segfaults"]:
            ctypes.string_at(0)
        case ["handles-signals"]:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            socket.setdefaulttimeout(0.01)
        case ["unless", path]:
            if os.path.exists(path):
                raise ValueError(f"{path} is there")
    return run


def run(task: Task, cancelled: threading.Event) -> Ran:
    word, *arguments = task.raw.split()
    try:
        return WORDS[word.decode()](task, cancelled, *arguments) or Done()
    except BaseException as error:
        return failed(error)


helper: "subprocess.Popen[bytes] | None" = None
kept: list[object] = []


def echo(task: Task, _cancelled: threading.Event, *arguments: bytes) -> Ran:
    return Done(task.path + b" ".join(arguments))


def pid(_task: Task, _cancelled: threading.Event) -> Ran:
    return Done(str(os.getpid()).encode())


def segfault(*_: object) -> None:
    ctypes.string_at(0)


def exit_with(_task: Task, _cancelled: threading.Event, status: bytes) -> None:
    os._exit(int(status))


def abort(*_: object) -> None:
    os.abort()


def print_and_exit(_task: Task, _cancelled: threading.Event, text: bytes) -> None:
    print(text.decode(), flush=True)
    os._exit(3)


def kill_itself(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def loop(*_: object) -> None:
    while True:
        pass


def hold_the_gil(*_: object) -> None:
    ctypes.PyDLL(None).sleep(1000)


def sleep_in_c(*_: object) -> Ran:
    """Any signal ends the call, and the task takes that as the end of its time."""
    ctypes.CDLL(None).sleep(1000)
    return Done(b"slept")


def hang(_task: Task, _cancelled: threading.Event, path: bytes = b"") -> None:
    """Ignores its cancellation; makes the file when it begins."""
    touch(path)
    while True:
        time.sleep(1000)


def stop_when_cancelled(_task: Task, cancelled: threading.Event, path: bytes = b"", *_: bytes) -> Ran:
    touch(path)
    cancelled.wait()
    return Done(b"stopped")


def fail_when_cancelled(_task: Task, cancelled: threading.Event, path: bytes = b"") -> Ran:
    touch(path)
    cancelled.wait()
    raise InterruptedError("cancelled")


def wait_for(_task: Task, cancelled: threading.Event, path: bytes) -> Ran:
    """Runs until the file exists."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return Done(b"cancelled" if cancelled.is_set() else b"not cancelled")


def use_memory(_task: Task, _cancelled: threading.Event, megabytes: bytes) -> None:
    kept.append(b"x" * (int(megabytes) << 20))
    time.sleep(1000)


def use_memory_below(_task: Task, _cancelled: threading.Event, megabytes: bytes) -> None:
    code = f"import time; kept = b'x' * ({int(megabytes)} << 20); time.sleep(1000)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def leave(_task: Task, _cancelled: threading.Event, how: bytes, then: bytes = b"") -> None:
    """Leaves a process running: plain, in a session of its own, or as an orphan."""
    if how == b"orphan":
        subprocess.run(["sh", "-c", "setsid sleep 1000 & sleep 1000 &"], check=True)
    elif how == b"thread":
        starter = threading.Thread(target=lambda: kept.append(subprocess.Popen(["sleep", "1000"])))
        starter.start()
        starter.join()
    else:
        kept.append(subprocess.Popen(["sleep", "1000"], start_new_session=how == b"session"))
    if then:
        WORDS[then.decode()](_task, _cancelled)


def leave_zombie(*_: object) -> None:
    kept.append(subprocess.Popen(["true"]))


def share_memory(*_: object) -> Ran:
    """Uses the shared memory of multiprocessing, which starts the resource tracker process; returns its pid."""
    memory = shared_memory.SharedMemory(create=True, size=10)
    memory.close()
    memory.unlink()
    return Done(str(resource_tracker._resource_tracker._pid).encode())  # type: ignore[attr-defined]


class Unpicklable(Exception):
    def __reduce__(self) -> str:
        raise TypeError("not this one")


def raise_unpicklable(*_: object) -> None:
    raise Unpicklable(lambda: None)


def raise_undecodable(*_: object) -> None:
    open(b"/nowhere/\xff\xfe").close()


def close_everything(_task: Task, _cancelled: threading.Event, then: bytes = b"") -> None:
    os.closerange(0, 1024)
    if then:
        WORDS[then.decode()](_task, _cancelled)


def close_and_reopen(_task: Task, _cancelled: threading.Event, path: bytes) -> None:
    """Opens one file under the descriptor numbers that were closed; nothing may be written to it."""
    os.closerange(0, 1024)
    for _ in range(64):
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def fork_and_return(*_: object) -> Ran:
    if os.fork():
        time.sleep(0.1)  # so that the copy returns first
    return Done(b"once")


def write_to_stdout(*_: object) -> None:
    print("from a handler")


def replace_signal_handlers(*_: object) -> None:
    catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    for number in catchable:
        signal.signal(number, signal.SIG_DFL)


def signals_of_a_program(*_: object) -> Ran:
    """The mask of signals that a program started from a handler ignores."""
    lines = subprocess.run(["cat", "/proc/self/status"], check=True, capture_output=True).stdout.splitlines()
    return Done(next(line.split()[1] for line in lines if line.startswith(b"SigIgn")))


def stdin(*_: object) -> Ran:
    return Done(os.readlink("/proc/self/fd/0").encode() + sys.stdin.read().encode())


def session(*_: object) -> Ran:
    return Done(b"own" if os.getsid(0) == os.getpid() else b"other")


def big(_task: Task, _cancelled: threading.Event, size: bytes) -> Ran:
    return Done(b"x" * int(size))


def size_of(task: Task, *_: object) -> Ran:
    return Done(str(len(task.raw)).encode())


def write_garbage(_task: Task, _cancelled: threading.Event, garbage: bytes) -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.write(int(name), bytes.fromhex(garbage.decode()))
        except OSError:
            continue
    time.sleep(1000)


def touch(path: bytes) -> None:
    if path:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


WORDS: dict[str, Callable[..., Ran | None]] = {
    function.__name__: function
    for function in (
        echo,
        pid,
        segfault,
        exit_with,
        abort,
        kill_itself,
        print_and_exit,
        loop,
        hold_the_gil,
        sleep_in_c,
        hang,
        stop_when_cancelled,
        fail_when_cancelled,
        wait_for,
        use_memory,
        use_memory_below,
        leave,
        leave_zombie,
        share_memory,
        raise_unpicklable,
        raise_undecodable,
        close_everything,
        close_and_reopen,
        fork_and_return,
        write_to_stdout,
        replace_signal_handlers,
        signals_of_a_program,
        stdin,
        session,
        big,
        size_of,
        write_garbage,
    )
}


def main(*raws: str, is_forking: bool) -> None:
    executor = ProcessExecutor(len(raws), Program(LOADER))
    if is_forking and not os.fork():
        signal.pause()
    for i, raw in enumerate(raws):
        executor.submit([Task(ClaimKey(str(i), 0), raw.encode(), 0, b"", (), 1, 300.0)])
    print("ready", flush=True)
    while not select.select([executor, sys.stdin], [], [])[0].count(sys.stdin):
        executor.collect()
    executor.close()
    print("closed", flush=True)


if __name__ == "__main__":
    is_forking = "--fork" in sys.argv
    main(*(argument for argument in sys.argv[1:] if argument != "--fork"), is_forking=is_forking)
