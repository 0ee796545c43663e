"""Completion in a real shell."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fileq.cli import main
from fileq.cli.completion import SHELLS, completion_script
from fileq.cli.definitions import all_commands
from fileq.cli.parser import parser_of
from tests.support.program import run

# The words that work without `admin`.
SHORT = {command.words[1] for command in all_commands() if command.words[0] == "admin"}


@pytest.fixture(scope="module")
def bash_script() -> str:
    return completion_script("bash", all_commands())


def offered(script: str, *words: str, cwd: Path) -> set[str]:
    """What bash would offer for the last of these words."""
    [found] = offered_for_each(script, [words], cwd=cwd)
    return found


def offered_for_each(script: str, lines: Sequence[Sequence[str]], *, cwd: Path) -> list[set[str]]:
    """What one bash would offer for the last word of each of these lines."""
    asked = [script]
    for words in lines:
        line = " ".join(map(shlex.quote, ("fileq", *words)))
        asked.append(f"COMP_WORDS=({line}) COMP_CWORD={len(words)}\n_fileq\nprintf '%s ' \"${{COMPREPLY[@]}}\"; echo")
    # By stdin: the script is longer than one argument of a program may be.
    ended = subprocess.run(
        ["bash", "--norc", "-u", "-s"],
        input="\n".join(asked),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr == ""
    return [set(line.split()) for line in ended.stdout.splitlines()]


def test_every_command_is_reached_word_by_word_and_offers_its_own_options(bash_script: str, tmp_path: Path) -> None:
    commands = all_commands()
    steps = [(command, i) for command in commands for i in range(len(command.words))]
    lines = [(*command.words[:i], command.words[i][:2]) for command, i in steps]
    found = offered_for_each(bash_script, [*lines, *((*command.words, "-") for command in commands)], cwd=tmp_path)
    assert len(found) == len(steps) + len(commands)
    for (command, i), words in zip(steps, found, strict=False):
        assert command.words[i] in words, command.name
    for command, flags in zip(commands, found[len(steps) :], strict=True):
        own = {flag for action in parser_of(command).actions for flag in action.option_strings}
        assert flags == own, command.name


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["wor"], {"worker", "workers"}),
        (["sta"], {"start", "stats"}),
        (["dl"], {"dlq"}),
        (["dlq", "re"], {"retry"}),
        (["admin", "sta"], {"stats"}),
        (["pause", ""], {"high", "low"}),
        (["pause", "high", "l"], {"low"}),
        (["admin", "resume", "h"], {"high"}),
        (["list", "--queue", ""], {"high", "low"}),
        (["list", "--state", "re"], {"retrying"}),
        (["dlq", "retry", "--state", ""], {"dead"}),
        (["enqueue", "--priority", "h"], {"high"}),
        (["peek", "--queue", "c"], {"completed", "cancelled"}),
        (["config", "c"], {"check"}),
        (["--config", "x", "config", "--set", "a", "che"], {"check"}),
        (["--role", "="], {"producer", "worker", "all", "serve", "start", "admin"}),
        (["--role", "=", "wo"], {"worker"}),
        (["--role", "p"], {"producer"}),
        (["--role", "=", "worker", "--cou"], {"--count"}),
        (["--role=worker", "--cou"], {"--count"}),
        (["--config", "=", "worker", "config", "che"], {"check"}),
        (["doctor", "w"], {"worker"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["config", "get", "worker.cou"], {"worker.count"}),
        (["worker", "--set", "worker.cou"], {"worker.count="}),
        (["--vers"], {"--version"}),
        (["enqueue", "a"], {"a.pdf", "apples"}),
        (["enqueue", "--config", "a"], {"a.pdf", "apples"}),
        (["worker", "--app-dir", "a"], {"apples"}),
        (["nonsense", ""], {command.words[0] for command in all_commands()} | SHORT),
    ],
)
def test_possible_next_words_are_offered(words: list[str], wanted: set[str], bash_script: str, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").touch()
    (tmp_path / "apples").mkdir()
    assert offered(bash_script, *words, cwd=tmp_path) == wanted


def test_every_installed_shell_accepts_its_script(tmp_path: Path) -> None:
    for shell in SHELLS:
        script = tmp_path / shell
        script.write_text(completion_script(shell, all_commands()))
        if shutil.which(shell):
            checked = subprocess.run(
                [shell, "-n", str(script)], capture_output=True, text=True, timeout=30, check=False
            )
            assert (checked.returncode, checked.stderr) == (0, ""), shell


def test_an_unknown_shell_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "fileq: SHELL is 'tcsh'; it must be one of bash, zsh, fish; see 'fileq completion --help'"
    ]
    assert main(["completion"]) == 2


def test_the_script_knows_the_queues_and_schedules_of_the_configuration(tmp_path: Path) -> None:
    def queues_offered() -> set[str]:
        ended = run("completion", "bash", cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        return offered(ended.stdout, "pause", "", cwd=tmp_path)

    assert queues_offered() == {"high", "low"}
    (tmp_path / "config.yaml").write_text(
        "worker: {priorities: [now, later], queues: {now: n, later: l}}\nproducer: {default_priority: later}\n"
    )
    assert queues_offered() == {"now", "later"}
    (tmp_path / "config.yaml").write_text(
        'schedules: {nightly: {cron: "@daily", type: t}, weekly: {cron: "@weekly", type: t}}'
    )
    script = run("completion", "bash", cwd=tmp_path).stdout
    assert offered(script, "schedule", "pause", "", cwd=tmp_path) == {"nightly", "weekly"}
    assert offered(script, "schedule", "next", "n", cwd=tmp_path) == {"nightly"}
    (tmp_path / "config.yaml").write_text("worker: {count: none}\n")
    assert queues_offered() == {"high", "low"}, "a shell that starts in this directory must get its completion"
    assert run("completion", "bash", "--config", "config.yaml", cwd=tmp_path).returncode == 2


def test_the_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert f"fileq completion for {shell}" in capsys.readouterr().out
