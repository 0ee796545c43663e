"""Completion for bash: one function that reads the words typed so far, then offers what the table has there."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from fileq.cli.completion.table import Option, Table, Value

# bash splits words at `=`: `--role=admin` arrives as three words.
_FRAME = """\
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


def script(table: Table) -> str:
    return _FRAME.format(
        valued=_lines(_valued(table), 16),
        steps=_lines(_steps(table), 12),
        values=_lines(_values(table), 12),
        options=_lines(_options(table), 12),
        arguments=_lines(_arguments(table), 12),
    )


def _lines(lines: Iterable[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)


def _valued(table: Table) -> Iterator[str]:
    for command in table.commands:
        flags = [flag for option in command.options if option.value is not None for flag in option.flags]
        if flags:
            yield " | ".join(shlex.quote(f"{command.at}|{flag}") for flag in flags) + ") want=$word ;;"


def _steps(table: Table) -> Iterator[str]:
    for at, words in table.following.items():
        for word, _ in words:
            yield f"{shlex.quote(f'{at}|{word}')}) at={shlex.quote(f'{at} {word}'.strip())} ;;"
    for word in table.short:
        yield f"{shlex.quote(f'|{word}')}) at={shlex.quote(f'admin {word}')} ;;"


def _values(table: Table) -> Iterator[str]:
    positions = [(command.at, option) for command in table.commands for option in command.options]
    for at, option in positions:
        if option.value is not None and option.value.kind != "any":
            yield f"{_pattern(at, option)}) {_offer(option.value, table)} ;;"
    for option in table.everywhere:
        if option.value is not None:
            yield " | ".join(f'*"|{flag}"' for flag in option.flags) + f") {_offer(option.value, table)} ;;"


def _pattern(at: str, option: Option) -> str:
    return " | ".join(shlex.quote(f"{at}|{flag}") for flag in option.flags)


def _options(table: Table) -> Iterator[str]:
    for command in table.commands:
        yield f"{shlex.quote(command.at)}) _fileq_words {_flags(command.options)} ;;"
    yield f"*) _fileq_words {_flags(table.everywhere)} ;;"


def _flags(options: Iterable[Option]) -> str:
    return shlex.quote(" ".join(flag for option in options for flag in option.flags))


def _arguments(table: Table) -> Iterator[str]:
    for at, words in table.offered.items():
        yield f"{shlex.quote(at)}) _fileq_words {shlex.quote(' '.join(word for word, _ in words))} ;;"
    for command in table.commands:
        if command.argument is not None and command.argument.kind != "any":
            yield f"{shlex.quote(command.at)}) {_offer(command.argument, table)} ;;"


def _offer(value: Value, table: Table) -> str:
    if value.kind == "words":
        return f"_fileq_words {shlex.quote(' '.join(value.words))}"
    if value.kind in ("file", "directory"):
        return f"_fileq_files {'-f' if value.kind == 'file' else '-d'}"
    if value.kind == "assignment":
        return f"_fileq_assignments {shlex.quote(' '.join(table.keys))}"
    return f"_fileq_words {shlex.quote(' '.join(table.keys))}"
