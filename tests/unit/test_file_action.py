"""A file is deleted or moved after its job, while other programs replace it and processes are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fileq.files.exclusive_move import is_private, take
from fileq.files.version import signature_of
from fileq.worker import file_action
from fileq.worker.file_action import FileAction, KeepFile


@pytest.fixture(params=["delete", "move"])
def rule(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    return "delete" if request.param == "delete" else f"move:{tmp_path}/done"


def action_on(path: Path, rule: str, roots: tuple[Path, ...] = ()) -> FileAction:
    path.write_text("1")
    allowed = tuple(map(bytes, roots or (path.parent,)))
    return FileAction("id/with odd\nletters", rule, bytes(path), allowed, signature_of(path.stat()))


def replace_before_taking(monkeypatch: pytest.MonkeyPatch, path: Path, *more: str) -> None:
    """Another program replaces the file between the look at it and the rename; with `more` once again after it."""

    def late_take(source: bytes, private: bytes) -> None:
        path.write_text("22")
        take(source, private)
        for text in more:
            path.write_text(text)

    monkeypatch.setattr(file_action, "take", late_take)


def kill_after_taking(monkeypatch: pytest.MonkeyPatch, action: FileAction) -> None:
    def killed(source: bytes, private: bytes) -> None:
        take(source, private)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(file_action, "take", killed)
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
    with pytest.raises(FileExistsError):
        action.perform()
    assert os.listdir(path.parent) == ["file.txt"]
