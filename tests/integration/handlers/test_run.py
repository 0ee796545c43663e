"""One task is run: the handler is called, and whatever it does becomes an outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fileq.core.errors import Permanent, Retry
from fileq.core.outcome import Done, Failed
from tests.support.handler_runs import called, file, file_task, root, run, typed_task

__all__ = ["file", "root"]


def test_the_handler_gets_the_job_and_its_context(file: Path, root: Path) -> None:
    def handler(job: Any, context: Any) -> list[Any]:
        with open(job.path, "rb") as opened:
            content = opened.read()
        assert not context.cancelled.is_set()
        return [job.id, job.path, content.decode(), context.attempt, 29 < context.time_left <= 30]

    ended = run(file_task(file, root, attempt=3), handler)
    assert isinstance(ended, Done), ended
    assert json.loads(ended.result) == ["j1", str(file), "abc", 3, True]


def test_a_job_without_a_file_is_run_without_a_check() -> None:
    def handler(job: Any, context: Any) -> list[Any]:
        return [job.type, job.payload, job.path]

    ended = run(typed_task("mail", {"to": "x"}), handler)
    assert ended == Done(b'["mail",{"to":"x"},""]')


def raising(error: BaseException) -> Any:
    def handler(job: Any, context: Any) -> None:
        raise error

    return handler


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), "ValueError"),
        (SystemExit(0), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (MemoryError(), "MemoryError"),
        (BaseException("bare"), "BaseException"),
    ],
)
def test_every_exception_of_a_handler_is_a_failure(error: BaseException, kind: str) -> None:
    ended = run(typed_task("t"), raising(error))
    assert isinstance(ended, Failed)
    assert (ended.kind, ended.is_permanent, ended.is_sample) == (kind, False, True)


def test_endless_recursion_is_a_failure() -> None:
    def handler(job: Any, context: Any) -> Any:
        return handler(job, context)

    ended = run(typed_task("t"), handler)
    assert isinstance(ended, Failed)
    assert ended.kind == "RecursionError"


def test_permanent_and_retry_decide_what_comes_next() -> None:
    permanent, retry = (run(typed_task("t"), raising(error)) for error in (Permanent("no"), Retry(after=7)))
    assert isinstance(permanent, Failed)
    assert isinstance(retry, Failed)
    assert replace(permanent, traceback="") == Failed("Permanent: no", "Permanent", True, None, False)
    assert replace(retry, traceback="") == Failed("Retry: retry requested", "Retry", after_s=7.0)


def test_give_up_on_is_read_from_the_route(file: Path, root: Path) -> None:
    route = {"match": "**/*", "use": "fileq.handlers:simulate", "give_up_on": ["RuntimeError"]}
    failing = root / "fail.txt"
    failing.touch()
    ended = run(file_task(failing, root), route)
    assert isinstance(ended, Failed)
    assert ended.is_permanent


def test_a_job_whose_result_is_not_json_is_still_done() -> None:
    ended = run(typed_task("t"), lambda job, context: object())
    assert isinstance(ended, Done)
    assert (ended.result, "not JSON" in ended.warning) == (b"", True)


def test_an_invalid_task_is_a_permanent_failure_and_raises_nothing() -> None:
    garbage = msgspec.structs.replace(typed_task("t"), raw=b"{")
    unknown = typed_task("t", route=9)
    bad_payload = msgspec.structs.replace(typed_task("t"), raw=typed_task("t", 1).raw.replace(b":1}", b":1e999}"))
    for task in (garbage, unknown, bad_payload):
        ended = run(task, called)
        assert isinstance(ended, Failed), task
        assert ended.is_permanent, ended


def test_the_log_of_a_handler_uses_the_logging_that_was_set_up() -> None:
    code = (
        "import threading\n"
        "from fileq.observe.logs import set_up_logs\n"
        "from tests.support.handler_runs import run, typed_task\n"
        "set_up_logs('warn', 'json')\n"
        "def handler(job, context):\n"
        "    context.log.info('page.read')\n"
        "    context.log.warning('page.odd', page=3)\n"
        "run(typed_task('t'), handler)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    line = json.loads(ended.stderr)
    assert (line["event"], line["page"], line["job_id"], line["level"]) == ("page.odd", 3, "j1", "warning")
    assert ended.stdout == ""
