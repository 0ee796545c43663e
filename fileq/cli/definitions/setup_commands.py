"""`fileq tasks|config …|doctor|completion`: what is configured here, and whether it works."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fileq.cli.arguments import APP_DIR, argument, text_or_empty
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import Screen, print_lines, remark, screen_of_stdout, table, wrapped
from fileq.core.errors import ConfigError
from fileq.core.text import printable
from fileq.core.units import format_duration

if TYPE_CHECKING:
    from fileq.commands.configured_handlers import ConfigCheck, TaskSummary
    from fileq.config import Loaded
    from fileq.config.show import ListedSetting
    from fileq.core.finding import Finding


_SETTINGS = (
    ("settings", "list: one object for each setting, in the order of config.example.yaml"),
    ("settings[].key", "string: the dotted path of the setting"),
    ("settings[].value", "any: the value as written in a file; durations as text, secrets as ***"),
    ("settings[].layer", "string: where the value comes from: default, file, env or --set"),
    ("settings[].origin", "string: the line of the file or the name of the variable; else empty"),
)
_LISTED = (("path", "string or null: the file that was read, if any"), *_SETTINGS)
_SIGNS = {"ok": ("✓", "green"), "wrong": ("✗", "red"), "unknown": ("–", "yellow")}
_NAME_WIDTH = 18


@command(
    "tasks",
    "list the tasks that programs can enqueue by name",
    APP_DIR,
    json_fields=declared("fileq.commands.configured_handlers:TaskSummary", "tasks[]", "one object each, by name"),
)
def _tasks(invocation: Invocation) -> int:
    """Imports the modules in `imports`, as a worker would, and lists the functions with @fileq.task: name, payload
    type, default queue, and the options that workers run them with.

    $ fileq tasks  # the tasks of ./config.yaml
    $ fileq tasks --app-dir /opt/app --json  # of another directory, as JSON"""
    from fileq.commands.configured_handlers import list_tasks

    tasks = list_tasks(invocation.config, invocation.options.app_dir)
    invocation.answer({"tasks": tasks}, lambda: _task_table(tasks))
    for task in tasks:
        if task.is_shadowed and not invocation.options.json:
            remark(f"a route in `handlers` takes the jobs of type {task.name}; the task never runs")
    return 0


def _task_table(tasks: tuple[TaskSummary, ...]) -> list[str]:
    if not tasks:
        return ["no module in `imports` has a task; see docs/client.md"]
    rows = [["name", "function", "payload", "queue", "timeout", "retries", "gives up on"]]
    for task in tasks:
        gives_up = [*map(str, task.give_up_on), *(["retry_if"] if task.has_retry_if else [])]
        row = [task.name, task.function, task.payload, task.priority, format_duration(task.timeout_s)]
        rows.append([*row, str(task.max_retries), ", ".join(gives_up)])
    return table(rows, screen_of_stdout(), right=(5,), flexible=1)


@command("config list", "show every setting and where its value comes from", json_fields=_LISTED)
def _list(invocation: Invocation) -> int:
    """Prints every setting, its value and where the value comes from. Secrets are shown as ***.

    $ fileq config list  # the configuration that fileq would use in this directory"""
    from fileq.config.show import to_listing

    loaded = invocation.loaded
    rows = to_listing(loaded, getattr(invocation.options, "key", ""))
    document = {"path": loaded.path, "settings": list(map(_setting_as_json, rows))}
    return invocation.answer(document, lambda: _setting_lines(rows))


@command(
    "config get",
    "show one setting or one section",
    argument("key", metavar="KEY", help="a setting such as worker.count, or a section such as redis"),
    argument("--origin", action="store_true", help="also print the key and where the value comes from"),
    json_fields=_LISTED,
)
def _get(invocation: Invocation) -> int:
    """Prints the value of one setting and nothing else, for scripts. For a section it prints each setting with its
    value. With --origin it prints the lines of `config list`: key, value and where the value comes from. Secrets are
    shown as ***.

    $ fileq config get worker.count  # 16
    $ fileq config get worker.count --origin  # where the value comes from
    $ fileq config get redis  # a section"""
    options = invocation.options
    if options.json or options.origin:
        return _list.run(invocation)
    from fileq.config.show import to_listing

    rows = to_listing(invocation.loaded, options.key)
    if len(rows) == 1 and rows[0].key == options.key:
        print(rows[0].plain if isinstance(rows[0].plain, str) else rows[0].value)
        return 0
    if options.key.startswith(f"{rows[0].key}."):
        raise ConfigError(f"{options.key} has no value: {rows[0].key} is the list {rows[0].value}")
    print_lines(table([(row.key, row.value) for row in rows], Screen(), has_header=False))
    return 0


def _setting_as_json(row: ListedSetting) -> dict[str, Any]:
    return {"key": row.key, "value": row.plain, "layer": row.origin.layer, "origin": row.origin.name}


def _setting_lines(rows: list[ListedSetting]) -> list[str]:
    return table([(row.key, f"{row.value}  ({row.origin})") for row in rows], Screen(), has_header=False)


@command(
    "config set",
    "change one setting in the file, keeping comments",
    argument("key", metavar="KEY", help="a setting such as worker.count"),
    argument(
        "value", type=text_or_empty, metavar="VALUE", help="as for --set: 8, 30s, a,b, [a, b]; - reads a line of stdin"
    ),
    json_fields=(
        ("path", "string: the file that was written"),
        ("is_new_file", "boolean: the file did not exist before"),
        *_SETTINGS,
        ("overriding", "list: settings, with the same fields, that the environment or --set overrides"),
        ("problems", "list of strings: what is still invalid in the configuration"),
        ("needs_reload", "boolean: running workers use the value after SIGHUP; false if overridden"),
        ("needs_restart", "boolean: running processes must be restarted to use the value; false if overridden"),
    ),
    only_confirms=True,
)
def _set(invocation: Invocation) -> int:
    """Changes one setting in the file that fileq loads here (--config, else $FILEQ_CONFIG, else ./config.yaml).
    Everything else in the file stays as it is, comments included. If there is no file, ./config.yaml is created.

    The result is checked before it is written; a change that makes the configuration invalid is refused. A note says if
    the environment or --set overrides the file. Secrets are never printed; to keep one out of the shell history, pass -
    and type it. Roles read the file when they start; a note says whether workers pick up the value on SIGHUP or need a
    restart.

    $ fileq config set worker.count 8  # eight slots, effective at the next start
    $ fileq config set producer.include_globs '**/*.pdf,**/*.docx'  # a list
    $ fileq config set redis.password - < /run/secrets/redis  # a secret, read from a file"""
    from fileq.config.edit import set_in_file
    from fileq.config.load import is_reloadable

    options = invocation.options
    value = options.value
    if value == "-":
        if not (line := sys.stdin.readline()):
            raise ConfigError(f"{options.key} is to be read from stdin (-), but stdin is empty")
        value = line.rstrip("\n")
    changed = set_in_file(options.key, value, path=options.config, sets=options.sets)
    # A value that is overridden here has no effect, with or without a restart.
    needs_reload = not changed.overriding and is_reloadable(options.key)
    needs_restart = not changed.overriding and not needs_reload
    if changed.is_exposed:
        remark(f"every user on this machine can read {changed.path}, which holds a secret; chmod o-r {changed.path}")
    document = {
        "path": changed.path,
        "is_new_file": changed.is_new_file,
        "settings": list(map(_setting_as_json, changed.written)),
        "overriding": list(map(_setting_as_json, changed.overriding)),
        "problems": changed.problems,
        "needs_reload": needs_reload,
        "needs_restart": needs_restart,
    }
    text = _setting_lines(changed.written) if changed.written else [f"{options.key} set in {changed.path}"]
    invocation.answer(document, lambda: text)
    if options.json:
        return 0
    if changed.is_new_file:
        remark(f"created {changed.path}")
    for problem in changed.problems:
        remark(f"still invalid: {problem}")
    for row in changed.overriding:
        source = f"{row.origin} in the environment" if row.origin.layer == "env" else f"{row.origin}"
        remark(f"{row.key} stays {row.value} here: {source} overrides the file")
    if (needs_restart or needs_reload) and not options.quiet:
        advice = "send workers SIGHUP, or restart them" if needs_reload else "restart them"
        remark(f"running fileq processes still use the old value; {advice}")
    return 0


@command(
    "config check",
    "check the configuration and report every problem",
    argument("--handlers", action="store_true", help="also import the handlers, as a worker would"),
    APP_DIR,
    json_fields=declared("fileq.commands.configured_handlers:ConfigCheck"),
)
def _check(invocation: Invocation) -> int:
    """Reads the file, the environment and --set, and reports all problems at once, one line each.

    Also warns about settings that are valid but may surprise: a glob of a route or of include_globs that has no **/ and
    so matches the files of one directory only, or that has a brace without alternatives; routes that leave files
    without a handler; an empty `handlers`; files in scan_dir that include_globs misses only because of case, such as
    A.PDF and **/*.pdf. Warnings do not change the exit code.

    Handlers are imported only with --handlers, because that runs their code. With it, a schedule whose type no task or
    route takes is also a problem.

    $ fileq config check --config staging.yaml  # is this file valid?
    $ fileq config check --handlers --app-dir /opt/handlers  # and can its handlers be imported?"""
    from fileq.commands.configured_handlers import ConfigCheck, check_config
    from fileq.config.sources import find_file

    options, path = invocation.options, None
    try:
        loaded = invocation.loaded
        checked = check_config(loaded, options.app_dir if options.handlers else None)
    except ConfigError as error:
        if not options.json:
            raise
        with suppress(ConfigError):  # then that is the problem
            path = find_file(options.config, os.environ, Path())
        invocation.print_json(ConfigCheck(is_ok=False, problems=tuple(error.problems), path=path))
        return 2
    return invocation.answer(checked, lambda: (wrapped(line, sys.stdout) for line in _checked_lines(loaded, checked)))


def _checked_lines(loaded: Loaded, checked: ConfigCheck) -> Iterator[str]:
    yield f"ok: {loaded.source}; broker {checked.broker}"
    for warning in checked.warnings:
        yield f"warning: {warning}"
    for name in loaded.unknown_env:
        similar = loaded.misspelt_env.get(name)
        hint = f"; did you mean {similar}?" if similar else ""
        yield f"ignored: environment variable {name} matches no setting{hint}"
    if checked.handlers is None:
        yield "handlers were not checked; import them with --handlers"
    for route in checked.handlers or ():
        yield f"handler: {route}"


@command(
    "config init",
    "write a file with every setting, its default and meaning",
    argument("file", nargs="?", default="config.yaml", metavar="FILE", help="file to write; - for stdout"),
    is_configured=False,
)
def _init(invocation: Invocation) -> int:
    """Writes a configuration file with every setting, its default and its meaning. Never overwrites a file.

    $ fileq config init  # write ./config.yaml"""
    from fileq.config.show import example_yaml

    file = invocation.options.file
    if file == "-":
        print(example_yaml(), end="")
        return 0
    try:
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(example_yaml())
    except FileExistsError:
        raise ConfigError(f"{file!r} already exists; choose another file or remove it") from None
    except OSError as error:
        raise ConfigError(f"{file!r} can't be written: {error.strerror}") from error
    print(f"wrote {file}")
    return 0


@command(
    "doctor",
    "check the environment and suggest fixes",
    argument(
        "role",
        nargs="?",
        choices=("producer", "worker", "all", "serve", "start"),
        default="all",
        metavar="ROLE",
        help="the role that runs on this machine: producer, worker, all, serve or start",
    ),
    APP_DIR,
    json_fields=declared(
        "fileq.core.finding:Finding",
        "checks[]",
        "one object for each check, in the order in which they ran",
        more=(("is_ok", "boolean: no check found a problem; else the exit code is 1"),),
    ),
)
def _doctor(invocation: Invocation) -> int:
    """Checks everything that fileq needs and prints one line per check: ✓ ok; ✗ a problem, with advice; – unknown, or a
    note. Exit code 1 if there is a problem.

    Checks the configuration; the broker: on Redis its version, eviction, persistence, clock and the permissions of its
    user, on SQLite the directory, file system, disk space and schema; producer.scan_dir, files there that globs miss
    because of case, and how it is watched, with the limits of inotify; the roots from which workers read files, and
    what worker.after needs; that handlers can be imported and programs are on the PATH; the port of /metrics. With
    serve or start, or with all if a server setting is set: the server's address and keys, whether keys are sent
    unencrypted, and server.upload_dir.

    Creates and changes nothing, but imports the handlers, as a worker would.

    $ fileq doctor  # before the first start, or when something does not work
    $ fileq doctor worker --app-dir /opt/handlers  # only what a worker needs
    $ fileq doctor serve  # what the REST server needs: address, keys, proxy, uploads
    $ fileq doctor --json  # for a health check in CI"""
    findings = []
    for finding in _findings(invocation):
        findings.append(finding)
        if not invocation.options.json:
            _print_finding(finding, screen_of_stdout())
    failed = sum(finding.status == "wrong" for finding in findings)
    if invocation.options.json:
        invocation.print_json({"is_ok": not failed, "checks": findings})
    else:
        print("\nno problems found" if not failed else f"\n{failed} of {len(findings)} checks found a problem")
    return 1 if failed else 0


def _findings(invocation: Invocation) -> Iterator[Finding]:
    from fileq.commands.environment_checks import check_environment
    from fileq.core.finding import wrong

    try:
        loaded = invocation.loaded
    except ConfigError as error:
        for problem in error.problems:
            yield wrong("configuration", problem, "fix it, then run 'fileq config check'")
        return
    yield from check_environment(loaded, invocation.options.role, invocation.options.app_dir, invocation.broker)


def _print_finding(finding: Finding, screen: Screen) -> None:
    advice = f" → {finding.advice}" if finding.advice else ""
    text = printable(f"{finding.detail}{advice}")
    start = f"{finding.name:<{_NAME_WIDTH}} "
    if sys.stdout.isatty():
        # Wrapped on a terminal only: programs read one line for each check.
        indent = " " * (_NAME_WIDTH + 3)
        # Paths are never broken, so that they can be copied.
        wrapper = textwrap.TextWrapper(max(40, screen.width - 1), indent, indent, break_long_words=False)
        wrapper.break_on_hyphens = False
        text = wrapper.fill(text)[len(indent) :]
    sign, colour = _SIGNS[finding.status]
    print(screen.paint(sign, colour), start + text, flush=True)


@command(
    "completion",
    "print a shell completion script",
    argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"),
    is_configured=False,
)
def _completion(invocation: Invocation) -> int:
    """Prints a script for Tab completion of commands (with or without `admin`), options and their values,
    queues, schedules, configuration keys and files. On each Tab the script runs `fileq __complete`, which reads the
    configuration named on the line (--config, else $FILEQ_CONFIG, else ./config.yaml) and never contacts the broker.

    To try it in the current bash: eval "$(fileq completion bash)".

    $ fileq completion bash > ~/.local/share/bash-completion/completions/fileq  # bash, effective in new shells
    $ fileq completion zsh > ~/.zfunc/_fileq  # zsh, with ~/.zfunc in fpath before compinit
    $ fileq completion fish > ~/.config/fish/completions/fileq.fish  # fish"""
    from fileq.cli.completion import script

    print(script(invocation.options.shell), end="")
    return 0
