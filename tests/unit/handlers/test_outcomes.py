"""What a handler returned or raised becomes an outcome: bounded text that can be sent to another process."""

from __future__ import annotations

import dataclasses
import math
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fileq.core.errors import ConfigError, Permanent, Retry
from fileq.core.outcome import Done, Failed, timed_out
from fileq.handlers.outcomes import LONGEST_ERROR, LONGEST_RESULT, CommandFailed, TimedOut, done, failed


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_result_that_is_nested_too_deeply_is_dropped() -> None:
    """A4: pages and commands that show it grow with its depth."""
    assert done(nested(64)).result == msgspec.json.encode(nested(64))
    assert done(nested(65)) == Done(
        warning="the result was dropped: it has more than 64 nested lists and objects; make it flatter"
    )


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class Unpicklable(Exception):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.lock = iter(())

    def __reduce__(self) -> Any:
        raise TypeError("can't be pickled")


class BadInput(ValueError):
    pass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def without_location(outcome: Failed) -> str:
    return outcome.error.partition(" (at ")[0]


def test_a_handler_that_returns_none_has_no_result() -> None:
    assert done(None) == Done()


@dataclasses.dataclass
class Page:
    number: int


@pytest.mark.parametrize(
    ("value", "json"),
    [
        ({"pages": 3}, b'{"pages":3}'),
        ([1, "ü"], '[1,"ü"]'.encode()),
        (False, b"false"),
        ("", b'""'),
        (Page(2), b'{"number":2}'),
        (datetime(2026, 1, 2, tzinfo=UTC), b'"2026-01-02T00:00:00Z"'),
        (uuid.UUID(int=0), b'"00000000-0000-0000-0000-000000000000"'),
    ],
)
def test_a_small_result_is_kept_as_json(value: Any, json: bytes) -> None:
    assert done(value) == Done(json)


def self_containing() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value", [object(), {"x": object()}, self_containing(), "\udc80", {"a": {b"\xff": 1j}}, iter([])]
)
def test_a_result_that_is_not_json_is_dropped_with_a_warning(value: Any) -> None:
    outcome = done(value)
    assert outcome.result == b""
    assert "not JSON" in outcome.warning
    assert msgspec.msgpack.encode(outcome)


@pytest.mark.parametrize(("number", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_number_that_json_does_not_have_is_named(number: float, name: str) -> None:
    for value in (number, {"a": [1, {"b": (number,)}]}, [None, {number}]):
        outcome = done(value)
        assert outcome.result == b""
        assert outcome.warning.endswith(f"was dropped: it contains {name}, which JSON does not have")
    assert done({"a": None, "b": [1.5, "null"]}).result == b'{"a":null,"b":[1.5,"null"]}'


def test_a_result_is_kept_up_to_64_kib_of_json_and_not_a_byte_more() -> None:
    assert len(done("x" * (LONGEST_RESULT - 2)).result) == 64 * 1024
    over = done("x" * (LONGEST_RESULT - 1))
    assert over.result == b""
    assert "65537 bytes" in over.warning


def test_an_exception_is_its_name_and_message_and_where_it_was_raised() -> None:
    outcome = failed(raised(ValueError("bad header")))
    assert without_location(outcome) == "ValueError: bad header"
    assert " (at test_outcomes.py:" in outcome.error
    assert outcome.error.endswith(" in raised)")
    assert (outcome.kind, outcome.is_permanent, outcome.after_s, outcome.is_sample) == ("ValueError", False, None, True)


def test_an_exception_deep_in_a_library_names_the_handler_too() -> None:
    def handler() -> None:
        raised_by_library()

    def raised_by_library() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        handler()
    error = caught.value
    assert error.__traceback__ is not None
    outcome = failed(error.with_traceback(error.__traceback__.tb_next))
    assert without_location(outcome) == "KeyError: 'x'"
    assert [location.split()[-1].strip(")") for location in outcome.error.split(" (at ")[1].split(", ")] == [
        "handler",
        "raised_by_library",
    ]


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (ValueError(), "ValueError", "ValueError"),
        (ValueError("two\n  lines\r\n\n"), "ValueError: two | lines", "ValueError"),
        (Unspeakable(), "Unspeakable: (its message can't be shown)", "Unspeakable"),
        (Unpicklable(), "Unpicklable: odd", "Unpicklable"),
        (SystemExit(3), "SystemExit: 3", "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
        (MemoryError(), "MemoryError", "MemoryError"),
        (RecursionError("deep"), "RecursionError: deep", "RecursionError"),
        (OSError("\udcff is no name"), "OSError: \\udcff is no name", "OSError"),
        (GeneratorExit(), "GeneratorExit", "GeneratorExit"),
    ],
)
def test_every_exception_becomes_a_failure_that_can_be_sent(error: BaseException, text: str, kind: str) -> None:
    outcome = failed(raised(error))
    assert (without_location(outcome), outcome.kind, outcome.is_permanent) == (text, kind, False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(outcome), type=Failed) == outcome
    assert "\n" not in outcome.error


def test_an_error_is_at_most_4000_characters() -> None:
    outcome = failed(ValueError("x" * 10_000))
    assert len(outcome.error) == LONGEST_ERROR == 4_000
    assert outcome.error.endswith("…")


def test_an_exception_whose_class_raises_on_inspection_is_still_a_failure() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == "__module__":
                raise RuntimeError("hidden")
            return super().__getattribute__(name)

    class Hidden(Exception, metaclass=Meta):
        pass

    assert failed(Hidden(), give_up_on=("ValueError",)).error == "Hidden"


def test_permanent_is_a_permanent_failure_and_no_sample_for_the_breaker() -> None:
    outcome = failed(raised(Permanent("no such customer")))
    expected = Failed("Permanent: no such customer", "Permanent", is_permanent=True, is_sample=False)
    assert replace(outcome, traceback="") == expected


@pytest.mark.parametrize(
    ("after", "after_s"),
    [
        (30, 30.0),
        (0.5, 0.5),
        (None, None),
        (-1, 0.0),
        (float("nan"), None),
        (float("inf"), 36_500 * 86_400.0),
        ("30s", 30.0),
        (timedelta(minutes=1), 60.0),
    ],
)
def test_retry_chooses_the_delay(after: Any, after_s: float | None) -> None:
    outcome = failed(raised(Retry("busy", after=after)))
    assert replace(outcome, traceback="") == Failed("Retry: busy", "Retry", after_s=after_s)


@pytest.mark.parametrize("after", ["soon", True, timedelta(seconds=-1), []])
def test_a_retry_refuses_what_is_no_delay(after: Any) -> None:
    with pytest.raises(ConfigError, match=r"after is .*; it must be "):
        Retry("busy", after=after)


@pytest.mark.parametrize(
    ("name", "is_permanent"),
    [
        ("BadInput", True),
        (f"{__name__}.BadInput", True),
        ("ValueError", True),
        ("builtins.ValueError", True),
        ("Exception", True),
        ("KeyError", False),
        ("other.BadInput", False),
        ("badinput", False),
    ],
)
def test_give_up_on_matches_as_except_would_by_name(name: str, is_permanent: bool) -> None:
    outcome = failed(raised(BadInput("x")), give_up_on=(7, name))
    assert (outcome.is_permanent, outcome.is_sample) == (is_permanent, not is_permanent)


@pytest.mark.parametrize(("code", "is_permanent"), [(7, True), (8, False), ("7", False), (None, False)])
def test_give_up_on_matches_the_code_of_system_exit(code: Any, is_permanent: bool) -> None:
    assert failed(SystemExit(code), give_up_on=(7,)).is_permanent is is_permanent


@pytest.mark.parametrize(
    ("status", "kind", "give_up_on", "is_permanent"),
    [
        (7, "exit 7", (7,), True),
        (7, "exit 7", (8, "SIGSEGV", "CommandFailed"), False),
        ("SIGSEGV", "SIGSEGV", (11, "SIGSEGV"), True),
        ("SIGSEGV", "SIGSEGV", (11, 139), False),
    ],
)
def test_give_up_on_matches_exit_codes_and_signals_of_commands(
    status: int | str, kind: str, give_up_on: tuple[int | str, ...], is_permanent: bool
) -> None:
    outcome = failed(raised(CommandFailed("convert exited", status)), give_up_on)
    assert outcome == Failed("convert exited", kind, is_permanent=is_permanent, is_sample=not is_permanent)


def test_a_timeout_has_the_same_text_from_the_executor_and_from_the_handler() -> None:
    assert timed_out(90) == failed(raised(TimedOut(90))) == Failed("timed out after 1m30s", "Timeout")


def test_the_only_exception_of_a_task_group_counts_as_itself() -> None:
    alone = ExceptionGroup("g", [ExceptionGroup("h", [Permanent("bad")])])
    assert failed(alone).error == "Permanent: bad"
    two = failed(ExceptionGroup("g", [Permanent("bad"), ValueError("x")]))
    assert (two.kind, two.is_permanent) == ("ExceptionGroup", False)
