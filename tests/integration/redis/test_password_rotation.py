"""A password in redis.password_file can be rotated while workers and producers run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from tests.support.producer_setup import BrokerSetup
from tests.support.program import Program
from tests.support.servers import Server
from tests.support.waiting import wait_until

OLD, NEW = "old-4711", "new-4712"


class Locked:
    """A server that wants a password, from the default user and from the user `app`."""

    def __init__(self, server: Server) -> None:
        self.address = server.address
        self._admin = server.client()
        self._admin.execute_command("ACL", "SETUSER", "app", "on", "~*", "&*", "+@all")
        self.rotate(OLD)

    def rotate(self, password: str) -> None:
        """Changes the password and cuts all connections but the test's own."""
        self._admin.execute_command("ACL", "SETUSER", "app", "resetpass", f">{password}")
        self._admin.config_set("requirepass", password)
        self._admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def unlock(self) -> None:
        self._admin.config_set("requirepass", "")
        self._admin.execute_command("ACL", "DELUSER", "app")


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(f"{OLD}\n")
    return file


@pytest.fixture
def locked(valkey: Server) -> Iterator[Locked]:
    locked = Locked(valkey)
    yield locked
    locked.unlock()


def replace(file: Path, content: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(content)
    os.replace(other, file)


@pytest.mark.parametrize("username", ["", "app"])
def test_a_running_program_uses_the_new_password(
    username: str, locked: Locked, password_file: Path, tmp_path: Path
) -> None:
    settings = {"redis.addr": locked.address, "redis.password_file": "secret", "redis.username": username}
    setup = BrokerSetup("redis", tmp_path, settings)
    setup.write("a.txt")
    with Program("all", str(setup.inbox), cwd=tmp_path, settings=setup.all_settings()) as program:
        program.wait_for("job.completed")
        locked.rotate(NEW)
        lost = program.wait_for("broker.lost")
        password_file.write_text("")  # a replacement that is not atomic
        replace(password_file, f"{NEW}\n")
        program.wait_for("broker.restored")
        setup.write("b.txt")
        program.wait_for("job.completed", count=2)
        assert program.stop() == 0
        assert OLD not in program.text()
        assert NEW not in program.text()
        assert "is unavailable" in lost["error"]


def test_a_file_that_is_away_leaves_the_last_password(locked: Locked, password_file: Path) -> None:
    broker = open_broker(config_from({"redis": {"addr": locked.address, "password_file": str(password_file)}}))
    try:
        for away in (password_file.unlink, password_file.touch, lambda: password_file.write_bytes(b"\xff")):
            away()
            locked.rotate(OLD)

            wait_until(lambda: _answers(broker), 10)
    finally:
        broker.close()


def _answers(broker: FullBroker) -> bool:
    with contextlib.suppress(BrokerUnavailable):  # its connections were cut
        return broker.census().running == 0
    return False
