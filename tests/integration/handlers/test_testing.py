"""fileq.testing.run, and the names that handlers get from `import fileq`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import fileq
import fileq.testing
from fileq.core.errors import ConfigError
from fileq.handlers import checksum
from tests.support import trial_tasks


def test_a_handler_is_called_for_a_file_as_a_worker_would(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")

    def handler(job: fileq.JobView, context: fileq.Context) -> dict[str, Any]:
        with open(job.path, "rb") as opened:
            assert opened.read() == b"abc"
        context.log.info("file.read", size=job.filesize)
        assert not context.cancelled.is_set()
        assert 290 < context.time_left <= 300
        return {"size": job.filesize, "path": job.path, "attempt": context.attempt, "retries": job.retries}

    assert fileq.testing.run(handler, file, attempt=2) == {
        "size": 3,
        "path": str(file),
        "attempt": 2,
        "retries": 1,
    }
    assert fileq.testing.run(checksum, str(file))["bytes"] == 3
    assert fileq.testing.run(checksum, bytes(file))["bytes"] == 3


def test_a_handler_is_called_for_a_payload() -> None:
    def handler(job: fileq.JobView, context: fileq.Context) -> list[Any]:
        return [job.type, job.payload, job.path, job.id]

    assert fileq.testing.run(handler, type="mail", payload={"to": [1]}, id="m1") == ["mail", {"to": [1]}, "", "m1"]


def test_a_timeout_is_a_duration_as_everywhere() -> None:
    def handler(job: fileq.JobView, context: fileq.Context) -> float:
        return context.timeout_s

    assert [fileq.testing.run(handler, timeout=one) for one in ("5s", 5, timedelta(seconds=5))] == [5.0] * 3


def test_a_parameter_that_can_not_be_used_is_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"path": {"a": 1}}, r"path is {'a': 1}; it must be the path of a file; a payload is given as payload=…"),
        ({"timeout": "5"}, r"timeout is '5'; it must be a duration with its unit, such as 5s"),
        ({"timeout": -1}, r"timeout is -1; it must be between 0 and"),
        ({"attempt": 0}, r"attempt is 0; it must be a whole number of at least 1"),
        ({"attempt": "1"}, r"attempt is '1'; it must be a whole number of at least 1"),
    ]
    for given, message in wrong:
        with pytest.raises(ConfigError, match=f"^{message}"):
            fileq.testing.run(checksum, **given)


def test_what_a_handler_raises_is_raised(tmp_path: Path) -> None:
    def handler(job: fileq.JobView, context: fileq.Context) -> None:
        raise fileq.Retry("busy", after=5)

    with pytest.raises(fileq.Retry, match="busy") as caught:
        fileq.testing.run(handler, payload=1)
    assert caught.value.after_s == 5
    with pytest.raises(FileNotFoundError):
        fileq.testing.run(checksum, tmp_path / "none")


async def asynchronous(job: fileq.JobView, context: fileq.Context) -> int:
    await asyncio.sleep(0)
    return 7


def test_a_coroutine_is_awaited_also_inside_a_running_loop() -> None:
    async def test() -> int:
        result: int = fileq.testing.run(asynchronous)
        return result

    assert fileq.testing.run(asynchronous) == 7
    assert asyncio.run(test()) == 7
    assert not [thread for thread in threading.enumerate() if thread.name == "async"], "no loop is left"


def test_a_cancellation_can_be_tried() -> None:
    cancelled = threading.Event()
    cancelled.set()

    def handler(job: fileq.JobView, context: fileq.Context) -> str:
        return "stopped" if context.cancelled.is_set() else "went on"

    assert fileq.testing.run(handler, cancelled=cancelled) == "stopped"


def test_a_result_that_a_worker_would_drop_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="not JSON"):
        fileq.testing.run(lambda job, context: object())


def test_a_payload_that_the_task_does_not_take_is_permanent_as_in_a_worker() -> None:
    with pytest.raises(fileq.Permanent, match="the payload is not what the task takes: Expected `object`, got `str`"):
        fileq.testing.run(trial_tasks.double, payload="text")


def test_follow_ups_are_checked_as_in_a_worker() -> None:
    with pytest.raises(fileq.JobError, match="task 'double' takes a payload of type Number"):
        fileq.testing.run(lambda job, context: context.enqueue(trial_tasks.double, "text"))
    with pytest.raises(fileq.JobError, match=r"no handler for type 'duoble'; did you mean 'double'\?"):
        fileq.testing.run(lambda job, context: context.enqueue("duoble", {"n": 1}))
    assert fileq.testing.run(lambda job, context: context.enqueue(trial_tasks.double, trial_tasks.Number(1)))


def test_a_function_that_cannot_be_a_handler_is_refused_before_it_is_called(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes \(path\); a handler is called with \(job, context\)"):
        fileq.testing.run(lambda path: None)
    with pytest.raises(TypeError, match="a job about a file has neither"):
        fileq.testing.run(checksum, tmp_path, payload=1)


def test_importing_fileq_imports_nothing_else_until_a_name_is_used() -> None:
    code = (
        "import sys; before = set(sys.modules); import fileq\n"
        "print(sorted(set(sys.modules) - before))\n"
        "assert {'handler', 'Retry', 'Permanent', 'Context', 'JobView', 'Client', 'task'} <= set(dir(fileq))\n"
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('fileq')))\n"
        "fileq.handler('*')(lambda job, context: None)\n"
        "fileq.task('t')(lambda job, context: None)\n"
        "heavy = {'redis', 'sqlite3', 'yaml', 'bracex', 'fileq.brokers', 'fileq.config', 'fileq.client.client'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "print(fileq.Retry.__name__, fileq.Permanent.__name__, 'fileq.handlers.registry' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.splitlines() == ["['fileq']", "['fileq']", "Retry Permanent True"]


def test_a_name_that_fileq_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fileq' has no attribute 'handlr'"):
        fileq.handlr  # type: ignore[attr-defined]  # noqa: B018
