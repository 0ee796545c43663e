"""What a handler may leave behind: follow-ups and outputs, each checked when the handler asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from fileq.core.errors import JobError
from fileq.core.job import typed_job
from fileq.core.job_options import JobKeywords, JobOptions, Moment, declared_options, options_of
from fileq.core.outcome import FOLLOW_UPS_MAX, FOLLOW_UPS_MAX_BYTES, OUTPUTS_MAX, FollowUpRequest, Made, follow_up_id
from fileq.handlers.context import Context, view_of
from fileq.handlers.registry import TaskDefinition
from tests.support import trial_tasks

NOW = datetime(2026, 11, 16, 3, 25, tzinfo=UTC)


class Thumb(Struct):
    path: str


THUMBNAIL: TaskDefinition[Any, Any] = TaskDefinition(lambda job, context: None, "thumbnail", "high")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    view = view_of(typed_job("t", None, priority="low", now=NOW, id="j1"), b"")
    roots = (str(tmp_path).encode(),)
    return Context(view, cancelled=threading.Event(), attempt=1, timeout_s=60.0, roots=roots, queues=("high", "low"))


def requests(context: Context) -> tuple[FollowUpRequest, ...]:
    made = context.end()
    assert made is not None
    return made.follow_ups


def test_a_handler_that_makes_nothing_leaves_nothing(context: Context) -> None:
    assert context.end() is None


def test_a_follow_up_has_its_type_and_its_payload_as_json(context: Context) -> None:
    id = context.enqueue("thumbnail", Thumb("/a.png"))
    assert requests(context) == (FollowUpRequest(JobOptions(id=id), type="thumbnail", payload=b'{"path":"/a.png"}'),)


def test_a_task_gives_its_name_and_its_priority(context: Context) -> None:
    context.enqueue(THUMBNAIL)
    context.enqueue(THUMBNAIL, priority="low")
    made = [(one.type, one.options.priority) for one in requests(context)]
    assert made == [("thumbnail", "high"), ("thumbnail", "low")]


def test_ids_follow_from_the_parent_and_the_position_so_that_a_repeated_run_gives_the_same(context: Context) -> None:
    ids = [context.enqueue("a"), context.enqueue("b")]
    assert ids == [follow_up_id("j1", 1), follow_up_id("j1", 2)]
    assert len({*ids, follow_up_id("j2", 1), follow_up_id("j1", 1, 2), follow_up_id("j1", "on_dead", 1)}) == 5


def test_the_ids_of_a_long_chain_do_not_grow() -> None:
    id = "first"
    for _ in range(100):
        id = follow_up_id(id, 1)
    assert len(id) == 36


def test_the_options_of_a_follow_up_are_kept(context: Context) -> None:
    deadline = NOW + timedelta(hours=1)
    options: dict[str, Any] = {"delay": "5m", "at": NOW, "max_retries": 0, "timeout": 1.5, "deadline": deadline}
    context.enqueue("a", id="mine", unique_key="k", priority="high", tags={"tenant": "acme"}, **options)
    [request] = requests(context)
    assert request.options == JobOptions(
        id="mine",
        priority="high",
        delay_ms=300_000,
        at_ms=round(NOW.timestamp() * 1000),
        unique_key="k",
        max_retries=0,
        timeout_s=1.5,
        deadline=Moment(round(deadline.timestamp() * 1000)),
        tags={"tenant": "acme"},
    )


@pytest.mark.parametrize(
    "options",
    [
        {"at": "2026-12-01T00:00:00Z"},
        {"at": NOW},
        {"delay": "5m", "deadline": "5m"},
        {"delay": 300, "deadline": 300},
        {"delay": timedelta(minutes=5), "deadline": timedelta(minutes=5)},
        {"deadline": "2026-12-01T00:00:00+01:00"},
        {"deadline": NOW},
        {"tags": {"tenant": "acme"}, "timeout": "5s", "max_retries": 0, "unique_key": "k", "priority": "high"},
    ],
    ids=str,
)
def test_a_client_and_a_handler_take_the_same_options_in_the_same_sense(context: Context, options: Any) -> None:
    context.enqueue("a", **options)
    [request], given = requests(context), options_of(options)
    names = [option.field for name, option in declared_options(JobKeywords).items() if name != "id"]
    assert {name: getattr(request.options, name) for name in names} == {name: getattr(given, name) for name in names}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda c: c.enqueue(""), "task is ''; give a task, or its name"),
        (lambda c: c.enqueue(3), "task is 3; give a task, or its name"),
        (lambda c: c.enqueue(trial_tasks.total.call([1])), "give a task, or its name in 1 to 100 printable characters"),
        (lambda c: c.enqueue("a", object()), "the payload of task 'a' is not JSON"),
        (lambda c: c.enqueue("a", float("nan")), "the payload of task 'a' contains nan"),
        (lambda c: c.enqueue("a", priority="urgent"), "priority is 'urgent'; it must be one of high, low"),
        (lambda c: c.enqueue("a", delay="5"), "delay is '5'; it must be a duration with its unit"),
        (lambda c: c.enqueue("a", delay=-1), "delay is -1; it must be between 0 and 36500d"),
        (
            lambda c: c.enqueue("a", delay=[]),
            "delay is []; it must be a number of seconds, a duration such as",
        ),
        (lambda c: c.enqueue("a", at=datetime(2026, 1, 1)), "it must be a datetime with its zone"),
        (lambda c: c.enqueue("a", at="tomorrow"), "at is 'tomorrow'; it must be a datetime"),
        (
            lambda c: c.enqueue("a", deadline="soon"),
            "deadline is 'soon'; it must be a time such as 2026-",
        ),
        (lambda c: c.enqueue("a", deadline="2026-01-01T00:00"), "it must be a datetime with its zone"),
        (lambda c: c.enqueue("a", timeout=0), "timeout is 0; it must be longer than 0"),
        (lambda c: c.enqueue("a", tags=["x"]), "tags is ['x']; it must be texts by name"),
        (lambda c: c.enqueue("a", tags={"fileq.made_by": "k"}), "the tag 'fileq.made_by' is reserved"),
        (lambda c: c.enqueue("a", id="a b"), "id 'a b' can't be used"),
        (lambda c: c.enqueue("a", id="sched.a"), "id 'sched.a' is reserved"),
        (lambda c: c.enqueue("a", id=7), "id is 7; it must be a text"),
        (lambda c: c.enqueue("a", unique_key="x" * 201), "at most 200 printable characters"),
        (lambda c: c.enqueue("a", max_retries=-1), "max_retries is -1"),
        (lambda c: c.enqueue_file("/nowhere/a"), "leads outside the allowed roots"),
        (lambda c: c.enqueue_file(""), "'' is not a path"),
        (lambda c: c.output("/nowhere/a"), "can't be an output: No such file or directory"),
        (lambda c: c.output("/"), "can't be an output: it is not a regular file"),
    ],
)
def test_a_mistake_is_an_error_in_the_handler(context: Context, call: Callable[[Any], object], says: str) -> None:
    with pytest.raises(JobError) as raised:
        call(context)
    assert says in str(raised.value)
    assert context.end() is None


def test_an_unknown_option_is_an_error_in_the_handler(context: Context) -> None:
    options: dict[str, Any] = {"prioriy": "high"}
    with pytest.raises(TypeError, match=r"unexpected option 'prioriy'; known: at, deadline, delay, id, max_retries"):
        context.enqueue("a", **options)


def test_durations_are_those_of_a_client_and_none_is_an_option_that_is_not_given(context: Context) -> None:
    context.enqueue("a", delay=timedelta(minutes=5), timeout=timedelta(seconds=2))
    context.enqueue("a", priority=None, delay=None, id=None, unique_key=None)
    timed, plain = requests(context)
    assert (timed.options.delay_ms, timed.options.timeout_s, plain.options.delay_ms) == (300_000, 2.0, 0)


def test_the_follow_ups_of_a_job_are_limited_in_number(context: Context) -> None:
    for _ in range(FOLLOW_UPS_MAX):
        context.enqueue("a")
    with pytest.raises(JobError, match="a job can enqueue 100 follow-ups"):
        context.enqueue("a")
    assert len(requests(context)) == FOLLOW_UPS_MAX


def test_the_follow_ups_of_a_job_are_limited_in_size_together(context: Context) -> None:
    context.enqueue("a", "x" * (FOLLOW_UPS_MAX_BYTES // 2))
    with pytest.raises(JobError, match="262144 are allowed together"):
        context.enqueue("a", "x" * (FOLLOW_UPS_MAX_BYTES // 2))
    context.enqueue("a", "x" * 1000)
    assert len(requests(context)) == 2


def test_a_file_is_enqueued_as_it_is_when_the_handler_ends(context: Context, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a")
    context.enqueue_file(file)
    file.write_text("abc")
    [request] = requests(context)
    assert (request.path, request.size, request.type) == (str(file).encode(), 3, "")
    assert request.signature == f"3-{file.stat().st_mtime_ns}"


def test_a_file_that_does_not_exist_is_not_enqueued(context: Context, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="can't be enqueued: file vanished"):
        context.enqueue_file(tmp_path / "a.csv")


def test_an_output_is_recorded_once_as_it_is_when_the_handler_ends(context: Context, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a")
    context.output(file)
    context.output(str(file))
    file.write_text("abc")
    made = context.end()
    assert made is not None
    assert [(one.path, one.size) for one in made.outputs] == [(str(file).encode(), 3)]


def test_an_output_that_is_gone_at_the_end_is_recorded_as_it_was(context: Context, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a")
    context.output(file)
    file.unlink()
    made = context.end()
    assert made is not None
    assert [one.size for one in made.outputs] == [1]


def test_the_outputs_of_a_job_are_limited(context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    monkeypatch.setattr("fileq.handlers.context.OUTPUTS_MAX", 1)
    context.output(tmp_path / "a")
    context.output(tmp_path / "a")
    with pytest.raises(JobError, match="a job can have 1 outputs"):
        context.output(tmp_path / "b")
    assert OUTPUTS_MAX == 1000


def test_after_the_attempt_nothing_can_be_added(context: Context, tmp_path: Path) -> None:
    """A thread that a handler left behind would otherwise believe that it did something."""
    context.enqueue("a")
    assert isinstance(context.end(), Made)
    with pytest.raises(JobError, match="the attempt has ended"):
        context.enqueue("a")
    (tmp_path / "a").touch()
    with pytest.raises(JobError, match="the attempt has ended"):
        context.output(tmp_path / "a")
