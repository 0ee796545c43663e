"""Moving files without replacing others, with every way that file systems offer for it."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest

from fileq.files import exclusive_move
from fileq.files.exclusive_move import FileChanged, is_private, move_into, private_name, rename_exclusively, take


def _refuses(error: int):
    def refused(*arguments: object, **options: object) -> int:
        ctypes.set_errno(error)
        return -1

    return refused


def _cannot_link(*arguments: object, **options: object) -> None:
    raise PermissionError(errno.EPERM, "no hard links here")


@pytest.fixture(params=["renameat2", "link", "reserve", "copy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way that the file system allows."""
    if request.param in ("link", "reserve"):
        monkeypatch.setattr(exclusive_move, "_renameat2", _refuses(errno.EINVAL))
    if request.param == "reserve":
        monkeypatch.setattr(os, "link", _cannot_link)
    if request.param == "copy":
        _other_file_system(monkeypatch)
    return str(request.param)


def _other_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renames between two directories fail as between two file systems."""
    real = exclusive_move.rename_exclusively

    def rename(path: bytes, target: bytes) -> None:
        if os.path.dirname(path) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(path, target)

    monkeypatch.setattr(exclusive_move, "rename_exclusively", rename)


def test_a_taken_name_gets_a_number_and_nothing_is_replaced(tmp_path: Path, way: str) -> None:
    done = tmp_path / "done"
    (done / "a.1.txt").mkdir(parents=True)
    (done / "a.txt").write_text("old")
    (tmp_path / "new").write_text("new")
    os.utime(tmp_path / "new", ns=(5, 7))
    moved = move_into(bytes(tmp_path / "new"), bytes(done), b"a.txt")
    assert moved == bytes(done / "a.2.txt")
    assert [(done / name).read_text() for name in ("a.txt", "a.2.txt")] == ["old", "new"]
    assert os.stat(moved).st_mtime_ns == 7
    assert sorted(os.listdir(tmp_path)) == ["done"]
    assert sorted(os.listdir(done)) == ["a.1.txt", "a.2.txt", "a.txt"]


def test_many_threads_move_files_to_one_name(tmp_path: Path, way: str) -> None:
    done = tmp_path / "done"
    done.mkdir()
    for n in range(80):
        (tmp_path / str(n)).write_text(str(n))
    barrier = threading.Barrier(8)

    def move(first: int) -> None:
        barrier.wait()
        for n in range(first, 80, 8):
            move_into(bytes(tmp_path / str(n)), bytes(done), b"same")

    threads = [threading.Thread(target=move, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text() for path in done.iterdir()) == sorted(map(str, range(80)))


def test_a_link_that_a_killed_process_left_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive_move, "_renameat2", _refuses(errno.EINVAL))
    (tmp_path / "old").write_text("text")
    os.link(tmp_path / "old", tmp_path / "new")
    rename_exclusively(bytes(tmp_path / "old"), bytes(tmp_path / "new"))
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("error", [0, errno.EINVAL])
def test_a_private_name_is_never_taken_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    if error:
        monkeypatch.setattr(exclusive_move, "_renameat2", _refuses(error))
    first, second, private = (bytes(tmp_path / name) for name in ("first", "second", os.fsdecode(private_name("0a"))))
    for path in (first, second):
        Path(os.fsdecode(path)).write_bytes(path)
    take(first, private)
    with pytest.raises(FileExistsError):
        take(second, private)
    assert (Path(os.fsdecode(private)).read_bytes(), os.path.exists(second)) == (first, True)
    assert is_private(os.path.basename(private))


def test_a_symbolic_link_is_moved_to_another_file_system_as_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _other_file_system(monkeypatch)
    (tmp_path / "done").mkdir()
    (tmp_path / "link").symlink_to("/nowhere")
    move_into(bytes(tmp_path / "link"), bytes(tmp_path / "done"), b"link")
    assert os.readlink(tmp_path / "done/link") == "/nowhere"
    assert os.listdir(tmp_path) == ["done"]


def test_a_file_that_is_written_to_while_it_is_copied_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _other_file_system(monkeypatch)
    (tmp_path / "done").mkdir()
    file = tmp_path / "file"
    file.write_text("1")

    def copystat(source: bytes, copy: bytes) -> None:
        file.write_text("22")

    monkeypatch.setattr(exclusive_move.shutil, "copystat", copystat)
    with pytest.raises(FileChanged):
        move_into(bytes(file), bytes(tmp_path / "done"), b"file")
    assert file.read_text() == "22"
    assert os.listdir(tmp_path / "done") == []
