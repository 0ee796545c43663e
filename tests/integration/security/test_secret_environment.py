"""Secrets of fileq in its environment: which processes of a worker can read them there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fileq.config import config_from
from fileq.config.show import secret_variables, without_secrets
from tests.support.program import Program, command, environment
from tests.support.servers import Server, available_servers
from tests.support.waiting import wait_until

PASSWORD = "hunter2-of-the-environment"
APP = """
import os
import pathlib


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def look(job, context):
    server = os.getppid()
    guard = parent_of(server)
    seen = {"own": dict(os.environ)}
    for name, pid in (("child", "self"), ("server", server), ("guard", guard)):
        seen[name] = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = pathlib.Path(f"/proc/{pid}/fd/{fd}")
            if os.path.exists(path) and "fileq-program" in os.readlink(path):
                seen[f"{name}'s program"] = path.read_bytes().decode(errors="replace")
    pathlib.Path("seen").write_text(repr(seen))
"""
HANDLERS = (
    '[{match: "**/*.py", use: "app:look"}, '
    '{match: "**/*.sh", command: ["sh", "-c", "env > commanded"]}, '
    '{match: "**/*.thread", command: ["sh", "-c", "env > threaded"], isolation: thread}]'
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binary = available_servers()["valkey"]
    assert binary is not None
    with Server(binary, requirepass=PASSWORD) as server:
        yield server


@contextmanager
def worker(directory: Path, variables: dict[str, str], **settings: object) -> Iterator[Program]:
    """`fileq all` on three files, one for each kind of handler, until each has run."""
    (directory / "app.py").write_text(APP)
    (directory / "in").mkdir()
    for name in ("a.py", "b.sh", "c.thread"):
        (directory / "in" / name).write_text(name)
    chosen = {
        "producer.settle_unclosed": "0s",
        "worker.count": 2,
        "worker.max_retries": 0,
        "handlers": HANDLERS,
        **settings,
    }
    with Program("all", str(directory / "in"), cwd=directory, settings=chosen, variables=variables) as program:
        wait_until(lambda: program.metric("jobs_completed_total") == 3, 30)
        yield program


def seen(directory: Path) -> str:
    return "".join((directory / name).read_text() for name in ("seen", "commanded", "threaded"))


def test_no_child_and_no_command_sees_the_password_of_redis(server: Server, tmp_path: Path) -> None:
    server.reset()
    variables = {
        "REDIS_PASSWORD": PASSWORD,
        "FILEQ_REDIS_URL": f"redis://default:{PASSWORD}@{server.address}",
        "OBSERVABILITY_TRACING_ENDPOINT": f"http://user:{PASSWORD}@localhost:4318",
        "HARMLESS": "still here",
    }
    with worker(tmp_path, variables):
        text = seen(tmp_path)
    assert text.count("still here") == 6  # own, child, server, guard, two commands
    assert PASSWORD not in text


@pytest.mark.parametrize("broker", ["sqlite", "redis"])
def test_a_variable_that_is_passed_is_seen(broker: str, server: Server, tmp_path: Path) -> None:
    server.reset()
    where: dict[str, object] = {"broker": broker}
    if broker == "redis":
        where["redis.addr"] = server.address
    variables = {"REDIS_PASSWORD": PASSWORD, "FILEQ_REDIS_PASSWORD": PASSWORD}
    with worker(tmp_path, variables, **where, **{"worker.pass_environment": "REDIS_PASSWORD"}):
        text = seen(tmp_path)
    assert text.count(PASSWORD) == 6
    assert f"FILEQ_REDIS_PASSWORD={PASSWORD}" not in text


def test_try_shows_no_secret_to_the_handler(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "a.py").touch()
    words = command("try", "a.py", settings={"handlers": HANDLERS})
    subprocess.run(words, cwd=tmp_path, env=environment(REDIS_PASSWORD=PASSWORD), check=True, timeout=60)
    assert PASSWORD not in (tmp_path / "seen").read_text()


def test_which_variables_are_secret() -> None:
    environ = {
        "REDIS_PASSWORD": "a",
        "FILEQ_REDIS_PASSWORD": "b",
        "REDIS_URL": "redis://localhost",
        "FILEQ_REDIS_URL": "redis://u:p@localhost",
        "REDIS_USERNAME": "u",
        "REDIS_PASSWORD_FILE": "/run/secret",
        "OBSERVABILITY_TRACING_ENDPOINT": "http://t:t@h",
        "WORKER_COUNT": "3",
        "PATH": "/bin",
    }
    secret = {"REDIS_PASSWORD", "FILEQ_REDIS_PASSWORD", "FILEQ_REDIS_URL", "OBSERVABILITY_TRACING_ENDPOINT"}
    assert {*secret_variables((), environ)} == secret
    assert {*secret_variables(["REDIS_PASSWORD", "PATH"], environ)} == secret - {"REDIS_PASSWORD"}


def test_a_configuration_without_secrets_is_otherwise_the_same() -> None:
    given: dict[str, Any] = {"redis": {"url": "redis://u:hunter2@h:1", "password": "hunter2", "db": 3}}
    config = without_secrets(config_from(given))
    assert (config.redis.password, config.redis.url, config.redis.db) == ("***", "redis://***@h:1", 3)
    assert without_secrets(config_from({})) == config_from({})
