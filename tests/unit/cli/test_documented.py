"""--help, docs/cli.md and docs/operating.md are complete and up to date."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fileq.cli.command import Command
from fileq.cli.parser import all_commands, overview, parse, parser_of
from tests.support.reference_tables import commands_page

REPOSITORY = Path(__file__).parents[3]
WIDTH = 80
_SHELL = {">", ">>", "<", "|", "&&", ";"}

every_command = pytest.mark.parametrize("command", all_commands(), ids=lambda command: "_".join(command.words))


def test_the_reference_is_up_to_date() -> None:
    """If this fails: make docs."""
    page = (REPOSITORY / "docs" / "cli.md").read_text()
    assert page == commands_page(page)


def test_the_reference_shows_defaults_and_no_placeholder() -> None:
    assert "| `--timezone ZONE` | IANA name (default UTC) |" in commands_page("")
    assert "%(" not in commands_page("")


def test_the_reference_escapes_what_would_begin_a_tag_but_not_in_code_spans() -> None:
    page = commands_page("")
    assert "string: `raw-<sha1>` for bytes that are not a job" in page
    assert "or raw-&lt;sha1> for bytes that are not a job" in page


def arguments_of(line: str) -> list[str]:
    """The arguments that the program gets from a shell command line."""
    words = shlex.split(line, posix=True)
    ends = [i for i, word in enumerate(words) if word in _SHELL]
    assert words[0] == "fileq", line
    return words[1 : ends[0] if ends else None]


@every_command
def test_every_example_is_parsed_as_that_command(command: Command) -> None:
    assert command.examples
    for line, meaning in command.examples:
        assert parse(arguments_of(line)).command == command
        assert meaning


@every_command
def test_help_has_a_description_every_option_and_an_example_within_eighty_columns(command: Command) -> None:
    text = parse([*command.words, "--help"]).text
    assert max(map(len, text.splitlines())) <= WIDTH, [line for line in text.splitlines() if len(line) > WIDTH]
    assert "examples:\n  fileq" in text
    assert command.description.split()[0] in text
    for action in parser_of(command).actions:
        assert action.help, (command.name, action.dest)
        assert all(flag in text for flag in action.option_strings)


@every_command
def test_every_field_of_json_has_a_name_and_a_meaning(command: Command) -> None:
    assert all(name and meaning for name, meaning in command.fields)


def test_lists_of_commands_fit_into_eighty_columns() -> None:
    groups = {command.words[:i] for command in all_commands() for i in range(len(command.words))}
    for words in groups:
        text = overview(words, all_commands())
        assert max(map(len, text.splitlines())) <= WIDTH, words
        assert all(command.summary in text for command in all_commands() if command.words[: len(words)] == words)


@every_command
def test_every_command_is_in_the_operating_guide(command: Command) -> None:
    guide = "".join((REPOSITORY / page).read_text() for page in ("README.md", "docs/operating.md", "docs/settings.md"))
    assert re.search(rf"fileq (admin )?{' '.join(command.words).removeprefix('admin ')}\b", guide)


def test_every_command_line_in_the_operating_chapter_can_be_parsed() -> None:
    chapter = (
        (REPOSITORY / "docs" / "operating.md")
        .read_text()
        .split("## Common tasks and problems\n", 1)[1]
        .split("\n## ", 1)[0]
    )
    lines = [line for line in re.findall("`(fileq [^`]+)`", chapter) if "…" not in line and "COMMAND" not in line]
    assert len(lines) > 30
    for line in lines:
        assert parse(arguments_of(line)).command is not None, line


@pytest.mark.parametrize("page", ["batches.md", "webhooks.md"])
def test_every_command_line_with_options_of_the_page_can_be_parsed(page: str) -> None:
    lines = re.findall("`(fileq [^`]* --[^`]+)`", (REPOSITORY / "docs" / page).read_text())
    assert lines
    for line in lines:
        assert parse(arguments_of(line)).command is not None, line
