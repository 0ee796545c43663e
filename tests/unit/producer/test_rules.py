"""Which files count, by the rules that scans and events share."""

import os
import pwd
from pathlib import Path

import pytest

from fileq.commands.untaken_files import why_not_taken
from fileq.config import Config, config_from
from fileq.core.events import FileSkipped, SkipReason
from fileq.files.exclusive_move import private_name
from fileq.producer.finder.scan import DirectoryWalk, ProducerCounts, ScanRules
from tests.support.scanned_tree import EnteredDirectories, ScannedTree, following
from tests.support.unprivileged import open_path, unprivileged

__all__ = ["open_path"]


@pytest.fixture
def tree(tmp_path: Path) -> ScannedTree:
    return ScannedTree(tmp_path / "in")


def walk_of(config: Config) -> DirectoryWalk:
    rules = ScanRules(config)
    return DirectoryWalk(rules, rules.root, EnteredDirectories())


def test_a_file_is_found_as_the_file_system_describes_it(tree):
    (tree.root / "a").write_bytes(b"12345")
    [found] = tree.start_walk().step()
    status = (tree.root / "a").stat()
    assert found.signature == f"5-{status.st_mtime_ns}"
    assert (found.size, found.mtime_ns, found.inode) == (5, status.st_mtime_ns, status.st_ino)
    assert found == tree.rules.find(found.path)


@pytest.mark.parametrize(
    "name", [b"a\nb", b"'\"", b"\xff\xfe", b"-rf", b"$(touch x)", b"x" * 255, b" ", b"\\", b"*", "é".encode()]
)
def test_unusual_names_are_found(tree, name):
    path = os.path.join(bytes(tree.root), name)
    with open(path, "wb"):
        pass
    [found] = tree.start_walk().step()
    assert found.path == path
    assert tree.finds(name)


def test_excluded_files_are_counted_and_not_found(tree):
    tree.add("x.tmp", "deep/x.tmp", "a", ".DS_Store", "deep/.DS_Store")
    assert tree.walk() == ["a"]
    assert tree.skipped == {"excluded": 4}
    assert not tree.finds("deep/x.tmp")


def test_a_temporary_file_of_fileq_is_not_counted_as_excluded(tree):
    tree.add(os.fsdecode(private_name("1")), "x.tmp")
    assert tree.walk() == []
    assert not tree.finds(os.fsdecode(private_name("1")))
    assert tree.skipped == {"excluded": 1}


def test_a_marker_that_no_glob_includes_is_not_counted_as_excluded(tmp_path):
    tree = ScannedTree(tmp_path / "in", include_globs=["*.pdf"], ready_suffix=".ready")
    tree.add("a.pdf", "a.pdf.ready", "a.txt")
    assert tree.walk() == ["a.pdf"]
    assert tree.skipped == {"excluded": 1}


def test_an_excluded_directory_is_not_entered(tmp_path):
    tree = ScannedTree(tmp_path / "in", exclude_globs=["cache/**", "**/node_modules/**"])
    tree.add("cache/a", "x/node_modules/y/b", "x/c")
    assert tree.walk() == ["x/c"]
    assert not [name for name in tree.entered.names if "cache" in name or "node_modules" in name]
    assert not tree.finds("cache/a")
    assert not tree.finds("x/node_modules/y/b")
    assert not tree.rules.is_entered(bytes(tree.root / "x/node_modules/y"))
    assert not tree.rules.covers(bytes(tree.root / "cache/a"))
    assert tree.rules.covers(bytes(tree.root / "x/c"))


@pytest.mark.parametrize(
    "name",
    [
        *("fileq.db", "fileq.db-wal", "fileq.db-shm", "fileq.db-lock", "fileq.db-listen", "fileq.db-leases"),
        "fileq.db-journal",
    ],
)
def test_the_brokers_own_files_are_never_found(tree, name):
    tree.add(name, "a")
    assert tree.walk() == ["a"]
    assert not tree.finds(name)


@pytest.mark.parametrize("name", ["fileq.db.pdf", "fileq.dbx", "fileq.db-notes", "deep/fileq.db", "fileq.db/a"])
def test_a_file_with_a_name_similar_to_the_database_is_found(tree, name):
    tree.add(name)
    assert tree.walk() == [name]
    assert tree.finds(name)


def test_the_database_is_recognised_through_a_link_to_its_directory(tmp_path):
    real = ScannedTree(tmp_path / "in")
    real.add("fileq.db", "a")
    (tmp_path / "link").symlink_to(real.root)
    config = config_from(
        {"sqlite": {"path": str(real.root / "fileq.db")}, "producer": {"scan_dir": str(tmp_path / "link")}}
    )
    assert [os.path.basename(found.path) for found in walk_of(config).step()] == [b"a"]


def test_with_another_broker_a_file_of_that_name_is_found(tmp_path):
    (tmp_path / "fileq.db").touch()
    values = {"sqlite": {"path": str(tmp_path / "fileq.db")}, "producer": {"scan_dir": str(tmp_path)}}
    assert len(walk_of(config_from({"broker": "memory", **values})).step()) == 1
    assert len(walk_of(config_from({"broker": "sqlite", **values})).step()) == 0


def test_pipes_are_counted_and_not_found(tree):
    os.mkfifo(tree.root / "pipe")
    tree.add("a")
    assert tree.walk() == ["a"]
    assert tree.skipped == {"special": 1}
    assert not tree.finds("pipe")
    assert tree.is_complete


def test_links_are_not_followed_by_default(tree):
    tree.add("a", "real/b")
    (tree.root / "link").symlink_to(tree.root / "a")
    (tree.root / "linked").symlink_to(tree.root / "real")
    assert tree.walk() == ["a", "real/b"]
    assert tree.skipped == {"symlink": 2}
    assert not tree.finds("link")
    assert tree.skipped == {"symlink": 3}
    assert not tree.finds("linked/b")


def test_links_within_scan_dir_are_followed_if_configured(tmp_path):
    tree = following(tmp_path)
    tree.add("a", "real/b")
    (tree.root / "link").symlink_to("a")
    (tree.root / "linked").symlink_to("real")
    assert tree.walk() == ["a", "link", "linked/b", "real/b"]
    assert tree.finds("link")
    assert tree.finds("linked/b")
    assert tree.rules.is_linked_directory(bytes(tree.root / "linked"))
    assert not tree.rules.is_linked_directory(bytes(tree.root / "link"))
    assert not tree.rules.is_linked_directory(bytes(tree.root / "real"))


def test_a_link_out_of_scan_dir_is_not_followed(tmp_path):
    tree = following(tmp_path)
    (tmp_path / "in-other").mkdir()
    (tmp_path / "in-other/secret").touch()
    (tree.root / "file").symlink_to(tmp_path / "in-other/secret")
    (tree.root / "dir").symlink_to(tmp_path / "in-other")
    (tree.root / "up").symlink_to("..")
    assert tree.walk() == []
    assert tree.skipped == {"outside": 3}
    assert not tree.finds("file")
    assert not tree.finds("dir/secret")
    assert not tree.rules.is_linked_directory(bytes(tree.root / "dir"))


@pytest.mark.parametrize("follows", [False, True])
def test_an_event_below_a_directory_that_became_a_link_finds_nothing(tmp_path, follows):
    tree = ScannedTree(tmp_path / "in", follow_symlinks=follows)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/secret").touch()
    (tree.root / "dir").symlink_to(tmp_path / "out")
    assert not tree.finds("dir/secret")


def test_a_marker_is_not_found_and_belongs_to_another_file(tmp_path):
    tree = ScannedTree(tmp_path / "in", ready_suffix=".done")
    tree.add("a", "b", "b.done")
    assert tree.walk() == ["a", "b"]
    path = bytes(tree.root / "b")
    assert tree.rules.marked_file(path + b".done") == path
    assert tree.rules.marked_file(path) is None


def test_without_a_suffix_no_file_is_a_marker(tree):
    assert tree.rules.marked_file(b"/a.done") is None


def test_a_missing_file_named_by_an_event_is_counted(tree):
    assert not tree.finds("gone")
    assert tree.skipped == {"vanished": 1}


def test_scan_dir_may_be_the_root_directory(tmp_path):
    config = config_from({"broker": "memory", "producer": {"scan_dir": "/", "include_globs": ["etc/passwd"]}})
    rules = ScanRules(config)
    assert rules.prefix_of(b"/etc") == "etc/"
    assert rules.find(b"/etc/passwd") is not None
    assert rules.is_entered(b"/")


def test_scan_dir_may_be_a_link(tmp_path):
    real = ScannedTree(tmp_path / "in")
    real.add("x/a")
    (tmp_path / "link").symlink_to(real.root)
    link = ScannedTree(tmp_path / "link")
    assert link.walk() == ["x/a"]
    assert link.finds("x/a")


# the folders that worker.after moves files to


def moving(root: Path, folder: str, **producer: object) -> ScannedTree:
    return ScannedTree(root, after={"completed": f"move:{folder}"}, **producer)


@pytest.mark.parametrize("end", ["completed", "dead"])
def test_a_folder_that_files_are_moved_to_is_not_entered(tmp_path, end):
    tree = ScannedTree(tmp_path / "in", after={end: f"move:{tmp_path}/in/x/done"})
    tree.add("a", "x/b", "x/done/c", "x/done/deep/d", "done/e")
    assert tree.walk() == ["a", "done/e", "x/b"]
    assert not [name for name in tree.entered.names if "x/done" in name]
    assert not tree.finds("x/done/c")
    assert not tree.finds("x/done/deep/d")
    assert not tree.rules.covers(bytes(tree.root / "x/done/deep/d"))
    assert tree.rules.covers(bytes(tree.root / "done/e"))


def test_a_relative_folder_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = moving(tmp_path / "in", "in/done/")
    tree.add("done/a", "b")
    assert tree.walk() == ["b"]


def test_a_folder_outside_excludes_nothing(tmp_path):
    tree = moving(tmp_path / "in", str(tmp_path))
    tree.add("a", "in/b")
    assert tree.walk() == ["a", "in/b"]


def test_a_folder_that_is_a_link_into_scan_dir_excludes_what_it_leads_to(tmp_path):
    tree = moving(tmp_path / "in", str(tmp_path / "link"))
    tree.add("done/a", "b")
    (tmp_path / "link").symlink_to(tree.root / "done")
    assert tree.walk() == ["b"]
    assert not tree.finds("done/a")


def test_links_lead_to_no_file_in_a_folder_that_files_are_moved_to(tmp_path):
    tree = moving(tmp_path / "in", str(tmp_path / "in/real/done"), follow_symlinks=True)
    tree.add("real/done/a", "real/b")
    (tree.root / "link").symlink_to("real")
    (tree.root / "direct").symlink_to("real/done")
    assert tree.walk() == ["link/b", "real/b"]
    assert not tree.finds("link/done/a")
    assert not tree.finds("direct/a")


def test_the_folder_is_found_by_the_name_that_a_worker_has_for_it(tmp_path):
    tree = ScannedTree(
        tmp_path / "in", after={"completed": "move:/mnt/in/done"}, path_map={str(tmp_path / "in"): "/mnt/in"}
    )
    tree.add("done/a", "b")
    assert tree.walk() == ["b"]


def test_a_file_that_a_worker_is_moving_is_not_found(tmp_path):
    name = os.fsdecode(private_name("0123"))
    tree = ScannedTree(tmp_path / "in", exclude_globs=[])
    tree.add("a.tmp", f"x/{name}")
    assert tree.walk() == ["a.tmp"]
    assert not tree.finds(f"x/{name}")
    assert not tree.rules.covers(bytes(tree.root / "x" / name))


def test_the_rule_that_leaves_a_file_out_is_named(tmp_path):
    tree = ScannedTree(
        tmp_path / "in",
        after={"completed": f"move:{tmp_path}/in/done"},
        include_globs=["**/*.pdf", "**/*.txt", "fileq.db*", ".fileq-*", "pipe", "link*", "dir"],
        exclude_globs=["**/~*", "cache/**", "**/*.part.pdf"],
        ready_suffix=".ready",
    )
    private = os.fsdecode(private_name("x"))
    tree.add("A.PDF", "b.doc", "x.part.pdf", "cache/c.pdf", "done/d.pdf", "fileq.db", "real/e.pdf", "f.txt", private)
    (tree.root / "linked").symlink_to("real")
    (tree.root / "link.pdf").symlink_to("f.txt")
    os.mkfifo(tree.root / "pipe")
    (tree.root / "dir").mkdir()
    said = {
        "A.PDF": "no glob of producer.include_globs matches it; '**/*.pdf' would match if case did not matter",
        "b.doc": "no glob of producer.include_globs matches it ('**/*.pdf', '**/*.txt', ",
        "x.part.pdf": "producer.exclude_globs excludes it ('**/*.part.pdf')",
        "cache/c.pdf": "producer.exclude_globs excludes its directory",
        "done/d.pdf": "worker.after moves files to its directory",
        "fileq.db": "it belongs to fileq's own database",
        private: "it is a temporary file of fileq",
        "linked/e.pdf": "its directory is reached from producer.scan_dir only by a link",
        "link.pdf": "it is a symbolic link (producer.follow_symlinks is off)",
        "pipe": "it is not a regular file",
        "dir": "it is a directory",
        "real": "it is a directory",
        "../g.pdf": "it is not below producer.scan_dir",
        "none.pdf": "it can't be read: No such file or directory",
        "f.txt": "",
        "real/e.pdf": "",
    }
    for name, reason in said.items():
        found = ScanRules(tree.config).why_left_out(os.path.normpath(bytes(tree.root / name)))
        assert found.startswith(reason), (name, found)
        assert bool(found) is bool(reason), name


def test_a_directory_that_cannot_be_read_is_the_reason_for_its_files_and_for_itself(open_path):
    tree = ScannedTree(open_path / "in", include_globs=["**/*.pdf"])
    tree.add("shut/below/a.pdf", "listed/b.pdf", "c.pdf")
    for name, mode in (("shut", 0o000), ("listed", 0o744)):
        (tree.root / name).chmod(mode)
    open_path.chmod(0o755)
    tree.root.chmod(0o755)
    with unprivileged():
        user, skipped = pwd.getpwuid(os.geteuid()).pw_name, []
        said = {name: why_not_taken(tree.config, bytes(tree.root / name)) for name in ("shut/below/a.pdf", "shut")}
        listed = why_not_taken(tree.config, bytes(tree.root / "listed" / "b.pdf"))
        walk = DirectoryWalk(ScanRules(tree.config, ProducerCounts(skipped.append)), bytes(tree.root), tree.entered)
        while not walk.is_done:
            walk.step()
    expected = f"'{tree.root}/shut' can't be read: user {user} lacks the permissions r and x on this directory"
    assert said == dict.fromkeys(said, expected)
    if os.geteuid() == 0:  # the owner has all permissions on the other directory
        assert listed.endswith(f"user {user} lacks the permission x on this directory")
    action = "this is a directory; each scan tries to read it again"
    assert FileSkipped(SkipReason.UNREADABLE, f"{tree.root}/shut", action) in skipped


def test_a_walk_counts_what_it_passed_over_and_not_what_events_did(tree):
    tree.add("a", "x.tmp", "y.tmp")
    (tree.root / "link").symlink_to("a")
    assert not tree.finds("x.tmp")
    walk = tree.start_walk()
    walk.step()
    assert walk.skipped == {"excluded": 2, "symlink": 1}
