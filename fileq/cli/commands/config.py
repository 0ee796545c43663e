"""`fileq config …`: the configuration, looked at and changed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from fileq.cli.arguments import add_json
from fileq.cli.command import Command, Context
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.config import ListedSetting


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="such as worker.count, or a section such as redis")
    add_json(parser)


def _key_and_value(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="such as worker.count")
    parser.add_argument("value", metavar="VALUE", help="as for --set: 8, 30s, a,b or [a, b]; - reads a line from stdin")
    add_json(parser)


def _file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="config.yaml", metavar="FILE", help="where to write it")


def _check(context: Context) -> int:
    from fileq.config import describe_broker_choice

    try:
        loaded = context.loaded()
    except ConfigError as error:
        if not context.options.json:
            raise
        context.print_json({"is_ok": False, "problems": error.problems, "path": None, "broker": None, "ignored": []})
        return 2
    broker = describe_broker_choice(loaded)
    if context.options.json:
        told = {"is_ok": True, "problems": [], "path": loaded.path, "broker": broker, "ignored": loaded.unknown_env}
        context.print_json(told)
        return 0
    print(f"ok: {loaded.path or 'no file, all defaults'}; broker {broker}")
    for name in loaded.unknown_env:
        print(f"ignored: {name} is in the environment and names no setting")
    return 0


def _list(context: Context) -> int:
    from fileq.config import to_listing

    loaded = context.loaded()
    rows = to_listing(loaded, getattr(context.options, "key", ""))
    if context.options.json:
        context.print_json({"path": loaded.path, "settings": list(map(_as_json, rows))})
    else:
        _print(rows)
    return 0


def _as_json(row: ListedSetting) -> dict[str, Any]:
    return {"key": row.key, "value": row.plain, "layer": row.origin.layer, "origin": row.origin.name}


def _print(rows: list[ListedSetting]) -> None:
    wide = max(len(row.key) for row in rows)
    for row in rows:
        print(f"{row.key:<{wide}}  {row.value}  ({row.origin})")


def _set(context: Context) -> int:
    from fileq.config.edit import set_in_file

    options = context.options
    value = sys.stdin.readline().rstrip("\n") if options.value == "-" else options.value
    changed = set_in_file(options.key, value, path=options.config, sets=options.sets)
    if options.json:
        told = {
            "path": changed.path,
            "is_new_file": changed.is_new_file,
            "settings": list(map(_as_json, changed.written)),
            "overriding": list(map(_as_json, changed.overriding)),
            "problems": changed.problems,
        }
        context.print_json(told)
        return 0
    if changed.is_new_file:
        _remark(f"there was no configuration file; wrote a new {changed.path}")
    if changed.written:
        _print(changed.written)
    else:
        print(f"{options.key} is set in {changed.path}")
    for problem in changed.problems:
        _remark(f"still wrong: {problem}")
    if changed.is_exposed:
        _remark(f"everybody on this machine can read {changed.path}, which holds a secret; chmod o-r {changed.path}")
    for row in changed.overriding:
        source = f"{row.origin} in the environment" if row.origin.layer == "env" else f"{row.origin}"
        _remark(f"{row.key} stays {row.value} here: {source} overrides the file")
    return 0


def _remark(text: str) -> None:
    print(f"fileq: {text}", file=sys.stderr)


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


_SETTINGS = (
    ("settings", "list: one object for each setting, in the order of config.example.yaml"),
    ("settings[].key", "string: its dotted path"),
    ("settings[].value", "any: its value as the file would have it; durations as text, secrets starred out"),
    ("settings[].layer", "string: default, file, env or --set"),
    ("settings[].origin", "string: the line of the file or the name of the variable; else empty"),
)
_LISTED = (("path", "string or null: the file that was read, if any"), *_SETTINGS)

COMMANDS = (
    Command(
        words=("config", "list"),
        summary="every value and where it came from",
        description="Prints every setting, its value and where that came from. Secrets are starred out.",
        examples=(("fileq config list", "what fileq would run with here"),),
        arguments=add_json,
        run=_list,
        json_fields=_LISTED,
    ),
    Command(
        words=("config", "get"),
        summary="one value, or those below a key",
        description="Prints one setting, or all of a section, as `config list` does.",
        examples=(("fileq config get worker.count", "one value"), ("fileq config get redis", "a section")),
        arguments=_key,
        run=_list,
        json_fields=_LISTED,
    ),
    Command(
        words=("config", "set"),
        summary="change one value in the file, comments kept",
        description="""\
Changes one setting in the file that fileq loads here (--config, else $FILEQ_CONFIG, else ./config.yaml) and leaves
every other character of it alone, comments included. Where there is no file, ./config.yaml is made.

The result is checked before it is written: what would make the configuration wrong is refused. Says so if the
environment or --set overrides the file. A secret is never printed; to keep it out of the shell's history, give - and
type it. Running roles read the file when they start.""",
        examples=(
            ("fileq config set worker.count 8", "eight slots from the next start on"),
            ("fileq config set producer.include_globs '**/*.pdf,**/*.docx'", "a list"),
            ("fileq config set redis.password - < /run/secrets/redis", "a secret, from a file"),
        ),
        arguments=_key_and_value,
        run=_set,
        json_fields=(
            ("path", "string: the file that was written"),
            ("is_new_file", "boolean: there was none before"),
            *_SETTINGS,
            ("overriding", "list: the same fields, of what the environment or --set says in place of the file"),
            ("problems", "list of strings: what is still wrong with the configuration"),
        ),
    ),
    Command(
        words=("config", "check"),
        summary="read it all, report everything wrong",
        description="Reads file, environment and --set, and reports everything that is wrong at once, a line each.",
        examples=(("fileq config check --config staging.yaml", "is this file right?"),),
        arguments=add_json,
        run=_check,
        json_fields=(
            ("is_ok", "boolean: nothing is wrong; else the exit code is 2"),
            ("problems", "list of strings: everything that is wrong"),
            ("path", "string or null: the file that was read, if any"),
            ("broker", "string or null: which broker, where, and which setting chose it"),
            ("ignored", "list of strings: names in the environment that mean nothing to fileq"),
        ),
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
