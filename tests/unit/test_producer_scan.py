"""What a walk over a directory finds, and what it passes over."""

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from fileq.config import config_from
from fileq.producer import scan as module
from fileq.producer.scan import Found, Scanner


class Tree:
    """A directory, and a scanner of it that counts what it passes over."""

    def __init__(self, root: Path, **producer: object) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.skipped: Counter[str] = Counter()
        section = {"scan_dir": str(root), **producer}
        config = config_from({"sqlite": {"path": str(root / "fileq.db")}, "producer": section})
        self.scanner = Scanner(config, lambda reason, path: self.skipped.update([reason]))
        self.entered: list[str] = []
        self.is_complete = True
        self.fault = ""

    def add(self, *names: str) -> None:
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def walk(self, top: str = "") -> list[str]:
        """The names a walk finds, sorted."""
        walk = self.scanner.walk(bytes(self.root / top), lambda directory: self.entered.append(os.fsdecode(directory)))
        found: list[Found] = []
        while not walk.is_done:
            found += walk.step()
        self.is_complete, self.fault = walk.is_complete, walk.fault
        return sorted(os.fsdecode(os.path.relpath(file.path, bytes(self.root))) for file in found)

    def looks(self, name: str | bytes) -> bool:
        return self.scanner.look(os.path.join(bytes(self.root), os.fsencode(name))) is not None


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "in")


def following(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "in", follow_symlinks=True)


def test_all_files_of_all_depths_are_found_each_once(tree):
    names = ["a", "b/c", "b/d/e", "b/d/f/.g", ".h/i"]
    tree.add(*names)
    (tree.root / "empty").mkdir()
    assert tree.walk() == sorted(names)
    assert tree.is_complete


def test_a_file_is_found_as_the_file_system_describes_it(tree):
    (tree.root / "a").write_bytes(b"12345")
    [found] = tree.scanner.walk().step()
    status = (tree.root / "a").stat()
    assert found.signature == f"5-{status.st_mtime_ns}"
    assert found.stillness == (5, status.st_mtime_ns, status.st_ino)
    assert found == tree.scanner.look(found.path)


@pytest.mark.parametrize(
    "name", [b"a\nb", b"'\"", b"\xff\xfe", b"-rf", b"$(touch x)", b"x" * 255, b" ", b"\\", b"*", "é".encode()]
)
def test_odd_names_are_names(tree, name):
    path = os.path.join(bytes(tree.root), name)
    with open(path, "wb"):
        pass
    [found] = tree.scanner.walk().step()
    assert found.path == path
    assert tree.looks(name)


def test_excluded_files_are_counted_and_not_found(tree):
    tree.add("x.tmp", "deep/x.tmp", "a", ".DS_Store", "deep/.DS_Store")
    assert tree.walk() == ["a"]
    assert tree.skipped == {"excluded": 4}
    assert not tree.looks("deep/x.tmp")


def test_a_directory_that_is_excluded_is_not_even_entered(tmp_path):
    tree = Tree(tmp_path / "in", exclude_globs=["cache/**", "**/node_modules/**"])
    tree.add("cache/a", "x/node_modules/y/b", "x/c")
    assert tree.walk() == ["x/c"]
    assert not [name for name in tree.entered if "cache" in name or "node_modules" in name]
    assert not tree.looks("cache/a")
    assert not tree.looks("x/node_modules/y/b")
    assert not tree.scanner.is_entered(bytes(tree.root / "x/node_modules/y"))
    assert not tree.scanner.counts(bytes(tree.root / "cache/a"))
    assert tree.scanner.counts(bytes(tree.root / "x/c"))


@pytest.mark.parametrize(
    "name",
    [
        *("fileq.db", "fileq.db-wal", "fileq.db-shm", "fileq.db-lock", "fileq.db-listen", "fileq.db-journal"),
        *("fileq.db.backup-v1", "fileq.db.backup-v1.unfinished", "fileq.db.backup-v1.unfinished-journal"),
    ],
)
def test_the_brokers_own_files_are_never_found(tree, name):
    tree.add(name, "a")
    assert tree.walk() == ["a"]
    assert not tree.looks(name)


@pytest.mark.parametrize("name", ["fileq.db.pdf", "fileq.dbx", "fileq.db-notes", "deep/fileq.db", "fileq.db/a"])
def test_a_file_that_is_only_called_like_the_database_is_found(tree, name):
    tree.add(name)
    assert tree.walk() == [name]
    assert tree.looks(name)


def test_the_database_is_recognised_through_a_link_to_its_directory(tmp_path):
    real = Tree(tmp_path / "in")
    real.add("fileq.db", "a")
    (tmp_path / "link").symlink_to(real.root)
    config = config_from(
        {"sqlite": {"path": str(real.root / "fileq.db")}, "producer": {"scan_dir": str(tmp_path / "link")}}
    )
    assert [os.path.basename(found.path) for found in Scanner(config).walk().step()] == [b"a"]


def test_on_another_broker_a_file_of_that_name_is_a_file(tmp_path):
    (tmp_path / "fileq.db").touch()
    values = {"sqlite": {"path": str(tmp_path / "fileq.db")}, "producer": {"scan_dir": str(tmp_path)}}
    assert len(Scanner(config_from({"broker": "memory", **values})).walk().step()) == 1
    assert len(Scanner(config_from({"broker": "sqlite", **values})).walk().step()) == 0


def test_pipes_and_sockets_are_counted_and_passed_over(tree):
    os.mkfifo(tree.root / "pipe")
    tree.add("a")
    assert tree.walk() == ["a"]
    assert tree.skipped == {"special": 1}
    assert not tree.looks("pipe")
    assert tree.is_complete


# links


def test_links_are_not_followed_unless_asked_for(tree):
    tree.add("a", "real/b")
    (tree.root / "link").symlink_to(tree.root / "a")
    (tree.root / "linked").symlink_to(tree.root / "real")
    assert tree.walk() == ["a", "real/b"]
    assert tree.skipped == {"symlink": 2}
    assert not tree.looks("link")
    assert tree.skipped == {"symlink": 3}
    assert not tree.looks("linked/b")


def test_links_that_stay_inside_are_followed_when_asked_for(tmp_path):
    tree = following(tmp_path)
    tree.add("a", "real/b")
    (tree.root / "link").symlink_to("a")
    (tree.root / "linked").symlink_to("real")
    assert tree.walk() == ["a", "link", "linked/b", "real/b"]
    assert tree.looks("link")
    assert tree.looks("linked/b")
    assert tree.scanner.is_linked_directory(bytes(tree.root / "linked"))
    assert not tree.scanner.is_linked_directory(bytes(tree.root / "link"))
    assert not tree.scanner.is_linked_directory(bytes(tree.root / "real"))


def test_a_link_that_leads_out_is_not_followed(tmp_path):
    tree = following(tmp_path)
    (tmp_path / "in-other").mkdir()
    (tmp_path / "in-other/secret").touch()
    (tree.root / "file").symlink_to(tmp_path / "in-other/secret")
    (tree.root / "dir").symlink_to(tmp_path / "in-other")
    (tree.root / "up").symlink_to("..")
    assert tree.walk() == []
    assert tree.skipped == {"outside": 3}
    assert not tree.looks("file")
    assert not tree.looks("dir/secret")
    assert not tree.scanner.is_linked_directory(bytes(tree.root / "dir"))


@pytest.mark.parametrize("follows", [False, True])
def test_an_event_from_a_directory_that_became_a_link_leads_nowhere(tmp_path, follows):
    tree = Tree(tmp_path / "in", follow_symlinks=follows)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/secret").touch()
    (tree.root / "dir").symlink_to(tmp_path / "out")
    assert not tree.looks("dir/secret")


def test_a_loop_of_directories_is_walked_once_and_counted(tmp_path):
    tree = following(tmp_path)
    tree.add("x/y/a")
    (tree.root / "x/y/up").symlink_to(tree.root)
    (tree.root / "x/y/self").symlink_to(".")
    assert tree.walk() == ["x/y/a"]
    assert tree.skipped == {"loop": 2}
    assert tree.is_complete


def test_a_walk_over_a_part_knows_the_directories_above_it(tmp_path):
    tree = following(tmp_path)
    tree.add("a", "x/y/b")
    (tree.root / "x/y/up").symlink_to(tree.root)
    assert tree.walk("x/y") == ["x/y/b"]
    assert tree.skipped == {"loop": 1}


def test_a_link_to_itself_is_a_loop_and_a_broken_one_has_vanished(tmp_path):
    tree = following(tmp_path)
    (tree.root / "self").symlink_to("self")
    (tree.root / "broken").symlink_to("nowhere")
    tree.add("a")
    assert tree.walk() == ["a"]
    assert tree.skipped == {"loop": 1, "vanished": 1}
    assert tree.is_complete


# markers


def test_a_marker_is_no_file_of_its_own_and_speaks_of_another(tmp_path):
    tree = Tree(tmp_path / "in", ready_suffix=".done")
    tree.add("a", "b", "b.done")
    assert tree.walk() == ["a", "b"]
    path = bytes(tree.root / "b")
    assert tree.scanner.marked_by(path + b".done") == path
    assert tree.scanner.marked_by(path) is None
    assert tree.scanner.is_ready(path)
    assert not tree.scanner.is_ready(bytes(tree.root / "a"))


def test_without_a_suffix_every_file_is_ready(tree):
    assert tree.scanner.is_ready(b"/nowhere")
    assert tree.scanner.marked_by(b"/a.done") is None


# what can't be read


def refusing(monkeypatch, function: str, name: str, code: int) -> None:
    """That function of os fails for paths that end so: rights would not stop a test that runs as root."""
    real = getattr(os, function)

    def refuse(path, *args, **options):
        if os.fsencode(path).endswith(os.fsencode(name)):
            raise OSError(code, os.strerror(code), path)
        return real(path, *args, **options)

    monkeypatch.setattr(module.os, function, refuse)


def test_an_unreadable_directory_is_counted_and_the_walk_goes_on(tree, monkeypatch):
    tree.add("a/x", "b/x", "c/x")
    refusing(monkeypatch, "scandir", "/b", errno.EACCES)
    assert tree.walk() == ["a/x", "c/x"]
    assert tree.skipped == {"unreadable": 1}
    assert not tree.is_complete
    assert tree.fault == ""


def test_the_next_walk_is_complete_again(tree, monkeypatch):
    tree.add("b/x")
    with monkeypatch.context() as patch:
        refusing(patch, "scandir", "/b", errno.EIO)
        tree.walk()
        assert not tree.is_complete
    assert tree.walk() == ["b/x"]
    assert tree.is_complete


def test_a_directory_that_vanishes_is_counted_and_nothing_is_missed_by_it(tree, monkeypatch):
    tree.add("a/x", "b/x")
    refusing(monkeypatch, "scandir", "/b", errno.ENOENT)
    assert tree.walk() == ["a/x"]
    assert tree.skipped == {"vanished": 1}
    assert tree.is_complete


def test_scan_dir_itself_vanishing_is_no_complete_walk_and_says_why(tree):
    tree.root.rmdir()
    assert tree.walk() == []
    assert tree.skipped == {"unreadable": 1}
    assert not tree.is_complete
    assert tree.fault == "No such file or directory"


def test_a_listing_that_breaks_off_is_not_complete(tree, monkeypatch):
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
    walk = tree.scanner.walk(entered=lambda directory: None)
    real = tree.scanner.takes

    def gone(prefix, directory, name):
        if name == b"b":
            os.unlink(os.path.join(directory, name))
        return real(prefix, directory, name)

    tree.scanner.takes = gone
    found = []
    while not walk.is_done:
        found += walk.step()
    assert len(found) == 2
    assert tree.skipped == {"vanished": 1}
    assert walk.is_complete


def test_a_file_named_by_an_event_that_is_gone_is_counted(tree):
    assert not tree.looks("gone")
    assert tree.skipped == {"vanished": 1}


def test_a_directory_is_told_of_before_it_is_listed(tree):
    tree.add("x/a")

    def entered(directory: bytes) -> None:
        if directory.endswith(b"/x"):
            (tree.root / "x/late").touch()

    walk = tree.scanner.walk(entered=entered)
    found = []
    while not walk.is_done:
        found += [os.path.basename(file.path) for file in walk.step()]
    assert sorted(found) == [b"a", b"late"]


# bounds


def test_a_step_looks_at_no_more_than_its_share_also_where_nothing_counts(tree, monkeypatch):
    monkeypatch.setattr(module, "STEP", 10)
    tree.add(*(f"{n}.tmp" for n in range(95)))
    walk = tree.scanner.walk()
    steps = 0
    while not walk.is_done:
        seen = tree.skipped["excluded"]
        assert walk.step() == []
        assert tree.skipped["excluded"] - seen <= 10
        steps += 1
    assert steps >= 10


def test_a_walk_that_is_given_up_lets_go_of_its_directory(tree, monkeypatch):
    monkeypatch.setattr(module, "STEP", 3)
    tree.add(*(str(n) for n in range(10)))
    walk = tree.scanner.walk()
    walk.step()
    walk.close()
    assert walk.is_done
    assert walk.step() == []


def test_scan_dir_may_be_the_root_of_everything(tmp_path):
    config = config_from({"broker": "memory", "producer": {"scan_dir": "/", "include_globs": ["etc/passwd"]}})
    scanner = Scanner(config)
    assert scanner.prefix_of(b"/etc") == "etc/"
    assert scanner.look(b"/etc/passwd") is not None
    assert scanner.is_entered(b"/")


def test_scan_dir_may_be_a_link(tmp_path):
    real = Tree(tmp_path / "in")
    real.add("x/a")
    (tmp_path / "link").symlink_to(real.root)
    link = Tree(tmp_path / "link")
    assert link.walk() == ["x/a"]
    assert link.looks("x/a")
