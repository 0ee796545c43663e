"""The programs of the tests, which the launcher forks, get what a process that starts a program gives it."""

import contextlib
import os
import re
import resource
import signal
from pathlib import Path

from fileq.worker.executors.process.descendants import children_of
from tests.support.producer_setup import BrokerSetup
from tests.support.program import Program, environment, run
from tests.support.waiting import wait_until
from tests.support.warm_programs import Launcher
from tests.support.worker_setup import WorkerSetup, is_running


def test_a_program_has_the_session_directory_umask_and_limits_that_its_test_chose(on_sqlite: BrokerSetup) -> None:
    run("--version", cwd=on_sqlite.directory)  # the launcher itself starts with other values
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        program = Program("worker", "in", cwd=on_sqlite.directory, settings=on_sqlite.settings)
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with program:
        process = Path(f"/proc/{program.process.pid}")
        assert os.getsid(program.process.pid) == program.process.pid
        assert (process / "cwd").readlink() == on_sqlite.directory
        assert "Umask:\t0027\n" in (process / "status").read_text()
        # A role raises its own limit. The processes of its handlers have the one that it was started with.
        [guard] = children_of(program.process.pid)
        limits = Path(f"/proc/{guard}/limits")
        wait_until(lambda: re.search(r"^Max open files +(\d+)", limits.read_text(), re.M)[1] == str(soft - 1))
        assert [(process / "fd" / str(fd)).readlink() for fd in (0, 1, 2)] == [
            Path(os.devnull),
            program.log_file,
            program.log_file,
        ]
        program.signal(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL


def test_a_program_has_its_process_group_as_soon_as_it_is_known(on_sqlite: BrokerSetup) -> None:
    for _ in range(20):
        program = Program("producer", "in", cwd=on_sqlite.directory, settings=on_sqlite.settings, wait=False)
        os.killpg(program.process.pid, signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL


def test_a_program_has_its_own_variables_and_none_of_the_launcher_or_an_earlier_program(tmp_path: Path) -> None:
    launcher = Launcher(environment(SQLITE_PATH="launcher.db"))

    def path_with(**variables: str) -> str:
        with (tmp_path / "output").open("wb") as output:
            launcher.start(
                ["config", "get", "sqlite.path"],
                cwd=tmp_path,
                environment=environment(**variables),
                stdout=output.fileno(),
                stderr=output.fileno(),
            ).wait(30)
        return (tmp_path / "output").read_text()

    with contextlib.closing(launcher):
        default = path_with()
        assert path_with(SQLITE_PATH="other.db") == "other.db\n"
        assert path_with() == default
        assert default not in ("", "launcher.db\n", "other.db\n")


def test_the_first_guard_of_a_worker_is_its_child_has_its_own_session_and_ends_with_it(
    sqlite_setup: WorkerSetup,
) -> None:
    program = sqlite_setup.worker()
    (guard,) = children_of(program.process.pid)
    assert Path(f"/proc/{guard}/comm").read_text() == "fileq-guard\n"
    assert os.getsid(guard) == guard
    program.kill()
    wait_until(lambda: not is_running(guard))


def test_a_failed_command_has_its_exit_code_and_its_error(tmp_path: Path) -> None:
    ended = run("config", "get", "no.such.key", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no.such.key" in ended.stderr
