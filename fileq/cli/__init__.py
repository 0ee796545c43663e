"""The command line: parses, calls, and turns every expected failure into one line and an exit code.

command.py says what a command is, commands/ holds them, parser.py finds the one that was meant. Nothing heavy is
imported here; each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fileq import __version__
from fileq.core.errors import BrokerUnavailable, ConfigError, FileqError

OK, FAILED, USAGE, LEFT_DEAD, UNREACHABLE = range(5)
INTERRUPTED = 130  # what shells report of a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 usage or configuration, 3 work left dead, 4 broker unreachable."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    try:
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
    except OSError as error:  # the disk is full that our output goes to, the working directory is gone
        _complain(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        _drop_output()
        return FAILED
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
    if "--version" not in arguments[: arguments.index("--") if "--" in arguments else None]:
        return False
    print(f"fileq {__version__}")
    return True


def _prepare_output() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by whoever started us. Its number must not be given to a database, into which somebody may print.
            setattr(sys, name, open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))  # noqa: SIM115
    # A name on disk may be no text in any encoding; showing it must not be what fails.
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")


def _complain(text: str) -> None:
    """One line, whatever names are in it."""
    from fileq.core.text import printable

    print(f"fileq: {printable(text)}", file=sys.stderr)


def _drop_output() -> None:
    """Whoever read our output has gone, as `head` does; what is still in the buffer must not fail at exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
