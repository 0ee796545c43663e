"""Turns the arguments of a command line into one command and its options, or into one line that says what is wrong.

The words of the command are found first; then only that command's own parser is built. The common options and `--role`
may stand anywhere. The words after `admin` also work without it.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from msgspec import Struct

from fileq.cli.arguments import text_or_empty
from fileq.cli.command import WIDTH, Command
from fileq.core.errors import ConfigError

# Modules of cli/definitions, in the order in which --help lists their commands.
MODULES = (
    "role_commands",
    "enqueue_command",
    "setup_commands",
    "queue_commands",
    "job_commands",
    "batch_commands",
    "schedule_commands",
    "webhook_commands",
    "key_commands",
    "repair_commands",
)
ROLES = ("producer", "worker", "all", "serve", "start", "admin")
# Alternative names; they work and are not listed in --help.
ALIASES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("admin", "status"): ("admin", "stats"),
    ("admin", "dlq", "clear"): ("admin", "purge-dlq"),
    ("admin", "purge-dead"): ("admin", "purge-dlq"),
    ("admin", "retry-dead"): ("admin", "dlq", "retry"),
    ("worker", "start"): ("worker",),
    ("server",): ("serve",),
}
# The same for options, where the command has the second and not the first.
_OPTION_ALIASES = {"--force": "--yes", "--concurrency": "--count", "--state": "--status"}
# Commands of other programs, and what fileq has instead.
_STOP = "to stop a role, press Ctrl-C or send SIGTERM to its pid ('fileq workers' shows it)"
_LOGS = "'fileq events' follows jobs; workers log to stderr"
_WITHOUT = "start a role by its name: 'fileq worker', 'fileq all DIR'"
_RELOAD = "SIGHUP makes a service reload its handlers and settings, but stops a role in a terminal"
INSTEAD = {
    "retry": "'fileq dlq retry ID' retries a dead job",
    "log": _LOGS,
    "logs": _LOGS,
    "tail": _LOGS,
    "stop": _STOP,
    "quit": _STOP,
    "shutdown": _STOP,
    "down": _STOP,
    "kill": f"'fileq cancel ID' cancels a job; {_STOP}",
    "restart": f"{_STOP}, then start it again. {_RELOAD}",
    "reload": f"{_RELOAD}; 'fileq workers' shows its pid",
    "status": "'fileq status' shows the queues, 'fileq workers' the workers",
    "stats": "'fileq stats' shows the queues, 'fileq workers' the workers",
    "list": "'fileq workers' lists the workers, 'fileq list' the jobs",
    "ls": "'fileq workers' lists the workers, 'fileq list' the jobs",
    "ps": "'fileq workers' lists the workers",
    "scale": "'fileq worker --count N' runs N jobs concurrently; start more workers for more processes",
    "pause": "'fileq pause QUEUE' pauses a queue, 'fileq resume QUEUE' resumes it",
    "resume": "'fileq pause QUEUE' pauses a queue, 'fileq resume QUEUE' resumes it",
    "start": _WITHOUT,
    "run": _WITHOUT,
    "up": _WITHOUT,
}
_MISSING = "the following arguments are required: "
_CHOICE = re.compile(r"invalid choice: (.*) \(choose from (.*)\)$")
_TAKE_A_VALUE = ("--config", "--set")
_SECTIONS = (
    ("Roles", lambda words: words[0] in ("producer", "worker", "all")),
    ("Commands", lambda words: words[0] not in ("producer", "worker", "all", "admin")),
    ("Operations ('admin' is optional: 'fileq stats')", lambda words: words[0] == "admin"),
)
_INDENT = " " * 6
_MEANING_COLUMN = 24
_FOOTER = """\
'fileq COMMAND --help' shows options and examples. 'fileq --role=worker' is the
same as 'fileq worker'. --version prints the version; -v logs more, -q less.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 jobs died in
this run, 4 broker unreachable.
"""


@functools.cache
def all_commands() -> tuple[Command, ...]:
    modules = [import_module(f"fileq.cli.definitions.{name}") for name in MODULES]
    return tuple(found for module in modules for found in vars(module).values() if isinstance(found, Command))


class ParsedLine(Struct, frozen=True):
    """The command with its options; or, instead of a command, a help text to print."""

    command: Command | None = None
    options: argparse.Namespace = argparse.Namespace()
    text: str = ""


class CommandWords(Struct, frozen=True):
    """The words that name a command, the options between them, and the tail: everything from the first other word."""

    words: tuple[str, ...]
    options: list[str]
    tail: list[str]

    @property
    def wants_help(self) -> bool:
        return not {"-h", "--help"}.isdisjoint([*self.options, *_before_dashes(self.tail)])


def parse(arguments: Sequence[str], commands: Iterable[Command] | None = None) -> ParsedLine:
    known = all_commands() if commands is None else tuple(commands)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    found = find_words(arguments, known)
    command = next((command for command in known if command.words == found.words), None)
    if command is None:
        if found.wants_help and not found.tail:
            return ParsedLine(text=overview(found.words, known))
        raise ConfigError(_no_command(found, known))
    parser = parser_of(command)
    if found.wants_help:
        # Not sooner: this imports the modules that describe the fields of --json.
        parser.description, parser.epilog = command.description, epilog(command)
        return ParsedLine(text=parser.format_help())
    return ParsedLine(command, parser.read([*found.options, *found.tail]))


def find_words(arguments: Sequence[str], known: Sequence[Command]) -> CommandWords:
    role, tokens = _without_role(arguments)
    words: tuple[str, ...] = (role,) if role else ()
    options: list[str] = []
    names = [command.words for command in known] + list(ALIASES)
    while tokens and tokens[0] != "--":
        if tokens[0].startswith("-"):
            width = 2 if tokens[0] in _TAKE_A_VALUE else 1
            options += tokens[:width]
            del tokens[:width]
            continue
        extended = _extend(words, tokens[0], names)
        if extended is None:
            break
        words = extended
        del tokens[0]
    if words == ("admin", "status") and tokens:
        words = ("admin", "show")  # status ID
    if words == ("admin", "retry-dead") and not tokens and not options:
        tokens = ["--all"]
    return CommandWords(ALIASES.get(words, words), options, tokens)


def _extend(words: tuple[str, ...], word: str, names: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The words and the next one, if any command begins with them; else None."""
    if words == (word,) and word in ROLES:
        return words  # --role=admin admin stats
    tries = [(*words, word)] if words else [(word,), ("admin", word)]
    return next((t for t in tries if any(name[: len(t)] == t for name in names)), None)


def _without_role(arguments: Sequence[str]) -> tuple[str, list[str]]:
    tokens = list(arguments)
    end = tokens.index("--") if "--" in tokens else len(tokens)
    role = ""
    i = 0
    while i < end:
        flag, sign, value = tokens[i].partition("=")
        if flag != "--role":
            i += 2 if tokens[i] in _TAKE_A_VALUE else 1
            continue
        width = 1 if sign else 2
        if not sign:
            value = tokens[i + 1] if i + 1 < end else ""
        if value not in ROLES:
            raise ConfigError(f"--role is {value!r}; it must be one of {', '.join(ROLES)}; see 'fileq --help'")
        if role and role != value:
            raise ConfigError(f"--role is both {role!r} and {value!r}; pass one; see 'fileq --help'")
        role = value
        del tokens[i : i + width]
        end -= width
    return role, tokens


def _no_command(found: CommandWords, known: Sequence[Command]) -> str:
    words = found.words
    typed = " ".join(("fileq", *words))
    advice = f"see '{typed} --help'"
    listed = [command.words for command in known]
    following = list(dict.fromkeys(name[len(words)] for name in listed if name[: len(words)] == words))
    if found.tail:
        short = [] if words else [name[1] for name in listed if name[0] == "admin"]
        instead = INSTEAD.get(found.tail[0]) if words in ((), ("admin",)) else None
        meant = f"{instead}; " if instead else nearest(found.tail[0], [*following, *short])
        return f"unknown command {' '.join((*words, found.tail[0]))!r}; {meant}{advice}"
    unknown = [option for option in found.options if option.startswith("-") and option not in _TAKE_A_VALUE]
    if unknown and not words:
        return f"unknown option {unknown[0]!r}; {advice}"
    return f"'{typed}' needs a command: {', '.join(following)}; {advice}"


def nearest(word: str, known: Iterable[str] | Mapping[str, str]) -> str:
    """`known` may say how each word is written. The dashes of options would make any two of them similar."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.65)
    return f"did you mean {(known[close[0]] if isinstance(known, Mapping) else close[0])!r}? " if close else ""


def _before_dashes(tokens: Sequence[str]) -> list[str]:
    """The arguments that may be options: all before `--`."""
    return list(tokens[: tokens.index("--")] if "--" in tokens else tokens)


class Parser(argparse.ArgumentParser):
    """Parses one command's options. A usage error is one line with advice, like every other error."""

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """Every argument and option of the command, in the order of their definition."""
        return self._actions

    def read(self, rest: Sequence[str]) -> argparse.Namespace:
        accepted = self._option_string_actions
        end = len(_before_dashes(rest))
        rest = [*map(self._without_alias, rest[:end]), *rest[end:]]
        self._check_positional(rest[:end])
        self._check_repeated(rest[:end])
        known, extra = self.parse_known_args(self._options_first(rest))
        if extra := [token for token in extra if token != "--"]:
            flag = extra[0].partition("=")[0]
            if flag.startswith("-"):
                meant = nearest(flag.lstrip("-"), {name.lstrip("-"): name for name in accepted})
                self.error(f"unknown option {flag!r}; {meant}".rstrip("; "))
            instead = INSTEAD.get(extra[0]) if self.prog.split()[-1] in ROLES else None
            self.error(f"unexpected argument {extra[0]!r}" + (f"; {instead}" if instead else ""))
        return known

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuses empty values. In a script they are variables that are not set, and a filter must not vanish so."""
        if "" in arg_strings and action.type is not text_or_empty:
            advice = "pass a value" if action.required else "pass a value, or omit it"
            raise argparse.ArgumentError(action, f"is empty; {advice}")
        return super()._get_values(action, arg_strings)

    def _check_positional(self, tokens: Sequence[str]) -> None:
        """An argument that is given like an option: `--cron '@daily'`."""
        names = [action.metavar for action in self._actions if not action.option_strings and action.metavar]
        for flag in (token.partition("=")[0] for token in tokens):
            name = flag.removeprefix("--").upper()
            if flag.startswith("--") and flag not in self._option_string_actions and name in names:
                usage = " ".join(map(str, (self.prog, *names)))
                self.error(f"unknown option {flag!r}; pass {name} as an argument: {usage} …")

    def _check_repeated(self, tokens: Sequence[str]) -> None:
        """argparse would silently take the last value. A flag without a value, such as --json, may be repeated."""
        seen: set[str] = set()
        for token in tokens:
            flag = token.partition("=")[0] if token.startswith("--") else token[:2]
            action = self._option_string_actions.get(flag)
            if action is None or action.nargs == 0 or isinstance(action, argparse._AppendAction):
                continue
            if action.dest in seen:
                self.error(f"{flag} can be used only once")
            seen.add(action.dest)

    def _without_alias(self, token: str) -> str:
        flag, sign, value = token.partition("=")
        meant, accepted = _OPTION_ALIASES.get(flag, flag), self._option_string_actions
        return f"{meant}{sign}{value}" if meant in accepted and flag not in accepted else token

    def _options_first(self, rest: Sequence[str]) -> list[str]:
        """Reorders: options with their values, then `--` and the arguments.

        So options may stand between the arguments of a list. argparse allows that only on lines without `--`."""
        tokens = _before_dashes(rest)
        options: list[str] = []
        arguments = list(rest[len(tokens) + 1 :])
        plain: list[str] = []
        while tokens:
            token = tokens.pop(0)
            if not token.startswith("-") or token == "-":
                plain.append(token)
                continue
            options.append(token)
            for _ in range(self.most_values(token)):
                if not tokens or tokens[0].startswith("-"):
                    break
                options.append(tokens.pop(0))
        arguments = [*plain, *arguments]
        return [*options, "--", *arguments] if arguments else options

    def most_values(self, option: str) -> int:
        """How many of the following arguments this option takes at most."""
        action = self._option_string_actions.get(option)
        if action is None:
            return 0
        counts: dict[Any, int] = {None: 1, "?": 1, "*": sys.maxsize, "+": sys.maxsize}
        return counts[action.nargs] if action.nargs in counts else int(action.nargs or 0)

    def error(self, message: str) -> NoReturn:
        if message.startswith("argument "):
            name, _, said = message.removeprefix("argument ").partition(": ")
            if said == "expected one argument":
                long = name.rpartition("/")[2]
                said = (
                    f"needs a value; if it begins with -, write {long}=VALUE" if long[:2] == "--" else "needs a value"
                )
            message = f"{name} {said}"
        message = message.replace("not allowed with argument", "can't be used with")
        if message.startswith(_MISSING):
            names = message.removeprefix(_MISSING)
            message = f"{names} {'are' if ', ' in names else 'is'} missing"
        if found := _CHOICE.search(message):
            known = found[2].replace("'", "")
            message = f"{message[: found.start()]}is {found[1]}; it must be one of {known}"
        separator = " " if message.endswith("?") else "; "
        raise ConfigError(f"{message}{separator}see '{self.prog} --help'")


def help_of(action: argparse.Action) -> str:
    """The help of one argument, with the default that it has."""
    text = action.help or ""
    if action.default and action.default != argparse.SUPPRESS and "default" not in text:
        text += " (default: %(default)s)"
    return text.replace("%(default)s", str(action.default))


def parser_of(command: Command) -> Parser:
    parser = Parser(prog=command.name, formatter_class=HelpFormatter, allow_abbrev=False, add_help=False)
    for add in command.arguments:
        add(parser)
    if command.json_fields:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-h", "--help", action="store_true", help="show help")
    if command.is_configured:
        common = parser.add_argument_group("configuration")
        add_common(common)
    return parser


def add_common(group: Any) -> None:
    group.add_argument("--config", metavar="FILE", help="configuration file (default: $FILEQ_CONFIG or ./config.yaml)")
    group.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="sets", help="override one setting; repeatable"
    )
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("-v", "--verbose", action="store_true", help="log level debug")
    quiet = "log level warn; commands that change something print only errors, new ids and secrets"
    amount.add_argument("-q", "--quiet", action="store_true", help=quiet)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Eighty columns, paragraphs preserved, and the default of every option that has one."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        for i, paragraph in enumerate(paragraphs):
            # The lines of a table or a list of examples must not be wrapped.
            if not any(line.startswith("  ") for line in paragraph.splitlines()):
                paragraphs[i] = textwrap.fill(" ".join(paragraph.split()), width)
        return "\n\n".join(paragraphs)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return help_of(action).replace("%", "%%")


def epilog(command: Command) -> str:
    parts = []
    if command.fields:
        lines = ["fields of --json:"]
        for name, meaning in command.fields:
            head, below = f"  {name}", " " * _MEANING_COLUMN
            if len(head) > _MEANING_COLUMN - 2:
                lines.append(head)
                head = ""
            text = textwrap.fill(meaning, WIDTH, initial_indent=below, subsequent_indent=below)
            lines.append(head + text[len(head) :])
        parts.append("\n".join(lines))
    lines = ["examples:"]
    for line, meaning in command.examples:
        lines += [f"  {line}", textwrap.fill(meaning, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)]
    parts.append("\n".join(lines))
    return "\n\n".join(parts)


def overview(words: tuple[str, ...], known: Sequence[Command]) -> str:
    """All commands that begin with these words, one line each."""
    listed = [command for command in known if command.words[: len(words)] == words]
    name = " ".join(("fileq", *words))
    head = f"usage: {name} COMMAND [options]\n\n"
    if words:
        return head + _rows(listed) + f"\n'{name} COMMAND --help' shows options and examples.\n"
    head += "Process every file dropped into a directory: queued once, retried, never lost.\n\n"
    parts = [
        f"{title}:\n{_rows(chosen)}\n"
        for title, belongs in _SECTIONS
        if (chosen := [command for command in listed if belongs(command.words)])
    ]
    return head + "".join(parts) + _FOOTER


def _rows(commands: Sequence[Command]) -> str:
    wide = max((len(" ".join(command.words)) for command in commands), default=0)
    return "".join(f"  {' '.join(command.words):<{wide}}  {command.summary}\n" for command in commands)
