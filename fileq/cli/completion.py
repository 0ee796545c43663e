"""Generates completion scripts for bash, zsh and fish from the definitions of the commands.

A table collects what can be typed at each position; each shell has functions that write it in its own language. The
scripts must never call fileq: pressing Tab must not start Python.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from fileq.cli.arguments import StateOption
from fileq.cli.command import Command
from fileq.cli.parser import ROLES, help_of, parser_of

SHELLS = ("bash", "zsh", "fish")


def completion_script(
    shell: str, commands: Sequence[Command], queues: Sequence[str] = ("high", "low"), schedules: Sequence[str] = ()
) -> str:
    write = {"bash": _bash_script, "zsh": _zsh_script, "fish": _fish_script}[shell]
    return write(Table(commands, queues, schedules))


_PLACES = ("dead_letter", "completed", "scheduled", "cancelled")
_KINDS = {"FILE": "file", "PATH": "file", "DIR": "directory", "KEY": "key", "KEY=VALUE": "assignment"}


class Value(Struct, frozen=True):
    """The value of an option or argument: one of some words, a file, a directory, a key, a key=value, or anything."""

    kind: str
    words: tuple[str, ...] = ()


class Option(Struct, frozen=True):
    flags: tuple[str, ...]
    help: str
    value: Value | None = None  # None: a flag


class CommandSyntax(Struct, frozen=True):
    """One command: its words joined by blanks, its options, and the kind of its arguments."""

    at: str
    options: tuple[Option, ...]
    argument: Value | None = None


class Table:
    """What can be typed at each position of a command line, read from the parsers.

    `following` maps the words typed so far to the words that may come next, each with a help text.

    `offered` is the same with the commands that work without `admin`. `queues` and `schedules` are names of the
    configuration."""

    def __init__(self, commands: Sequence[Command], queues: Sequence[str], schedules: Sequence[str] = ()) -> None:
        listed = [command for command in commands if command.is_listed]
        names = {"QUEUE": tuple(queues), "PLACE": (*queues, *_PLACES), "SCHEDULE": tuple(schedules)}
        self.commands = [_syntax(command, names) for command in listed]
        self.following = _following(listed)
        self.short = [word for word, _ in self.following.get("admin", [])]  # work without `admin` too
        self.offered = {**self.following, "": [*self.following.get("", []), *self.following.get("admin", [])]}
        self.everywhere = (
            Option(("--role",), "the role, instead of a command", Value("words", ROLES)),
            Option(("--config",), "configuration file", Value("file")),
            Option(("--set",), "override one setting", Value("assignment")),
            Option(("-v", "--verbose"), "log level debug"),
            Option(("-q", "--quiet"), "log level warn"),
            Option(("--version",), "print the version"),
            Option(("-h", "--help"), "print help"),
        )
        self.keys = _keys()


def _syntax(command: Command, names: Mapping[str, tuple[str, ...]]) -> CommandSyntax:
    actions = parser_of(command).actions
    named = [action for action in actions if action.option_strings]
    options = tuple(Option(tuple(action.option_strings), help_of(action), _value(action, names)) for action in named)
    argument = next((_value(action, names) for action in actions if not action.option_strings), None)
    return CommandSyntax(" ".join(command.words), options, argument)


def _value(action: argparse.Action, names: Mapping[str, tuple[str, ...]]) -> Value | None:
    if action.nargs == 0:
        return None
    if action.choices is not None:
        return Value("words", tuple(map(str, action.choices)))
    if isinstance(action.type, StateOption):
        return Value("words", action.type.words)
    words = names.get(str(action.metavar))
    return Value("words", words) if words is not None else Value(_KINDS.get(str(action.metavar), "any"))


def _following(commands: Sequence[Command]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, dict[str, str]] = {}
    for command in commands:
        for i, word in enumerate(command.words):
            at = " ".join(command.words[:i])
            if i + 1 == len(command.words):
                found.setdefault(at, {})[word] = command.summary
            else:
                inner = [other.words[i + 1] for other in commands if other.words[: i + 1] == command.words[: i + 1]]
                found.setdefault(at, {}).setdefault(word, ", ".join(dict.fromkeys(inner)))
    return {at: list(words.items()) for at, words in found.items()}


def _keys() -> list[str]:
    from fileq.config.schema import every_key, is_setting

    return [path for path, key in every_key().items() if is_setting(key)]


# Completion for bash: one function that reads the words typed so far, then offers what the table has there.


# bash splits words at `=`: `--role=admin` arrives as three words.
_BASH_FRAME = """\
# fileq completion for bash: eval "$(fileq completion bash)", best in ~/.bashrc
_fileq() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} at="" want="" word i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        [[ $word == "=" ]] && continue
        if [[ -n $want && $want != --role ]]; then
            want=""
            continue
        fi
        want=""
        word=${{word#--role=}}
        if [[ $word == -* ]]; then
            case "$at|$word" in
{valued}
                *"|--role" | *"|--config" | *"|--set") want=$word ;;
            esac
            continue
        fi
        case "$at|$word" in
{steps}
        esac
    done
    [[ $cur == "=" ]] && cur=""
    if [[ -n $want ]]; then
        case "$at|$want" in
{values}
        esac
    elif [[ $cur == -* ]]; then
        case "$at" in
{options}
        esac
    else
        case "$at" in
{arguments}
        esac
    fi
}}
_fileq_words() {{
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}}
_fileq_files() {{
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}}
_fileq_assignments() {{
    compopt -o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -S = -W "$1" -- "$cur")
}}
complete -F _fileq fileq
"""


def _bash_script(table: Table) -> str:
    return _BASH_FRAME.format(
        valued=_lines(_bash_valued(table), 16),
        steps=_lines(_bash_steps(table), 12),
        values=_lines(_bash_values(table), 12),
        options=_lines(_bash_options(table), 12),
        arguments=_lines(_bash_arguments(table), 12),
    )


def _lines(lines: Iterable[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)


def _bash_valued(table: Table) -> Iterator[str]:
    for command in table.commands:
        flags = [flag for option in command.options if option.value is not None for flag in option.flags]
        if flags:
            yield " | ".join(shlex.quote(f"{command.at}|{flag}") for flag in flags) + ") want=$word ;;"


def _bash_steps(table: Table) -> Iterator[str]:
    for at, words in table.following.items():
        for word, _ in words:
            yield f"{shlex.quote(f'{at}|{word}')}) at={shlex.quote(f'{at} {word}'.strip())} ;;"
    for word in table.short:
        yield f"{shlex.quote(f'|{word}')}) at={shlex.quote(f'admin {word}')} ;;"


def _bash_values(table: Table) -> Iterator[str]:
    positions = [(command.at, option) for command in table.commands for option in command.options]
    for at, option in positions:
        if option.value is not None and option.value.kind != "any":
            yield f"{_bash_pattern(at, option)}) {_bash_offer(option.value, table)} ;;"
    for option in table.everywhere:
        if option.value is not None:
            yield " | ".join(f'*"|{flag}"' for flag in option.flags) + f") {_bash_offer(option.value, table)} ;;"


def _bash_pattern(at: str, option: Option) -> str:
    return " | ".join(shlex.quote(f"{at}|{flag}") for flag in option.flags)


def _bash_options(table: Table) -> Iterator[str]:
    for command in table.commands:
        yield f"{shlex.quote(command.at)}) _fileq_words {_bash_flags(command.options)} ;;"
    yield f"*) _fileq_words {_bash_flags(table.everywhere)} ;;"


def _bash_flags(options: Iterable[Option]) -> str:
    return shlex.quote(" ".join(flag for option in options for flag in option.flags))


def _bash_arguments(table: Table) -> Iterator[str]:
    for at, words in table.offered.items():
        yield f"{shlex.quote(at)}) _fileq_words {shlex.quote(' '.join(word for word, _ in words))} ;;"
    for command in table.commands:
        if command.argument is not None and command.argument.kind != "any":
            yield f"{shlex.quote(command.at)}) {_bash_offer(command.argument, table)} ;;"


def _bash_offer(value: Value, table: Table) -> str:
    if value.kind == "words":
        return f"_fileq_words {shlex.quote(' '.join(value.words))}"
    if value.kind in ("file", "directory"):
        return f"_fileq_files {'-f' if value.kind == 'file' else '-d'}"
    if value.kind == "assignment":
        return f"_fileq_assignments {shlex.quote(' '.join(table.keys))}"
    return f"_fileq_words {shlex.quote(' '.join(table.keys))}"


# Completion for zsh: the same algorithm as for bash, with a help text beside each word.


_ZSH_FRAME = """\
#compdef fileq
# fileq completion for zsh: fileq completion zsh > ~/.zfunc/_fileq, with ~/.zfunc in fpath before compinit
_fileq() {{
    local at="" want="" word cur=$words[CURRENT]
    local -a found
    integer i
    for ((i = 2; i < CURRENT; i++)); do
        word=$words[i]
        if [[ -n $want && $want != --role ]]; then
            want=""
            continue
        fi
        want=""
        word=${{word#--role=}}
        if [[ $word == -* ]]; then
            case "$at|$word" in
{valued}
                (*'|--role'|*'|--config'|*'|--set') want=$word ;;
            esac
            continue
        fi
        case "$at|$word" in
{steps}
        esac
    done
    if [[ -n $want ]]; then
        case "$at|$want" in
{values}
        esac
        return
    fi
    if [[ $cur == -* ]]; then
        case "$at" in
{options}
        esac
        _describe option found
        return
    fi
    case "$at" in
{arguments}
    esac
    (( $#found )) && _describe command found
}}
if [[ $funcstack[1] == _fileq ]]; then
    _fileq "$@"
else
    compdef _fileq fileq
fi
"""


def _zsh_script(table: Table) -> str:
    return _ZSH_FRAME.format(
        valued=_lines(_zsh_valued(table), 16),
        steps=_lines(_zsh_steps(table), 12),
        values=_lines(_zsh_values(table), 12),
        options=_lines(_zsh_options(table), 12),
        arguments=_lines(_zsh_arguments(table), 8),
    )


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh_described(word: str, help: str) -> str:
    return _zsh_quote(f"{word}:{help}".replace("\\", "\\\\")) if ":" not in word else _zsh_quote(word)


def _zsh_valued(table: Table) -> Iterator[str]:
    for command in table.commands:
        flags = [flag for option in command.options if option.value is not None for flag in option.flags]
        if flags:
            yield "(" + "|".join(_zsh_quote(f"{command.at}|{flag}") for flag in flags) + ") want=$word ;;"


def _zsh_steps(table: Table) -> Iterator[str]:
    for at, words in table.following.items():
        for word, _ in words:
            yield f"({_zsh_quote(f'{at}|{word}')}) at={_zsh_quote(f'{at} {word}'.strip())} ;;"
    for word in table.short:
        yield f"({_zsh_quote(f'|{word}')}) at={_zsh_quote(f'admin {word}')} ;;"


def _zsh_values(table: Table) -> Iterator[str]:
    for command in table.commands:
        for option in command.options:
            if option.value is not None and option.value.kind != "any":
                flags = "|".join(_zsh_quote(f"{command.at}|{flag}") for flag in option.flags)
                yield f"({flags}) {_zsh_offer(option.value, table)} ;;"
    for option in table.everywhere:
        if option.value is not None:
            flags = "|".join(f"*{_zsh_quote(f'|{flag}')}" for flag in option.flags)
            yield f"({flags}) {_zsh_offer(option.value, table)} ;;"


def _zsh_options(table: Table) -> Iterator[str]:
    for command in table.commands:
        yield f"({_zsh_quote(command.at)}) found=({_zsh_flags(command.options)}) ;;"
    yield f"(*) found=({_zsh_flags(table.everywhere)}) ;;"


def _zsh_flags(options: Iterable[Option]) -> str:
    return " ".join(_zsh_described(flag, option.help) for option in options for flag in option.flags)


def _zsh_arguments(table: Table) -> Iterator[str]:
    for at, words in table.offered.items():
        yield f"({_zsh_quote(at)}) found=({' '.join(_zsh_described(word, help) for word, help in words)}) ;;"
    for command in table.commands:
        if command.argument is not None and command.argument.kind != "any":
            yield f"({_zsh_quote(command.at)}) {_zsh_offer(command.argument, table)} ;;"


def _zsh_offer(value: Value, table: Table) -> str:
    if value.kind == "words":
        return f"compadd -- {' '.join(map(_zsh_quote, value.words))}"
    if value.kind in ("file", "directory"):
        return "_files" if value.kind == "file" else "_files -/"
    keys = " ".join(map(_zsh_quote, table.keys))
    return f"compadd -S = -- {keys}" if value.kind == "assignment" else f"compadd -- {keys}"


# Completion for fish: a function that reads the words typed so far, and one `complete` line for each candidate.


_FISH_FRAME = """\
# fileq completion for fish: fileq completion fish > ~/.config/fish/completions/fileq.fish
function __fileq_at
    set -l at ''
    set -l want ''
    for word in (commandline -opc)[2..-1]
        if test -n "$want" -a "$want" != --role
            set want ''
            continue
        end
        set want ''
        set word (string replace -r -- '^--role=' '' $word)
        if string match -q -- '-*' $word
            switch "$at|$word"
{valued}
                case '*|--role' '*|--config' '*|--set'
                    set want $word
            end
            continue
        end
        switch "$at|$word"
{steps}
        end
    end
    test "$at" = "$argv[1]"
end
complete -c fileq -f
{completions}
"""


def _fish_script(table: Table) -> str:
    return _FISH_FRAME.format(
        valued="\n".join(_fish_valued(table)),
        steps="\n".join(_fish_steps(table)),
        completions="\n".join((*_fish_words(table), *_fish_everywhere(table), *_fish_commands(table))),
    )


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_valued(table: Table) -> Iterator[str]:
    for command in table.commands:
        flags = [flag for option in command.options if option.value is not None for flag in option.flags]
        if flags:
            yield f"                case {' '.join(_fish_quote(f'{command.at}|{flag}') for flag in flags)}"
            yield "                    set want $word"


def _fish_steps(table: Table) -> Iterator[str]:
    pairs = [(at, word, f"{at} {word}".strip()) for at, words in table.following.items() for word, _ in words]
    pairs += [("", word, f"admin {word}") for word in table.short]
    for at, word, then in pairs:
        yield f"            case {_fish_quote(f'{at}|{word}')}"
        yield f"                set at {_fish_quote(then)}"


def _fish_when(at: str) -> str:
    return f"complete -c fileq -n {_fish_quote(f'__fileq_at {_fish_quote(at)}')}"


def _fish_words(table: Table) -> Iterator[str]:
    for at, words in table.offered.items():
        for word, help in words:
            yield f"{_fish_when(at)} -a {_fish_quote(word)} -d {_fish_quote(help)}"


def _fish_everywhere(table: Table) -> Iterator[str]:
    for option in table.everywhere:
        yield f"{_fish_when('')} {_fish_option(option, table)}"


def _fish_commands(table: Table) -> Iterator[str]:
    for command in table.commands:
        for option in command.options:
            yield f"{_fish_when(command.at)} {_fish_option(option, table)}"
        if command.argument is not None and command.argument.kind != "any":
            yield f"{_fish_when(command.at)} {_fish_value(command.argument, table)}"


def _fish_option(option: Option, table: Table) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    value = "" if option.value is None else f" -r {_fish_value(option.value, table)}"
    return f"{flags} -d {_fish_quote(option.help)}{value}"


def _fish_value(value: Value, table: Table) -> str:
    if value.kind == "words":
        return f"-a {_fish_quote(' '.join(value.words))}"
    if value.kind in ("file", "directory"):
        return "-F" if value.kind == "file" else "-a '(__fish_complete_directories)'"
    if value.kind == "any":
        return ""
    sign = "=" if value.kind == "assignment" else ""
    return f"-a {_fish_quote(' '.join(key + sign for key in table.keys))}"
