"""Completion for fish: a function that reads the words typed so far, and one `complete` line for each candidate."""

from __future__ import annotations

from collections.abc import Iterator

from fileq.cli.completion.table import Option, Table, Value

_FRAME = """\
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


def script(table: Table) -> str:
    return _FRAME.format(
        valued="\n".join(_valued(table)),
        steps="\n".join(_steps(table)),
        completions="\n".join((*_words(table), *_everywhere(table), *_commands(table))),
    )


def quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _valued(table: Table) -> Iterator[str]:
    for command in table.commands:
        flags = [flag for option in command.options if option.value is not None for flag in option.flags]
        if flags:
            yield f"                case {' '.join(quote(f'{command.at}|{flag}') for flag in flags)}"
            yield "                    set want $word"


def _steps(table: Table) -> Iterator[str]:
    pairs = [(at, word, f"{at} {word}".strip()) for at, words in table.following.items() for word, _ in words]
    pairs += [("", word, f"admin {word}") for word in table.short]
    for at, word, then in pairs:
        yield f"            case {quote(f'{at}|{word}')}"
        yield f"                set at {quote(then)}"


def _when(at: str) -> str:
    return f"complete -c fileq -n {quote(f'__fileq_at {quote(at)}')}"


def _words(table: Table) -> Iterator[str]:
    for at, words in table.offered.items():
        for word, help in words:
            yield f"{_when(at)} -a {quote(word)} -d {quote(help)}"


def _everywhere(table: Table) -> Iterator[str]:
    for option in table.everywhere:
        yield f"{_when('')} {_option(option, table)}"


def _commands(table: Table) -> Iterator[str]:
    for command in table.commands:
        for option in command.options:
            yield f"{_when(command.at)} {_option(option, table)}"
        if command.argument is not None and command.argument.kind != "any":
            yield f"{_when(command.at)} {_value(command.argument, table)}"


def _option(option: Option, table: Table) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    value = "" if option.value is None else f" -r {_value(option.value, table)}"
    return f"{flags} -d {quote(option.help)}{value}"


def _value(value: Value, table: Table) -> str:
    if value.kind == "words":
        return f"-a {quote(' '.join(value.words))}"
    if value.kind in ("file", "directory"):
        return "-F" if value.kind == "file" else "-a '(__fish_complete_directories)'"
    if value.kind == "any":
        return ""
    sign = "=" if value.kind == "assignment" else ""
    return f"-a {quote(' '.join(key + sign for key in table.keys))}"
