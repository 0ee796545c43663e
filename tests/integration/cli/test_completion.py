"""What Tab offers: the answers of `fileq __complete`, and its scripts in the real shells."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fileq.cli import main
from fileq.cli.completion import SHELLS, Offer, answer, script
from fileq.cli.parser import all_commands, parser_of
from tests.integration.cli.test_cli import SLOW, imported_by
from tests.support.program import environment

# The words that work without `admin`.
SHORT = {command.words[1] for command in all_commands() if command.words[0] == "admin"}


def offered(*words: str, shell: str = "fish") -> set[str]:
    """The candidates for the last of these words."""
    kind, *lines = answer(shell, words).splitlines()
    assert kind in ("words", "keys")
    return {line.partition("\t")[0] for line in lines}


def test_every_command_is_reached_word_by_word_and_offers_its_own_options() -> None:
    for command in all_commands():
        for i, word in enumerate(command.words):
            assert word in offered(*command.words[:i], word[:2]), command.name
        own = {flag for action in parser_of(command).actions for flag in action.option_strings}
        assert offered(*command.words, "-") == own, command.name


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
        (["list", "--status", "re"], {"retrying"}),
        (["list", "--limit", "5", "--status=re"], {"--status=retrying"}),
        (["list", "--limit", ""], set()),
        (["dlq", "retry", "--status", ""], {"dead"}),
        (["enqueue", "--priority", "h"], {"high"}),
        (["enqueue", "--", "--pri"], "files"),
        (["peek", "--queue", "c"], {"completed", "cancelled"}),
        (["config", "c"], {"check"}),
        (["--config", "x", "config", "--set", "a", "che"], {"check"}),
        (["--config=worker", "config", "che"], {"check"}),
        (["--role", ""], {"producer", "worker", "all", "serve", "start", "admin"}),
        (["--role=wo"], {"--role=worker"}),
        (["--role", "p"], {"producer"}),
        (["--role", "worker", "--cou"], {"--count"}),
        (["--role=worker", "--cou"], {"--count"}),
        (["doctor", "w"], {"worker"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["completion", "bash", ""], set()),
        (["config", "get", "worker.cou"], {"worker.count"}),
        (["config", "set", "worker.count", "wor"], set()),
        (["worker", "--set", "worker.cou"], {"worker.count="}),
        (["worker", "--set=worker.cou"], {"--set=worker.count="}),
        (["--vers"], {"--version"}),
        (["worker", "--app-dir", "a"], "directories"),
        (["enqueue", "a"], "files"),
        (["enqueue", "--config", "a"], "files"),
        (["nonsense", ""], set()),
        ([""], {command.words[0] for command in all_commands()} | SHORT),
    ],
)
def test_possible_next_words_are_offered(words: list[str], wanted: set[str] | str) -> None:
    if isinstance(wanted, str):
        assert answer("fish", words) == f"{wanted}\n\n"
    else:
        assert offered(*words) == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--role", "="], {"producer", "worker", "all", "serve", "start", "admin"}),
        (["--role", "=", "wo"], {"worker"}),
        (["--role", "=", "worker", "--cou"], {"--count"}),
        (["--config", "=", "worker", "config", "che"], {"check"}),
        (["worker", "--set", "=", "worker.cou"], {"worker.count="}),
    ],
)
def test_bash_splits_words_at_the_sign_and_completes_what_follows_it(words: list[str], wanted: set[str]) -> None:
    assert offered(*words, shell="bash") == wanted


def test_queues_and_schedules_are_those_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        "worker: {priorities: [now, later], queues: {now: n, later: l}}\nproducer: {default_priority: later}\n"
        'schedules: {nightly: {cron: "@daily", type: t}, weekly: {cron: "@weekly", type: t}}\n'
        "broker: redis\nredis: {addr: '127.0.0.1:1'}\n"
    )
    assert offered("pause", "") == {"now", "later"}
    assert offered("schedule", "pause", "") == {"nightly", "weekly"}
    assert offered("schedule", "next", "n") == {"nightly"}
    config.rename(tmp_path / "other.yaml")
    assert offered("pause", "") == {"high", "low"}
    assert offered("--config", "other.yaml", "pause", "n") == {"now"}
    config.write_text("worker: {count: none}\n")
    assert offered("pause", "") == {"high", "low"}, "a wrong configuration is no reason to complete nothing"
    os.mkfifo(tmp_path / "pipe")
    assert offered("--config", "pipe", "pause", "") == {"high", "low"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_name_that_a_shell_would_have_to_quote_is_not_offered(shell: str) -> None:
    hostile = (
        "$(touch x)",
        "a;b",
        "a b",
        "`x`",
        "a'b",
        "a\nwords\nb",
        "a\tb",
        "~root",
        "a\x1b[2J",
        "a|b",
        "!x",
        "a*",
        "",
    )
    lines = Offer(words=dict.fromkeys((*hostile, "plain", "ä.b-c"), "")).printed(shell, "").splitlines()
    assert [line.rstrip("\t") for line in lines] == ["words", "plain", "ä.b-c"]


def test_an_answer_imports_nothing_heavy_and_opens_no_broker() -> None:
    lines, imported = imported_by("__complete", "fish", "pause", "h")
    assert lines == ["words", "high\t"]
    assert not imported & SLOW
    assert not {name for name in imported if name.startswith("fileq.brokers.")}


@pytest.mark.parametrize("arguments", [[], ["bash"], ["bash", "--role=x", "w"], ["bash", "--role", "x", ""]])
def test_a_line_that_can_not_be_completed_gets_no_candidates_and_no_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["__complete", *arguments]) == 2
    assert capsys.readouterr() == ("", "")


def test_an_unknown_shell_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "fileq: SHELL is 'tcsh'; it must be one of bash, zsh, fish; see 'fileq completion --help'"
    ]
    assert main(["completion"]) == 2


def test_the_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == script(shell)
        assert f"fileq completion for {shell}" in script(shell)


# The scripts in the shells that are installed. Each line ends where Tab is pressed.

LINES = {
    "fileq pau": "fileq pause ",
    "fileq pause h": "fileq pause high ",
    "fileq --role=wor": "fileq --role=worker ",
    "fileq worker --cou": "fileq worker --count ",
    "fileq worker --set worker.cou": "fileq worker --set worker.count=",
    "fileq enqueue a.p": "fileq enqueue a.pdf ",
    "fileq --config=a.p": "fileq --config=a.pdf ",
    "fileq worker --app-dir app": "fileq worker --app-dir apples/",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with two names, and `fileq` in bin/."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "fileq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fileq "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a.pdf").touch()
    (tmp_path / "apples").mkdir()
    for shell in SHELLS:
        (tmp_path / f"script.{shell}").write_text(script(shell))
    return tmp_path


def environment_of(home: Path) -> dict[str, str]:
    return environment(HOME=str(home), PATH=f"{home}/bin:{os.environ['PATH']}", TERM="dumb")


def in_bash(home: Path) -> dict[str, str]:
    setup = r"""show() { echo "<$READLINE_LINE>"; }; bind -x '"\C-g": show'"""
    return typed(["bash", "--norc", "-i"], home, setup)


def in_zsh(home: Path) -> dict[str, str]:
    setup = (
        "autoload -Uz compinit; compinit -u -D; unsetopt beep prompt_cr; "
        "show() { print -r -- \"<$BUFFER>\"; BUFFER= }; zle -N show; bindkey '^G' show"
    )
    return typed(["zsh", "-f", "-i"], home, setup)


def typed(command: Sequence[str], home: Path, setup: str) -> dict[str, str]:
    """What each line becomes when Tab is pressed at its end: Ctrl-G makes the shell print it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.execvpe(command[0], list(command), environment_of(home))
    shown = b""

    def read_until(text: bytes) -> bytes:
        nonlocal shown
        while text not in shown:
            shown += os.read(terminal, 65536)
        before, _, shown = shown.partition(text)
        return before

    try:
        os.write(terminal, f"{setup}; source ./script.{command[0]}; echo rea''dy\n".encode())
        read_until(b"ready")
        became = {}
        for line in LINES:
            os.write(terminal, f"{line}\t\a".encode())
            read_until(b"<")
            became[line] = read_until(b">").decode()
            os.write(terminal, b"\x15")  # Ctrl-U
        os.write(terminal, b"exit\n")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return became


def in_fish(home: Path) -> dict[str, str]:
    """fish can be asked for the candidates. It adds the blank after the only one itself."""
    asked = "; ".join(f"complete -C {shlex.quote(line)}; echo ." for line in LINES)
    ended = subprocess.run(
        ["fish", "--no-config", "-c", f"source script.fish; {asked}"],
        cwd=home,
        env=environment_of(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr == ""
    became = {}
    for line, found in zip(LINES, ended.stdout.split(".\n"), strict=False):
        [word] = [candidate.partition("\t")[0] for candidate in found.splitlines()]
        became[line] = f"{line.rpartition(' ')[0]} {word}" + ("" if word.endswith(("=", "/")) else " ")
    return became


SHELLS: dict[str, Callable[[Path], dict[str, str]]] = {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_tab_completes_in_the_real_shell(shell: str, home: Path) -> None:
    assert SHELLS[shell](home) == LINES
