"""Completion for zsh: the same algorithm as for bash, with a help text beside each word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fileq.cli.completion.table import Option, Table, Value

_FRAME = """\
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


def script(table: Table) -> str:
    return _FRAME.format(
        valued=_lines(_valued(table), 16),
        steps=_lines(_steps(table), 12),
        values=_lines(_values(table), 12),
        options=_lines(_options(table), 12),
        arguments=_lines(_arguments(table), 8),
    )


def _lines(lines: Iterable[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)


def quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _described(word: str, help: str) -> str:
    return quote(f"{word}:{help}".replace("\\", "\\\\")) if ":" not in word else quote(word)


def _valued(table: Table) -> Iterator[str]:
    for command in table.commands:
        flags = [flag for option in command.options if option.value is not None for flag in option.flags]
        if flags:
            yield "(" + "|".join(quote(f"{command.at}|{flag}") for flag in flags) + ") want=$word ;;"


def _steps(table: Table) -> Iterator[str]:
    for at, words in table.following.items():
        for word, _ in words:
            yield f"({quote(f'{at}|{word}')}) at={quote(f'{at} {word}'.strip())} ;;"
    for word in table.short:
        yield f"({quote(f'|{word}')}) at={quote(f'admin {word}')} ;;"


def _values(table: Table) -> Iterator[str]:
    for command in table.commands:
        for option in command.options:
            if option.value is not None and option.value.kind != "any":
                flags = "|".join(quote(f"{command.at}|{flag}") for flag in option.flags)
                yield f"({flags}) {_offer(option.value, table)} ;;"
    for option in table.everywhere:
        if option.value is not None:
            flags = "|".join(f"*{quote(f'|{flag}')}" for flag in option.flags)
            yield f"({flags}) {_offer(option.value, table)} ;;"


def _options(table: Table) -> Iterator[str]:
    for command in table.commands:
        yield f"({quote(command.at)}) found=({_flags(command.options)}) ;;"
    yield f"(*) found=({_flags(table.everywhere)}) ;;"


def _flags(options: Iterable[Option]) -> str:
    return " ".join(_described(flag, option.help) for option in options for flag in option.flags)


def _arguments(table: Table) -> Iterator[str]:
    for at, words in table.offered.items():
        yield f"({quote(at)}) found=({' '.join(_described(word, help) for word, help in words)}) ;;"
    for command in table.commands:
        if command.argument is not None and command.argument.kind != "any":
            yield f"({quote(command.at)}) {_offer(command.argument, table)} ;;"


def _offer(value: Value, table: Table) -> str:
    if value.kind == "words":
        return f"compadd -- {' '.join(map(quote, value.words))}"
    if value.kind in ("file", "directory"):
        return "_files" if value.kind == "file" else "_files -/"
    keys = " ".join(map(quote, table.keys))
    return f"compadd -S = -- {keys}" if value.kind == "assignment" else f"compadd -- {keys}"
