"""The kind of an error is found again from its text, for every error that fileq itself makes."""

import ast
import os
from pathlib import Path

import pytest

import fileq
from fileq.config import Config
from fileq.core.errors import Permanent, Undecodable
from fileq.core.job import Job, decode
from fileq.core.outcome import WORKER_DIED, Died, kind_of, kind_of_death, timed_out
from fileq.handlers.job_file import check_file
from fileq.handlers.outcomes import CommandFailed, TimedOut, failed
from fileq.handlers.routes import Routes
from fileq.worker.executors.process.messages import cause_of_death
from fileq.worker.pump import NO_HANDLER

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


# A text of each kind that is written next to its text in the code, as that code makes it.
KINDS = {
    "BrokerError": "the webhook can't be read: the broker is away",
    "CannotPrepare": "can't be prepared: RecursionError()",
    "DeadlinePassed": "deadline passed",
    "FileVanished": "file vanished",
    "ForeignJob": "refused: another program enqueued this job",
    "InvalidDelivery": "the payload is not that of a delivery: there is none",
    "MemoryLimit": "used 300MB of memory, more than worker.max_memory, 256MB",
    "NoHandler": "no handler for type 'x'",
    "NotAFile": "not a regular file",
    "NotSent": "not sent: example.com has no address",
    "OutcomeTooLong": "its outcome has 70000000 bytes; 67108864 can be sent",
    "OutsideRoots": "'/etc/passwd' leads outside the allowed roots (/srv)",
    "RootMissing": "the root '/srv' is missing",
    "Stopped": "stopped before there was an answer",
    "Undecodable": "not a job: it is no JSON",
    "UnsendableTask": "can't be sent to a child process: TypeError()",
    "WebhookDisabled": "webhook 'w' is disabled: the receiver answered 410 (gone); 'fileq webhook enable w' enables it",
}
KINDS_OF_STATUS = {"exit 3": "my tool exited with 3: no", "lost": "tool has ended, and its exit code was lost"}


def kinds_in_the_code() -> set[str]:
    """Those that are literals in a call of Failed() or Refused(), or a constant with the name of one."""
    found = set()
    for path in Path(fileq.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Failed", "Refused") and call.args[1:]:
                kind = call.args[1]
                if isinstance(kind, ast.Constant):
                    found.add(kind.value)
    return found | {NO_HANDLER}


def test_each_kind_in_the_code_is_found_again_from_its_text():
    assert kinds_in_the_code() == KINDS.keys()
    assert {kind: kind_of(text) for kind, text in (KINDS | KINDS_OF_STATUS).items()} == {
        kind: kind for kind in KINDS | KINDS_OF_STATUS
    }
    assert kind_of("the receiver answered 503: busy") == "HTTP503"


def test_a_file_that_vanished_before_a_retry_is_of_that_kind_though_the_text_keeps_the_first_error():
    assert kind_of("ValueError: no (at a.py:1 in f); retried, but file vanished") == "FileVanished"


def test_the_kind_of_an_exception_whose_text_cannot_be_made():
    class Ärger(Exception):
        def __getattribute__(self, name):
            raise RuntimeError

    outcome = failed(Ärger())
    assert kind_of(outcome.error) == outcome.kind == "Ärger"
