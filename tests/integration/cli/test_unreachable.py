"""An unreachable broker: one line and exit code 4, within two seconds."""

from __future__ import annotations

import contextlib
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fileq.cli import command, main
from fileq.cli.command import OPEN_TIMEOUT_S
from fileq.cli.parser import all_commands
from tests.support.fault_proxy import FaultProxy
from tests.support.program import run
from tests.support.servers import Server

# The default of redis.read_timeout: how long the command would wait without its own limit. On an idle machine it waits
# OPEN_TIMEOUT_S, on a busy one somewhat longer.
UNLIMITED_S = 3.0


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def another_protocol() -> Iterator[str]:
    """Answers as a web server or a proxy would."""

    def answer(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = listening.accept()
                with caller:
                    caller.recv(4096)
                    caller.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@contextlib.contextmanager
def unreached() -> Iterator[str]:
    """Neither accepts nor refuses connections, like an address without a route."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as callers:
        for _ in range(4):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def admin_lines() -> list[list[str]]:
    """An example of every command that operates a broker."""
    operating = [command for command in all_commands() if command.words[0] == "admin"]
    return [shlex.split(command.examples[0][0])[1:] for command in operating]


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time limit: these servers never answer."""
    monkeypatch.setattr(command, "OPEN_TIMEOUT_S", 0.3)


@pytest.mark.usefixtures("short_timeout")
@pytest.mark.parametrize("broken", [refusing, silent, unreached, another_protocol], ids=lambda broken: broken.__name__)
def test_a_server_that_does_not_answer_is_one_line_within_two_seconds(
    broken: Callable[[], AbstractContextManager[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broken() as address:
        started_s = time.monotonic()
        code = main(["enqueue", "--type", "t", "--set", f"redis.addr={address}"])
        took_s = time.monotonic() - started_s
    shown = capsys.readouterr()
    assert (code, shown.out) == (4, "")
    assert len(shown.err.splitlines()) == 1
    assert address in shown.err
    assert took_s < UNLIMITED_S


def test_the_wait_for_a_server_leaves_room_for_a_start_within_two_seconds() -> None:
    assert OPEN_TIMEOUT_S + 0.5 < 2.0


@pytest.mark.usefixtures("short_timeout")
def test_the_time_limit_covers_all_sentinels_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with silent() as one, silent() as other, silent() as third:
        started_s = time.monotonic()
        url = f"redis+sentinel://{one},{other},{third}/master"
        assert main(["enqueue", "--type", "t", "--set", f"redis.url={url}"]) == 4
        assert time.monotonic() - started_s < UNLIMITED_S
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("scheme", ["redis+cluster://{}", "redis+sentinel://{}/master", "rediss://{}"])
@pytest.mark.parametrize("broken", [refusing, another_protocol], ids=lambda broken: broken.__name__)
def test_every_kind_of_address_gives_one_line_without_internals_of_the_library(
    broken: Callable[[], AbstractContextManager[str]], scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with broken() as address:
        url = scheme.format(address)
        assert main(["enqueue", "--type", "t", "--set", f"redis.url={url}", "--set", "redis.prefix={j}"]) == 4
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert address in said
    assert "<redis." not in said


def test_a_server_that_is_not_a_sentinel_is_one_line(valkey: Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"redis+sentinel://{valkey.address}/master"
    assert main(["enqueue", "--type", "t", "--set", f"redis.url={url}"]) == 1
    said = capsys.readouterr().err
    assert "unknown command 'SENTINEL'" in said
    assert len(said.splitlines()) == 1


def test_the_program_exits_although_a_thread_still_waits_for_the_answer(tmp_path: Path) -> None:
    with silent() as address:
        ended = run("enqueue", "--type", "t", cwd=tmp_path, settings={"redis.addr": address})
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr == f"fileq: Redis at {address} is unavailable: no answer within 1.2s\n"


def test_a_slow_server_is_not_unreachable(valkey: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The server has answered; loading the scripts may take longer than the time limit."""
    with FaultProxy(valkey.port) as proxy:
        slow = proxy.delay_replies(1.5 * OPEN_TIMEOUT_S, b"LOAD", times=1)
        assert main(["enqueue", "--type", "t", "--set", f"redis.addr=127.0.0.1:{proxy.port}"]) == 0
        assert slow.fired == 1
    assert capsys.readouterr().err == ""


def test_every_admin_command_reports_an_unreachable_server(capsys: pytest.CaptureFixture[str]) -> None:
    for line in admin_lines():
        with refusing() as address:
            assert main([*line, "--set", f"redis.addr={address}"]) == 4, line
        assert len(capsys.readouterr().err.splitlines()) == 1, line


def test_no_admin_command_creates_a_database_and_each_reports_that_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in admin_lines():
        assert main(line) == 4, line
        shown = capsys.readouterr()
        assert "fileq.db" in shown.err, line
        assert (len(shown.err.splitlines()), shown.out) == (1, ""), line
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_host_name_is_an_unreachable_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["enqueue", "--type", "t", "--set", "redis.addr=no-such-host.invalid:6379"]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1
