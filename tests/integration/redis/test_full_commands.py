"""Every command on a server whose memory is full: what only reads works, and so does what frees memory.

medium: a full Redis made `batch list` and `fsck` fail, and `dlq delete --all` deleted 20 jobs and ended with exit
code 4.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.cli.parser import all_commands
from fileq.testing.conformance.builders import dead, enqueue, names
from tests.support.command_line import CommandLine
from tests.support.program import run
from tests.support.worker_setup import WorkerSetup

# The arguments of each command that only reads, or that frees memory. words_of() fills in `{batch}` and `{key}`.
READING = {
    "admin batch list": "",
    "admin batch show": "{batch}",
    "admin dlq groups": "",
    "admin dlq list": "",
    "admin fsck": "",
    "admin list": "",
    "admin peek": "",
    "admin show": "waits-0001",
    "admin stats": "",
    "admin trace": "/data/waits-0001.pdf",
    "admin workers": "",
    "doctor": "",
    "keys list": "",
    "schedule list": "",
    "schedule next": "nightly",
    "schedule show": "nightly",
    "webhook deliveries": "hook",
    "webhook list": "",
}
FREEING = {
    "admin dlq delete": "dead-0001",
    "admin purge-dlq": "--yes",
    "admin cancel": "waits-0001",
    "admin batch seal": "{batch}",
    "admin batch cancel": "{batch}",
    "admin resume": "low",
    "schedule pause": "nightly",
    "schedule resume": "nightly",
    "schedule remove": "nightly",
    "webhook remove": "hook",
    "keys revoke": "{key}",
}
# Those that add something, and those that need no broker or do not end by themselves.
OTHERS = {
    *("admin batch create", "admin batch retry", "admin breaker reset", "admin dlq retry", "admin pause"),
    *("admin reprocess", "enqueue", "keys create", "schedule add", "schedule run", "webhook add", "webhook enable"),
    *("login-link", "webhook rotate", "webhook test"),
    *("admin events", "all", "completion", "config check", "config get", "config init", "config list", "config set"),
    *("producer", "serve", "start", "tasks", "try", "worker"),
}
NOT_NOTED = "fileq: warning: done, but not recorded in the audit log: "


def test_every_command_is_in_one_of_the_lists() -> None:
    assert sorted([*READING, *FREEING, *OTHERS]) == sorted(" ".join(one.words) for one in all_commands())


@pytest.fixture
def shell(setup: WorkerSetup, capsys: pytest.CaptureFixture[str], cwd: Path) -> CommandLine:
    """On a real server, which holds something for each command."""
    shell = CommandLine(setup, capsys)
    for id in names(450, "dead"):
        dead(shell, id)
    enqueue(shell, *names(3, "waits"))
    shell.run("schedule", "add", "nightly", "0 3 * * *", "--type", "report")
    shell.run("webhook", "add", "hook", "https://example.org/x", "--event", "job.dead")
    shell.run("admin", "pause", "low", "--reason", "the disk is full")
    return shell


def words_of(shell: CommandLine, command: str, arguments: str) -> list[str]:
    """`{batch}` and `{key}` are made here."""
    if "{batch}" in arguments:
        arguments = arguments.format(batch=shell.json("admin", "batch", "create", "--open")["id"])
    if "{key}" in arguments:
        arguments = arguments.format(key=shell.json("keys", "create", "k", "--scope", "read")["id"])
    return [*command.split(), *arguments.split()]


@contextlib.contextmanager
def full(shell: CommandLine) -> Iterator[None]:
    client = shell.server_client()
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


def test_what_only_reads_works_on_a_full_server(shell: CommandLine) -> None:
    for command, arguments in READING.items():
        words = words_of(shell, command, arguments)
        with_room = run(*words, cwd=shell.directory, settings=shell.settings)
        with full(shell):
            ended = run(*words, cwd=shell.directory, settings=shell.settings)
        assert (ended.returncode, ended.stderr) == (with_room.returncode, ""), (words, ended)
        assert command == "doctor" or ended.returncode == 0, (words, ended)
        if command == "doctor":
            assert "can't enqueue" in ended.stdout
            assert "make room" in ended.stdout


@pytest.mark.parametrize("is_full", [False, True], ids=["with room", "full"])
def test_what_frees_memory_works_on_a_full_server(shell: CommandLine, is_full: bool) -> None:
    for command, arguments in FREEING.items():
        words = words_of(shell, command, arguments)
        with full(shell) if is_full else contextlib.nullcontext():
            ended = run(*words, cwd=shell.directory, settings=shell.settings)
        assert ended.returncode == 0, (words, ended)
        assert ended.stderr == "" or (is_full and ended.stderr.startswith(NOT_NOTED)), (words, ended)
        assert ended.stderr.count("\n") <= 1


def test_all_dead_jobs_are_deleted_on_a_full_server_and_named(shell: CommandLine) -> None:
    with full(shell):
        ended = run("dlq", "delete", "--all", "--yes", "--json", cwd=shell.directory, settings=shell.settings)
    assert (ended.returncode, json.loads(ended.stdout)["count"]) == (0, 450), ended
    assert ended.stderr.startswith(NOT_NOTED)
    assert shell.broker.census().dead == 0
