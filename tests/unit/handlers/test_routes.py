"""Which handler gets which job, in which order, and under which options."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fileq
from fileq.config import Config, config_from
from fileq.config.schema import BackoffSettings
from fileq.core.errors import ConfigError
from fileq.core.job import Job, file_job, typed_job
from fileq.handlers import registry
from fileq.handlers.importing import is_async, unfitness
from fileq.handlers.routes import Routes

NOW = datetime(2026, 11, 16, tzinfo=UTC)
CHECKSUM = "fileq.handlers:checksum"


@pytest.fixture(autouse=True)
def clean_registry() -> None:
    registry.REGISTRY.reset()


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def about(path: str) -> Job:
    return file_job(b"/data/" + path.encode(), size=1, priority="low", now=NOW)


def of_type(type: str) -> Job:
    return typed_job(type, None, priority="low", now=NOW)


def load(config: Config) -> Routes:
    return Routes.load(config, app_dir="")


def routes_of(*handlers: dict[str, Any], **worker: Any) -> Routes:
    return load(config_from({"handlers": list(handlers), "worker": worker}))


def problems(config: Config) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(config)
    return caught.value.problems


def noop(job: Any, context: Any) -> None:
    pass


# which job


@pytest.mark.parametrize(
    ("path", "number"),
    [("a.pdf", 0), ("x/y/a.pdf", 0), ("in/a.txt", 1), ("in/x/a.txt", None), ("a.txt", None), ("b/.pdf", 0), ("", None)],
)
def test_the_first_glob_that_matches_below_the_root_wins(path: str, number: int | None) -> None:
    routes = routes_of(*({"match": glob, "use": CHECKSUM} for glob in ("**/*.pdf", "in/*", "in/*.pdf")))
    assert routes.find(about(path), path) == number


def test_names_with_newlines_and_bytes_that_are_no_text_match_like_others() -> None:
    routes = routes_of({"match": "**/*.pdf", "use": CHECKSUM})
    for name in ("a\n.pdf", "\udcff.pdf", "-rf.pdf", "a b'\".pdf"):
        assert routes.find(about("x"), f"dir/{name}") == 0, name
    assert routes.find(about("x"), "a.pdf\n") is None


def test_a_job_with_a_type_goes_by_its_type_alone() -> None:
    routes = routes_of(
        {"match": "**/*", "use": CHECKSUM}, {"type": "mail", "use": CHECKSUM}, {"type": "mail", "command": ["true"]}
    )
    assert routes.find(of_type("mail"), "") == 1
    assert routes.find(about("a.pdf").but(type="mail"), "a.pdf") == 1
    assert routes.find(of_type("fax"), "") is None
    assert routes.find(about("a.pdf").but(type="fax"), "a.pdf") is None


def test_a_refusal_says_why_and_what_to_do() -> None:
    routes = routes_of({"match": "*.pdf", "use": CHECKSUM}, {"type": "mail", "use": CHECKSUM})
    assert routes.refusal(of_type("mial")) == "no handler for type 'mial'; did you mean 'mail'?"
    assert routes.refusal(of_type("x")) == "no handler for type 'x'; known types: mail"
    assert routes.refusal(about("a.txt")) == "no handler for '/data/a.txt'; add a route that matches it"
    assert routes.refusal(about("a").but(filepath="")) == "the job names neither a file nor a type"
    assert routes_of().refusal(of_type("x")) == "no handler for type 'x'; known types: none"


def test_a_refusal_names_a_route_that_takes_only_files_of_the_top_level() -> None:
    routes = routes_of({"match": "*.{pdf,tif}", "command": ["true"]}, {"match": "b/*.txt", "command": ["true"]})
    only = "the route '*.{pdf,tif}' takes files of the top level only; '**/*.{pdf,tif}' takes those of every directory"
    assert routes.refusal(about("sub/a.tif")) == f"no handler for '/data/sub/a.tif'; {only}"
    assert routes.refusal(about("sub/a.txt")) == "no handler for '/data/sub/a.txt'; add a route that matches it"
    refusal = routes_of({"match": "**.pdf", "command": ["true"]}).refusal(about("sub/a.pdf"))
    assert refusal.endswith("takes files of the top level only; '**/*.pdf' takes those of every directory")


def test_a_refusal_names_a_route_that_misses_the_file_by_case() -> None:
    routes = routes_of({"match": "**/*.pdf", "command": ["true"]})
    missed = "the route '**/*.pdf' would match if case did not matter; add one for this spelling"
    assert routes.refusal(about("sub/X.PDF")) == f"no handler for '/data/sub/X.PDF'; {missed}"


def test_commands_of_jobs_are_refused_unless_they_are_allowed() -> None:
    refused = routes_of({"match": "**/*", "use": CHECKSUM})
    assert refused.find(of_type("command"), "") is None
    assert "worker.allow_commands: true" in refused.refusal(of_type("command"))
    allowed = routes_of({"match": "**/*", "use": CHECKSUM}, allow_commands=True)
    assert allowed.find(of_type("command"), "") == 1
    assert (allowed[1].function, allowed[1].command) == (None, ())


def test_a_route_of_ones_own_for_the_type_command_needs_no_permission_and_goes_first() -> None:
    own = {"type": "command", "use": CHECKSUM}
    assert routes_of(own).find(of_type("command"), "") == 0
    assert routes_of(own, allow_commands=True)[0].function is not None


# in which order


def test_configured_handlers_come_before_decorated_ones() -> None:
    fileq.handler("**/*.pdf")(noop)
    routes = routes_of({"match": "**/*", "use": CHECKSUM})
    assert [route.name for route in routes] == [CHECKSUM, f"{__name__}:noop"]
    assert routes.find(about("a.pdf"), "a.pdf") == 0


def test_the_default_comes_after_decorated_ones_and_only_if_no_handlers_are_given() -> None:
    fileq.handler("**/*.pdf")(noop)
    routes = load(config_from({}))
    assert [routes[routes.find(about(p), p) or 0].name for p in ("a.pdf", "a.txt")] == [f"{__name__}:noop", CHECKSUM]
    assert len(load(config_from({"handlers": []}))) == 1


def test_decorators_keep_their_order_and_the_function_as_it_is() -> None:
    assert fileq.handler("a")(noop) is noop
    fileq.handler("b")(noop)
    fileq.handler(type="t")(noop)
    assert [(route.match, route.type) for route in routes_of()] == [("a", None), ("b", None), (None, "t")]


def test_a_module_loaded_again_replaces_its_handlers() -> None:
    fileq.handler("a", timeout=1)(noop)
    fileq.handler("a", timeout=2)(noop)
    assert [route.timeout for route in routes_of()] == [2.0]


# under which options


def test_options_that_a_route_does_not_set_are_the_workers() -> None:
    route = routes_of(
        {"match": "**/*", "use": CHECKSUM},
        timeout="7s",
        max_retries=9,
        isolation="thread",
        backoff={"base": "2s", "jitter": 0},
    )[0]
    assert (route.timeout, route.max_retries, route.isolation) == (7.0, 9, "thread")
    assert route.backoff == BackoffSettings(base=2.0, jitter=0.0)
    assert (route.in_place, route.give_up_on, route.is_async) == (False, (), False)


def test_options_that_a_route_sets_override_the_workers() -> None:
    own = {
        "timeout": "1s",
        "max_retries": 0,
        "isolation": "thread",
        "backoff": ["3s"],
        "in_place": True,
        "give_up_on": [3, "E"],
    }
    route = routes_of({"type": "t", "use": CHECKSUM, **own}, max_retries=9)[0]
    assert (route.timeout, route.max_retries, route.isolation, route.in_place) == (1.0, 0, "thread", True)
    assert (route.backoff.delays, route.give_up_on) == ((3.0,), (3, "E"))


def test_a_command_runs_below_a_child_unless_its_route_says_otherwise() -> None:
    routes = routes_of(
        {"type": "a", "command": ["true"]},
        {"type": "b", "command": ["true"], "isolation": "thread"},
        {"type": "c", "use": CHECKSUM},
        isolation="thread",
        allow_commands=True,
    )
    assert [route.isolation for route in routes] == ["process", "thread", "thread", "process"]


def test_a_decorator_takes_the_options_of_a_route() -> None:
    fileq.handler(
        "**/*.pdf",
        timeout="90s",
        max_retries=0,
        backoff={"base": 2, "max": "5s"},
        isolation="thread",
        in_place=True,
        give_up_on=[3, "a.Error", ValueError],
    )(noop)
    route = routes_of(backoff={"jitter": 0.1})[0]
    assert (route.timeout, route.max_retries, route.isolation, route.in_place) == (90.0, 0, "thread", True)
    assert route.backoff == BackoffSettings(base=2.0, max=5.0, jitter=0.1), "keys that are not set are the worker's"
    assert route.give_up_on == (3, "a.Error", "builtins.ValueError")


def test_a_decorators_backoff_inherits_nothing_from_a_list_of_delays() -> None:
    fileq.handler("a", backoff={"base": 2})(noop)
    assert routes_of(backoff=["7s"])[0].backoff == BackoffSettings(base=2.0), "as for a route in the file"


def test_a_base_above_the_maximum_is_refused_in_a_decorator() -> None:
    fileq.handler("a", backoff={"base": 30})(noop)
    with pytest.raises(ConfigError) as caught:
        routes_of()
    assert caught.value.problems[0].startswith(
        f"@fileq.handler on {__name__}:noop: backoff.base is 30s, which is above backoff.max, 10s (the default); set"
    )


def test_a_decorators_backoff_is_checked_after_it_has_inherited() -> None:
    fileq.handler("a", backoff={"strategy": "power"})(noop)
    assert routes_of(backoff={"base": "2s"})[0].backoff == BackoffSettings(strategy="power", base=2.0)
    assert problems(config_from({})) == (
        f"@fileq.handler on {__name__}:noop: backoff.base is 500ms; with strategy power it must be above 1s",
    )


def test_a_decorators_limits_are_read_as_in_the_file() -> None:
    fileq.handler("a", max_running=1, max_running_total=2, rate="3/h")(noop)
    [route] = routes_of()
    assert (route.max_running, route.max_running_total, str(route.rate)) == (1, 2, "3/h")
    fileq.handler("b", rate="3")(noop)
    [line] = problems(config_from({}))
    assert line.startswith(f"@fileq.handler on {__name__}:noop: rate is '3'; it must be a rate such as 10/s")


def test_a_decorator_takes_seconds_as_numbers_and_as_a_timedelta() -> None:
    fileq.handler("a", timeout=1.5, backoff=[1, "2s", 0.25])(noop)
    fileq.handler("b", timeout=timedelta(seconds=1.5), backoff=[timedelta(minutes=1)])(noop)
    first, second = routes_of()[:2]
    assert (first.timeout, first.backoff.delays) == (1.5, (1.0, 2.0, 0.25))
    assert (second.timeout, second.backoff.delays) == (1.5, (60.0,))


def test_every_wrong_option_of_every_decorator_is_a_line() -> None:
    fileq.handler("a", timeout="soon", max_retries=-1)(noop)
    fileq.handler(type="t", backoff={"bse": 1}, give_up_on=[0])(noop)
    fileq.handler("b", isolation="fiber", timeout=-1)(noop)  # type: ignore[arg-type]
    fileq.handler()(noop)
    fileq.handler("c", type="t")(noop)
    where = f"@fileq.handler on {__name__}:noop"
    lines = problems(config_from({}))
    assert all(line.startswith(where) for line in lines), lines
    assert [line.removeprefix(where) for line in lines] == [
        ": timeout is 'soon'; it must be a duration such as 500ms, 30s, 1m, 1h30m or 30d",
        ": max_retries is '-1'; it must be a whole number of at least 0",
        ": unknown key 'backoff.bse'; did you mean 'backoff.base'?",
        ": give_up_on[0] is '0'; it must be an exit code from 1 to 255 or the name of an exception",
        ": timeout is '-1'; it must be a duration such as 500ms, 30s, 1m, 1h30m or 30d",
        ": isolation is 'fiber'; it must be process or thread",
        " needs a glob or a type, one of them",
        " needs a glob or a type, one of them",
    ]


def test_a_decorator_without_its_brackets_is_told_so() -> None:
    with pytest.raises(ConfigError, match="needs a glob or a type"):
        fileq.handler(noop)  # type: ignore[arg-type]


# what can be a handler


class Callable_:
    async def __call__(self, job: Any, context: Any) -> None: ...


def generator(job: Any, context: Any) -> Iterator[None]:
    yield


async def asynchronous(job: Any, context: Any, more: int = 0) -> None: ...


async def agenerator(job: Any, context: Any) -> Any:
    yield


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (noop, ""),
        (asynchronous, ""),
        (Callable_(), ""),
        (lambda *anything: None, ""),
        (functools.partial(asynchronous, more=1), ""),
        (print, ""),
        (Callable_, "is a class; a handler is a function"),
        (3, "is an int; a handler is a function"),
        (generator, "is a generator, so calling it would do nothing; a handler must not yield"),
        (agenerator, "is a generator, so calling it would do nothing; a handler must not yield"),
        (lambda path: None, "takes (path); a handler is called with (job, context)"),
        (lambda job, context, more: None, "takes (job, context, more); a handler is called with (job, context)"),
    ],
)
def test_a_handler_is_something_that_takes_a_job_and_a_context(target: Any, fault: str) -> None:
    assert unfitness(target) == fault


@pytest.mark.parametrize(
    ("target", "is_it"),
    [(noop, False), (asynchronous, True), (functools.partial(asynchronous, more=1), True), (Callable_(), True)],
)
def test_a_coroutine_function_is_known_in_every_wrapping(target: Any, is_it: bool) -> None:
    assert is_async(target) is is_it


def test_a_decorated_function_that_cannot_be_a_handler_is_a_line() -> None:
    fileq.handler("a")(generator)
    (line,) = problems(config_from({}))
    assert line.startswith(f"@fileq.handler on {__name__}:generator, which is a generator")


class Odd:
    """A handler that can't even be inspected."""

    @property
    def __signature__(self) -> Any:
        raise SystemExit("no signature")

    def __call__(self, job: Any, context: Any) -> None: ...


def test_whatever_the_code_of_a_handler_raises_while_it_is_loaded_is_a_line() -> None:
    fileq.handler("a")(Odd())
    (line,) = problems(config_from({}))
    assert line.startswith("the handlers can't be loaded: SystemExit: no signature (")
    assert f"{__file__}:" in line


# commands


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["no-such-program"], "can't be found or executed; install it or give its full path"),
        (["{filepath}"], "a dropped file is never executed"),
        (["true", "{filepat}"], "has the unknown placeholder {filepat}; did you mean {filepath}?"),
        (["true", "{x}"], "has the unknown placeholder {x}; known: {filepath}, {real_filepath}, {job_id}"),
    ],
)
def test_a_command_that_would_fail_for_every_job_is_a_line(command: list[str], line: str) -> None:
    (found,) = problems(config_from({"handlers": [{"match": "**/*.pdf", "command": command}]}))
    assert found.startswith("handlers[0] (**/*.pdf) has ")
    assert line in found


def test_braces_that_are_no_whole_placeholder_are_left_alone() -> None:
    routes = routes_of({"type": "t", "command": ["true", "{print $1}", "{}", "{0}", "a{b}", "{a,b}"]})
    assert routes.warnings == ()


def test_a_placeholder_within_an_argument_is_literal_and_worth_a_warning() -> None:
    routes = routes_of({"type": "t", "command": ["true", "--in={filepath}"]})
    assert routes.warnings == (
        "handlers[0] (type t) passes '--in={filepath}' unchanged; a placeholder must be a whole argument",
    )
