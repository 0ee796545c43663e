"""The command line: parses, calls, and turns every expected failure into one line and an exit code.

command.py says what a command is, commands/ holds them, parser.py finds the one that was meant. Nothing heavy is
imported here; each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fileq import __version__
from fileq.errors import BrokerUnavailable, ConfigError, FileqError

OK, FAILED, USAGE, LEFT_DEAD, UNREACHABLE = range(5)
INTERRUPTED = 130  # what shells report of a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 usage or configuration, 3 work left dead, 4 broker unreachable."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        # A name on disk may be no text in any encoding; showing it must not be what fails.
        if reconfigure := getattr(sys.stdout, "reconfigure", None):
            reconfigure(errors="backslashreplace")
        code = OK if _is_told_the_version(arguments) else _run(arguments)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        for problem in error.problems:
            _complain(problem)
        return USAGE
    except BrokerUnavailable as error:
        _complain(str(error))
        return UNREACHABLE
    except FileqError as error:
        _complain(str(error))
        return FAILED
    except BrokenPipeError:
        _drop_output()
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    from fileq.cli.command import Context
    from fileq.cli.parser import parse

    parsed = parse(arguments)
    if parsed.text:
        print(parsed.text, end="")
        return OK
    assert parsed.command is not None
    with Context(parsed.options) as context:
        return parsed.command.run(context)


def _is_told_the_version(arguments: list[str]) -> bool:
    if arguments[:1] != ["--version"]:
        return False
    print(f"fileq {__version__}")
    return True


def _complain(text: str) -> None:
    print(f"fileq: {text}", file=sys.stderr)


def _drop_output() -> None:
    """Whoever read our output has gone, as `head` does; what is still in the buffer must not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
