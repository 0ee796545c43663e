"""Commands that run jobs again say when running workers still have the old handlers, on both brokers."""

from __future__ import annotations

import contextlib
import io
import signal
from pathlib import Path

import pytest

from fileq.cli import main
from fileq.core.job import State
from tests.support.command_line import CommandLine
from tests.support.program import Program
from tests.support.waiting import wait_until

FAILING = 'import fileq, rules\n\n@fileq.handler(type="t")\ndef t(job, context):\n    raise fileq.Permanent("no")\n'
CONFIG = "imports: [app]\nworker: {count: 1, heartbeat_ttl: 3s}\n"


def notes(shell: CommandLine, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command prints to stderr."""
    capsys.readouterr()
    assert main([*words, *shell.sets]) == 0
    return capsys.readouterr().err


def in_order(shell: CommandLine, *words: str) -> list[str]:
    """The lines of stdout and stderr, in the order in which they were printed."""
    both = io.StringIO()
    with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
        assert main([*words, *shell.sets]) == 0
    return both.getvalue().splitlines()


def test_a_retry_says_once_that_a_running_worker_has_the_old_handlers(
    shell: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    setup, app, rules = shell.setup, Path("app.py"), Path("rules.py")
    Path("config.yaml").write_text(CONFIG)
    app.write_text(FAILING)
    rules.write_text("")
    with Program("worker", cwd=setup.directory, settings=setup.settings) as worker:
        setup.enqueue("t", "a", "b", "c")
        setup.wait_for(State.DEAD, ["a", "b", "c"])
        assert notes(shell, capsys, "dlq", "retry", "a") == ""
        setup.wait_for(State.DEAD, ["a"])

        rules.write_text("# fixed")
        [line] = notes(shell, capsys, "dlq", "retry", "a", "b").splitlines()
        assert line.startswith("note: rules.py has changed since the worker ")
        assert line.endswith(f"restart it, or run 'kill -HUP {worker.process.pid}' if it is a service")
        assert notes(shell, capsys, "breaker", "reset").startswith("note: rules.py has changed ")
        for options in (["--dry-run"], []):
            first, *others = in_order(shell, "dlq", "retry", "--all", *options)
            assert first.startswith("note: rules.py has changed "), "before the result"
            assert others
        assert notes(shell, capsys, "-q", "breaker", "reset") == ""
        setup.wait_for(State.DEAD, ["a", "b", "c"])
        assert notes(shell, capsys, "dlq", "retry", "c", "--json") == ""

        worker.signal(signal.SIGHUP)
        worker.wait_for("config.reloaded")
        wait_until(lambda: notes(shell, capsys, "breaker", "reset") == "", 10, "the new worker is registered")
        Path("config.yaml").write_text(f"{CONFIG}# changed\n")
        assert notes(shell, capsys, "breaker", "reset").startswith("note: config.yaml has changed ")
        assert worker.stop() == 0
    assert notes(shell, capsys, "breaker", "reset") == "", "no worker is running"
