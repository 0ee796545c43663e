"""One task, run: the file is looked at right before, the handler is called, and whatever it does becomes an outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fileq.core.errors import Permanent, Retry
from fileq.core.job import decode
from fileq.core.outcome import Changed, Done, Failed
from fileq.handlers import checksum, simulate
from fileq.handlers.run import run_task
from tests.support.handler_runs import file_task, routes_of, run, task_of, typed_task

EMPTY_SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def file(root: Path) -> Path:
    (root / "a.txt").write_bytes(b"abc")
    return root / "a.txt"


def called(job: Any, context: Any) -> str:
    return "called"


CALLED = Done(b'"called"')


def signature(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


# the file


def test_the_handler_gets_the_job_and_its_context(file: Path, root: Path) -> None:
    def handler(job: Any, context: Any) -> list[Any]:
        with open(job.path, "rb") as opened:
            content = opened.read()
        assert not context.cancelled.is_set()
        return [job.id, job.path, content.decode(), context.attempt, 29 < context.time_left <= 30]

    ended = run(file_task(file, root, attempt=3), handler)
    assert isinstance(ended, Done), ended
    assert json.loads(ended.result) == ["j1", str(file), "abc", 3, True]


@pytest.mark.parametrize("name", [b"\xff\xfe.txt", b"new\nline.txt", b"'; rm -rf $HOME; '", b"-rf", "ü ".encode()])
def test_a_file_of_any_name_can_be_opened(name: bytes, root: Path) -> None:
    path = os.path.join(os.fsencode(root), name)
    with open(path, "wb") as made:
        made.write(b"abc")

    def handler(job: Any, context: Any) -> int:
        return os.stat(job.path).st_size

    assert run(file_task(path, root), handler) == Done(b"3")


@pytest.mark.parametrize("missing", ["b.txt", "a.txt/b", "no/such/dir"])
def test_a_file_that_is_gone_has_vanished(missing: str, file: Path, root: Path) -> None:
    assert run(file_task(root / missing, root), called) == Failed("file vanished", "FileVanished", is_sample=False)


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/nothing", "{root}/../outside.txt", "{root}x/a.txt", "{root}"])
def test_a_path_outside_the_roots_is_refused_for_good(path: str, root: Path) -> None:
    (root.parent / "outside.txt").touch()
    (root.parent / "rootx").mkdir()
    (root.parent / "rootx" / "a.txt").touch()
    ended = run(file_task(Path(path.format(root=root)), root), called)
    assert isinstance(ended, Failed)
    assert (ended.kind, ended.is_permanent, ended.is_sample) == ("OutsideRoots", True, False)
    assert str(root) in ended.error


def test_a_link_is_judged_by_where_it_leads_when_the_task_runs(file: Path, root: Path) -> None:
    secret = root.parent / "secret.txt"
    secret.touch()
    link = root / "link.txt"
    link.symlink_to(file)
    assert run(file_task(link, root), called) == CALLED
    link.unlink()
    link.symlink_to(secret)
    ended = run(file_task(link, root), called)
    assert isinstance(ended, Failed)
    assert ended.kind == "OutsideRoots"


def test_a_directory_on_the_way_may_not_lead_outside_either(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    (root.parent / "elsewhere" / "a.txt").touch()
    (root / "dir").symlink_to(root.parent / "elsewhere")
    ended = run(file_task(root / "dir" / "a.txt", root), called)
    assert isinstance(ended, Failed)
    assert ended.kind == "OutsideRoots"


def test_a_root_that_is_a_link_is_followed_now_and_not_remembered(root: Path) -> None:
    for name in ("v1", "v2"):
        (root / name).mkdir()
        (root / name / "a.txt").touch()
    current = root.parent / "current"
    current.symlink_to(root / "v1")
    assert run(file_task(current / "a.txt", current), called) == CALLED
    current.unlink()
    current.symlink_to(root / "v2")
    assert run(file_task(current / "a.txt", current), called) == CALLED
    refused = run(file_task(root / "v1" / "a.txt", current), called)
    assert isinstance(refused, Failed)
    assert refused.kind == "OutsideRoots"


def test_one_of_several_roots_is_enough(file: Path, root: Path) -> None:
    task = msgspec.structs.replace(file_task(file, root), roots=(b"/no/such/root", os.fsencode(root)))
    assert run(task, called) == CALLED


def test_the_root_of_everything_allows_everything(file: Path) -> None:
    assert run(file_task(file, Path("/")), called) == CALLED


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_not_a_regular_file_is_refused_and_never_hangs(make: Any, root: Path) -> None:
    make(root / "odd")
    ended = run(file_task(root / "odd", root), checksum)
    assert ended == Failed("not a regular file", "NotAFile", is_permanent=True, is_sample=False)


def test_a_name_with_a_nul_is_a_failure_for_good(root: Path) -> None:
    task = msgspec.structs.replace(file_task(root / "a", root), path=os.fsencode(root) + b"/a\0b")
    ended = run(task, called)
    assert isinstance(ended, Failed)
    assert (ended.kind, ended.is_permanent) == ("Permanent", True)
    assert "embedded null" in ended.error


def test_a_loop_of_links_is_a_failure(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    ended = run(file_task(root / "loop", root), called)
    assert isinstance(ended, Failed)
    assert ended.kind == "OSError"


def test_a_changed_file_is_not_run_unless_told_to(file: Path, root: Path) -> None:
    job_was_for = signature(file)
    assert run(file_task(file, root, signature=job_was_for), called) == CALLED
    file.write_bytes(b"abcd")
    assert run(file_task(file, root, signature=job_was_for), called) == Changed(signature(file))
    assert run(file_task(file, root, signature=job_was_for, runs_changed=True), called) == CALLED


def test_without_proc_the_same_checks_hold(file: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.handlers.files._HAS_PROC", False)
    assert run(file_task(file, root, signature=signature(file)), called) == CALLED
    for path, kind in ((root / "b.txt", "FileVanished"), (Path("/etc/passwd"), "OutsideRoots")):
        ended = run(file_task(path, root), called)
        assert isinstance(ended, Failed)
        assert ended.kind == kind


def test_a_job_without_a_file_looks_at_none() -> None:
    def handler(job: Any, context: Any) -> list[Any]:
        return [job.type, job.payload, job.path]

    ended = run(typed_task("mail", {"to": "x"}), handler)
    assert ended == Done(b'["mail",{"to":"x"},""]')


# what handlers do


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
def test_nothing_a_handler_raises_escapes(error: BaseException, kind: str) -> None:
    ended = run(typed_task("t"), raising(error))
    assert isinstance(ended, Failed)
    assert (ended.kind, ended.is_permanent, ended.is_sample) == (kind, False, True)


def test_endless_recursion_is_a_failure_like_others() -> None:
    def handler(job: Any, context: Any) -> Any:
        return handler(job, context)

    ended = run(typed_task("t"), handler)
    assert isinstance(ended, Failed)
    assert ended.kind == "RecursionError"


def test_permanent_and_retry_say_what_comes_next() -> None:
    assert run(typed_task("t"), raising(Permanent("no"))) == Failed("Permanent: no", "Permanent", True, None, False)
    assert run(typed_task("t"), raising(Retry(after=7))) == Failed("Retry: retry requested", "Retry", after_s=7.0)


def test_give_up_on_is_the_routes_own(file: Path, root: Path) -> None:
    route = {"match": "**/*", "use": "fileq.handlers:simulate", "give_up_on": ["RuntimeError"]}
    failing = root / "fail.txt"
    failing.touch()
    ended = run(file_task(failing, root), route)
    assert isinstance(ended, Failed)
    assert ended.is_permanent


def test_a_result_that_is_no_json_leaves_the_job_done() -> None:
    ended = run(typed_task("t"), lambda job, context: object())
    assert isinstance(ended, Done)
    assert (ended.result, "not JSON" in ended.warning) == (b"", True)


def test_a_task_that_makes_no_sense_is_a_failure_and_not_an_exception() -> None:
    garbage = msgspec.structs.replace(typed_task("t"), raw=b"{")
    unknown = typed_task("t", route=9)
    bad_payload = msgspec.structs.replace(typed_task("t"), raw=typed_task("t", 1).raw.replace(b":1}", b":1e999}"))
    for task in (garbage, unknown, bad_payload):
        ended = run(task, called)
        assert isinstance(ended, Failed), task
        assert ended.is_permanent, ended


def test_the_log_goes_where_logs_were_set_up() -> None:
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


# built in


def test_checksum_is_the_sha256_of_the_file(file: Path, root: Path) -> None:
    big = root / "big"
    big.write_bytes(b"x" * 3_000_000)
    expected = {
        file: ("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 3),
        big: (subprocess.run(["sha256sum", big], capture_output=True, check=True).stdout[:64].decode(), 3_000_000),
    }
    for path, (sha256, size) in expected.items():
        ended = run(file_task(path, root), checksum)
        assert isinstance(ended, Done)
        assert json.loads(ended.result) == {"sha256": sha256, "bytes": size}


def test_checksum_of_nothing_is_known(root: Path) -> None:
    (root / "empty").touch()
    ended = run(file_task(root / "empty", root), checksum)
    assert isinstance(ended, Done)
    assert json.loads(ended.result) == {"sha256": EMPTY_SHA, "bytes": 0}


def test_checksum_stops_between_blocks_when_it_is_cancelled(file: Path, root: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    ended = run(file_task(file, root), checksum, cancelled=cancelled)
    assert isinstance(ended, Failed)
    assert ended.kind == "InterruptedError"


@pytest.mark.parametrize(
    ("name", "attempts"),
    [
        ("fail.txt", ["RuntimeError"] * 3),
        ("my-fail-2.txt", ["RuntimeError", "RuntimeError", ""]),
        ("A FAIL-1", ["RuntimeError", "", ""]),
        ("permanent.txt", ["Permanent"] * 3),
        ("failure.txt", [""] * 3),
        ("unfailing-2.txt", [""] * 3),
    ],
)
def test_simulate_does_as_the_files_name_says(name: str, attempts: list[str], root: Path) -> None:
    (root / name).touch()
    ended = [run(file_task(root / name, root, attempt=n), simulate) for n in (1, 2, 3)]
    assert [ending.kind if isinstance(ending, Failed) else "" for ending in ended] == attempts


@pytest.mark.parametrize(
    ("payload", "attempts"),
    [
        ({"fail": True}, ["RuntimeError", "RuntimeError"]),
        ({"fail": 1}, ["RuntimeError", ""]),
        ({"permanent": True}, ["Permanent", "Permanent"]),
        ({"sleep": 0.001}, ["", ""]),
        ({"sleep": "long"}, ["Permanent", "Permanent"]),
        ([1], ["Permanent", "Permanent"]),
    ],
)
def test_simulate_does_as_the_payload_says(payload: Any, attempts: list[str]) -> None:
    ended = [run(typed_task("t", payload, attempt=n), simulate) for n in (1, 2)]
    assert [ending.kind if isinstance(ending, Failed) else "" for ending in ended] == attempts


def test_simulate_takes_its_time_by_the_size_of_the_file() -> None:
    class Waits(threading.Event):
        waited: float | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.waited = timeout
            return False

    cancelled = Waits()
    job = decode(typed_task("t").raw).but(filesize=250_000_000)
    assert isinstance(run(task_of(job), simulate, cancelled=cancelled), Done)
    assert cancelled.waited == pytest.approx(2.5)


def test_simulate_hangs_until_it_is_cancelled() -> None:
    cancelled = threading.Event()
    routes = routes_of(simulate)
    outcomes: list[Any] = []

    thread = threading.Thread(
        target=lambda: outcomes.append(run_task(typed_task("t", {"hang": True}), routes, cancelled))
    )
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    cancelled.set()
    thread.join(10)
    assert outcomes[0].kind == "InterruptedError"
