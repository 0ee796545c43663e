"""The built-in handlers checksum and simulate."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from fileq.core.job import decode
from fileq.core.outcome import Done, Failed
from fileq.handlers import checksum, simulate
from fileq.handlers.run import run_task
from tests.support.handler_runs import file, file_task, root, routes_of, run, task_of, typed_task

__all__ = ["file", "root"]

EMPTY_SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_checksum_is_the_sha256_of_the_file(file: Path, root: Path) -> None:
    big = root / "big"
    big.write_bytes(b"x" * 3_000_000)
    expected = {
        file: ("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 3),
        big: (subprocess.run(["sha256sum", big], capture_output=True, check=True).stdout[:64].decode(), 3_000_000),
    }
    for path, (sha256, size) in expected.items():
        ended = run(file_task(path, root), checksum)
        assert isinstance(ended, Done)
        assert json.loads(ended.result) == {"sha256": sha256, "bytes": size}


def test_checksum_of_an_empty_file(root: Path) -> None:
    (root / "empty").touch()
    ended = run(file_task(root / "empty", root), checksum)
    assert isinstance(ended, Done)
    assert json.loads(ended.result) == {"sha256": EMPTY_SHA, "bytes": 0}


def test_checksum_stops_between_blocks_when_it_is_cancelled(file: Path, root: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    ended = run(file_task(file, root), checksum, cancelled=cancelled)
    assert isinstance(ended, Failed)
    assert ended.kind == "InterruptedError"


@pytest.mark.parametrize(
    ("name", "attempts"),
    [
        ("fail.txt", ["RuntimeError"] * 3),
        ("my-fail-2.txt", ["RuntimeError", "RuntimeError", ""]),
        ("A FAIL-1", ["RuntimeError", "", ""]),
        ("permanent.txt", ["Permanent"] * 3),
        ("failure.txt", [""] * 3),
        ("unfailing-2.txt", [""] * 3),
    ],
)
def test_simulate_ends_as_the_files_name_says(name: str, attempts: list[str], root: Path) -> None:
    (root / name).touch()
    ended = [run(file_task(root / name, root, attempt=n), simulate) for n in (1, 2, 3)]
    assert [ending.kind if isinstance(ending, Failed) else "" for ending in ended] == attempts


@pytest.mark.parametrize(
    ("payload", "attempts"),
    [
        ({"fail": True}, ["RuntimeError", "RuntimeError"]),
        ({"fail": 1}, ["RuntimeError", ""]),
        ({"permanent": True}, ["Permanent", "Permanent"]),
        ({"sleep": 0.001}, ["", ""]),
        ({"sleep": "long"}, ["Permanent", "Permanent"]),
        ([1], ["Permanent", "Permanent"]),
    ],
)
def test_simulate_ends_as_the_payload_says(payload: Any, attempts: list[str]) -> None:
    ended = [run(typed_task("t", payload, attempt=n), simulate) for n in (1, 2)]
    assert [ending.kind if isinstance(ending, Failed) else "" for ending in ended] == attempts


def test_simulate_sleeps_in_proportion_to_the_size_of_the_file() -> None:
    class Waits(threading.Event):
        waited: float | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.waited = timeout
            return False

    cancelled = Waits()
    job = decode(typed_task("t").raw).but(filesize=250_000_000)
    assert isinstance(run(task_of(job), simulate, cancelled=cancelled), Done)
    assert cancelled.waited == pytest.approx(2.5)


def test_simulate_hangs_until_it_is_cancelled() -> None:
    cancelled = threading.Event()
    routes = routes_of(simulate)
    outcomes: list[Any] = []

    thread = threading.Thread(
        target=lambda: outcomes.append(run_task(routes, typed_task("t", {"hang": True}), cancelled))
    )
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    cancelled.set()
    thread.join(10)
    assert outcomes[0].kind == "InterruptedError"
