"""`fileq completion`: print a completion script for a shell."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fileq.cli.command import Command, Invocation

if TYPE_CHECKING:
    from fileq.config import Config


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _run(invocation: Invocation) -> int:
    from fileq.cli.completion import completion_script
    from fileq.cli.definitions import all_commands

    config = _config(invocation)
    names = config.worker.priorities, tuple(config.schedules)
    print(completion_script(invocation.options.shell, all_commands(), *names), end="")
    return 0


def _config(invocation: Invocation) -> Config:
    """The configuration; the defaults if a file that was not named is invalid.

    The script is printed at the start of shells, in any directory."""
    from fileq.config import Config
    from fileq.core.errors import ConfigError

    try:
        return invocation.loaded().config
    except ConfigError:
        if invocation.options.config is not None:
            raise
        return Config()


COMMANDS = (
    Command(
        words=("completion",),
        summary="print a shell completion script",
        description="""\
Prints a script that lets the Tab key complete commands, with and without the word `admin`, options, their values,
queues, schedules, configuration keys and files. The script does not start fileq: the names of queues and schedules are
those of the configuration at the time when it is printed. Print it again after an upgrade.

To try it in the current bash: eval "$(fileq completion bash)".""",
        examples=(
            (
                "fileq completion bash > ~/.local/share/bash-completion/completions/fileq",
                "bash, effective in new shells",
            ),
            ("fileq completion zsh > ~/.zfunc/_fileq", "zsh, with ~/.zfunc in fpath before compinit"),
            ("fileq completion fish > ~/.config/fish/completions/fileq.fish", "fish"),
        ),
        arguments=_arguments,
        run=_run,
    ),
)
