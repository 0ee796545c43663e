"""Which files get jobs: the real program on a real directory."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.producer_setup import Place, scanned, scanned_again, wait_pending

UNUSUAL_NAMES = [
    *(b"a\nb", b"'", b'"', b"\xff\xfe", b"-rf", b"$(touch x)", b"`touch x`", b"x" * 255),
    *(b" ", b"\\", b"*", "é\u2028".encode()),
]


def test_excluded_files_get_no_job_at_any_depth_and_a_pdf_is_high(place: Place) -> None:
    for name in ("x.tmp", "a/b/x.tmp", ".DS_Store", "a/.DS_Store", "a.pdf", "a/b/c.txt", "a/b/.hidden"):
        place.write(name)
    with place.producer() as program:
        place.wait_for_names("a.pdf", "a/b/c.txt", "a/b/.hidden")
        # the same by events
        place.write("y.tmp")
        place.write("new/y.tmp")
        place.write("b.PDF")
        place.wait_for_names("a.pdf", "a/b/c.txt", "a/b/.hidden", "b.PDF")
        assert program.metric('producer_files_skipped_total{reason="excluded"}') >= 5
    assert {os.path.basename(job.filepath): job.priority for job in place.jobs()} == {
        **{"a.pdf": "high", "b.PDF": "high"},
        **{"c.txt": "low", ".hidden": "low"},
    }


def test_files_with_unusual_names_are_enqueued_once_and_their_jobs_have_the_right_path(place: Place) -> None:
    expected = {}
    for name in UNUSUAL_NAMES:
        path = place.write(os.path.join(b"before", name), b"before " + name)
        expected[path] = b"before " + name
    with place.producer(rescan_interval="500ms") as program:
        scanned(program)
        for name in UNUSUAL_NAMES:
            path = place.write(os.path.join(b"after", name), b"after " + name)
            expected[path] = b"after " + name
        with place.open() as broker:
            wait_pending(broker, len(expected))
        scanned_again(program)
    found = {}
    for job in place.jobs():
        assert job.path not in found, "enqueued twice"
        with open(job.path, "rb") as file:
            found[job.path] = file.read()
        assert job.filesize == len(found[job.path])
    assert found == expected
    assert not list(place.directory.rglob("x"))


def test_a_changed_file_gets_a_second_job_and_an_unchanged_one_does_not(place: Place) -> None:
    place.write("a", b"1")
    place.write("b", b"1")
    with place.producer(rescan_interval="300ms") as program:
        place.wait_for_names("a", "b")
        place.write("a", b"22")
        place.wait_for_names("a", "a", "b")
        scanned_again(program)
    assert sorted(job.filesize for job in place.jobs() if job.filepath.endswith("/a")) == [1, 2]
    assert len(place.jobs()) == 3


def test_an_enqueued_version_is_known_after_a_restart(place: Place) -> None:
    place.write("a")
    for _ in range(3):
        with place.producer() as program:
            scanned(program)
            place.wait_for_names("a")
            assert program.stop() == 0


def test_the_database_of_the_broker_gets_no_job(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path, {"sqlite.path": str(tmp_path / "in/fileq.db")})
    place.write("a")
    with place.producer(rescan_interval="200ms") as program, place.producer(rescan_interval="200ms"):
        place.wait_for_names("a")
        place.write("b")
        place.wait_for_names("a", "b")
        scanned_again(program, 2)
    assert place.names() == ["a", "b"]


def test_links_pipes_and_loops_are_skipped_and_the_scan_continues(on_sqlite: Place) -> None:
    place = on_sqlite
    outside = place.directory / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    place.write("real/a")
    os.mkfifo(place.inbox / "pipe")
    (place.inbox / "out-file").symlink_to(outside / "secret")
    (place.inbox / "out-dir").symlink_to(outside)
    (place.inbox / "real/loop").symlink_to(place.inbox)
    (place.inbox / "self").symlink_to("self")
    (place.inbox / "alias").symlink_to("real")
    with place.producer(follow_symlinks="true") as program:
        place.wait_for_names("alias/a", "real/a")
        scanned(program)
        skipped = {
            reason: program.metric(f'producer_files_skipped_total{{reason="{reason}"}}')
            for reason in ("outside", "loop", "special")
        }
        assert skipped == {"outside": 2, "loop": 3, "special": 1}
        logged = {(line["reason"], os.path.basename(line["path"])) for line in program.events("file.skipped")}
        assert {("outside", "out-file"), ("outside", "out-dir"), ("loop", "self"), ("loop", "loop")} <= logged


def test_by_default_no_link_is_followed(on_sqlite: Place) -> None:
    place = on_sqlite
    place.write("real/a")
    (place.inbox / "file").symlink_to("real/a")
    (place.inbox / "dir").symlink_to("real")
    with place.producer(rescan_interval="200ms") as program:
        place.wait_for_names("real/a")
        (place.inbox / "later").symlink_to("real")
        scanned_again(program)
    assert place.names() == ["real/a"]


def test_an_unreadable_directory_is_counted_and_the_others_are_scanned(on_sqlite: Place) -> None:
    """Permissions do not stop root. A path that is longer than the kernel accepts does."""
    place = on_sqlite
    place.write("a/x")
    place.write("z/x")
    deep = os.open(place.inbox, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(b"d" * 250, dir_fd=deep)
        deeper = os.open(b"d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = deeper
    os.close(deep)
    try:
        with place.producer() as program:
            place.wait_for_names("a/x", "z/x")
            scanned(program)
            assert program.metric('producer_files_skipped_total{reason="unreadable"}') == 1
            [line] = program.events("file.skipped")
            assert line["reason"] == "unreadable"
            assert program.readiness()[0] == 200
    finally:
        subprocess.run(["rm", "-rf", str(place.inbox)], check=True)


def test_with_a_ready_suffix_a_file_gets_a_job_only_with_its_marker(on_sqlite: Place) -> None:
    place = on_sqlite
    place.write("early")
    place.write("early.done")
    place.write("a")
    with place.producer(ready_suffix=".done", rescan_interval="1h") as program:
        place.wait_for_names("early")
        scanned(program)
        place.write("a.done")
        place.wait_for_names("a", "early")
        assert program.metric('producer_files_skipped_total{reason="unmarked"}') >= 1


@pytest.mark.parametrize("name", ["[x]", "~", "null", "a=b", "with blank", "123", "{a: b}"])
def test_scan_dir_on_the_command_line_is_not_parsed_as_yaml(on_sqlite: Place, name: str) -> None:
    place = on_sqlite
    inbox = place.directory / name
    inbox.mkdir()
    (inbox / "a").touch()
    with place.producer(inbox=inbox):
        place.wait_for_names(os.path.relpath(inbox / "a", place.inbox))
