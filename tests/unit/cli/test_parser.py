"""Which command a line means: words, roles, short forms, options at any position, and the error messages."""

from __future__ import annotations

import argparse

import pytest

from fileq.cli.arguments import point_in_time_or_ago, whole_number, zoned_time
from fileq.cli.command import Command, Invocation
from fileq.cli.parser import ParsedLine, all_commands, parse, parser_of
from fileq.core.errors import ConfigError
from fileq.core.text import printable


def command(*words: str, arguments: tuple[str, ...] = ()) -> Command:
    def add(parser: argparse.ArgumentParser) -> None:
        for argument in arguments:
            if argument == "--yes":
                parser.add_argument("--yes", action="store_true")
            elif argument == "-n":
                parser.add_argument("-n", type=whole_number(1))
            else:
                parser.add_argument(argument.strip("*"), nargs="*" if "*" in argument else None)

    def do(invocation: Invocation) -> int:
        return 0

    do.__doc__ = f"It does.\n\n$ fileq {' '.join(words)}  # so"
    return Command(
        words=words,
        summary=f"does {words[-1]}",
        arguments=(add,),
        run=do,
        json_fields=(("done", "boolean"),),
    )


COMMANDS = (
    command("producer", arguments=("dirs*",)),
    command("worker", arguments=("dirs*",)),
    command("enqueue", arguments=("paths*",)),
    command("config", "get", arguments=("key",)),
    command("admin", "stats"),
    command("admin", "show", arguments=("id",)),
    command("admin", "peek", arguments=("-n",)),
    command("admin", "purge-dlq", arguments=("--yes",)),
    command("admin", "dlq", "list"),
    command("admin", "dlq", "retry", arguments=("ids*",)),
)


def parsed(line: str) -> ParsedLine:
    return parse(line.split(), COMMANDS)


def words_of(line: str) -> str:
    found = parsed(line).command
    assert found is not None, line
    return " ".join(found.words)


def error_of(line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(line)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    "line",
    [
        "admin stats",
        "stats",
        "status",
        "admin status",
        "--role=admin stats",
        "--role admin stats",
        "stats --role=admin",
        "--role=admin admin stats",
        "--config c.yaml --role=admin --set a=b stats",
        "admin --json stats",
    ],
)
def test_every_spelling_of_stats_means_admin_stats(line: str) -> None:
    assert words_of(line) == "admin stats"


@pytest.mark.parametrize(
    "line", ["purge-dlq --force", "dlq clear --yes", "admin dlq clear --force", "--force dlq clear"]
)
def test_force_is_an_alias_of_yes_and_clear_of_purge(line: str) -> None:
    assert words_of(line) == "admin purge-dlq"
    assert parsed(line).options.yes is True


def test_status_with_an_id_shows_that_job() -> None:
    assert words_of("status 4f2") == "admin show"
    assert parsed("status --json 4f2").options.id == "4f2"


def test_words_of_three_levels_are_found_with_and_without_admin() -> None:
    assert words_of("admin dlq list") == words_of("dlq list") == "admin dlq list"
    assert parsed("dlq retry a --json b").options.ids == ["a", "b"]


@pytest.mark.parametrize("line", ["--set a=1 --config f worker --set b=2", "worker --set a=1 --set b=2 --config=f"])
def test_common_options_are_taken_before_and_after_the_words(line: str) -> None:
    options = parsed(line).options
    assert (options.config, options.sets) == ("f", ["a=1", "b=2"])


def test_a_flag_without_a_value_may_be_repeated() -> None:
    assert parsed("stats --json --json").options.json is True


def test_the_value_of_an_option_is_never_a_word_or_a_role() -> None:
    assert parsed("--config worker enqueue x").options.config == "worker"
    assert parsed("enqueue --set worker").options.sets == ["worker"]


def test_after_two_dashes_everything_is_an_argument() -> None:
    assert parsed("enqueue -- --role=x --help --force").options.paths == ["--role=x", "--help", "--force"]
    assert parsed("enqueue a --json b -- -c --").options.paths == ["a", "b", "-c", "--"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "'fileq' needs a command: producer, worker, enqueue, config, admin; see 'fileq --help'"),
        ("admin", "'fileq admin' needs a command: stats, show, peek, purge-dlq, dlq; see 'fileq admin --help'"),
        ("--role=admin", "'fileq admin' needs a command: stats, show, peek, purge-dlq, dlq; see 'fileq admin --help'"),
        ("wroker", "unknown command 'wroker'; did you mean 'worker'? see 'fileq --help'"),
        ("stat", "unknown command 'stat'; did you mean 'stats'? see 'fileq --help'"),
        ("admin dlq lst", "unknown command 'admin dlq lst'; did you mean 'list'? see 'fileq admin dlq --help'"),
        ("frobnicate", "unknown command 'frobnicate'; see 'fileq --help'"),
        ("--frobnicate", "unknown option '--frobnicate'; see 'fileq --help'"),
        (
            "--role=boss",
            "--role is 'boss'; it must be one of producer, worker, all, serve, start, admin; see 'fileq --help'",
        ),
        ("--role", "--role is ''; it must be one of producer, worker, all, serve, start, admin; see 'fileq --help'"),
        ("--role=worker --role=admin", "--role is both 'worker' and 'admin'; pass one; see 'fileq --help'"),
        ("stats --jsn", "unknown option '--jsn'; did you mean '--json'? see 'fileq admin stats --help'"),
        ("stats now", "unexpected argument 'now'; see 'fileq admin stats --help'"),
        ("peek -n x", "-n is 'x'; it must be a whole number, 1 or more; see 'fileq admin peek --help'"),
        ("peek -n 1 -n 2", "-n can be used only once; see 'fileq admin peek --help'"),
        ("peek -n1 -n2", "-n can be used only once; see 'fileq admin peek --help'"),
        ("--config a stats --config=b", "--config can be used only once; see 'fileq admin stats --help'"),
        ("peek -n", "-n needs a value; see 'fileq admin peek --help'"),
        (
            "stats --set -x",
            "--set needs a value; if it begins with -, write --set=VALUE; see 'fileq admin stats --help'",
        ),
        ("peek -n 0", "-n is '0'; it must be a whole number, 1 or more; see 'fileq admin peek --help'"),
    ],
)
def test_an_error_is_one_line_with_advice(line: str, said: str) -> None:
    assert error_of(line) == said


@pytest.mark.parametrize("line", ["--cron @daily --type t", "--cron=@daily", "@daily --cron"])
def test_an_argument_that_is_given_as_an_option_is_told_so(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["schedule", "add", "x", *line.split()])
    said = "unknown option '--cron'; pass CRON as an argument: fileq schedule add NAME CRON …; see 'fileq schedule add"
    assert str(caught.value).startswith(said)


def test_force_is_unknown_where_there_is_no_yes() -> None:
    assert "unknown option '--force'" in error_of("stats --force")


def test_options_can_not_be_abbreviated() -> None:
    assert "did you mean '--json'" in error_of("stats --js")


def test_help_is_given_for_all_for_a_group_and_for_one_command() -> None:
    assert "admin dlq retry" in parsed("--help").text
    assert "worker" not in parsed("admin dlq --help").text
    assert "examples:\n  fileq admin peek" in parsed("peek --help").text
    assert "examples:\n  fileq admin peek" in parsed("--help peek").text


@pytest.mark.parametrize("text", ["2026-01-31T18:00:00Z", "2026-01-31T18:00:00+00:00", "2026-01-31 20:00+02:00"])
def test_a_point_in_time_is_read_with_its_zone(text: str) -> None:
    assert zoned_time(text).ms == 1769882400000


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "0"])
def test_an_invalid_point_in_time_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="it must be a time such as"):
        zoned_time(text)


def test_a_duration_is_that_long_before_now() -> None:
    assert point_in_time_or_ago("2h") < point_in_time_or_ago("1h") < point_in_time_or_ago("1s")
    assert point_in_time_or_ago("2026-01-31T18:00:00Z") == 1769882400000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("é.pdf", "é.pdf"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        (b"\xff.txt".decode("utf-8", "surrogateescape"), "\\xff.txt"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("line", "words", "option", "value"),
    [
        ("worker start --count 3", "worker", "count", 3),
        ("worker --concurrency 3", "worker", "count", 3),
        ("all --concurrency=3", "all", "count", 3),
        ("list --state dead", "admin list", "status", "dead"),
        ("purge-dead --force", "admin purge-dlq", "yes", True),
        ("retry-dead", "admin dlq retry", "all", True),
        ("admin retry-dead 4f2a", "admin dlq retry", "ids", ["4f2a"]),
        ("retry-dead --all --dry-run", "admin dlq retry", "dry_run", True),
    ],
)
def test_words_and_options_of_other_programs_are_understood(line: str, words: str, option: str, value: object) -> None:
    found = parse(line.split())
    assert found.command is not None
    assert " ".join(found.command.words) == words
    assert getattr(found.options, option) == value


def test_no_argument_of_any_command_takes_an_empty_value() -> None:
    """`cancel --all --batch "$BATCH" --yes` with a variable that is not set would cancel every job."""
    for known in all_commands():
        positional = 0
        for action in parser_of(known).actions:
            positional += not action.option_strings
            if action.nargs == 0 or not action.option_strings:
                continue
            flag = action.option_strings[-1]
            for line in ([flag, ""], [f"{flag}="]) if flag.startswith("--") else ([flag, ""],):
                with pytest.raises(ConfigError, match=f"{flag} is empty; pass a value"):
                    parse([*known.words, *line])
        if positional and known.words != ("config", "set"):
            with pytest.raises(ConfigError, match=r"^[A-Z]+ is empty; pass a value"):
                parse([*known.words, *[""] * positional])


def test_a_setting_can_be_set_to_an_empty_value() -> None:
    assert parse(["config", "set", "redis.addr", ""]).options.value == ""


@pytest.mark.parametrize("line", ["dlq retry --yes", "resume high --reason x", "enqueue --parent x"])
def test_an_option_that_resembles_none_gets_no_suggestion(line: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown option '--[a-z]+'; see 'fileq"):
        parse(line.split())
