"""Handlers of the worker tests. A test copies this module into its directory; they log there what they do."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

import fileq

LEFT = []  # keeps the processes referenced: Python warns about one that is collected while it runs
HERE = os.path.dirname(os.path.abspath(__file__))


def log(word, id, pid=0):
    log_file = os.open(os.path.join(HERE, "handler_log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log_file, f"{word} {id} {pid or os.getpid()} {time.time():.6f}\n".encode())
    os.close(log_file)


def count(id):
    """How often this was called for the job, counted over all processes."""
    tally = os.open(os.path.join(HERE, f"tally-{id}"), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(tally, b".")
    size = os.fstat(tally).st_size
    os.close(tally)
    return size


@fileq.handler(type="note")
def note(job, context):
    log("note", job.id)


@fileq.handler(type="work")
def work(job, context):
    """Works for a while; logs its start and its end."""
    log("start", job.id)
    time.sleep(job.payload or 0)
    log("end", job.id)


@fileq.handler(type="work_in_thread", isolation="thread")
def work_in_thread(job, context):
    work(job, context)


@fileq.handler(type="gated")
def gated(job, context):
    """Works until the gate, a file, exists."""
    log("start", job.id)
    while not os.path.exists(os.path.join(HERE, job.payload or "gate")):
        time.sleep(0.01)
    log("end", job.id)


@fileq.handler(type="stubborn")
def stubborn(job, context):
    log("start", job.id)
    while True:
        time.sleep(60)


@fileq.handler(type="stubborn_in_thread", isolation="thread")
def stubborn_in_thread(job, context):
    stubborn(job, context)


@fileq.handler(type="obedient_in_thread", isolation="thread")
def obedient_in_thread(job, context):
    obedient(job, context)


@fileq.handler(type="obedient")
def obedient(job, context):
    log("start", job.id)
    context.cancelled.wait(60)
    log("cancelled", job.id)
    raise RuntimeError("stopped on request")


@fileq.handler(type="holds_gil")
def holds_gil(job, context):
    """A C call that holds the GIL until it returns."""
    log("start", job.id)
    ctypes.PyDLL(None).usleep(int(job.payload * 1_000_000))
    log("end", job.id)


@fileq.handler(type="segfaults")
def segfaults(job, context):
    log("start", job.id)
    ctypes.string_at(0)


@fileq.handler(type="exits")
def exits(job, context):
    log("start", job.id)
    os._exit(7)


@fileq.handler(type="loops", timeout=1.0)
def loops(job, context):
    log("start", job.id)
    while True:
        pass


@fileq.handler(type="eats")
def eats(job, context):
    log("start", job.id)
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(1)) * 4_000_000)
        time.sleep(0.005)


@fileq.handler(type="leaves")
def leaves(job, context):
    """Leaves two child processes running, one of them in a session of its own."""
    for is_apart in (False, True):
        LEFT.append(subprocess.Popen(["sleep", "300"], start_new_session=is_apart))
        log("left", job.id, LEFT[-1].pid)


@fileq.handler(type="unpicklable")
def unpicklable(job, context):
    class Local(Exception):
        def __reduce__(self):
            raise TypeError("cannot be pickled")

    raise Local("a local class")


@fileq.handler(type="not_a_number")
def not_a_number(job, context):
    return {"ratio": float("nan")}


@fileq.handler(type="not_json")
def not_json(job, context):
    return object()


@fileq.handler(type="kills_worker")
def kills_worker(job, context):
    """Kills its worker, whose pid is in the file, as the end of a container does."""
    log("start", job.id)
    with open(os.path.join(HERE, "victim")) as file:
        victim = int(file.read())
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    time.sleep(60)


@fileq.handler(type="fails_twice")
def fails_twice(job, context):
    log("start", job.id)
    if count(job.id) <= 2:
        raise ValueError("not yet")


@fileq.handler(type="fails")
def fails(job, context):
    log("start", job.id)
    if not os.path.exists(os.path.join(HERE, "repaired")):
        raise ValueError("broken")


@fileq.handler(type="permanent")
def permanent(job, context):
    log("start", job.id)
    raise fileq.Permanent("never")


@fileq.handler(type="later")
def later(job, context):
    log("start", job.id)
    if count(job.id) == 1:
        raise fileq.Retry("busy", after=job.payload)


def on_file(job, context):
    """Logs the size of the file in place of a pid."""
    with open(job.path, "rb") as file:
        log("file", job.id, len(file.read()))


def fails_without_its_file(job, context):
    os.unlink(job.path)
    raise ValueError("page 3 is broken")


def dies_without_its_file(job, context):
    os.unlink(job.path)
    os._exit(3)


def slow_and_unreliable(job, context):
    """Takes a while; one job in five fails at its first attempt."""
    log("begun", job.id)
    time.sleep(int(job.id[0], 16) / 50)
    if int(job.id[1:3], 16) % 5 == 0 and count(job.id) == 1:
        raise RuntimeError("not yet")
    log("file", job.id)


def on_file_after_gate(job, context):
    log("start", job.id)
    while not os.path.exists(os.path.join(HERE, "gate")):
        time.sleep(0.01)
    log("end", job.id)


def permanent_after_gate(job, context):
    on_file_after_gate(job, context)
    raise fileq.Permanent("no")


def in_place(job, context):
    """Changes the file of the job."""
    with open(job.path, "ab") as file:
        file.write(b" was here")
    log("changed", job.id)


if __name__ == "__main__":
    sys.exit("handlers of tests; nothing to run")
