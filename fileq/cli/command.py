"""The definition of a command, and the invocation it runs with. Must not know any command or import anything heavy."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from fileq.cli.terminal import print_lines, remark, wrapped
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError
from fileq.core.text import broker_name, printable_json, shown_json
from fileq.core.units import short_duration

if TYPE_CHECKING:
    from fileq.brokers.protocol import FullBroker
    from fileq.config import Config, Loaded

_P = ParamSpec("_P")
Pairs: TypeAlias = tuple[tuple[str, str], ...]
Run: TypeAlias = Callable[["Invocation"], int]
Argument: TypeAlias = Callable[[argparse.ArgumentParser], object]  # adds itself; cli/arguments.py has them
# Arguments of a role and of the server → the setting that each stands for.
SETTING_FLAGS = {"scan_dir": "producer.scan_dir", "count": "worker.count", "bind": "server.bind", "port": "server.port"}
# Documents whose fields are described at one command only.
_AT_COMMANDS = {"JobDocument": "admin list", "WorkerDocument": "admin workers", "BatchDocument": "batch show"}
_EXAMPLES = "\n\n$ "  # begins the last paragraph of a docstring
WIDTH = 80  # columns of help pages
# Together with the start of the program this stays under two seconds.
OPEN_TIMEOUT_S = 1.2
STEP_S = 0.05


class Command(Struct, frozen=True, kw_only=True):
    """One command of fileq. The parser adds --json if it has `json_fields`, and the common options if it
    `is_configured`."""

    words: tuple[str, ...]  # ("admin", "stats"), ("enqueue",)
    summary: str  # one line, for lists of commands
    run: Run  # returns the exit code; imports what it needs inside; see description, examples
    arguments: tuple[Argument, ...] = ()
    json_fields: Pairs | Callable[[], Pairs] = ()  # (field, type and meaning) of the --json document; see fields
    is_configured: bool = True
    only_confirms: bool = False  # its text only confirms what was done; --quiet leaves it out

    @property
    def name(self) -> str:
        return f"fileq {' '.join(self.words)}"

    @property
    def description(self) -> str:
        """Paragraphs separated by an empty line, for --help and docs/cli.md: the docstring of `run`."""
        return self._docstring.partition(_EXAMPLES)[0]

    @property
    def examples(self) -> Pairs:
        """(command line, what it does): the lines `$ fileq …  # …` at the end of the docstring."""
        texts = self._docstring.partition(_EXAMPLES)[2].split("\n$ ")
        pairs = (" ".join(text.split()).partition(" # ") for text in texts)
        return tuple((line, meaning) for line, _, meaning in pairs)

    @property
    def _docstring(self) -> str:
        import inspect  # slow to import

        return inspect.cleandoc(self.run.__doc__ or "")

    @property
    def fields(self) -> Pairs:
        """`json_fields`, some of which are read from the declaration of a document when they are asked for."""
        return self.json_fields() if callable(self.json_fields) else self.json_fields


def command(words: str, summary: str, *arguments: Argument, **others: Any) -> Callable[[Run], Command]:
    """Makes a command of the function that runs it. `others` are fields of Command that have defaults."""
    return lambda run: Command(words=tuple(words.split()), summary=summary, run=run, arguments=arguments, **others)


# The fields that the commands print with --json: (field, type and meaning), for --help and docs/cli.md. They are a
# contract: fields are added, never renamed or removed. They are read from the declarations of the documents when they
# are asked for, because those import much.


def declared(
    document: str, inside: str = "", meaning: str = "", *, more: Pairs = (), in_full: bool = False
) -> Callable[[], Pairs]:
    """The fields of a document, which is named as package.module:Class, with the descriptions that it declares.

    `inside` is the field that holds such documents, such as `jobs[]`. `more` are fields that no document declares.
    `in_full`: the documents in it are described here, and other commands refer to this one."""

    def read() -> Pairs:
        module, _, name = document.partition(":")
        kind: type[Struct] = getattr(import_module(module), name)
        head = ((inside, meaning),) if inside else ()
        return (*more, *head, *_declared(kind, f"{inside}." if inside else "", in_full=in_full))

    return read


def _declared(document: type[Struct], prefix: str, *, in_full: bool = False) -> Iterator[tuple[str, str]]:
    """The fields, and below them those of the objects in it that say more than their name."""
    hints = get_type_hints(document, include_extras=True)
    for field in fields(document):
        name = prefix + field.encode_name
        notes = getattr(hints[field.name], "__metadata__", ())
        kind = getattr(hints[field.name], "__origin__", hints[field.name]) if notes else hints[field.name]
        meaning = next((note.description for note in notes if isinstance(note, Meta) and note.description), "")
        objects = [one for one in get_args(kind) or (kind,) if isinstance(one, type) and issubclass(one, Struct)]
        if not objects:
            words = _type_words(kind)
            if any(isinstance(note, Meta) and note.extra_json_schema for note in notes):
                words = words.replace("string", "string (RFC 3339)")
            yield name, f"{words}{f': {meaning}' if meaning else ''}"
            continue
        is_list = getattr(kind, "__origin__", None) is tuple
        name = f"{name}[]" if is_list else name
        if not in_full and (at := _AT_COMMANDS.get(objects[0].__name__)):
            yield name, f"{f'{meaning}; ' if meaning else ''}as in `fileq {at} --json`"
            continue
        names = ", ".join(inner.encode_name for inner in fields(objects[0]))
        yield name, f"{f'{meaning}: ' if meaning else ''}{names}"
        yield from (row for row in _declared(objects[0], f"{name}.") if ": " in row[1])


def _type_words(kind: Any) -> str:
    parts = [part for part in get_args(kind) if part not in (type(None), ...)]
    if len(parts) < len(get_args(kind)) and get_origin(kind) is not tuple:
        return " or ".join([*map(_type_words, parts), "null"])
    if get_origin(kind) is tuple:
        words = _type_words(parts[0])
        return f"list of {words.replace('string', 'strings').replace('number', 'numbers')}"
    if kind is Any:
        return "any value"
    base = get_origin(kind) or kind
    if base in (bool, int, float):
        return "boolean" if base is bool else "number"
    if issubclass(base, Mapping):
        return "object"
    return "string"


class Invocation:
    """One run of a command: its options, the configuration and the broker. The last two are opened on first use."""

    def __init__(self, command: Command, options: argparse.Namespace) -> None:
        app_dir = getattr(options, "app_dir", "")
        if app_dir and not os.path.isdir(app_dir):
            raise ConfigError(f"--app-dir is {app_dir!r}; it must be an existing directory")
        self.command = command
        self.options = options
        self._broker: FullBroker | None = None

    @functools.cached_property
    def loaded(self) -> Loaded:
        """The configuration from --config, --set and the flags that stand for a setting."""
        return self.load_again()

    @property
    def config(self) -> Config:
        return self.loaded.config

    def load_again(self) -> Loaded:
        """The configuration as it is in its sources now. --set precedes -v and -q, and the other flags precede it."""
        from fileq.config import load

        options = self.options
        level = "debug" if options.verbose else "warn" if options.quiet else ""
        levels = [f"observability.log_level={level}"] if level else []
        given = {key: getattr(options, flag, None) for flag, key in SETTING_FLAGS.items()}
        flags = [f"{key}={value}" for key, value in given.items() if value is not None]
        try:
            return load(options.config, [*levels, *options.sets, *flags])
        except ConfigError as error:
            raise ConfigError([_in_words_of_the_line(problem, given) for problem in error.problems]) from None

    def broker(self, *, create: bool = False) -> FullBroker:
        """Opens the broker within two seconds or raises BrokerUnavailable. Closed when the command ends.

        A missing SQLite database is created only with `create`, with a warning if the directory may be a wrong one: a
        command that only reads must not leave a file."""
        if self._broker is None:
            if create and (warning := self.loaded.new_database_warning("give --config or FILEQ_CONFIG")):
                remark(f"warning: {warning}")
            self._broker = open_for_operator(self.config, create=create)
        return self._broker

    def note_change(self, action: str, target: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Notes a change in the audit. `action` and `target` are those of the API."""
        from fileq.commands.audit_entries import changes_between, write_command

        self.note(write_command, action, target, changes=changes_between(old, new))

    def note(self, write: Callable[Concatenate[FullBroker, _P], None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Writes what others read about this command, such as a function of commands/action_log.py.

        A broker that does not take it, such as a full one, is no error: the work of the command is done."""
        try:
            write(self.broker(), *args, **kwargs)
        except BrokerError as error:
            print(f"fileq: warning: done, but not recorded in the audit log: {error}", file=sys.stderr)

    def note_stale_workers(self) -> None:
        """For commands that run jobs again after a fix: running workers may still have the old handlers. On stderr, if
        a file has changed since a worker loaded it; not with --json and -q."""
        if self.options.json or self.options.quiet:
            return
        from fileq.commands.admin.running_workers import note_of_stale_workers

        if note := note_of_stale_workers(self.loaded, self.broker().workers()):
            print(wrapped(f"note: {note}", sys.stderr), file=sys.stderr)

    def answer(self, document: Any, text: Callable[[], Iterable[str]], code: int = 0) -> int:
        """Prints the document with --json, otherwise the lines of `text`. Returns the exit code. With --quiet, what a
        command did is not confirmed, and what it could not do goes to stderr."""
        if self.options.json:
            self.print_json(document)
        elif not (self.command.only_confirms and self.options.quiet):
            print_lines(text())
        elif code:
            print_lines(text(), sys.stderr)
        return code

    def answer_new(self, document: Any, head: str, new: str) -> int:
        """As answer(), for a new secret: with --quiet it stands alone."""
        return self.answer(document, lambda: [new] if self.options.quiet else [head, new])

    def print_json(self, value: Any) -> None:
        """Prints one JSON document: on one line, or indented if stdout is a terminal."""
        text = shown_json(value)
        if sys.stdout.isatty():
            text = msgspec.json.format(text, indent=2)
        print(printable_json(text.decode()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._broker is not None:
            self._broker.close()


def _in_words_of_the_line(problem: str, given: Mapping[str, Any]) -> str:
    """A problem of a setting, with the name of the flag that has set it."""
    for flag, key in SETTING_FLAGS.items():
        start = f"--set: {key} "
        if given[key] is not None and problem.startswith(start):
            return f"{'DIR' if flag == 'scan_dir' else f'--{flag}'} {problem.removeprefix(start)}"
    return problem


def open_for_operator(config: Config, *, create: bool) -> FullBroker:
    """Raises BrokerUnavailable if the broker has not answered after OPEN_TIMEOUT_S, for any reason. Roles open theirs
    elsewhere."""
    from fileq.brokers import open_broker

    if config.broker_kind == "memory":
        raise ConfigError(
            "broker is 'memory', which exists only inside the process that runs it; "
            "other processes can't read it: set sqlite or redis"
        )
    if config.broker_kind == "sqlite":
        # No time limit: opening never waits for another writer.
        return open_broker(config, create=create)
    # One connection, opened when needed; a reconnect fails as fast as the first connection.
    dial_timeout = min(config.redis.dial_timeout, OPEN_TIMEOUT_S)
    redis = replace(config.redis, min_idle_conns=0, dial_timeout=dial_timeout)
    return _open_in_time(replace(config, redis=redis), create=create)


def _open_in_time(config: Config, *, create: bool) -> FullBroker:
    """Opens in a daemon thread, which is abandoned if it takes too long.

    DNS, several addresses, Sentinels and cluster nodes each have their own timeout, and no setting bounds their sum."""
    if config.broker_kind == "redis":
        # Imported before the time limit starts: on a busy machine the import takes longer than a server's answer.
        import_module("fileq.brokers.redis.broker")
    from fileq.brokers import open_broker

    opened: list[FullBroker] = []
    failed: list[BaseException] = []
    has_answered = threading.Event()

    def open_it() -> None:
        try:
            opened.append(open_broker(config, create=create, answered=has_answered.set))
        except BaseException as error:
            failed.append(error)
        has_answered.set()

    thread = threading.Thread(target=open_it, name="open", daemon=True)
    thread.start()
    # In steps: where the machine is too busy to wake this thread in time, the opening thread is as late, so the limit
    # is counted in wake-ups and not in elapsed time.
    if not any(has_answered.wait(STEP_S) for _ in range(round(OPEN_TIMEOUT_S / STEP_S))):
        server = f"{broker_name(config.broker_kind)} at {config.broker_location}"
        raise BrokerUnavailable(f"{server} is unavailable: no answer within {short_duration(OPEN_TIMEOUT_S)}")
    thread.join()  # the broker has answered; from here its own timeouts apply
    if failed:
        raise failed[0]
    return opened[0]
