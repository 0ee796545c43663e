"""`fileq completion`: what to do when Tab is pressed."""

from __future__ import annotations

import argparse

from fileq.cli.command import Command, Context


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _run(context: Context) -> int:
    from fileq.cli.commands import all_commands
    from fileq.cli.completion import completion_script

    print(completion_script(context.options.shell, all_commands()), end="")
    return 0


COMMANDS = (
    Command(
        words=("completion",),
        summary="print a script that completes fileq's words in your shell",
        description="""\
Prints a script that makes the Tab key complete commands, options, choices, keys of the configuration and files. The
script does not start fileq; print it anew after an upgrade. To try it in this bash only: eval "$(fileq completion
bash)".""",
        examples=(
            (
                "fileq completion bash > ~/.local/share/bash-completion/completions/fileq",
                "bash, from the next shell on",
            ),
            ("fileq completion zsh > ~/.zfunc/_fileq", "zsh, with ~/.zfunc in fpath before compinit"),
            ("fileq completion fish > ~/.config/fish/completions/fileq.fish", "fish"),
        ),
        arguments=_arguments,
        run=_run,
        is_configured=False,
    ),
)
