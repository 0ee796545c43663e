"""What a handler returned or raised, as an outcome: text that survives any process border, bounded, readable."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from fileq.core.errors import Permanent, Retry
from fileq.core.outcome import Done, Failed
from fileq.handlers.outcomes import LONGEST_ERROR, LONGEST_RESULT, CommandFailed, TimedOut, done, failed
from fileq.worker.executors.stop_request import timed_out


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class NotEvenEqual(Exception):
    """Unpickleable, and hostile to whoever looks at it."""

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


def without_place(ending: Failed) -> str:
    return ending.error.partition(" (at ")[0]


def test_nothing_returned_is_no_result() -> None:
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


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [object(), {"x": object()}, endless(), "\udc80", {"a": {b"\xff": 1j}}, iter([])])
def test_a_result_that_is_not_json_is_dropped_with_a_warning(value: Any) -> None:
    ending = done(value)
    assert ending.result == b""
    assert "not JSON" in ending.warning
    assert msgspec.msgpack.encode(ending)


def test_a_result_is_kept_up_to_64_kib_of_json_and_not_a_byte_more() -> None:
    assert len(done("x" * (LONGEST_RESULT - 2)).result) == 64 * 1024
    over = done("x" * (LONGEST_RESULT - 1))
    assert over.result == b""
    assert "65537 bytes" in over.warning


def test_an_exception_is_its_name_and_message_and_where_it_was_raised() -> None:
    ending = failed(raised(ValueError("bad header")))
    assert without_place(ending) == "ValueError: bad header"
    assert " (at test_handlers_outcomes.py:" in ending.error
    assert ending.error.endswith(" in raised)")
    assert (ending.kind, ending.is_permanent, ending.after_s, ending.is_sample) == ("ValueError", False, None, True)


def test_an_exception_deep_in_a_library_names_the_handler_too() -> None:
    def handler() -> None:
        raised_by_library()

    def raised_by_library() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        handler()
    error = caught.value
    assert error.__traceback__ is not None
    ending = failed(error.with_traceback(error.__traceback__.tb_next))
    assert without_place(ending) == "KeyError: 'x'"
    assert [place.split()[-1].strip(")") for place in ending.error.split(" (at ")[1].split(", ")] == [
        "handler",
        "raised_by_library",
    ]


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (ValueError(), "ValueError", "ValueError"),
        (ValueError("two\n  lines\r\n\n"), "ValueError: two | lines", "ValueError"),
        (Unspeakable(), "Unspeakable: (its message can't be shown)", "Unspeakable"),
        (NotEvenEqual(), "NotEvenEqual: odd", "NotEvenEqual"),
        (SystemExit(3), "SystemExit: 3", "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
        (MemoryError(), "MemoryError", "MemoryError"),
        (RecursionError("deep"), "RecursionError: deep", "RecursionError"),
        (OSError("\udcff is no name"), "OSError: \\udcff is no name", "OSError"),
        (GeneratorExit(), "GeneratorExit", "GeneratorExit"),
    ],
)
def test_whatever_is_raised_becomes_a_failure_that_can_be_sent(error: BaseException, text: str, kind: str) -> None:
    ending = failed(raised(error))
    assert (without_place(ending), ending.kind, ending.is_permanent) == (text, kind, False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ending), type=Failed) == ending
    assert "\n" not in ending.error


def test_an_error_is_at_most_4000_characters() -> None:
    ending = failed(ValueError("x" * 10_000))
    assert len(ending.error) == LONGEST_ERROR == 4_000
    assert ending.error.endswith("…")


def test_a_class_that_breaks_every_question_is_still_a_failure() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == "__module__":
                raise RuntimeError("hidden")
            return super().__getattribute__(name)

    class Hidden(Exception, metaclass=Meta):
        pass

    assert failed(Hidden(), give_up_on=("ValueError",)).error == "Hidden"


def test_permanent_is_for_good_and_no_sample() -> None:
    ending = failed(raised(Permanent("no such customer")))
    assert ending == Failed("Permanent: no such customer", "Permanent", is_permanent=True, is_sample=False)


@pytest.mark.parametrize(
    ("after", "after_s"),
    [
        (30, 30.0),
        (0.5, 0.5),
        (None, None),
        (-1, 0.0),
        (float("nan"), None),
        (float("inf"), 36_500 * 86_400.0),
        ("30s", None),
        (True, None),
    ],
)
def test_retry_chooses_the_delay_if_it_is_one(after: Any, after_s: float | None) -> None:
    ending = failed(raised(Retry("busy", after=after)))
    assert ending == Failed("Retry: busy", "Retry", after_s=after_s)


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
    ending = failed(raised(BadInput("x")), give_up_on=(7, name))
    assert (ending.is_permanent, ending.is_sample) == (is_permanent, not is_permanent)


@pytest.mark.parametrize(("code", "is_permanent"), [(7, True), (8, False), ("7", False), (None, False)])
def test_give_up_on_knows_the_exit_code_a_function_exits_with(code: Any, is_permanent: bool) -> None:
    assert failed(SystemExit(code), give_up_on=(7,)).is_permanent is is_permanent


@pytest.mark.parametrize(
    ("ending", "kind", "give_up_on", "is_permanent"),
    [
        (7, "exit 7", (7,), True),
        (7, "exit 7", (8, "SIGSEGV", "CommandFailed"), False),
        ("SIGSEGV", "SIGSEGV", (11, "SIGSEGV"), True),
        ("SIGSEGV", "SIGSEGV", (11, 139), False),
    ],
)
def test_give_up_on_knows_the_exit_codes_and_signals_of_commands(
    ending: int | str, kind: str, give_up_on: tuple[int | str, ...], is_permanent: bool
) -> None:
    outcome = failed(raised(CommandFailed("convert exited", ending)), give_up_on)
    assert outcome == Failed("convert exited", kind, is_permanent=is_permanent, is_sample=not is_permanent)


def test_a_timeout_reads_the_same_from_inside_and_from_outside() -> None:
    assert timed_out(90) == failed(raised(TimedOut(90))) == Failed("timed out after 1m30s", "Timeout")


def test_what_a_task_group_packs_counts_as_itself_when_it_is_alone() -> None:
    alone = ExceptionGroup("g", [ExceptionGroup("h", [Permanent("bad")])])
    assert failed(alone).error == "Permanent: bad"
    two = failed(ExceptionGroup("g", [Permanent("bad"), ValueError("x")]))
    assert (two.kind, two.is_permanent) == ("ExceptionGroup", False)
