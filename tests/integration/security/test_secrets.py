"""A password that is planted wherever one can be given is found nowhere: not in logs, metrics, listings, tracebacks,
error messages, nor on the command lines of the processes that are started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from fileq.brokers import open_broker
from fileq.brokers.types import Entry
from fileq.cli import OK, UNREACHABLE, USAGE, main
from fileq.config import config_from
from fileq.core.job import typed_job
from tests.support.program import Program, command, environment, run
from tests.support.servers import Server, available_servers
from tests.support.waiting import wait_until

PASSWORD = "hunter2-of-the-test"
WRONG = "hunter3-of-the-test"
SECRETS = (PASSWORD, WRONG)
HANDLERS = Path(__file__).parents[2] / "support/worker_handlers.py"  # not imported: its decorators would register here


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binary = available_servers()["valkey"]
    assert binary is not None
    with Server(binary, requirepass=PASSWORD) as server:
        yield server


class Planted:
    """Where a password was put: settings for the command line, variables, and what is in config.yaml."""

    def __init__(self, settings: dict[str, object], variables: dict[str, str], file: str = "") -> None:
        self.settings = settings
        self.variables = variables
        self.file = file


def in_url(address: str, password: str, _directory: Path) -> Planted:
    return Planted({"redis.url": f"redis://:{password}@{address}/0"}, {})


def in_environment(address: str, password: str, _directory: Path) -> Planted:
    return Planted({"redis.addr": address}, {"REDIS_PASSWORD": password})


def in_environment_url(address: str, password: str, _directory: Path) -> Planted:
    return Planted({}, {"FILEQ_REDIS_URL": f"redis://default:{password}@{address}"})


def in_file(address: str, password: str, _directory: Path) -> Planted:
    return Planted({}, {}, f"redis: {{addr: '{address}', password: '{password}'}}\n")


def in_password_file(address: str, password: str, directory: Path) -> Planted:
    (directory / "secret").write_text(f"{password}\n")
    return Planted({"redis.addr": address, "redis.password_file": "secret"}, {})


PLACES: list[Callable[[str, str, Path], Planted]] = [
    in_url,
    in_environment,
    in_environment_url,
    in_file,
    in_password_file,
]


def sets(settings: dict[str, object]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def assert_secret(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text, text


@contextmanager
def placed(planted: Planted, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The handlers and the configuration file in place, the variables in the environment of what is started."""
    (directory / "worker_handlers.py").write_text(HANDLERS.read_text())
    (directory / "in").mkdir(exist_ok=True)
    if planted.file:
        (directory / "config.yaml").write_text(planted.file)
    with monkeypatch.context() as patch:
        patch.setattr("tests.support.program.environment", lambda **more: environment(**planted.variables, **more))
        yield


def settings_of(planted: Planted, **more: object) -> dict[str, object]:
    return {
        "imports": "worker_handlers",
        "observability.log_level": "debug",
        "worker.count": 2,
        "worker.heartbeat_ttl": "3s",
        "worker.max_retries": 0,
        **planted.settings,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def command_lines(of: int) -> str:
    """Of a process and its descendants, but for what the test itself has put on the first one's."""
    tree = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in tree.splitlines()]
    below, found = {str(of)}, []
    for _ in range(5):
        below |= {pid for pid, parent, _ in rows if parent in below}
    found = [args for pid, _, args in rows if pid in below and pid != str(of)]
    assert found
    return "\n".join(found)


def test_a_password_is_in_nothing_that_a_worker_says(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its most talkative, with jobs that fail and crash, a broker that goes away, and an end; one worker for each
    place where a password can be put."""
    server.reset()
    broker = open_broker(config_from({"redis": {"addr": server.address, "password": PASSWORD}}))
    said: list[str] = []
    with ExitStack() as stack:
        stack.callback(broker.close)
        programs = []
        for place in PLACES:
            directory = tmp_path / place.__name__
            directory.mkdir()
            planted = place(server.address, PASSWORD, directory)
            with placed(planted, directory, monkeypatch):
                settings = settings_of(planted)
                program = Program("all", str(directory / "in"), cwd=directory, settings=settings, wait=False)
                programs.append(stack.enter_context(program))
                listed = run("config", "list", cwd=directory, settings=settings)
            assert listed.returncode == 0, listed.stderr
            said += [listed.stdout, listed.stderr]
        for program in programs:
            program.wait_for("role.started", 30)
        types = ("note", "fails", "permanent", "exits", "not_json", "unknown")
        jobs = [typed_job(type, None, priority="low", now=datetime.now(UTC)) for type in types for _ in range(10)]
        broker.enqueue([Entry(job, "low") for job in jobs])
        wait_until(lambda: (census := broker.census()).dead == 40 and census.completed == 20, 30)

        def have_all_run() -> bool:
            # A job wakes one worker, any of them.
            broker.enqueue([Entry(typed_job("note", None, priority="low", now=datetime.now(UTC)), "low")])
            return all("job." in program.text() for program in programs)

        wait_until(have_all_run, 30)
        said += [program.get("/metrics")[1] + command_lines(program.process.pid) for program in programs]
        server.pause()
        try:
            for program in programs:
                wait_until(lambda p=program: p.readiness()[0] == 503)  # type: ignore[misc]
                said.append(program.get("/readyz")[1])
                program.wait_for("broker.lost")
        finally:
            server.resume()
        for program in programs:
            program.wait_for("broker.restored")
            program.signal(signal.SIGTERM)
        for program in programs:
            assert program.wait() == 0
            assert "job." in program.text()
            said.append(program.text())
    assert_secret("\n".join(said))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """What the program says to these arguments, run here: it is over before there is anything to run."""

    def say(code: int, *arguments: str) -> str:
        assert main(arguments) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    yield say
    structlog.reset_defaults()


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_wrong_password_and_a_server_that_is_not_there_are_told_without_it(
    server: Server,
    place: Callable[[str, str, Path], Planted],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[..., str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for address, password in ((server.address, WRONG), ("127.0.0.1:1", PASSWORD)):
        planted = place(address, password, tmp_path)
        with placed(planted, tmp_path, monkeypatch):
            for name, value in planted.variables.items():
                monkeypatch.setenv(name, value)
            options = ["--set", "observability.log_level=debug", *sets(planted.settings)]
            for role in ("worker", "producer"):
                text = said(UNREACHABLE, role, "in", *options)
                assert address in text
                assert_secret(text)


MALFORMED = [
    {"redis.addr": f":{PASSWORD}@localhost:6379"},
    {"redis.addr": f"{PASSWORD}@localhost"},
    {"redis.url": f"redis//:{PASSWORD}@localhost"},
    {"redis.url": f"redis://:{PASSWORD}@local host:x/0"},
    {"redis.url": f"rediss:{PASSWORD}"},
    {"redis.url": f"{PASSWORD}"},
    {"redis.pasword": PASSWORD},
    {"redis.password": PASSWORD, "redis.password_file": "nowhere"},
    {"redis.password": PASSWORD, "redis.db": "x"},
    {"observability.tracing.endpoint": f"ftp://user:{PASSWORD}@h"},
]


@pytest.mark.parametrize("settings", MALFORMED, ids=lambda settings: "+".join(settings))
@pytest.mark.parametrize("source", ["--set", "file"])
def test_a_malformed_value_is_refused_without_its_password(
    settings: dict[str, object], source: str, tmp_path: Path, said: Callable[..., str]
) -> None:
    options = sets(settings)
    if source == "file":
        tree: dict[str, dict[str, object]] = {}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            tree.setdefault(section, {})[name] = value
        (tmp_path / "config.yaml").write_text(json.dumps(tree))
        options = ["--config", str(tmp_path / "config.yaml")]
    for words in (["config", "check"], ["config", "list"], ["worker", str(tmp_path)]):
        assert_secret(said(USAGE, *words, *options))


def test_what_is_behind_the_address_is_hidden_too(said: Callable[..., str]) -> None:
    url = f"redis://:{PASSWORD}@127.0.0.1:1/0?password={PASSWORD}#{PASSWORD}"
    for words, code in ((["config", "list"], OK), (["config", "check"], OK), (["worker", "."], UNREACHABLE)):
        text = said(code, *words, "--set", f"redis.url={url}")
        assert "127.0.0.1:1" in text
        assert_secret(text)


SABOTEUR = """
import fileq.runtime.roles
import fileq.worker.scheduler


def broken(self, *rest):
    raise RuntimeError("sabotage in the loop")


def crash(*rest):
    raise RuntimeError("sabotage at the end")


fileq.worker.scheduler.Scheduler.turn = broken
fileq.runtime.roles.stop_in_time = crash
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_crash_shows_no_password(server: Server, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a loop, and of the program itself: both have the configuration in reach."""
    server.reset()
    (tmp_path / "saboteur.py").write_text(SABOTEUR)
    planted = in_environment(server.address, PASSWORD, tmp_path)
    settings = settings_of(planted, imports="saboteur", observability__log_format=form)
    with placed(planted, tmp_path, monkeypatch):
        process = subprocess.Popen(
            command("worker", str(tmp_path / "in"), settings={**settings, "observability.metrics_port": 0}),
            cwd=tmp_path,
            env=environment(**planted.variables),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        text = ""
        with process:
            while "sabotage in the loop" not in text or "Traceback" not in text:
                line = process.stderr.readline()
                assert line, text
                text += line
            os.kill(process.pid, signal.SIGTERM)
            text += process.stderr.read()
            assert process.wait(30) == 1
    assert "sabotage at the end" in text
    assert_secret(text)
