"""A file is deleted or moved after its job, while other programs replace it and processes are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from fileq.files import exclusive_move
from fileq.files.exclusive_move import Place, is_private, move_into, rename_exclusively, take
from fileq.files.status import signature_of
from fileq.worker import post_actions
from fileq.worker.post_actions import FileAction, KeepFile


@pytest.fixture(params=["delete", "move"])
def rule(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    return "delete" if request.param == "delete" else f"move:{tmp_path}/done"


def action_on(path: Path, rule: str, roots: tuple[Path, ...] = ()) -> FileAction:
    path.write_text("1")
    allowed = tuple(map(bytes, roots or (path.parent,)))
    return FileAction("id/with odd\nletters", rule, bytes(path), allowed, (), signature_of(path.stat()))


def replace_before_taking(monkeypatch: pytest.MonkeyPatch, path: Path, *more: str) -> None:
    """Another program replaces the file between the look at it and the rename; with `more` once again after it."""

    def late_take(directory: int, name: bytes, private: bytes) -> None:
        path.write_text("22")
        take(directory, name, private)
        for text in more:
            path.write_text(text)

    monkeypatch.setattr(post_actions, "take", late_take)


def kill_after_taking(monkeypatch: pytest.MonkeyPatch, action: FileAction) -> None:
    def killed(directory: int, name: bytes, private: bytes) -> None:
        take(directory, name, private)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(post_actions, "take", killed)
        with pytest.raises(KeyboardInterrupt):
            action.perform()


def test_a_version_that_came_at_the_last_moment_is_put_back(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in/file.txt"
    action = action_on(path, rule)
    replace_before_taking(monkeypatch, path)
    with pytest.raises(KeepFile, match="another version"):
        action.perform()
    assert path.read_text() == "22"
    assert os.listdir(path.parent) == ["file.txt"]


def test_a_version_that_cannot_be_put_back_gets_a_number(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in/file.txt"
    action = action_on(path, rule)
    replace_before_taking(monkeypatch, path, "333")
    with pytest.raises(KeepFile):
        action.perform()
    assert (path.read_text(), (tmp_path / "in/file.1.txt").read_text()) == ("333", "22")


def test_an_action_that_was_killed_is_completed(tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in/file.txt"
    action = action_on(path, rule)
    kill_after_taking(monkeypatch, action)
    [left] = os.listdir(bytes(path.parent))
    assert is_private(left)
    path.write_text("a new file of the same name")
    moved_to = action.perform()
    assert os.listdir(path.parent) == ["file.txt"]
    assert moved_to == (b"" if rule == "delete" else bytes(tmp_path / "done/file.txt"))
    assert not moved_to or Path(os.fsdecode(moved_to)).read_text() == "1"


def test_another_version_that_a_killed_action_had_taken_is_put_back(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in/file.txt"
    action = action_on(path, rule)
    kill_after_taking(monkeypatch, action)
    [left] = path.parent.iterdir()
    left.write_text("22")  # as if it had been replaced before
    with pytest.raises(KeepFile):
        action.perform()
    assert path.read_text() == "22"


def test_a_file_that_cannot_be_moved_has_its_name_again(tmp_path: Path) -> None:
    path = tmp_path / "in/a/file.txt"
    path.parent.mkdir(parents=True)
    (tmp_path / "done").mkdir()
    (tmp_path / "done/a").write_text("not a directory")
    action = action_on(path, f"move:{tmp_path}/done", (tmp_path / "in",))
    with pytest.raises(NotADirectoryError):
        action.perform()
    assert os.listdir(path.parent) == ["file.txt"]


def test_a_directory_that_becomes_a_link_at_the_last_moment_is_not_followed(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7: the file of another directory was deleted or moved, because the path was followed again at each step."""
    path, other = tmp_path / "in/a/file.txt", tmp_path / "other"
    path.parent.mkdir()
    other.mkdir()
    (other / "file.txt").write_text("1")
    action = action_on(path, rule, (tmp_path / "in",))
    os.utime(other / "file.txt", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))

    def swapped(directory: int, name: bytes, private: bytes) -> None:
        path.parent.rename(tmp_path / "in/b")
        path.parent.symlink_to(other)
        take(directory, name, private)

    monkeypatch.setattr(post_actions, "take", swapped)
    action.perform()
    assert os.listdir(other) == ["file.txt"]
    assert os.listdir(tmp_path / "in/b") == []  # the file that was meant


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("moment", ["before", "before the rename", "before the move"])
@pytest.mark.parametrize("planted", ["link", "pipe", "directory"])
def test_what_is_not_a_regular_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool, moment: str, planted: str
) -> None:
    """B6: a sender's link to the file, in its place, was moved into the archive, at whatever moment it came. So was a
    pipe or a directory, if the version that was processed is unknown."""
    path, away = tmp_path / "in/file.txt", tmp_path / "in/.keep"
    path.parent.mkdir()
    action = action_on(path, f"move:{tmp_path}/done")
    if not is_known:
        action = replace(action, processed=None)

    def swap(name: Path = path) -> None:
        name.rename(away)
        if planted == "link":
            name.symlink_to(away)
        elif planted == "pipe":
            os.mkfifo(name)
        else:
            name.mkdir()

    def late_take(directory: int, name: bytes, private: bytes) -> None:
        swap()
        take(directory, name, private)

    def late_move(source: Place, folder: int, name: bytes, unique: str = "") -> bytes:
        if not away.exists():
            swap(path.parent / os.fsdecode(source.name))
        return move_into(source, folder, name, unique)

    if moment == "before":
        swap()
    elif moment == "before the rename":
        monkeypatch.setattr(post_actions, "take", late_take)
    else:
        monkeypatch.setattr(post_actions, "move_into", late_move)
    with pytest.raises(KeepFile, match="only regular files"):
        action.perform()
    assert sorted(os.listdir(path.parent)) == [".keep", "file.txt"]
    assert not (tmp_path / "done").exists() or os.listdir(tmp_path / "done") == []


@pytest.mark.parametrize("planted", ["in/done", "in/done/a"])
def test_what_was_moved_is_not_looked_for_behind_a_link(tmp_path: Path, planted: str) -> None:
    """H7: a worker that does the order of another one looks where the file may be."""
    path = tmp_path / "in/a/file.txt"
    path.parent.mkdir(parents=True)
    action = action_on(path, f"move:{tmp_path}/in/done", (tmp_path / "in",))
    (tmp_path / "other/a").mkdir(parents=True)
    (tmp_path / planted).parent.mkdir(exist_ok=True)
    (tmp_path / planted).symlink_to(tmp_path / "other")
    for name in ("other/file.txt", "other/a/file.txt"):
        path.rename(tmp_path / name)
        assert action.find_moved() == b""
        (tmp_path / name).rename(path)
    (tmp_path / planted).unlink()
    assert action.perform() == bytes(tmp_path / "in/done/a/file.txt") == action.find_moved()


@pytest.mark.parametrize("above", ["in", "link"])
def test_a_folder_in_a_root_is_found_by_whatever_links_lead_to_the_root(tmp_path: Path, above: str) -> None:
    """H7: an operator's link above the root is followed, and one that a sender planted below it is not."""
    path = tmp_path / "in/file.txt"
    path.parent.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    action = action_on(path, f"move:{tmp_path}/{above}/done", (tmp_path / "in",))
    (tmp_path / "other").mkdir()
    (tmp_path / "in/done").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="no link is followed"):
        action.perform()
    assert os.listdir(tmp_path / "other") == []
    (tmp_path / "in/done").unlink()
    assert action.perform() == bytes(tmp_path / above / "done/file.txt")


def test_a_move_tries_few_names_however_many_files_of_that_name_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: each move tried all numbers from 1 on, so a sender of files of one name made moves slower and slower."""
    done, path = tmp_path / "in/done", tmp_path / "in/file.txt"
    done.mkdir(parents=True)
    (done / "file.txt").touch()
    for n in range(1, 500):
        os.link(done / "file.txt", done / f"file.{n}.txt")
    tried: list[bytes] = []

    def counted(source: Place, target: Place) -> None:
        tried.append(target.name)
        rename_exclusively(source, target)

    monkeypatch.setattr(exclusive_move, "rename_exclusively", counted)
    action = action_on(path, f"move:{done}", (tmp_path / "in",))
    moved = action.perform()
    assert len(tried) < 20
    assert os.path.dirname(moved) == bytes(done)
    assert action.find_moved() == moved, "a process that does the order of another one finds it"
    action = action_on(path, f"move:{done}", (tmp_path / "in",))
    again = action.perform()
    assert again not in (b"", moved), "the id of the job is no name that is free twice"


@pytest.mark.parametrize("name", ["n" * 255, "n" * 251 + ".txt", "n." + "x" * 253, "é" * 127, "n" * 50 + "é" * 100])
def test_a_long_name_that_is_taken_is_shortened(tmp_path: Path, name: str) -> None:
    """S7: with a number it was longer than file systems allow, and the file was never moved."""
    done, path = tmp_path / "in/done", tmp_path / "in" / name
    done.mkdir(parents=True)
    found = set()
    for _ in range(15):
        moved = action_on(path, f"move:{done}", (tmp_path / "in",)).perform()
        assert os.path.dirname(moved) == bytes(done)
        found.add(os.path.basename(moved).decode())
    assert len(found) == 15
    extension = os.path.splitext(name)[1]
    assert len(extension) > 200 or all(one.endswith(extension) for one in found)
