"""`fileq config …`: show, check and change the configuration."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from fileq.cli.arguments import add_app_dir, add_json
from fileq.cli.command import Command, Invocation
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.config import ListedSetting


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a setting such as worker.count, or a section such as redis")
    parser.add_argument("--origin", action="store_true", help="also print the key and where the value comes from")
    add_json(parser)


def _key_and_value(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a setting such as worker.count")
    parser.add_argument("value", metavar="VALUE", help="as for --set: 8, 30s, a,b or [a, b]; - reads one line of stdin")
    add_json(parser)


def _file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="config.yaml", metavar="FILE", help="file to write")


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--handlers", action="store_true", help="also import the handlers, as a worker would")
    add_app_dir(parser)
    add_json(parser)


def _check(invocation: Invocation) -> int:
    from fileq.commands.check_config import check_config
    from fileq.config import describe_broker_choice

    options = invocation.options
    try:
        loaded = invocation.loaded()
        checked = check_config(loaded.config, options.app_dir if options.handlers else None)
    except ConfigError as error:
        if not options.json:
            raise
        empty: dict[str, Any] = {"path": None, "broker": None, "ignored": [], "warnings": [], "handlers": None}
        invocation.print_json({"is_ok": False, "problems": error.problems, **empty})
        return 2
    broker = describe_broker_choice(loaded)
    if options.json:
        document = {
            "is_ok": True,
            "problems": [],
            "path": loaded.path,
            "broker": broker,
            "ignored": loaded.unknown_env,
            "warnings": checked.warnings,
            "handlers": checked.handlers,
        }
        invocation.print_json(document)
        return 0
    print(f"ok: {loaded.path or 'no file, all defaults'}; broker {broker}")
    for warning in checked.warnings:
        print(f"warning: {warning}")
    for name in loaded.unknown_env:
        similar = loaded.misspelt_env.get(name)
        hint = f"; did you mean {similar}?" if similar else ""
        print(f"ignored: the environment variable {name} names no setting{hint}")
    if checked.handlers is None:
        print("handlers were not imported; --handlers imports them, as a worker would")
    for route in checked.handlers or ():
        print(f"handler: {route}")
    return 0


def _get(invocation: Invocation) -> int:
    """Prints the value only, so that a script can use it; of a section, one line for each setting."""
    options = invocation.options
    if options.json or options.origin:
        return _list(invocation)
    from fileq.config import to_listing

    rows = to_listing(invocation.loaded(), options.key)
    if len(rows) == 1 and rows[0].key == options.key:
        print(rows[0].plain if isinstance(rows[0].plain, str) else rows[0].value)
        return 0
    wide = max(len(row.key) for row in rows)
    for row in rows:
        print(f"{row.key:<{wide}}  {row.value}")
    return 0


def _list(invocation: Invocation) -> int:
    from fileq.config import to_listing

    loaded = invocation.loaded()
    rows = to_listing(loaded, getattr(invocation.options, "key", ""))
    if invocation.options.json:
        invocation.print_json({"path": loaded.path, "settings": list(map(_as_json, rows))})
    else:
        _print(rows)
    return 0


def _as_json(row: ListedSetting) -> dict[str, Any]:
    return {"key": row.key, "value": row.plain, "layer": row.origin.layer, "origin": row.origin.name}


def _print(rows: list[ListedSetting]) -> None:
    wide = max(len(row.key) for row in rows)
    for row in rows:
        print(f"{row.key:<{wide}}  {row.value}  ({row.origin})")


def _set(invocation: Invocation) -> int:
    from fileq.config.edit import set_in_file
    from fileq.config.load import is_reloadable

    options = invocation.options
    value = sys.stdin.readline().rstrip("\n") if options.value == "-" else options.value
    changed = set_in_file(options.key, value, path=options.config, sets=options.sets)
    # A value that is overridden here has no effect, with or without a restart.
    needs_reload = not changed.overriding and is_reloadable(options.key)
    needs_restart = not changed.overriding and not needs_reload
    if options.json:
        document = {
            "path": changed.path,
            "is_new_file": changed.is_new_file,
            "settings": list(map(_as_json, changed.written)),
            "overriding": list(map(_as_json, changed.overriding)),
            "problems": changed.problems,
            "needs_reload": needs_reload,
            "needs_restart": needs_restart,
        }
        invocation.print_json(document)
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
        _remark(f"all users of this machine can read {changed.path}, which holds a secret; chmod o-r {changed.path}")
    for row in changed.overriding:
        source = f"{row.origin} in the environment" if row.origin.layer == "env" else f"{row.origin}"
        _remark(f"{row.key} stays {row.value} here: {source} overrides the file")
    if (needs_restart or needs_reload) and not options.quiet:
        advice = "send SIGHUP to workers, or restart them" if needs_reload else "restart them"
        _remark(f"fileq processes that are running keep the value they started with; {advice}")
    return 0


def _remark(text: str) -> None:
    print(f"fileq: {text}", file=sys.stderr)


def _init(invocation: Invocation) -> int:
    from fileq.config import example_yaml

    file = invocation.options.file
    try:
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(example_yaml())
    except FileExistsError:
        raise ConfigError(f"{file!r} exists already; name another file or remove it") from None
    except OSError as error:
        raise ConfigError(f"{file!r} can't be written: {error.strerror}") from error
    print(f"wrote {file}")
    return 0


_SETTINGS = (
    ("settings", "list: one object for each setting, in the order of config.example.yaml"),
    ("settings[].key", "string: the dotted path of the setting"),
    ("settings[].value", "any: the value as written in a file; durations as text, secrets as ***"),
    ("settings[].layer", "string: where the value comes from: default, file, env or --set"),
    ("settings[].origin", "string: the line of the file or the name of the variable; else empty"),
)
_LISTED = (("path", "string or null: the file that was read, if any"), *_SETTINGS)

COMMANDS = (
    Command(
        words=("config", "list"),
        summary="show every setting and where its value comes from",
        description="Prints every setting, its value and where the value comes from. Secrets are shown as ***.",
        examples=(("fileq config list", "the configuration that fileq would use in this directory"),),
        arguments=add_json,
        run=_list,
        json_fields=_LISTED,
    ),
    Command(
        words=("config", "get"),
        summary="show one setting or one section",
        description="""\
Prints the value of one setting and nothing else, for scripts. Of a section it prints each setting with its value. With
--origin it prints what `config list` prints: key, value and where the value comes from. Secrets are shown as ***.""",
        examples=(
            ("fileq config get worker.count", "16"),
            ("fileq config get worker.count --origin", "where the value comes from"),
            ("fileq config get redis", "a section"),
        ),
        arguments=_key,
        run=_get,
        json_fields=_LISTED,
    ),
    Command(
        words=("config", "set"),
        summary="change one setting in the file, keeping comments",
        description="""\
Changes one setting in the file that fileq loads here (--config, else $FILEQ_CONFIG, else ./config.yaml). Everything
else in the file stays as it is, comments included. If there is no file, ./config.yaml is created.

The result is checked before it is written; a change that makes the configuration invalid is refused. A remark says if
the environment or --set overrides the file. A secret is never printed; to keep it out of the shell's history, give -
and type it. Roles read the file when they start; a remark says whether workers take over the value on SIGHUP or must be
restarted.""",
        examples=(
            ("fileq config set worker.count 8", "eight slots, effective at the next start"),
            ("fileq config set producer.include_globs '**/*.pdf,**/*.docx'", "a list"),
            ("fileq config set redis.password - < /run/secrets/redis", "a secret, read from a file"),
        ),
        arguments=_key_and_value,
        run=_set,
        only_confirms=True,
        json_fields=(
            ("path", "string: the file that was written"),
            ("is_new_file", "boolean: the file did not exist before"),
            *_SETTINGS,
            ("overriding", "list: settings, with the same fields, that the environment or --set overrides"),
            ("problems", "list of strings: what is still wrong with the configuration"),
            ("needs_reload", "boolean: running workers use the value after SIGHUP; false if overridden"),
            ("needs_restart", "boolean: running processes must be restarted to use the value; false if overridden"),
        ),
    ),
    Command(
        words=("config", "check"),
        summary="check the configuration and report every problem",
        description="""\
Reads the file, the environment and --set, and reports all problems at once, one line each.

Also warns of what is valid and may surprise: a route whose glob has no **/ and so matches the files of one directory
only; routes that leave files without a handler; an empty `handlers`; files in scan_dir that a glob of include_globs
misses by upper and lower case only, such as A.PDF and **/*.pdf. Warnings do not change the exit code.

Handlers are imported only with --handlers, because that runs their code. Then a schedule whose type no task or route
takes is a problem too.""",
        examples=(
            ("fileq config check --config staging.yaml", "is this file valid?"),
            ("fileq config check --handlers --app-dir /opt/handlers", "and can its handlers be imported?"),
        ),
        arguments=_check_arguments,
        run=_check,
        json_fields=(
            ("is_ok", "boolean: there is no problem; else the exit code is 2"),
            ("problems", "list of strings: all problems"),
            ("path", "string or null: the file that was read, if any"),
            ("broker", "string or null: which broker, its address, and the setting that selected it"),
            ("ignored", "list of strings: FILEQ_ variables in the environment that name no setting"),
            ("warnings", "list of strings: what is valid and may surprise"),
            ("handlers", "list of strings: the routes in their order, with --handlers; else null"),
        ),
    ),
    Command(
        words=("config", "init"),
        summary="write a file with every setting, its default and meaning",
        description="""\
Writes a configuration file with every setting, its default and its meaning. Never overwrites a file.""",
        examples=(("fileq config init", "write ./config.yaml"),),
        arguments=_file,
        run=_init,
        is_configured=False,
    ),
)
