"""The kind of an error is found again from its text, for every error that fileq itself makes."""

import os

import pytest

from fileq.config import Config
from fileq.core.errors import Permanent, Undecodable
from fileq.core.job import Job, decode
from fileq.core.outcome import WORKER_DIED, Died, kind_of, kind_of_death, timed_out
from fileq.handlers.job_file import check_file
from fileq.handlers.outcomes import CommandFailed, TimedOut, failed
from fileq.handlers.routes import Routes
from fileq.worker.executors.process.messages import cause_of_death

A_JOB = {"id": "a", "filesize": 1, "priority": "low", "retries": 0, "creation_time": "", "trace_id": "", "span_id": ""}


class Nested(ExceptionGroup):
    pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such page"),
        ValueError(),
        KeyError("a"),
        Permanent("never"),
        Nested("two", [ValueError("a"), OSError("b")]),
        TimedOut(300),
        CommandFailed("pdftotext exited with 3: broken", 3),
        CommandFailed("pdftotext was killed by SIGKILL", "SIGKILL"),
        CommandFailed("tool was killed by signal 60", "signal 60"),
    ],
    ids=repr,
)
def test_the_kind_of_a_failed_attempt(error):
    outcome = failed(error)
    assert kind_of(outcome.error) == outcome.kind


def test_the_kind_of_a_failed_attempt_with_a_traceback():
    try:
        raise LookupError
    except LookupError as error:
        outcome = failed(error)
    assert kind_of(outcome.error) == outcome.kind == "LookupError"


def test_the_kind_of_a_timeout_that_the_executor_enforced():
    assert kind_of(timed_out(300).error) == timed_out(300).kind


def test_the_kinds_of_files_that_cannot_be_processed(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.write_text("a file")
    for path, kind in ((inside / "gone", "FileVanished"), (inside / "sub", "NotAFile"), (outside, "OutsideRoots")):
        if kind == "NotAFile":
            path.mkdir()
        found = check_file(os.fsencode(path), (os.fsencode(inside),))
        assert (kind_of(found.error), found.kind) == (kind, kind)


@pytest.mark.parametrize(("path", "type"), [("/a.pdf", None), ("", "unknown"), ("", "command"), ("", None)])
def test_the_kind_of_a_job_without_a_handler(path, type):
    routes = Routes([], Config())
    assert kind_of(routes.refusal(Job(**A_JOB, filepath=path, type=type))) == "NoHandler"


@pytest.mark.parametrize("raw", [b"text", b'{"id": ""}'])
def test_the_kind_of_bytes_that_are_not_a_job(raw):
    with pytest.raises(Undecodable) as caught:
        decode(raw)
    assert kind_of(str(caught.value)) == "Undecodable"


def test_the_kinds_of_other_texts():
    assert kind_of("deadline passed") == "DeadlinePassed"
    assert kind_of("used 300MB of memory, more than worker.max_memory, 256MB") == "MemoryLimit"
    assert kind_of(f"{WORKER_DIED} for 30s)") == kind_of_death(f"{WORKER_DIED} for 30s)") == "WorkerDied"
    assert kind_of("") == ""


CHILD_DEATHS = (
    *map(cause_of_death, (0, 3, -9, -11, -50)),
    "the fork server did not answer for 10s",
    "closed its connection to the worker",
    "wrote something that is no outcome",
    "never began",
)


@pytest.mark.parametrize("cause", CHILD_DEATHS)
def test_the_kind_of_a_crash(cause):
    assert kind_of(Died(cause).error) == kind_of_death(cause) == "Crash"
    assert Died(cause).error.startswith("crashed: the ")
