"""Moving files without replacing others, with every way that file systems offer for it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fileq.files import exclusive_move
from fileq.files.exclusive_move import FileChanged, Place, is_private, move_into, private_name, rename_exclusively, take


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

    def rename(source: Place, target: Place) -> None:
        if not os.path.samestat(os.fstat(source.directory), os.fstat(target.directory)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target)

    monkeypatch.setattr(exclusive_move, "rename_exclusively", rename)


@pytest.fixture
def opened() -> Iterator[Callable[[Path], int]]:
    """Opens directories until the end of the test."""
    with contextlib.ExitStack() as stack:

        def open_directory(path: Path) -> int:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
            stack.callback(os.close, fd)
            return fd

        yield open_directory


def test_a_taken_name_gets_a_number_and_nothing_is_replaced(
    tmp_path: Path, way: str, opened: Callable[[Path], int]
) -> None:
    done = tmp_path / "done"
    (done / "a.1.txt").mkdir(parents=True)
    (done / "a.txt").write_text("old")
    (tmp_path / "new").write_text("new")
    os.utime(tmp_path / "new", ns=(5, 7))
    moved = move_into(Place(opened(tmp_path), b"new"), opened(done), b"a.txt")
    assert moved == b"a.2.txt"
    assert [(done / name).read_text() for name in ("a.txt", "a.2.txt")] == ["old", "new"]
    assert (done / "a.2.txt").stat().st_mtime_ns == 7
    assert sorted(os.listdir(tmp_path)) == ["done"]
    assert sorted(os.listdir(done)) == ["a.1.txt", "a.2.txt", "a.txt"]


def test_many_threads_move_files_to_one_name(tmp_path: Path, way: str, opened: Callable[[Path], int]) -> None:
    done = tmp_path / "done"
    done.mkdir()
    for n in range(80):
        (tmp_path / str(n)).write_text(str(n))
    barrier = threading.Barrier(8)
    source, folder = opened(tmp_path), opened(done)

    def move(first: int) -> None:
        barrier.wait()
        for n in range(first, 80, 8):
            move_into(Place(source, str(n).encode()), folder, b"same")

    threads = [threading.Thread(target=move, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text() for path in done.iterdir()) == sorted(map(str, range(80)))


def test_a_link_that_a_killed_process_left_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], int]
) -> None:
    monkeypatch.setattr(exclusive_move, "_renameat2", _refuses(errno.EINVAL))
    (tmp_path / "old").write_text("text")
    os.link(tmp_path / "old", tmp_path / "new")
    directory = opened(tmp_path)
    rename_exclusively(Place(directory, b"old"), Place(directory, b"new"))
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("error", [0, errno.EINVAL])
def test_a_private_name_is_never_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, opened: Callable[[Path], int]
) -> None:
    if error:
        monkeypatch.setattr(exclusive_move, "_renameat2", _refuses(error))
    directory, private = opened(tmp_path), private_name("0a")
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    take(directory, b"first", private)
    with pytest.raises(FileExistsError):
        take(directory, b"second", private)
    assert (tmp_path / os.fsdecode(private)).read_text() == "first"
    assert (tmp_path / "second").exists()
    assert is_private(private)


def test_a_symbolic_link_is_not_moved_to_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], int]
) -> None:
    """B6: a link of a sender was made anew in the folder."""
    _other_file_system(monkeypatch)
    (tmp_path / "done").mkdir()
    (tmp_path / "link").symlink_to("/nowhere")
    with pytest.raises(OSError, match="no link is followed"):
        move_into(Place(opened(tmp_path), b"link"), opened(tmp_path / "done"), b"link")
    assert os.readlink(tmp_path / "link") == "/nowhere"
    assert os.listdir(tmp_path / "done") == []


def test_a_file_that_is_written_to_while_it_is_copied_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], int]
) -> None:
    _other_file_system(monkeypatch)
    (tmp_path / "done").mkdir()
    file = tmp_path / "file"
    file.write_text("1")
    monkeypatch.setattr(exclusive_move, "_copy_attributes", lambda source, copy: file.write_text("22"))
    with pytest.raises(FileChanged):
        move_into(Place(opened(tmp_path), b"file"), opened(tmp_path / "done"), b"file")
    assert file.read_text() == "22"
    assert os.listdir(tmp_path / "done") == []


def test_a_copy_on_another_file_system_runs_as_no_other_user(tmp_path: Path, opened: Callable[[Path], int]) -> None:
    """H7: the copy belongs to the user of fileq, so a sender's setuid program would run as that user."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (tmp_path / "program").write_text("#!/bin/sh")
        (tmp_path / "program").chmod(0o6755)
        os.utime(tmp_path / "program", ns=(5, 7))
        move_into(Place(opened(tmp_path), b"program"), opened(Path(other)), b"program")
        status = os.stat(f"{other}/program")
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o755, 7)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("knows_holes", [True, False])
def test_holes_stay_holes_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], int], knows_holes: bool
) -> None:
    """B7: a sparse file, which takes no space in the inbox, filled the disk of the folder with zeros."""
    size, middle = 32 << 20, 8 << 20
    real, written = os.pwrite, []

    def count(fd: int, data: bytes, at: int) -> int:
        written.append(real(fd, data, at))
        return written[-1]

    monkeypatch.setattr(exclusive_move.os, "pwrite", count)
    if not knows_holes:

        def refuse(fd: int, at: int, how: int) -> int:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(exclusive_move.os, "lseek", refuse)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        with (tmp_path / "sparse").open("wb") as file:
            file.write(b"begin")
            file.seek(middle)
            file.write(b"middle")
            file.truncate(size)
        content = (tmp_path / "sparse").read_bytes()
        move_into(Place(opened(tmp_path), b"sparse"), opened(Path(other)), b"sparse")
        assert Path(other, "sparse").read_bytes() == content
        if knows_holes:
            assert os.stat(f"{other}/sparse").st_blocks * 512 < 1 << 20
            assert sum(written) < 1 << 20
        else:
            assert sum(written) == size
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_a_copy_has_all_that_the_file_has(tmp_path: Path, opened: Callable[[Path], int], size: int) -> None:
    """B7: files without holes, of whatever size."""
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        move_into(Place(opened(tmp_path), b"file"), opened(Path(other)), b"file")
        assert Path(other, "file").read_bytes() == content
