"""Senders that write into the directories of deliveries what no honest program would: links, pipes, odd names.

Producer, worker and broker are the installed program. fileq runs as the user of the test, the sender could be any other
user that may write into the directory of its delivery.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fileq.brokers.types import Entry
from fileq.core.batch import Batch
from fileq.core.delivery import CHECK_TYPE
from fileq.core.job import State, typed_job
from tests.support.deep_tree import nested
from tests.support.program import Program, command, environment
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files

DELIVERY = {"match": "acme/*/", "complete": {"marker": "COMPLETED"}, "then": "note", "done_marker": "_DONE"}


def start(setup: WorkerSetup, role: str = "all", follow_symlinks: bool = False, **delivery: Any) -> Program:
    deliveries = json.dumps([DELIVERY | delivery])
    follows = str(follow_symlinks).lower()
    return setup.worker(
        role=role,
        producer__deliveries=deliveries,
        producer__rescan_interval="1s",
        producer__follow_symlinks=follows,
    )


def deliver(setup: WorkerSetup, name: str | bytes, *, files: int = 1) -> Path:
    directory = setup.inbox / "acme" / os.fsdecode(name)
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (directory / f"{number}.dat").write_bytes(b"x")
    (directory / "COMPLETED").touch()
    return directory


def wait_done(*directories: Path, name: str = "_DONE") -> None:
    for directory in directories:
        wait_until((directory / name).exists, 30, f"{name} in {directory.name!r}")


def batch_of(setup: WorkerSetup, directory: Path) -> Batch | None:
    return next((one for one in setup.broker.batch_page().batches if one.name == str(directory)), None)


@pytest.mark.parametrize("planted", [".fileq-marker.tmp", "_DONE", "_FILEQ_FAILED"])
def test_a_link_in_a_delivery_does_not_choose_what_the_marker_replaces(sqlite_setup: WorkerSetup, planted: str) -> None:
    """C2: a link of the name that fileq was about to write to led to any file of its user."""
    setup = sqlite_setup
    victim = setup.directory / "victim"
    victim.write_text("precious")
    directory = deliver(setup, "evil")
    (directory / planted).symlink_to(victim)
    start(setup)
    wait_until(lambda: (directory / "_DONE").is_file() and not (directory / "_DONE").is_symlink(), 30)
    assert victim.read_text() == "precious"
    assert json.loads((directory / "_DONE").read_text())["completed"] == 1


def test_a_pipe_in_a_delivery_does_not_hold_up_the_producer(sqlite_setup: WorkerSetup) -> None:
    """C2: a pipe of the name that fileq was about to write to, or to read, blocked the producer for ever."""
    setup = sqlite_setup
    evil = deliver(setup, "evil")
    for name in (".fileq-marker.tmp", "_FILEQ_FAILED", "1.manifest.json"):
        os.mkfifo(evil / name)
    start(setup)
    wait_done(evil, deliver(setup, "good"))
    wait_done(deliver(setup, "later"))


def test_two_links_in_a_delivery_do_not_hold_up_the_producer(sqlite_setup: WorkerSetup) -> None:
    """B4: with producer.follow_symlinks two links to their own directory gave it 2^100 names, and a look at the
    delivery went through them all."""
    setup = sqlite_setup
    evil = deliver(setup, "evil")
    (evil / "a").symlink_to(".")
    (evil / "b").symlink_to(".")
    (evil / "up").symlink_to("../..")
    program = start(setup, follow_symlinks=True)
    wait_done(evil, deliver(setup, "good"))
    wait_done(deliver(setup, "later"))
    assert json.loads((evil / "_DONE").read_text())["completed"] == 1
    assert program.events("loop.failed") == program.events("delivery.failed") == []


def test_one_odd_member_does_not_end_the_ending_of_all_deliveries(sqlite_setup: WorkerSetup) -> None:
    """H5: a dead member without a path raised KeyError in the loop of all deliveries. Clients may no longer add one;
    handlers of members and other versions of fileq may."""
    setup = sqlite_setup
    evil = deliver(setup, "evil")
    producer = start(setup, role="producer", allow_failures=True)
    view = wait_until(lambda: batch_of(setup, evil), 30, "the delivery is opened")
    odd = (None, {}, {"path": 7}, [1], "text", {"path": {"a": 1}}, {"directory": "x", "path": "y"})
    for number, payload in enumerate(odd):
        job = typed_job(CHECK_TYPE, payload, priority="low", now=datetime.now(UTC), id=f"odd{number}")
        setup.broker.enqueue(
            [Entry(job.but(batch_id=view.id, max_retries=0), "low", joins=True, is_own=True, fills_delivery=True)]
        )
    job = typed_job("no such type", {"b": 1}, priority="low", now=datetime.now(UTC), id="odd")
    setup.broker.enqueue(
        [Entry(job.but(batch_id=view.id, max_retries=0), "low", joins=True, is_own=True, fills_delivery=True)]
    )
    good = deliver(setup, "good")
    setup.worker()
    wait_done(good)
    wait_done(evil, name="_FILEQ_FAILED")
    assert producer.events("loop.failed") == producer.events("delivery.failed") == []
    failed = json.loads((evil / "_FILEQ_FAILED").read_text())
    assert failed["dead"] == len(failed["failed"]) == 8
    assert all(isinstance(one["path"], str) for one in failed["failed"])


def test_a_link_in_a_manifest_reveals_nothing_of_its_target(sqlite_setup: WorkerSetup) -> None:
    """H6: the marker, in the sender's own directory, had the checksum and the size of any file of the worker."""
    setup = sqlite_setup
    secret = setup.directory / "secret"
    secret.write_text("password")
    evil = setup.inbox / "acme" / "evil"
    evil.mkdir(parents=True)
    (evil / "link").symlink_to(secret)
    (evil / "dir").symlink_to(setup.directory)
    os.mkfifo(evil / "pipe")
    (evil / "1.dat").write_text("x")
    listed = [
        {"path": "link", "sha256": "0" * 64},
        {"path": "dir/secret", "size": 1},
        {"path": "pipe", "sha256": "0" * 64},
        {"path": "1.dat", "sha256": hashlib.sha256(b"x").hexdigest()},
    ]
    (evil / "1.manifest.json").write_text(json.dumps(listed))
    start(setup, complete={"manifest": "*.manifest.json"}, deadline="2s", allow_failures=True)
    wait_done(evil, name="_FILEQ_FAILED")
    text = (evil / "_FILEQ_FAILED").read_text()
    assert json.loads(text)["dead"] == 3
    assert hashlib.sha256(b"password").hexdigest() not in text
    assert "8 bytes" not in text


@pytest.mark.parametrize("name", [b"new\nline", b"\xff\xfe", b"n" * 255], ids=["newline", "bytes", "long"])
def test_a_delivery_of_any_name_is_finished(sqlite_setup: WorkerSetup, name: bytes) -> None:
    """H5: a name that is not UTF-8 can't be a part of a job, and stopped the producer for all others."""
    setup = sqlite_setup
    odd = deliver(setup, name)
    (odd / os.fsdecode(b"\xfe\n.dat")).write_bytes(b"x")
    producer = start(setup)
    wait_done(deliver(setup, "good"), odd)
    assert producer.events("loop.failed") == producer.events("delivery.failed") == []


@pytest.mark.parametrize("planted", ["done", "done/sub", "done/sub/deep"])
@pytest.mark.parametrize("device", ["same", "other"])
def test_a_file_is_never_moved_through_a_link_that_a_sender_planted(
    sqlite_setup: WorkerSetup, planted: str, device: str
) -> None:
    """H7: a folder of worker.after below the inbox, or a directory in it, that is a link led to any directory."""
    setup = sqlite_setup
    inbox = setup.inbox
    with tempfile.TemporaryDirectory(dir="/dev/shm" if device == "other" else setup.directory) as elsewhere:
        (inbox / "sub/deep").mkdir(parents=True)
        (inbox / "sub/deep/file").write_text("x")
        (inbox / planted).parent.mkdir(parents=True, exist_ok=True)
        (inbox / planted).symlink_to(elsewhere)
        program = setup.worker(
            str(inbox), role="all", handlers=on_files("on_file"), worker__after__completed=f"move:{inbox}/done"
        )
        kept = program.wait_for("file.kept")
        assert kept["path"] == str(inbox / "sub/deep/file")
        assert os.listdir(elsewhere) == []
    assert (inbox / "sub/deep/file").read_text() == "x"
    assert os.listdir(inbox / "sub/deep") == ["file"]


def test_a_link_that_a_sender_puts_in_the_place_of_its_file_is_not_moved(sqlite_setup: WorkerSetup) -> None:
    """B6: the archive, which the operator trusts, had a link of the sender in it: it led to a file of the same version
    when it was moved, and later to whatever the sender liked."""
    setup = sqlite_setup
    path, away = setup.inbox / "inv.txt", setup.inbox / ".keep.tmp"
    path.write_text("x")
    setup.enqueue_file(path, "file")
    program = setup.worker(handlers=on_files("gated"), worker__after__completed=f"move:{setup.directory}/done")
    wait_until(lambda: setup.logged("start"), 20)
    path.rename(away)
    path.symlink_to(away)
    (setup.directory / "gate").touch()
    assert "only regular files" in program.wait_for("file.kept")["reason"]
    setup.wait_for(State.COMPLETED, ["file"])
    assert os.readlink(path) == str(away)
    assert not (setup.directory / "done").exists() or os.listdir(setup.directory / "done") == []


def test_a_folder_that_is_a_planted_link_is_no_root(sqlite_setup: WorkerSetup) -> None:
    """H7: files in the folder of worker.after are allowed; a link in its place made any directory an allowed root."""
    setup = sqlite_setup
    elsewhere = setup.directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("secret")
    (setup.inbox / "done").symlink_to(elsewhere)
    setup.enqueue_file(setup.inbox / "done/secret", "stolen")
    setup.worker(handlers=on_files("on_file"), worker__after__completed=f"move:{setup.inbox}/done")
    setup.wait_for(State.DEAD, ["stolen"])
    assert "outside the allowed roots" in setup.record("stolen").error
    assert setup.logged("file") == []


def test_directories_that_are_nested_too_deeply_are_skipped_and_the_others_go_on(sqlite_setup: WorkerSetup) -> None:
    """Medium: 1,480 nested directories in a delivery blinded the producer for all others."""
    setup = sqlite_setup
    evil = deliver(setup, "evil")
    with nested(evil, 1480, "file"), nested(setup.inbox / "plain", 1480, "file"):
        program = start(setup)
        wait_done(deliver(setup, "good"), evil)
        wait_done(deliver(setup, "later"))
        wait_until(lambda: program.metric('producer_files_skipped_total{reason="deep"}') >= 2, 20)
        logged = [line for line in program.events("file.skipped") if line["reason"] == "deep"]
        assert len(logged) == 2
        assert program.events("loop.failed") == program.events("delivery.failed") == []
        program.kill()


def test_a_huge_file_without_content_does_not_hold_up_the_producer(sqlite_setup: WorkerSetup) -> None:
    """B3: with producer.identity: content a sparse file was read to its end, for days, also after it was deleted."""
    setup = sqlite_setup
    with tempfile.TemporaryDirectory(dir="/dev/shm") as inbox:
        huge = Path(inbox, "a.bin")
        huge.touch()
        os.truncate(huge, 100 << 40)
        setup.worker(
            inbox,
            role="producer",
            producer__identity="content",
            producer__settle_unclosed="100ms",
            producer__rescan_interval="1s",
        )
        Path(inbox, "first").write_text("x")
        wait_until(lambda: setup.census().counters.get("produced") == 1, 20)
        huge.unlink()
        Path(inbox, "second").write_text("x")
        wait_until(lambda: setup.census().counters.get("produced") == 2, 20)


def test_a_producer_that_stands_still_turns_its_health_red(sqlite_setup: WorkerSetup) -> None:
    """C2: something that blocks the producer for ever is seen by the liveness probe, within about a minute, and by that
    name: no loop that only pauses is reported before."""
    setup = sqlite_setup
    os.mkfifo(setup.directory / "gate")
    (setup.directory / "blocker.py").write_text(
        "import fileq\n\n"
        "@fileq.before_enqueue\n"
        "def blocked(job):\n"
        f"    with open({str(setup.directory / 'gate')!r}): return job\n"
    )
    program = setup.worker(role="all", producer__imports="[blocker]")
    (setup.inbox / "file").write_text("x")
    status, body = wait_until(lambda: found if (found := program.get("/healthz"))[0] != 200 else None, 100, every_s=0.2)
    assert (status, json.loads(body)) == (503, {"stuck": ["producer"]})
    (setup.directory / "gate").write_text("")  # a writer lets the reader go on
    wait_until(lambda: program.get("/healthz")[0] == 200, 20)
    wait_until(lambda: setup.census().counters.get("produced") == 1, 20)


# A directory of the sender in which an operator types a command


@pytest.mark.parametrize("words", ["try a.txt", "doctor", "tasks", "list", "config check --handlers"])
def test_commands_typed_in_an_inbox_execute_nothing_of_its_sender(tmp_path: Path, words: str) -> None:
    """S1: config.yaml of the sender named modules to import; the operator's own were imported from there, and modules
    of the standard library too."""
    inbox, library, ran = tmp_path / "inbox", tmp_path / "library", tmp_path / "ran"
    inbox.mkdir()
    library.mkdir()
    inbox.chmod(0o777)
    (inbox / "a.txt").write_text("x")
    planted = ("handlers_of_operator", "csv", "hashlib", "sqlite3", "asyncio", "socket", "difflib", "multiprocessing")
    for name in (*planted, "evil"):
        (inbox / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\n")
    (library / "handlers_of_operator.py").write_text("import fileq\n@fileq.task('x')\ndef f(job, context): pass\n")
    trusted = tmp_path / "trusted.yaml"
    trusted.write_text(f"broker: sqlite\nsqlite: {{path: {tmp_path}/q.db}}\nimports: [handlers_of_operator]\n")

    def typed(*more: str) -> subprocess.CompletedProcess[str]:
        arguments = command(*words.split(), *more)
        clean = environment()
        return subprocess.run(arguments, cwd=inbox, env=clean, capture_output=True, text=True, check=False)

    outside = typed("--config", str(trusted))
    assert not ran.exists(), ran.read_text()
    if words != "list":
        assert f"every user can write to {inbox}; --app-dir DIR" in outside.stdout + outside.stderr
        named = typed("--config", str(trusted), "--app-dir", str(library))
        assert "every user can write" not in named.stdout + named.stderr
    (inbox / "config.yaml").write_text("imports: [evil]\n")
    refused = typed()
    assert "./config.yaml is not read, because every user can write to" in refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert not ran.exists(), ran.read_text()
