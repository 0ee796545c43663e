"""What `fileq show` says of one job, on both brokers."""

from __future__ import annotations

from fileq.core.settlement import complete
from fileq.testing.conformance.builders import running, settle
from tests.support.command_line import CommandLine


def facts(shown: str) -> dict[str, str]:
    """The lines of the first table, by their name."""
    lines = shown.partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition("  ") for line in lines)}


def test_an_attempt_has_the_duration_that_its_worker_logged(shell: CommandLine) -> None:
    settle(shell, complete(running(shell, "a"), duration_ms=1234))
    assert shell.json("show", "a")["attempts"][0]["duration_s"] == 1.234
    assert "completed after 1.2s" in shell.run("show", "a")
