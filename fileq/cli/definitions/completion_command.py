"""`fileq completion`: print a completion script for a shell."""

from __future__ import annotations

import argparse

from fileq.cli.command import Command, Invocation


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _run(invocation: Invocation) -> int:
    from fileq.cli.completion import completion_script
    from fileq.cli.definitions import all_commands

    print(completion_script(invocation.options.shell, all_commands(), _queues(invocation)), end="")
    return 0


def _queues(invocation: Invocation) -> tuple[str, ...]:
    """The queues of the configuration; of the defaults if a file that was not named is invalid.

    The script is printed at the start of shells, in any directory."""
    from fileq.config import Config
    from fileq.core.errors import ConfigError

    try:
        return invocation.loaded().config.worker.priorities
    except ConfigError:
        if invocation.options.config is not None:
            raise
        return Config().worker.priorities


COMMANDS = (
    Command(
        words=("completion",),
        summary="print a shell completion script",
        description="""\
Prints a script that lets the Tab key complete commands, with and without the word `admin`, options, their values,
queues, configuration keys and files. The script does not start fileq: the names of the queues are those of the
configuration at the time when it is printed. Print it again after an upgrade.

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
