"""`fileq admin reprocess`, on both brokers."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import pytest

from fileq.brokers.types import Entry
from fileq.core.job import Version, decode, file_job
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    claim_one,
    raws_in,
    settle,
)
from tests.support.command_line import CommandLine

NOW = datetime.now(UTC)


def known_file(shell: CommandLine, name: bytes, *, is_there: bool = True, age_s: float = 0.0) -> bytes:
    """Makes a file that was processed once, and returns its path."""
    path = os.path.join(os.fsencode(shell.directory), b"in", name)
    modified_ns = time.time_ns() - int(age_s * 1e9)
    if is_there:
        with open(path, "wb") as file:
            file.write(b"four")
        os.utime(path, ns=(modified_ns, modified_ns))
    signature = f"4-{modified_ns}"
    job = file_job(path, size=4, priority="low", now=NOW, signature=signature)
    shell.broker.enqueue([Entry(job, "low", Version(path, signature))])
    settle(shell, complete(claim_one(shell)))
    return path


def test_known_files_are_enqueued_again(shell: CommandLine) -> None:
    pdf, odd = known_file(shell, b"a.pdf"), known_file(shell, b"\xff odd.txt")
    known_file(shell, b"gone.txt", is_there=False)
    dry = shell.json("reprocess", "--all", "--dry-run")
    assert (dry["enqueued"], dry["missing"], dry["unfinished"]) == (2, 1, 0)
    assert sum(shell.broker.census().pending.values()) == 0
    done = shell.json("reprocess", "--all")
    assert (done["enqueued"], done["missing"], done["is_dry_run"]) == (2, 1, False)
    [high], [low] = raws_in(shell, "high"), raws_in(shell, "low")
    assert (decode(high).path, decode(low).path) == (pdf, odd)
    [entry] = shell.broker.lookup([pdf])
    assert entry is not None
    assert entry.versions[0] == (decode(high).signature, decode(high).id)
    again = shell.run("reprocess", "--all")
    assert "0 files enqueued again; 1 file missing; 2 files skipped, still unfinished" in again
    assert f"missing: {shell.directory}/in/gone.txt" in again
    assert shell.broker.census().drift == 0


def test_only_the_newest_version_of_a_file_is_enqueued(shell: CommandLine) -> None:
    known_file(shell, b"a.txt", age_s=100)
    path = known_file(shell, b"a.txt")
    assert shell.json("reprocess", "--all")["enqueued"] == 1
    [raw] = raws_in(shell, "low")
    assert decode(raw).signature == f"4-{os.stat(path).st_mtime_ns}"


def test_files_are_chosen_by_glob_and_by_time(shell: CommandLine) -> None:
    known_file(shell, b"new.txt", age_s=60)
    known_file(shell, b"old.txt", age_s=3 * 3600)
    known_file(shell, b"new.log", age_s=60)
    inside = f"{shell.directory}/in/**"
    for words, count in {
        ("--match", "*.txt"): 2,
        ("--since", "2h"): 2,
        ("--since", "2h", "--match", "*.txt"): 1,
        ("--since", "2026-01-01"): 3,
        ("--since", "2999-01-01T00:00:00Z"): 0,
        ("--match", inside): 3,
        ("--match", "/elsewhere/**"): 0,
    }.items():
        assert shell.json("reprocess", "--dry-run", *words)["enqueued"] == count, words


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--json",)])
def test_without_a_filter_it_needs_all(shell: CommandLine, words: tuple[str, ...]) -> None:
    known_file(shell, b"a.txt")
    said = "specify files with filters such as --match, or --all; see 'fileq admin reprocess --help'"
    assert said in shell.fail("reprocess", *words, code=2)
    assert raws_in(shell, "low") == []
    assert shell.json("reprocess", "--all", "--match", "*.txt")["enqueued"] == 1


def test_without_known_files_nothing_is_enqueued(shell: CommandLine) -> None:
    assert shell.run("reprocess", "--all") == "0 files enqueued again\n"


def test_a_path_of_the_producer_is_mapped_to_this_machine(shell: CommandLine) -> None:
    path = b"/srv/theirs/file.txt"
    (shell.directory / "in" / "file.txt").write_bytes(b"four")
    job = file_job(path, size=4, priority="low", now=NOW, signature="4-17")
    shell.broker.enqueue([Entry(job, "low", Version(path, "4-17"))])
    settle(shell, complete(claim_one(shell)))
    assert shell.json("reprocess", "--all", "--dry-run")["missing"] == 1
    mapped = f"worker.path_map={{/srv/theirs: {shell.directory}/in}}"
    assert shell.json("reprocess", "--all", "--set", mapped)["enqueued"] == 1
    assert decode(raws_in(shell, "low")[0]).path == path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "--since is 'yesterday'"),
        (("--match", ""), "--match is empty"),
        (
            ("--state", "running"),
            "fileq: status is 'running'; a file is enqueued again only after its last job has ended",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(shell: CommandLine, words: tuple[str, ...], said: str) -> None:
    assert said in shell.fail("reprocess", *words, code=2)
