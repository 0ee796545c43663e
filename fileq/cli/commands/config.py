"""`fileq config …`: the configuration, looked at."""

from __future__ import annotations

import argparse

from fileq.cli.command import Command, Context
from fileq.errors import ConfigError


def _nothing(parser: argparse.ArgumentParser) -> None:
    pass


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="such as worker.count, or a section such as redis")


def _file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="config.yaml", metavar="FILE", help="where to write it")


def _check(context: Context) -> int:
    from fileq.config import describe_broker_choice

    loaded = context.loaded()
    print(f"ok: {loaded.path or 'no file, all defaults'}; broker {describe_broker_choice(loaded)}")
    for name in loaded.unknown_env:
        print(f"ignored: {name} is in the environment and names no setting")
    return 0


def _list(context: Context) -> int:
    from fileq.config import to_listing

    rows = to_listing(context.loaded(), getattr(context.options, "key", ""))
    wide = max(len(row.key) for row in rows)
    for row in rows:
        print(f"{row.key:<{wide}}  {row.value}  ({row.origin})")
    return 0


def _init(context: Context) -> int:
    from fileq.config import example_yaml

    file = context.options.file
    try:
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(example_yaml())
    except FileExistsError:
        raise ConfigError(f"{file!r} is there already; name another file or remove it") from None
    except OSError as error:
        raise ConfigError(f"{file!r} can't be written: {error.strerror}") from error
    print(f"wrote {file}")
    return 0


COMMANDS = (
    Command(
        words=("config", "list"),
        summary="every value and where it came from",
        description="Prints every setting, its value and where that came from. Secrets are starred out.",
        examples=(("fileq config list", "what fileq would run with here"),),
        arguments=_nothing,
        run=_list,
    ),
    Command(
        words=("config", "get"),
        summary="one value, or those below a key",
        description="Prints one setting, or all of a section, as `config list` does.",
        examples=(("fileq config get worker.count", "one value"), ("fileq config get redis", "a section")),
        arguments=_key,
        run=_list,
    ),
    Command(
        words=("config", "check"),
        summary="read it all, report everything wrong",
        description="Reads file, environment and --set, and reports everything that is wrong at once, a line each.",
        examples=(("fileq config check --config staging.yaml", "is this file right?"),),
        arguments=_nothing,
        run=_check,
    ),
    Command(
        words=("config", "init"),
        summary="write a file with every key, its default and its meaning",
        description="Writes a configuration file with every key, its default and its meaning. Never over another file.",
        examples=(("fileq config init", "write ./config.yaml"),),
        arguments=_file,
        run=_init,
        is_configured=False,
    ),
)
