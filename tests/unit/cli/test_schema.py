"""The fields of --json are read from the documents that are printed."""

from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from fileq.cli.command import Command, declared
from fileq.cli.parser import all_commands
from fileq.queries.documents import JobDocument, Time


class Inner(Struct):
    plain: int
    told: Annotated[tuple[int, ...], Meta(description="each of them")] = ()


class Outer(Struct):
    name: Annotated[str, Meta(description="of it")]
    at: Time
    counts: dict[str, int]
    value: Any
    share: float | None
    inner: Annotated[Inner | None, Meta(description="null, or what is in it")]
    list: Annotated[tuple[Inner, ...], Meta(description="the first ones")]
    jobs: tuple[JobDocument, ...]


INNER = "plain, told"
FIELDS = (
    ("name", "string: of it"),
    ("at", "string (RFC 3339) or null"),
    ("counts", "object"),
    ("value", "any value"),
    ("share", "number or null"),
    ("inner", f"null, or what is in it: {INNER}"),
    ("inner.told", "list of numbers: each of them"),
    ("list[]", f"the first ones: {INNER}"),
    ("list[].told", "list of numbers: each of them"),
    ("jobs[]", "as in `fileq admin list --json`"),
)


def test_each_field_of_a_document_has_its_type_and_its_meaning() -> None:
    assert declared(f"{__name__}:Outer")() == FIELDS


def test_documents_may_be_in_a_list_beside_other_fields() -> None:
    found = declared(f"{__name__}:Inner", "all[]", "the oldest first", more=(("count", "number"),))()
    assert found == (
        ("count", "number"),
        ("all[]", "the oldest first"),
        ("all[].plain", "number"),
        ("all[].told", "list of numbers: each of them"),
    )


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: "_".join(command.words))
def test_no_field_is_documented_twice(command: Command) -> None:
    names = [name for name, _ in command.fields]
    assert len(names) == len(set(names))


NAMES_OF_OTHERS = {"admin stats": {"state"}}  # a producer is in a state: it has no status
OLD_NAMES = {"filepath", "law", "state", "began", "ended", "due", "last_outcome", "by_hand_outcome"}


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: "_".join(command.words))
def test_fields_have_the_names_of_the_api(command: Command) -> None:
    if command.words == ("admin", "events"):  # it prints what the broker publishes
        return
    names = {part.removesuffix("[]") for name, _ in command.fields for part in name.split(".")}
    assert names & OLD_NAMES == NAMES_OF_OTHERS.get(" ".join(command.words), set())


def test_every_admin_command_has_json_with_its_fields_and_examples() -> None:
    admin = [command for command in all_commands() if command.words[0] == "admin"]
    words = {" ".join(command.words[1:]) for command in admin}
    assert words == {
        *("stats", "peek", "purge-dlq", "list", "show", "trace", "dlq list", "dlq retry", "dlq delete", "cancel"),
        "dlq groups",
        *("pause", "resume", "workers", "reprocess", "fsck", "breaker reset", "events"),
        *(f"batch {word}" for word in ("create", "list", "show", "seal", "cancel", "retry")),
    }
    for command in admin:
        assert command.fields, command.name
        assert command.examples, command.name
