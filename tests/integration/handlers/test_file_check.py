"""The file of a task is checked right before its handler runs: it exists, lies below a root, is unchanged."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fileq.core.outcome import Changed, Done, Failed, LostRoot
from fileq.files.paths import MISSING
from fileq.handlers import checksum
from fileq.handlers.run import run_task
from tests.support.handler_runs import CALLED, called, failure, file, file_task, root, routes_of, run
from tests.support.unprivileged import open_path, unprivileged

__all__ = ["file", "open_path", "root"]


def signature(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


@pytest.mark.parametrize("name", [b"\xff\xfe.txt", b"new\nline.txt", b"'; rm -rf $HOME; '", b"-rf", "ü ".encode()])
def test_a_file_of_any_name_can_be_opened(name: bytes, root: Path) -> None:
    path = os.path.join(os.fsencode(root), name)
    with open(path, "wb") as made:
        made.write(b"abc")

    def handler(job: Any, context: Any) -> int:
        return os.stat(job.path).st_size

    assert run(file_task(path, root), handler) == Done(b"3")


@pytest.mark.parametrize("missing", ["b.txt", "a.txt/b", "no/such/dir"])
def test_a_file_that_does_not_exist_has_vanished(missing: str, file: Path, root: Path) -> None:
    ended = run(file_task(root / missing, root), called)
    assert ended == Failed("file vanished", "FileVanished", is_permanent=True, is_sample=False, is_vanished=True)


def test_a_file_on_a_missing_root_has_not_vanished(file: Path, root: Path) -> None:
    root.rename(root.parent / "unmounted")
    ended = run(file_task(file, root), called)
    lost = LostRoot(bytes(root), MISSING)
    assert ended == Failed(f"the root {str(root)!r} is missing", "RootMissing", is_sample=False, lost_root=lost)


def test_a_file_on_a_root_without_permission_has_lost_its_root(open_path: Path) -> None:
    root = open_path / "root"
    root.mkdir()
    (root / "a.txt").touch()
    task = file_task(root / "a.txt", root)
    routes = routes_of(called)
    root.chmod(0)
    with unprivileged():
        ended = run_task(routes, task, threading.Event())
    root.chmod(0o755)
    assert failure(ended).lost_root == LostRoot(
        bytes(root), f"can't be accessed: this user has no permission on {root}"
    )


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/nothing", "{root}/../outside.txt", "{root}x/a.txt", "{root}"])
def test_a_path_outside_the_roots_is_a_permanent_failure(path: str, root: Path) -> None:
    (root.parent / "outside.txt").touch()
    (root.parent / "rootx").mkdir()
    (root.parent / "rootx" / "a.txt").touch()
    ended = run(file_task(Path(path.format(root=root)), root), called)
    assert isinstance(ended, Failed)
    assert (ended.kind, ended.is_permanent, ended.is_sample) == ("OutsideRoots", True, False)
    assert str(root) in ended.error


def test_a_link_is_followed_when_the_task_runs(file: Path, root: Path) -> None:
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


def test_a_directory_of_the_path_may_not_lead_outside_either(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    (root.parent / "elsewhere" / "a.txt").touch()
    (root / "dir").symlink_to(root.parent / "elsewhere")
    ended = run(file_task(root / "dir" / "a.txt", root), called)
    assert isinstance(ended, Failed)
    assert ended.kind == "OutsideRoots"


def test_a_root_that_is_a_link_is_followed_at_each_task(root: Path) -> None:
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


def test_the_root_directory_allows_every_file(file: Path) -> None:
    assert run(file_task(file, Path("/")), called) == CALLED


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_directory_or_a_pipe_is_refused_and_does_not_block(make: Any, root: Path) -> None:
    make(root / "special")
    ended = run(file_task(root / "special", root), checksum)
    assert ended == Failed("not a regular file", "NotAFile", is_permanent=True, is_sample=False)


def test_a_name_with_a_nul_is_a_permanent_failure(root: Path) -> None:
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


def test_a_changed_file_is_run_only_with_runs_changed(file: Path, root: Path) -> None:
    job_was_for = signature(file)
    assert run(file_task(file, root, signature=job_was_for), called) == CALLED
    file.write_bytes(b"abcd")
    assert run(file_task(file, root, signature=job_was_for), called) == Changed(signature(file))
    assert run(file_task(file, root, signature=job_was_for, runs_changed=True), called) == CALLED


def test_without_proc_the_same_checks_hold(file: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.handlers.job_file.HAS_PROC", False)
    assert run(file_task(file, root, signature=signature(file)), called) == CALLED
    for path, kind in ((root / "b.txt", "FileVanished"), (Path("/etc/passwd"), "OutsideRoots")):
        ended = run(file_task(path, root), called)
        assert isinstance(ended, Failed)
        assert ended.kind == kind
