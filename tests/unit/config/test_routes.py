"""Routes and backoff, and what a route inherits from the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fileq.config import Config, config_from, load
from fileq.config.resolve import with_general_options
from fileq.config.schema import BackoffSettings, CircuitBreakerSettings, RouteSettings
from fileq.core.errors import ConfigError
from fileq.core.units import Rate
from tests.support.config_loading import ConfigDirectory, problems_of


def test_without_handlers_files_are_checksummed() -> None:
    assert Config().handlers == (RouteSettings(match="**/*", use="fileq.handlers:checksum"),)


def test_given_handlers_replace_the_default_ones() -> None:
    pdf = {"match": "**/*.pdf", "command": ["pdftotext", "{filepath}", 5], "give_up_on": [2, "ValueError", "a.Error"]}
    mail = {"type": "mail", "use": "app.mail:send", "timeout": "10s", "max_retries": 0, "isolation": "thread"}
    assert config_from({"handlers": [pdf, mail]}).handlers == (
        RouteSettings(
            match="**/*.pdf", command=("pdftotext", "{filepath}", "5"), give_up_on=(2, "ValueError", "a.Error")
        ),
        RouteSettings(type="mail", use="app.mail:send", timeout=10.0, max_retries=0, isolation="thread"),
    )
    assert config_from({"handlers": []}).handlers == ()


@pytest.mark.parametrize(
    ("route", "line"),
    [
        ({"match": "*", "type": "t", "use": "a:b"}, "handlers[0] has both match and type; keep one of them"),
        ({"use": "a:b"}, "handlers[0] has neither match nor type; give one of them"),
        ({"match": "*"}, "handlers[0] has neither use nor command; give one of them"),
        ({"match": "*", "use": "a:b", "command": ["x"]}, "handlers[0] has both use and command; keep one of them"),
        ({"match": "*", "command": []}, "handlers[0].command is empty; give the program and its arguments"),
        ({"match": "*", "use": "a.b"}, "handlers[0].use is 'a.b'; it must be package.module:function"),
        (
            {"match": "*", "command": "wc -l '{filepath}'"},
            """handlers[0].command is "wc -l '{filepath}'"; it must be a list, such as ["wc", "-l", "{filepath}"]""",
        ),
        (
            {"match": "*", "command": "echo it's"},
            """handlers[0].command is "echo it's"; it must be a list, such as ["echo", "it's"]""",
        ),
        ({"match": "*", "command": " "}, "handlers[0].command is ' '; it must be a list, such as [a, b]"),
        ({"mach": "*", "use": "a:b"}, "unknown key 'handlers[0].mach'; did you mean 'handlers[0].match'?"),
        (
            {"match": "*", "use": "a:b", "give_up_on": [0]},
            "handlers[0].give_up_on[0] is '0'; it must be an exit code from 1 to 255 or the name of an exception",
        ),
        ("x", "handlers[0] is a text; it must be a section of keys"),
        (None, "handlers[0] is empty; it must be a section of keys"),
    ],
)
def test_an_invalid_route_is_one_line(route: object, line: str) -> None:
    assert problems_of({"handlers": [route]}) == (line,)


def test_every_invalid_route_is_reported() -> None:
    routes = [{"match": "*", "use": "a:b"}, {"match": "*"}, {"match": "*", "use": "a:b", "timeout": "5"}]
    assert [line.split()[0] for line in problems_of({"handlers": routes})] == ["handlers[1]", "handlers[2].timeout"]


def test_a_list_of_delays_replaces_the_whole_backoff() -> None:
    backoff = config_from({"worker": {"backoff": ["1s", "5s", "1m"]}}).worker.backoff
    assert backoff.delays == (1.0, 5.0, 60.0)
    assert backoff.jitter == 0.0, "listed delays are used exactly"
    assert backoff.max == 60.0, "the default cap must not shorten them"
    assert Config().worker.backoff.delays == ()


def test_a_list_of_delays_can_come_from_the_environment_and_be_overridden() -> None:
    environ = {"WORKER_BACKOFF": "1s,5s"}
    assert load(environ=environ, cwd="/nonexistent").config.worker.backoff.delays == (1.0, 5.0)
    over = load(environ=environ, sets=["worker.backoff.base=2s"], cwd="/nonexistent").config.worker.backoff
    assert over == BackoffSettings(base=2.0)


@pytest.mark.parametrize(
    ("backoff", "line"),
    [
        ([], "worker.backoff is an empty list; it must be a list of at least one item, such as [a, b]"),
        (["1s", 5], "worker.backoff[1] is '5'; it must be a duration with its unit, such as 5s or 5ms"),
        ("1s", "worker.backoff is a text; it must be a section of keys or a list"),
        ({"strategy": "power"}, "worker.backoff.base is 500ms; with strategy power it must be above 1s"),
        (
            {"strategy": "power", "base": "1s"},
            "worker.backoff.base is 1s; with strategy power it must be above 1s",
        ),
        ({"delays": ["1s"]}, "unknown key 'worker.backoff.delays'; known here: strategy, base, max, jitter"),
    ],
)
def test_an_invalid_backoff_is_one_line(backoff: object, line: str) -> None:
    assert problems_of({"worker": {"backoff": backoff}}) == (line,)


@pytest.mark.parametrize("strategy", ["exponential", "linear", "fixed", "power"])
def test_a_base_above_the_maximum_is_refused(strategy: str) -> None:
    advice = "set worker.backoff.max to at least 30s, or worker.backoff.base to less"
    given = {"strategy": strategy, "base": "30s"}
    assert problems_of({"worker": {"backoff": given}}) == (
        f"worker.backoff.base is 30s, which is above worker.backoff.max, 10s (the default); {advice}",
    )
    assert problems_of({"worker": {"backoff": {**given, "max": "20s"}}}) == (
        f"worker.backoff.base is 30s, which is above worker.backoff.max, 20s; {advice}",
    )
    assert config_from({"worker": {"backoff": {**given, "max": "30s"}}}).worker.backoff.base == 30.0


def test_a_base_above_the_maximum_is_refused_in_a_route_whichever_it_inherits() -> None:
    with pytest.raises(ConfigError) as caught:
        route_backoff({"max": "5s"}, {"base": "7s"})
    [line] = caught.value.problems
    assert "handlers[0].backoff.base is 7s, which is above handlers[0].backoff.max, 5s (from worker.backoff)" in line
    with pytest.raises(ConfigError) as caught:
        route_backoff({"base": "7s"}, {"max": "5s"})
    [line] = caught.value.problems
    assert "handlers[0].backoff.base is 7s (from worker.backoff), which is above handlers[0].backoff.max, 5s;" in line
    with pytest.raises(ConfigError) as caught:
        route_backoff({"base": "30s"}, {"jitter": 0})
    assert len(caught.value.problems) == 1, "the mistake is the worker's alone"


def test_a_maximum_below_the_default_base_is_the_delay() -> None:
    assert config_from({"worker": {"backoff": {"max": "100ms"}}}).worker.backoff.max == 0.1
    assert config_from({"worker": {"backoff": ["100ms"]}}).worker.backoff.delays == (0.1,)


def test_the_retry_delay_of_another_job_server_is_not_cut() -> None:
    environ = {"JOB_DEFAULT_RETRY_DELAY": "30"}
    backoff = load(environ=environ, cwd="/nonexistent").config.worker.backoff
    assert (backoff.base, backoff.max) == (30.0, 30.0)
    with pytest.raises(ConfigError, match="base is 30s, which is above"):
        load(environ=environ, sets=["worker.backoff.max=20s"], cwd="/nonexistent")


def test_power_accepts_a_base_above_a_second() -> None:
    assert config_from({"worker": {"backoff": {"strategy": "power", "base": "1100ms"}}}).worker.backoff.base == 1.1


def route_backoff(worker: object, route: object) -> BackoffSettings | None:
    handler = {"match": "*", "use": "a:b", "backoff": route}
    return config_from({"worker": {"backoff": worker}, "handlers": [handler]}).handlers[0].backoff


def test_a_routes_backoff_inherits_unset_keys_from_the_worker() -> None:
    assert route_backoff({"base": "2s", "jitter": 0.1}, {"max": "5s"}) == BackoffSettings(base=2.0, jitter=0.1, max=5.0)
    assert route_backoff({"base": "2s"}, ["7s"]) == BackoffSettings(delays=(7.0,), max=7.0, jitter=0.0)
    assert route_backoff(["7s"], {"base": "2s"}) == BackoffSettings(base=2.0)
    assert route_backoff({"base": "2s"}, None) is None


def test_routes_do_not_inherit_from_each_other() -> None:
    routes = [
        {"match": "a", "use": "a:b", "backoff": {"base": "9s"}},
        {"match": "b", "use": "a:b", "backoff": {"max": "5s"}},
    ]
    assert config_from({"handlers": routes}).handlers[1].backoff == BackoffSettings(max=5.0)


def test_a_route_inherits_whether_the_worker_or_the_handlers_come_first_in_the_file(tmp_path: Path) -> None:
    worker = "worker: {backoff: {base: 2s}}\n"
    handlers = 'handlers: [{match: "*", use: "a:b", backoff: {max: 5s}}]\n'
    for text in (worker + handlers, handlers + worker):
        route = ConfigDirectory(tmp_path).load(text).config.handlers[0]
        assert route.backoff == BackoffSettings(base=2.0, max=5.0)


def test_power_is_checked_after_a_route_has_inherited() -> None:
    route = {"match": "*", "use": "a:b", "backoff": {"strategy": "power"}}
    config = config_from({"worker": {"backoff": {"base": "2s"}}, "handlers": [route]})
    assert config.handlers[0].backoff == BackoffSettings(strategy="power", base=2.0)
    assert problems_of({"handlers": [route]}) == (
        "handlers[0].backoff.base is 500ms; with strategy power it must be above 1s",
    )


def test_options_that_a_route_does_not_set_are_the_workers() -> None:
    config = config_from({"worker": {"timeout": "7s", "max_retries": 9, "isolation": "thread"}})
    unset = with_general_options(RouteSettings(match="*", use="a:b"), config)
    assert (unset.timeout, unset.max_retries, unset.backoff) == (7.0, 9, config.worker.backoff)
    assert (unset.isolation, unset.safe_open, unset.circuit_breaker) == ("thread", False, config.circuit_breaker)
    own = {"timeout": 1.0, "max_retries": 0, "isolation": "process", "backoff": BackoffSettings(base=3.0)}
    route = RouteSettings(match="*", use="a:b", safe_open=True, circuit_breaker=CircuitBreakerSettings(), **own)
    assert with_general_options(route, config) == route


def test_a_command_inherits_no_isolation() -> None:
    config = config_from({"worker": {"isolation": "thread"}})
    assert with_general_options(RouteSettings(type="t", command=("x",)), config).isolation == "process"
    own = RouteSettings(type="t", command=("x",), isolation="thread")
    assert with_general_options(own, config).isolation == "thread"


def test_a_route_has_limits_and_without_them_none() -> None:
    route = {"match": "*", "use": "a:b", "max_running": 1, "max_running_total": 2, "rate": "100/m"}
    limited, unlimited = config_from({"handlers": [route, {"match": "*", "use": "a:b"}]}).handlers
    assert (limited.max_running, limited.max_running_total, limited.rate) == (1, 2, Rate(100, 60_000))
    assert (unlimited.max_running, unlimited.max_running_total, unlimited.rate) == (None, None, None)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("max_running", 0, "a whole number of at least 1"),
        ("max_running_total", -1, "a whole number of at least 1"),
        ("max_running", "many", "a whole number of at least 1"),
        ("rate", 10, "a rate such as 10/s, 100/m or 1000/h, of at least 1"),
        ("rate", "0/s", "a rate such as 10/s, 100/m or 1000/h, of at least 1"),
        ("rate", "10/day", "a rate such as 10/s, 100/m or 1000/h, of at least 1"),
    ],
)
def test_an_invalid_limit_is_one_line_with_key_and_value(key: str, value: object, expected: str) -> None:
    [line] = problems_of({"handlers": [{"match": "*", "use": "a:b", key: value}]})
    assert line.startswith(f"handlers[0].{key} is ")
    assert str(value) in line
    assert expected in line
