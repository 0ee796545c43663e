"""@fileq.task: names, types, what is registered, and what decides about a retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest

import fileq
import fileq.testing
from fileq.client.tasks import task
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.core.job import typed_job
from fileq.handlers import registry
from fileq.handlers.registry import REGISTRY, Registry
from fileq.handlers.routes import Routes
from tests.support.pump_setup import NOW

if TYPE_CHECKING:
    from decimal import Decimal


class Thumb(msgspec.Struct):
    path: str
    width: int = 100


@pytest.fixture(autouse=True)
def tasks() -> Registry:
    """A registry without the tasks of other tests."""
    REGISTRY.reset()
    return REGISTRY


def shrink(job: fileq.JobView[Thumb], context: fileq.Context) -> str:
    return f"{job.payload.path}@{job.payload.width}"


def routes() -> Routes:
    return Routes.load(config_from({"handlers": []}), app_dir="")


def test_a_name_is_explicit_or_that_of_the_module_and_the_function() -> None:
    assert task("thumbnail")(shrink).name == "thumbnail"
    assert task()(shrink).name == "tests.unit.handlers.test_tasks.shrink"
    with pytest.raises(ConfigError, match=r"a task is named ''"):
        task("")(shrink)
    with pytest.raises(ConfigError, match="parentheses"):
        task(shrink)  # type: ignore[arg-type]


def test_a_task_without_a_name_in_the_main_program_is_refused() -> None:
    def lonely(job: fileq.JobView, context: fileq.Context) -> None: ...

    lonely.__module__ = "__main__"
    with pytest.raises(ConfigError, match=r'name it: @fileq.task\("lonely"\)'):
        task()(lonely)


def test_an_option_that_does_not_exist_is_a_type_error_with_all_that_do_and_the_nearest() -> None:
    wrong: dict[str, Any] = {"timout": "5s"}
    with pytest.raises(TypeError, match=r"'timout'; .* priority, rate, retry_if, timeout; did you mean 'timeout'\?$"):
        task("x", **wrong)
    with pytest.raises(TypeError, match=r"'timout'; .* retry_if, safe_open, timeout, type; did you mean 'timeout'\?$"):
        fileq.handler("*", **wrong)


def test_the_limits_of_an_annotated_payload_are_checked() -> None:
    def one(job: fileq.JobView[Annotated[int, msgspec.Meta(gt=0)]], context: fileq.Context) -> None: ...
    def each(job: fileq.JobView[list[Annotated[int, msgspec.Meta(gt=0)]]], context: fileq.Context) -> None: ...
    def noted(job: Annotated[fileq.JobView[Thumb], "noted"], context: fileq.Context) -> None: ...

    assert task("one")(one).checked_payload(b"1") == b"1"
    with pytest.raises(ConfigError, match=r"task 'one' takes a payload of type int: Expected `int` >= 1"):
        task("one")(one).checked_payload(b"0")
    with pytest.raises(ConfigError, match=r"Expected `int` >= 1 - at `\$\[1\]`"):
        task("each")(each).checked_payload(b"[1,0]")
    assert task("noted")(noted).payload_type is Thumb


def test_everything_wrong_with_the_options_of_a_task_is_reported_together() -> None:
    task("p", on_completed="p", max_retries=-1, timeout="x")(shrink)
    with pytest.raises(ConfigError) as caught:
        routes()
    problems = [problem.partition(":shrink: ")[2].partition(" is ")[0] for problem in caught.value.problems]
    assert sorted(problems) == ["max_retries", "on_completed", "timeout"]


def test_two_tasks_of_one_name_are_an_error_that_names_both() -> None:
    def other(job: fileq.JobView, context: fileq.Context) -> None: ...

    task("thumbnail")(shrink)
    with pytest.raises(ConfigError) as caught:
        task("thumbnail")(other)
    assert "tests.unit.handlers.test_tasks:shrink and tests.unit.handlers.test_tasks:" in str(caught.value)


def test_a_module_that_is_imported_again_replaces_its_tasks(tasks: Registry) -> None:
    task("thumbnail")(shrink)
    again = task("thumbnail", priority="high")(shrink)
    assert list(tasks.tasks()) == [again]


def test_a_task_is_still_a_function() -> None:
    made = task("thumbnail")(shrink)
    assert made.__name__ == "shrink"
    assert fileq.testing.run(made, payload=Thumb("a")) == "a@100"
    with pytest.raises(fileq.Permanent, match="is not what the task takes"):
        fileq.testing.run(made, payload={"width": 3})


def test_the_route_of_a_task_has_its_options_and_its_type() -> None:
    task("thumbnail", timeout="30s", max_retries=5, backoff=["1s"], give_up_on=[KeyError], isolation="thread")(shrink)
    [route] = routes()
    assert (route.type, route.timeout, route.max_retries, route.isolation) == ("thumbnail", 30.0, 5, "thread")
    assert route.give_up_on == ("builtins.KeyError",)
    assert route.where == "@fileq.task on tests.unit.handlers.test_tasks:shrink"
    assert routes().find(typed_job("thumbnail", None, priority="low", now=NOW), "") == 0


def test_a_task_that_cannot_run_is_reported_when_routes_are_loaded() -> None:
    def one(job: Any) -> None: ...

    def two(job: fileq.JobView[Decimal], context: fileq.Context) -> None: ...

    task("one")(one)  # type: ignore[call-overload]
    task("two")(two)
    with pytest.raises(ConfigError) as caught:
        routes()
    assert "called with (job, context)" in caught.value.problems[0]
    assert "name 'Decimal' is not defined" in caught.value.problems[1]


def test_a_task_needs_a_queue_that_exists() -> None:
    """The worker started, no schedule of the task fired, and each attempt to enqueue it in a handler failed."""
    task("opt", priority="urgent")(shrink)
    with pytest.raises(ConfigError) as caught:
        routes()
    assert str(caught.value) == (
        "@fileq.task on tests.unit.handlers.test_tasks:shrink: priority is 'urgent'; it must be one of high, low"
    )
    config = config_from({"handlers": [], "worker": {"priorities": ["urgent", "high", "low"]}})
    assert [route.type for route in Routes.load(config, app_dir="")] == ["opt"]


def test_a_misspelt_option_of_a_call_is_an_error_where_the_call_is_made() -> None:
    with pytest.raises(TypeError, match=r"unexpected option 'dlay'; .* did you mean 'delay'\?"):
        task("thumbnail")(shrink).call(Thumb(1), dlay=3)  # type: ignore[call-arg]


def test_types_come_from_the_annotations_and_nothing_else_has_to_be_importable() -> None:
    def loose(job: fileq.JobView, context: Decimal) -> None: ...

    made = task("loose")(loose)  # type: ignore[call-overload]
    assert made.payload_type is Any
    assert made.payload_name == ""
    assert task("thumbnail")(shrink).payload_type is Thumb


@pytest.mark.parametrize(
    ("raised", "is_permanent"), [(OSError("again"), False), (ValueError("never"), True), (fileq.Retry("x"), False)]
)
def test_retry_if_decides_about_the_errors_of_the_function(raised: Exception, is_permanent: bool) -> None:
    @task("flaky", retry_if=lambda error: isinstance(error, OSError))
    def flaky(job: fileq.JobView, context: fileq.Context) -> None:
        raise raised

    with fileq.testing.queue(config={"worker": {"max_retries": 2}}) as q:
        flaky.enqueue()
        assert q.drain() == (1 if is_permanent else 3)
        assert len(q.dead) == 1


def test_an_error_in_retry_if_is_logged_and_counts_as_retry(capsys: pytest.CaptureFixture[str]) -> None:
    @task("flaky", max_retries=1, retry_if=lambda error: 1 / 0)
    def flaky(job: fileq.JobView, context: fileq.Context) -> None:
        raise OSError("first")

    with fileq.testing.queue() as q:
        flaky.enqueue()
        assert q.drain() == 2
        assert "first" in str(q.dead[0].error)
    assert capsys.readouterr().err.count("handler.retry_if_failed") == 2


def test_retry_if_of_a_handler_decides_too() -> None:
    @registry.handler("**/*.txt", retry_if=lambda error: False)
    def never(job: fileq.JobView, context: fileq.Context) -> None:
        raise OSError("no")

    with fileq.testing.queue() as q:
        q.drop("a.txt")
        assert q.drain() == 1


class Model:
    """Stands for a pydantic model: a class that msgspec neither reads nor writes."""


def test_a_payload_that_json_cannot_hold_is_refused_before_its_first_job() -> None:
    def render(job: fileq.JobView[dict[str, list[Model]]], context: fileq.Context) -> None: ...

    made = task("render")(render)
    with pytest.raises(ConfigError, match=r"has a payload with the type Model, .*; use a msgspec Struct"):
        routes()
    with pytest.raises(ConfigError, match="type Model"):
        made.checked_payload(b"{}")


def test_a_job_that_is_annotated_with_the_type_of_its_payload_is_refused() -> None:
    def render(job: Thumb, context: fileq.Context) -> None: ...

    task("render")(render)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'job' is annotated with Thumb; write job: fileq\.JobView\[Thumb\]"):
        routes()


def test_a_job_may_be_annotated_with_any_type_that_it_has() -> None:
    def render(job: object, context: fileq.Context) -> None: ...
    def plain(job: fileq.JobView, context: fileq.Context) -> None: ...
    def anything(job: Any, context: fileq.Context) -> None: ...
    def bare(job, context): ...

    for function in (render, plain, anything, bare):
        assert task(function.__name__)(function).payload_type is Any


class Node(msgspec.Struct):
    """Contains itself; `object` is any JSON value."""

    children: list[Node]
    value: object = None


def test_a_payload_may_contain_itself_and_any_value() -> None:
    def walk(job: fileq.JobView[Node], context: fileq.Context) -> object: ...

    made = task("walk")(walk)
    assert routes().warnings == ()
    assert made.checked_payload(b'{"children": [{"children": []}], "value": [1]}')


def test_a_result_that_json_cannot_hold_is_a_warning() -> None:
    async def render(job: fileq.JobView[None], context: fileq.Context) -> Model | None: ...

    task("render")(render)
    [warning] = routes().warnings
    assert warning.startswith("task 'render' (tests.unit.handlers.test_tasks:")
    assert warning.endswith("returns Model, which JSON can't hold: its jobs would be dead")


def test_a_task_may_name_the_tasks_that_follow_it() -> None:
    def report(job: fileq.JobView[dict[str, object]], context: fileq.Context) -> None: ...

    reporter = task("report")(report)
    task("thumbnail", on_completed="report", on_dead=reporter)(shrink)
    route = next(route for route in routes() if route.type == "thumbnail")
    assert (route.on_completed, route.on_dead) == ("report", "report")


def test_a_route_that_hides_a_task_is_a_warning() -> None:
    task("thumbnail", timeout=5)(shrink)
    hiding = config_from({"handlers": [{"type": "thumbnail", "command": ["true"]}]})
    assert Routes.load(hiding, app_dir="").warnings == (
        "handlers[0] takes all jobs of type thumbnail, so the options of @fileq.task on "
        "tests.unit.handlers.test_tasks:shrink have no effect",
    )
