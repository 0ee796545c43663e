"""The command line: parses the arguments, calls one command, prints, and returns the exit code.

Every expected failure becomes one line on stderr and an exit code, never a traceback. command.py defines what a command
is, definitions/ holds the commands, parser.py finds the one that was typed, *_text.py turn results into lines.
This module must import nothing heavy: each command imports what it needs when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from fileq import __version__
from fileq.core.errors import BrokerUnavailable, ConfigError, FileqError

OK, FAILED, USAGE, LEFT_DEAD, UNREACHABLE = range(5)
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a write to stdout, which has no file name
INTERRUPTED = 130  # the code that shells report for a program ended by Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 usage or configuration, 3 work left dead, 4 broker unreachable."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except FileqError as error:
        for problem in error.problems if isinstance(error, ConfigError) else [str(error)]:
            _print_error(problem)
        code = UNREACHABLE if isinstance(error, BrokerUnavailable) else FAILED
        return USAGE if isinstance(error, ConfigError) else code
    except BrokenPipeError:
        _drop_output()
        return OK
    except OSError as error:  # for example: the disk that takes our output is full, the working directory was removed
        what = error.filename or ("the output can't be written" if error.errno in _OF_OUTPUT else "")
        _print_error(": ".join(str(part) for part in (what, error.strerror or error) if part))
        _drop_output()
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    if "--version" in arguments[: arguments.index("--") if "--" in arguments else None]:
        print(f"fileq {__version__}")
        return OK
    if arguments[:1] == ["__complete"]:
        return _complete(arguments[1:])
    from fileq.cli.command import Invocation
    from fileq.cli.parser import parse

    parsed = parse(arguments)
    if parsed.text:
        print(parsed.text, end="")
        return OK
    assert parsed.command is not None
    with Invocation(parsed.command, parsed.options) as invocation:
        return parsed.command.run(invocation)


def _complete(arguments: list[str]) -> int:
    """Answers the completion script of a shell. A line that is wrong gets no candidates and no message."""
    from fileq.cli.completion import answer

    try:
        shell, *words = arguments
        print(answer(shell, words), end="")
    except (ConfigError, ValueError):
        return USAGE
    return OK


def _prepare_output() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # The parent process closed this descriptor. A database must not get its number: a print would then write
            # into the database file.
            setattr(sys, name, open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))  # noqa: SIM115
    # A file name on disk may be invalid in every encoding; printing it must not raise.
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")


def _print_error(text: str) -> None:
    """Prints exactly one line, even if the text contains a file name with newlines."""
    from fileq.core.text import printable

    print(f"fileq: {printable(text)}", file=sys.stderr)


def _drop_output() -> None:
    """The reader of stdout has exited, as `head` does; the rest of the buffer must not raise at exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
