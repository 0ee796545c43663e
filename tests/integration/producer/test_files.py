"""Which files get jobs: the real program on a real directory."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.producer_setup import BrokerSetup, wait_for_new_scan, wait_for_scans, wait_pending
from tests.support.waiting import wait_until

UNUSUAL_NAMES = [
    *(b"a\nb", b"'", b'"', b"\xff\xfe", b"-rf", b"$(touch x)", b"`touch x`", b"x" * 255),
    *(b" ", b"\\", b"*", "é\u2028".encode()),
]


def test_excluded_files_get_no_job_at_any_depth_and_a_pdf_is_high(broker_setup: BrokerSetup) -> None:
    for name in ("x.tmp", "a/b/x.tmp", ".DS_Store", "a/.DS_Store", "a.pdf", "a/b/c.txt", "a/b/.hidden"):
        broker_setup.write(name)
    with broker_setup.producer() as program:
        broker_setup.wait_for_names("a.pdf", "a/b/c.txt", "a/b/.hidden")
        # the same by events
        broker_setup.write("y.tmp")
        broker_setup.write("new/y.tmp")
        broker_setup.write("b.PDF")
        broker_setup.wait_for_names("a.pdf", "a/b/c.txt", "a/b/.hidden", "b.PDF")
        assert program.metric('producer_files_skipped_total{reason="excluded"}') >= 5
    assert {os.path.basename(job.filepath): job.priority for job in broker_setup.jobs()} == {
        **{"a.pdf": "high", "b.PDF": "high"},
        **{"c.txt": "low", ".hidden": "low"},
    }


def test_files_with_unusual_names_are_enqueued_once_and_their_jobs_have_the_right_path(
    broker_setup: BrokerSetup,
) -> None:
    expected = {}
    for name in UNUSUAL_NAMES:
        path = broker_setup.write(os.path.join(b"before", name), b"before " + name)
        expected[path] = b"before " + name
    with broker_setup.producer(rescan_interval="500ms") as program:
        wait_for_scans(program)
        for name in UNUSUAL_NAMES:
            path = broker_setup.write(os.path.join(b"after", name), b"after " + name)
            expected[path] = b"after " + name
        with broker_setup.open() as broker:
            wait_pending(broker, len(expected))
        wait_for_new_scan(program)
    found = {}
    for job in broker_setup.jobs():
        assert job.path not in found, "enqueued twice"
        with open(job.path, "rb") as file:
            found[job.path] = file.read()
        assert job.filesize == len(found[job.path])
    assert found == expected
    assert not list(broker_setup.directory.rglob("x"))


def test_a_changed_file_gets_a_second_job_and_an_unchanged_one_does_not(broker_setup: BrokerSetup) -> None:
    broker_setup.write("a", b"1")
    broker_setup.write("b", b"1")
    with broker_setup.producer(rescan_interval="300ms") as program:
        broker_setup.wait_for_names("a", "b")
        broker_setup.write("a", b"22")
        broker_setup.wait_for_names("a", "a", "b")
        wait_for_new_scan(program)
    assert sorted(job.filesize for job in broker_setup.jobs() if job.filepath.endswith("/a")) == [1, 2]
    assert len(broker_setup.jobs()) == 3


def test_an_enqueued_version_is_known_after_a_restart(broker_setup: BrokerSetup) -> None:
    broker_setup.write("a")
    for _ in range(3):
        with broker_setup.producer() as program:
            wait_for_scans(program)
            broker_setup.wait_for_names("a")
            assert program.stop() == 0


def test_the_database_of_the_broker_gets_no_job(tmp_path: Path) -> None:
    broker_setup = BrokerSetup("sqlite", tmp_path, {"sqlite.path": str(tmp_path / "in/fileq.db")})
    broker_setup.write("a")
    with broker_setup.producer(rescan_interval="200ms") as program, broker_setup.producer(rescan_interval="200ms"):
        broker_setup.wait_for_names("a")
        broker_setup.write("b")
        broker_setup.wait_for_names("a", "b")
        wait_for_new_scan(program, 2)
    assert broker_setup.names() == ["a", "b"]


def test_links_pipes_and_loops_are_skipped_and_the_scan_continues(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    outside = broker_setup.directory / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    broker_setup.write("real/a")
    os.mkfifo(broker_setup.inbox / "pipe")
    (broker_setup.inbox / "out-file").symlink_to(outside / "secret")
    (broker_setup.inbox / "out-dir").symlink_to(outside)
    (broker_setup.inbox / "real/loop").symlink_to(broker_setup.inbox)
    (broker_setup.inbox / "self").symlink_to("self")
    (broker_setup.inbox / "alias").symlink_to("real")
    with broker_setup.producer(follow_symlinks="true") as program:
        broker_setup.wait_for_names("alias/a", "real/a")
        wait_for_scans(program)
        skipped = {
            reason: program.metric(f'producer_files_skipped_total{{reason="{reason}"}}')
            for reason in ("outside", "loop", "special")
        }
        assert skipped == {"outside": 2, "loop": 3, "special": 1}
        logged = {(line["reason"], os.path.basename(line["path"])) for line in program.events("file.skipped")}
        assert {("outside", "out-file"), ("outside", "out-dir"), ("loop", "self"), ("loop", "loop")} <= logged


def test_by_default_no_link_is_followed(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    broker_setup.write("real/a")
    (broker_setup.inbox / "file").symlink_to("real/a")
    (broker_setup.inbox / "dir").symlink_to("real")
    with broker_setup.producer(rescan_interval="200ms") as program:
        broker_setup.wait_for_names("real/a")
        (broker_setup.inbox / "later").symlink_to("real")
        wait_for_new_scan(program)
    assert broker_setup.names() == ["real/a"]


def test_an_unreadable_directory_is_counted_and_the_others_are_scanned(on_sqlite: BrokerSetup) -> None:
    """Permissions do not stop root. A path that is longer than the kernel accepts does."""
    broker_setup = on_sqlite
    broker_setup.write("a/x")
    broker_setup.write("z/x")
    deep = os.open(broker_setup.inbox, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(b"d" * 250, dir_fd=deep)
        deeper = os.open(b"d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = deeper
    os.close(deep)
    try:
        with broker_setup.producer() as program:
            broker_setup.wait_for_names("a/x", "z/x")
            wait_for_scans(program)
            assert program.metric('producer_files_skipped_total{reason="unreadable"}') == 1
            [line] = program.events("file.skipped")
            assert line["reason"] == "unreadable"
            assert program.readiness()[0] == 200
    finally:
        subprocess.run(["rm", "-rf", str(broker_setup.inbox)], check=True)


def test_with_a_ready_suffix_a_file_gets_a_job_only_with_its_marker(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    broker_setup.write("early")
    broker_setup.write("early.done")
    broker_setup.write("a")
    with broker_setup.producer(ready_suffix=".done", rescan_interval="1h") as program:
        broker_setup.wait_for_names("early")
        wait_for_scans(program)
        broker_setup.write("a.done")
        broker_setup.wait_for_names("a", "early")
        assert program.metric('producer_files_skipped_total{reason="unmarked"}') >= 1


def test_a_marker_is_removed_and_does_not_announce_the_next_file_of_its_name(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    broker_setup.write("a")
    broker_setup.write("a.done")
    with broker_setup.producer(ready_suffix=".done", rescan_interval="1h") as program:
        broker_setup.wait_for_names("a")
        wait_until(lambda: not (broker_setup.inbox / "a.done").exists(), 30, "the marker is removed")
        skipped = program.metric('producer_files_skipped_total{reason="unmarked"}')
        (broker_setup.inbox / "a").write_bytes(b"half of the next")
        wait_until(
            lambda: program.metric('producer_files_skipped_total{reason="unmarked"}') > skipped,
            30,
            "the next file waits for its marker",
        )
        broker_setup.wait_for_names("a")
        (broker_setup.inbox / "a").write_bytes(b"the next file")
        broker_setup.write("a.done")
        broker_setup.wait_for_names("a", "a")


@pytest.mark.parametrize("name", ["[x]", "~", "null", "a=b", "with blank", "123", "{a: b}"])
def test_scan_dir_on_the_command_line_is_not_parsed_as_yaml(on_sqlite: BrokerSetup, name: str) -> None:
    broker_setup = on_sqlite
    inbox = broker_setup.directory / name
    inbox.mkdir()
    (inbox / "a").touch()
    with broker_setup.producer(inbox=inbox):
        broker_setup.wait_for_names(os.path.relpath(inbox / "a", broker_setup.inbox))
