"""What a walk finds, what it cannot read, and how much it does in one step."""

import errno
import os
from pathlib import Path

import pytest

from fileq.files.paths import MAX_DEPTH
from fileq.producer.finder import scan as module
from fileq.producer.finder.scan import DirectoryWalk
from tests.support.scanned_tree import ScannedTree, following, walked


@pytest.fixture
def tree(tmp_path: Path) -> ScannedTree:
    return ScannedTree(tmp_path / "in")


def test_files_at_every_depth_are_found_once_each(tree):
    names = ["a", "b/c", "b/d/e", "b/d/f/.g", ".h/i"]
    tree.add(*names)
    (tree.root / "empty").mkdir()
    assert tree.walk() == sorted(names)
    assert tree.is_complete


def test_a_loop_of_links_is_walked_once_and_counted(tmp_path):
    tree = following(tmp_path)
    tree.add("x/y/a")
    (tree.root / "x/y/up").symlink_to(tree.root)
    (tree.root / "x/y/self").symlink_to(".")
    assert tree.walk() == ["x/y/a"]
    assert tree.skipped == {"loop": 2}
    assert tree.is_complete


def test_a_walk_over_a_part_detects_a_loop_to_a_directory_above_it(tmp_path):
    tree = following(tmp_path)
    tree.add("a", "x/y/b")
    (tree.root / "x/y/up").symlink_to(tree.root)
    assert tree.walk("x/y") == ["x/y/b"]
    assert tree.skipped == {"loop": 1}


def test_links_that_lead_to_links_do_not_multiply_the_files(tmp_path):
    """B5: n directories, each with two links to the next one, gave the last of them 2^n names. A path now leads through
    one linked directory, whatever part is walked and also if an event names the file."""
    tree = following(tmp_path)
    for n in range(12):
        tree.add(f"z{n}/f")
        if n < 11:
            (tree.root / f"z{n}/a").symlink_to(f"../z{n + 1}")
            (tree.root / f"z{n}/b").symlink_to(f"../z{n + 1}")
    real, linked = [f"z{n}/f" for n in range(12)], [f"z{n}/{name}/f" for n in range(11) for name in "ab"]
    assert tree.walk() == sorted(real + linked)
    assert tree.skipped == {"loop": 40}
    assert tree.walk("z3") == ["z3/a/f", "z3/b/f", "z3/f"]
    assert tree.walk("z3/a") == ["z3/a/f"]
    assert tree.finds("z3/a/f")
    assert not tree.finds("z3/a/b/f")


def test_a_link_is_followed_also_to_a_directory_of_its_own_name_and_from_below_it(tmp_path):
    """B5: what one link leads to is walked as before: subdirectories, and files to which a second link leads."""
    tree = following(tmp_path)
    tree.add("real/x/deep/a", "real/b")
    (tree.root / "real/x/deep/c").symlink_to("../../b")
    (tree.root / "alias").mkdir()
    (tree.root / "alias/x").symlink_to("../real/x")
    assert tree.walk("alias") == ["alias/x/deep/a", "alias/x/deep/c"]
    assert tree.finds("alias/x/deep/a")


def test_a_link_to_itself_counts_as_loop_and_a_broken_link_as_vanished(tmp_path):
    tree = following(tmp_path)
    (tree.root / "self").symlink_to("self")
    (tree.root / "broken").symlink_to("nowhere")
    tree.add("a")
    assert tree.walk() == ["a"]
    assert tree.skipped == {"loop": 1, "vanished": 1}
    assert tree.is_complete


def refuse_path(monkeypatch, function: str, name: str, code: int) -> None:
    """Makes that function of os fail for paths with this end. Permissions would not stop a test that runs as root."""
    real = getattr(os, function)

    def refuse(path, *args, **options):
        if os.fsencode(path).endswith(os.fsencode(name)):
            raise OSError(code, os.strerror(code), path)
        return real(path, *args, **options)

    monkeypatch.setattr(module.os, function, refuse)


def test_an_unreadable_directory_is_counted_and_the_walk_continues(tree, monkeypatch):
    tree.add("a/x", "b/x", "c/x")
    refuse_path(monkeypatch, "scandir", "/b", errno.EACCES)
    assert tree.walk() == ["a/x", "c/x"]
    assert tree.skipped == {"unreadable": 1}
    assert not tree.is_complete
    assert tree.last_walk.error == ""


def test_the_next_walk_is_complete_again(tree, monkeypatch):
    tree.add("b/x")
    with monkeypatch.context() as patch:
        refuse_path(patch, "scandir", "/b", errno.EIO)
        tree.walk()
        assert not tree.is_complete
    assert tree.walk() == ["b/x"]
    assert tree.is_complete


def test_a_walk_with_a_vanished_directory_is_complete(tree, monkeypatch):
    tree.add("a/x", "b/x")
    refuse_path(monkeypatch, "scandir", "/b", errno.ENOENT)
    assert tree.walk() == ["a/x"]
    assert tree.skipped == {"vanished": 1}
    assert tree.is_complete


def test_a_walk_over_a_vanished_scan_dir_is_not_complete_and_has_the_error(tree):
    tree.root.rmdir()
    assert tree.walk() == []
    assert tree.skipped == {"unreadable": 1}
    assert not tree.is_complete
    assert tree.last_walk.error == "No such file or directory"


def test_a_walk_with_an_interrupted_listing_is_not_complete(tree, monkeypatch):
    tree.add("a/x", "b/x")

    class Broken:
        def __iter__(self):
            return self

        def __next__(self):
            raise OSError(errno.EIO, "Input/output error")

        def close(self):
            pass

    real = os.scandir
    monkeypatch.setattr(module.os, "scandir", lambda path: Broken() if path.endswith(b"/b") else real(path))
    assert tree.walk() == ["a/x"]
    assert tree.skipped == {"unreadable": 1}
    assert not tree.is_complete


def test_a_file_that_vanishes_between_listing_and_stat_is_counted(tree):
    tree.add(*"abc")
    real = tree.rules.takes

    def take_and_delete(prefix, directory, name):
        if name == b"b":
            os.unlink(os.path.join(directory, name))
        return real(prefix, directory, name)

    tree.rules.takes = take_and_delete
    assert tree.walk() == ["a", "c"]
    assert tree.skipped == {"vanished": 1}
    assert tree.is_complete


def test_a_directory_is_watched_before_it_is_listed(tree):
    tree.add("x/a")

    class Writer:
        """Creates a file as soon as the directory is watched."""

        def watch(self, directory: bytes) -> None:
            if directory.endswith(b"/x"):
                (tree.root / "x/late").touch()

    found = walked(DirectoryWalk(tree.rules, tree.rules.root, Writer()))
    assert sorted(os.path.basename(file.path) for file in found) == [b"a", b"late"]


def test_a_step_reads_a_bounded_number_of_entries_even_if_none_counts(tree, monkeypatch):
    monkeypatch.setattr(module, "STEP_ENTRIES", 10)
    tree.add(*(f"{n}.tmp" for n in range(95)))
    walk = tree.start_walk()
    steps = 0
    while not walk.is_done:
        seen = tree.skipped.get("excluded", 0)
        assert walk.step() == []
        assert tree.skipped.get("excluded", 0) - seen <= 10
        steps += 1
    assert steps >= 10


def test_a_closed_walk_is_done(tree, monkeypatch):
    monkeypatch.setattr(module, "STEP_ENTRIES", 3)
    tree.add(*(str(n) for n in range(10)))
    walk = tree.start_walk()
    walk.step()
    walk.close()
    assert walk.is_done
    assert walk.step() == []


def test_a_directory_that_is_nested_too_deeply_is_skipped_and_counted(tmp_path: Path) -> None:
    """Medium: the deepest directory that is entered is the same for scans, for events and for the ledger's sweep."""
    tree = ScannedTree(tmp_path / "in")
    deepest = "/".join("d" * MAX_DEPTH)
    tree.add(f"{deepest}/file", f"{deepest}/d/file", f"{deepest}/d/d/file")
    assert tree.walk() == [f"{deepest}/file"]
    assert tree.skipped == {"deep": 1}
    assert tree.is_complete
    for name, counts in ((f"{deepest}/file", True), (f"{deepest}/d/file", False)):
        assert tree.finds(name) is counts
        assert tree.rules.covers(bytes(tree.root / name)) is counts


def test_a_walk_enters_some_directories_before_it_knows_all(tree: ScannedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found twice or missed by it, and one listing is open for each level at most."""
    monkeypatch.setattr(module, "STACK_MAX", 5)
    monkeypatch.setattr(module, "STEP_ENTRIES", 3)
    names = [f"{a}/{b}/{c}/file" for a in range(8) for b in range(7) for c in range(6)]
    names += [f"{a}/file" for a in range(8)]
    tree.add(*names)
    before, opened = len(os.listdir("/proc/self/fd")), 0
    walk, found = tree.start_walk(), list[str]()
    while not walk.is_done:
        found += [os.fsdecode(os.path.relpath(file.path, bytes(tree.root))) for file in walk.step()]
        opened = max(opened, len(os.listdir("/proc/self/fd")) - before)
    assert sorted(found) == sorted(names)
    assert walk.is_complete
    assert 2 <= opened <= 4


def test_a_closed_walk_leaves_no_listing_open(tree: ScannedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STACK_MAX", 2)
    monkeypatch.setattr(module, "STEP_ENTRIES", 8)
    tree.add(*(f"{a}/{b}/file" for a in range(9) for b in range(9)))
    before = len(os.listdir("/proc/self/fd"))
    walk = tree.start_walk()
    walk.step()
    assert len(os.listdir("/proc/self/fd")) - before >= 2
    walk.close()
    assert len(os.listdir("/proc/self/fd")) == before
