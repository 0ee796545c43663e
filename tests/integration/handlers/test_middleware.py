"""Middleware around handlers: plain and async mixed, around commands too, as part of the attempt."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fileq
import fileq.testing
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.core.outcome import Done, Failed, Ran
from fileq.handlers import extensions
from fileq.handlers.extensions import Extensions
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from tests.support.handler_runs import failure, python, result, routes_of, run, typed_task

Call = Callable[[], Any]
seen: list[str] = []
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def own_extensions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(extensions, "EXTENSIONS", Extensions())
    yield
    seen.clear()


def plain(job: Any, context: Any, call: Call) -> Any:
    seen.append(f"plain {threading.current_thread().name}")
    return ["plain", call()]


async def on_loop(job: Any, context: Any, call: Call) -> Any:
    seen.append(f"on_loop {threading.current_thread().name}")
    await asyncio.sleep(0)
    return ["on_loop", await call()]


def handler(job: Any, context: Any) -> str:
    seen.append(f"handler {threading.current_thread().name}")
    return "done"


async def async_handler(job: Any, context: Any) -> str:
    seen.append(f"handler {threading.current_thread().name}")
    return "done"


def through(*middleware: Callable[..., Any], around: Any = handler, **task: Any) -> Ran:
    for function in middleware:
        fileq.middleware(function)
    return run(typed_task("t", **task), around)


def again(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same middleware under another name."""
    if asyncio.iscoroutinefunction(function):

        async def second(job: Any, context: Any, call: Call) -> Any:
            return await function(job, context, call)

    else:

        def second(job: Any, context: Any, call: Call) -> Any:
            return function(job, context, call)

    return second


def test_the_first_one_is_the_outermost_and_gives_the_result() -> None:
    assert through(plain, on_loop) == Done(b'["plain",["on_loop","done"]]')


@pytest.mark.parametrize("around", [handler, async_handler])
@pytest.mark.parametrize("first", [plain, on_loop])
@pytest.mark.parametrize("second", [plain, on_loop])
@pytest.mark.parametrize("third", [plain, on_loop])
def test_plain_functions_run_in_the_thread_of_the_attempt_and_async_ones_on_the_loop(
    first: Any, second: Any, third: Any, around: Any
) -> None:
    kinds = [first, second, third]
    fileq.middleware(first)
    fileq.middleware(again(second))
    renamed = again(third)
    renamed.__qualname__ = "third"
    fileq.middleware(renamed)
    names = ["plain" if kind is plain else "on_loop" for kind in kinds]
    wanted: Any = "done"
    for name in reversed(names):
        wanted = [name, wanted]
    ended = run(typed_task("t"), around)
    assert isinstance(ended, Done)
    assert result(ended) == wanted
    here = threading.current_thread().name
    own = [f"{name} {here if name == 'plain' else 'async'}" for name in names]
    assert seen == [*own, f"handler {here if around is handler else 'async'}"]


def test_what_it_raises_fails_the_attempt_and_the_handler_does_not_run() -> None:
    def refuses(job: Any, context: Any, call: Call) -> Any:
        raise fileq.Permanent("no credentials")

    ended = failure(through(refuses))
    assert (ended.error, ended.is_permanent, seen) == ("Permanent: no credentials", True, [])


@pytest.mark.parametrize("outer", [plain, on_loop])
def test_what_the_handler_raises_passes_through(outer: Any) -> None:
    def fails(job: Any, context: Any) -> None:
        raise ValueError("page 3")

    async def fails_on_loop(job: Any, context: Any) -> None:
        fails(job, context)

    ended = failure(through(outer, around=fails))
    line = fails.__code__.co_firstlineno + 1
    assert ended.error == f"ValueError: page 3 (at test_middleware.py:{line} in fails)"
    assert ended.kind == "ValueError"
    ended = failure(through(outer, around=fails_on_loop))
    place = f"test_middleware.py:{fails_on_loop.__code__.co_firstlineno + 1} in fails_on_loop"
    assert ended.error == f"ValueError: page 3 (at {place}, test_middleware.py:{line} in fails)"


def test_what_it_raises_after_the_handler_names_its_own_line() -> None:
    def refuses(job: Any, context: Any, call: Call) -> Any:
        raise ValueError(call())

    ended = failure(through(refuses))
    assert ended.error == f"ValueError: done (at test_middleware.py:{refuses.__code__.co_firstlineno + 1} in refuses)"


def test_it_can_clean_up_after_a_failure_and_answer_instead_of_the_handler() -> None:
    def cached(job: Any, context: Any, call: Call) -> Any:
        try:
            return call()
        except ValueError:
            return "from the cache"

    def fails(job: Any, context: Any) -> None:
        raise ValueError("x")

    assert through(cached, around=fails) == Done(b'"from the cache"')


def test_it_leaves_values_for_the_handler(tmp_path: Path) -> None:
    def workdir(job: Any, context: Any, call: Call) -> Any:
        context.state["directory"] = str(tmp_path)
        VARIABLE.set("from middleware")
        return call()

    async def variable(job: Any, context: Any, call: Call) -> Any:
        assert VARIABLE.get() == "from middleware"
        VARIABLE.set("from the loop")
        return await call()

    def reads(job: Any, context: Any) -> list[str]:
        return [context.state["directory"], VARIABLE.get()]

    assert contextvars.copy_context().run(through, workdir, variable, around=reads) == Done(
        f'["{tmp_path}","from the loop"]'.encode()
    )


def test_it_runs_around_commands() -> None:
    def environment(job: Any, context: Any, call: Call) -> Any:
        os.environ["FROM_MIDDLEWARE"] = "yes"
        try:
            return call()["stdout"]
        finally:
            del os.environ["FROM_MIDDLEWARE"]

    code = "import os; print(os.environ['FROM_MIDDLEWARE'], end='')"
    assert through(environment, around=python(code)) == Done(b'"yes"')


def test_follow_ups_of_middleware_and_handler_belong_to_the_attempt() -> None:
    def outer(job: Any, context: Any, call: Call) -> Any:
        context.enqueue("first")
        value = call()
        context.enqueue("third")
        return value

    def follows(job: Any, context: Any) -> None:
        context.enqueue("second")

    ended = through(outer, around=follows)
    assert isinstance(ended, Done)
    assert ended.made is not None
    assert [one.type for one in ended.made.follow_ups] == ["first", "second", "third"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_runs_once_in_each_attempt(is_async: bool) -> None:
    async def twice_async(job: Any, context: Any, call: Call) -> Any:
        await call()
        return await call()

    def twice(job: Any, context: Any, call: Call) -> Any:
        call()
        return call()

    ended = failure(through(twice_async if is_async else twice))
    assert "has called call() twice; a handler runs once in each attempt" in ended.error
    assert len(seen) == 1


def test_async_middleware_ends_at_the_timeout() -> None:
    async def hangs(job: Any, context: Any, call: Call) -> Any:
        await asyncio.sleep(60)

    assert failure(through(hangs, timeout_s=0.05)).error == "timed out after 50ms"


def test_a_cancellation_reaches_async_middleware_and_the_plain_handler_below_it() -> None:
    cancelled = threading.Event()

    async def waits(job: Any, context: Any, call: Call) -> Any:
        return await call()

    def obedient(job: Any, context: Any) -> None:
        cancelled.set()
        seen.append(f"cancelled {context.cancelled.wait(30)}")
        raise InterruptedError("cancelled")

    fileq.middleware(waits)
    assert isinstance(run(typed_task("t"), obedient, cancelled=cancelled), Failed)
    assert seen == ["cancelled True"]


def test_a_handler_that_ends_below_async_middleware_does_not_cancel_it() -> None:
    """In a child process, where the tasks that a job left on the loop are cancelled."""
    fileq.middleware(on_loop)
    fileq.middleware(plain)
    routes = routes_of(async_handler)
    routes.loop.ends_left_tasks = True
    assert run_task(routes, typed_task("t"), threading.Event()) == Done(b'["on_loop",["plain","done"]]')
    routes.loop.close()


def test_the_configuration_chooses_the_middleware_and_its_order() -> None:
    fileq.middleware(plain)
    here = "tests.integration.handlers.test_middleware"
    routes = Routes.load(config_from({"middleware": [f"{here}:on_loop"]}), app_dir="")
    assert [one.target for one in routes.middleware] == [f"{here}:on_loop"]
    assert f"@fileq.middleware on {here}:plain does not run" in routes.warnings[0]
    both = Routes.load(config_from({"middleware": [f"{here}:on_loop", f"{here}:plain"]}), app_dir="")
    assert [one.function for one in both.middleware] == [on_loop, plain]
    assert both.warnings == ()


def test_what_can_not_be_middleware_is_found_at_the_start() -> None:
    fileq.middleware(handler)
    with pytest.raises(ConfigError, match=r"a middleware function is called with \(job, context, call\)"):
        Routes.load(config_from({}), app_dir="")
    wrong = {"middleware": ["nowhere:f", "tests.integration.handlers.test_middleware:handler"]}
    with pytest.raises(ConfigError) as raised:
        Routes.load(config_from(wrong), app_dir="")
    first, second = raised.value.problems
    assert first.startswith("middleware[0] names the module nowhere")
    assert second.startswith("middleware[1] uses tests.integration.handlers.test_middleware:handler, which takes (job")


def test_a_test_of_a_handler_runs_through_the_imported_middleware_or_through_what_it_names() -> None:
    fileq.middleware(plain)
    assert fileq.testing.run(handler) == ["plain", "done"]
    assert fileq.testing.run(async_handler) == ["plain", "done"]
    assert fileq.testing.run(handler, middleware=[on_loop, plain]) == ["on_loop", ["plain", "done"]]
    assert fileq.testing.run(handler, middleware=[]) == "done"
    with pytest.raises(ConfigError, match="handler takes"):
        fileq.testing.run(handler, middleware=[handler])
