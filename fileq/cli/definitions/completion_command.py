"""`fileq completion`: print a completion script for a shell."""

from __future__ import annotations

import argparse

from fileq.cli.command import Command, Invocation


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _run(invocation: Invocation) -> int:
    from fileq.cli.completion import completion_script
    from fileq.cli.definitions import all_commands

    print(completion_script(invocation.options.shell, all_commands()), end="")
    return 0


COMMANDS = (
    Command(
        words=("completion",),
        summary="print a shell completion script",
        description="""\
Prints a script that lets the Tab key complete commands, options, their values, configuration keys and files. The script
does not start fileq; print it again after an upgrade. To try it in the current bash: eval "$(fileq completion
bash)".""",
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
        is_configured=False,
    ),
)
