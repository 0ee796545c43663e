"""The command line: parses, calls, and turns every expected failure into one line and an exit code.

Nothing heavy is imported here; each command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from fileq import __version__
from fileq.errors import BrokerUnavailable, ConfigError, FileqError

OK, FAILED, USAGE, LEFT_DEAD, UNREACHABLE = range(5)
ROLES = ("producer", "worker", "all")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 usage or configuration, 3 work left dead, 4 broker unreachable."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser().parse_args(_with_role_as_word(arguments))
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
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
        sys.stderr.close()
        return OK
    except KeyboardInterrupt:
        return 130


def _complain(text: str) -> None:
    print(f"fileq: {text}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Usage errors are one line with what to do, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see '{self.prog} --help'")


def _with_role_as_word(arguments: list[str]) -> list[str]:
    """`--role=worker …` and `--role worker …` as `worker …`."""
    for i, argument in enumerate(arguments):
        if argument.startswith("--role="):
            return [argument.removeprefix("--role="), *arguments[:i], *arguments[i + 1 :]]
        if argument == "--role" and i + 1 < len(arguments):
            return [arguments[i + 1], *arguments[:i], *arguments[i + 2 :]]
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="fileq", description="Drop a file into a directory: queued once, processed, never lost.")
    parser.add_argument("--version", action="version", version=f"fileq {__version__}")
    common = _Parser(add_help=False)
    common.add_argument("--config", metavar="FILE", help="configuration file (default: $FILEQ_CONFIG, ./config.yaml)")
    common.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="sets", help="override one key")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for role in ROLES:
        command = commands.add_parser(role, parents=[common], help=f"run as {role}")
        command.add_argument("scan_dir", nargs="?", help="the directory to process (producer.scan_dir)")
        command.add_argument("--app-dir", default=".", metavar="DIR", help="where handlers are imported from")
        command.add_argument("--once", action="store_true", help="do what there is to do, then exit")
        if role != "producer":
            command.add_argument("--count", type=int, metavar="N", help="slots (worker.count)")
        command.set_defaults(run=_run_role, role=role, count=None)
    attempt = commands.add_parser("try", parents=[common], help="run the handler of one file here and now, no queue")
    attempt.add_argument("path", help="the file")
    attempt.add_argument("--app-dir", default=".", metavar="DIR", help="where handlers are imported from")
    attempt.set_defaults(run=_try)
    _add_config(commands, common)
    return parser


def _add_config(commands: argparse._SubParsersAction[_Parser], common: _Parser) -> None:
    config = commands.add_parser("config", help="look at the configuration")
    words = config.add_subparsers(metavar="WORD", required=True, parser_class=_Parser)
    words.add_parser("check", parents=[common], help="read it all, report everything wrong").set_defaults(
        run=_config_check
    )
    words.add_parser("list", parents=[common], help="every value and where it came from").set_defaults(
        run=_config_list, key=""
    )
    get = words.add_parser("get", parents=[common], help="one value, or those below a key")
    get.add_argument("key", help="such as worker.count or redis")
    get.set_defaults(run=_config_list)
    init = words.add_parser("init", help="write a file with every key, its default and its meaning")
    init.add_argument("file", nargs="?", default="config.yaml", help="where (default: config.yaml)")
    init.set_defaults(run=_config_init)


def _run_role(options: argparse.Namespace) -> int:
    from fileq.config import load

    flags = {"producer.scan_dir": options.scan_dir, "worker.count": options.count}
    given = [f"{key}={value}" for key, value in flags.items() if value is not None]
    loaded = load(options.config, [*options.sets, *given])
    if options.role == "producer":
        from fileq.roles import run_producer, run_producer_once

        return run_producer_once(loaded) if options.once else run_producer(loaded)
    from fileq.roles import run_worker

    if options.role == "all" and options.once:
        from fileq.once import run_all_once

        return run_all_once(loaded, options.app_dir)
    return run_worker(loaded, options.app_dir, is_producing=options.role == "all")


def _try(options: argparse.Namespace) -> int:
    from fileq.config import load
    from fileq.trying import try_path

    return try_path(load(options.config, options.sets), options.path, options.app_dir)


def _config_check(options: argparse.Namespace) -> int:
    from fileq.config import describe_broker_choice, load

    loaded = load(options.config, options.sets)
    print(f"ok: {loaded.path or 'no file, all defaults'}; broker {describe_broker_choice(loaded)}")
    for name in loaded.unknown_env:
        print(f"ignored: {name} is in the environment and names no setting")
    return OK


def _config_list(options: argparse.Namespace) -> int:
    from fileq.config import load, to_listing

    rows = to_listing(load(options.config, options.sets), options.key)
    wide = max(len(row.key) for row in rows)
    for row in rows:
        print(f"{row.key:<{wide}}  {row.value}  ({row.origin})")
    return OK


def _config_init(options: argparse.Namespace) -> int:
    from fileq.config import example_yaml

    try:
        with open(options.file, "x", encoding="utf-8") as file:
            file.write(example_yaml())
    except FileExistsError:
        raise ConfigError(f"{options.file!r} is there already; name another file or remove it") from None
    except OSError as error:
        raise ConfigError(f"{options.file!r} can't be written: {error.strerror}") from error
    print(f"wrote {options.file}")
    return OK
