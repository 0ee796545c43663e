"""Handlers' routes and backoff: the parts of the configuration that are more than single values."""

from __future__ import annotations

import pytest

from fileq.config import Backoff, Config, Route, config_from, load
from fileq.core.errors import ConfigError


def problems(values: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config_from(values)
    return tuple(line.removeprefix("the given values: ") for line in caught.value.problems)


def test_without_handlers_files_are_checksummed() -> None:
    assert Config().handlers == (Route(match="**/*", use="fileq.handlers:checksum"),)


def test_given_handlers_replace_the_default_ones() -> None:
    pdf = {"match": "**/*.pdf", "command": ["pdftotext", "{filepath}", 5], "give_up_on": [2, "ValueError", "a.Error"]}
    mail = {"type": "mail", "use": "app.mail:send", "timeout": "10s", "max_retries": 0, "isolation": "thread"}
    assert config_from({"handlers": [pdf, mail]}).handlers == (
        Route(match="**/*.pdf", command=("pdftotext", "{filepath}", "5"), give_up_on=(2, "ValueError", "a.Error")),
        Route(type="mail", use="app.mail:send", timeout=10.0, max_retries=0, isolation="thread"),
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
        ({"match": "*", "command": "ls -l"}, "handlers[0].command is 'ls -l'; it must be a list, such as [a, b]"),
        ({"mach": "*", "use": "a:b"}, "unknown key 'handlers[0].mach'; did you mean 'handlers[0].match'?"),
        (
            {"match": "*", "use": "a:b", "give_up_on": [0]},
            "handlers[0].give_up_on[0] is '0'; it must be an exit code from 1 to 255 or the name of an exception",
        ),
        ("x", "handlers[0] is a text; it must be a section of keys"),
        (None, "handlers[0] is empty; it must be a section of keys"),
    ],
)
def test_a_wrong_route_is_one_line(route: object, line: str) -> None:
    assert problems({"handlers": [route]}) == (line,)


def test_every_wrong_route_is_reported() -> None:
    routes = [{"match": "*", "use": "a:b"}, {"match": "*"}, {"match": "*", "use": "a:b", "timeout": "5"}]
    assert [line.split()[0] for line in problems({"handlers": routes})] == ["handlers[1]", "handlers[2].timeout"]


def test_a_list_of_delays_stands_for_the_whole_backoff() -> None:
    backoff = config_from({"worker": {"backoff": ["1s", "5s", "1m"]}}).worker.backoff
    assert backoff.delays == (1.0, 5.0, 60.0)
    assert backoff.jitter == 0.0, "delays that are spelled out are meant as they are"
    assert backoff.max == 60.0, "the default cap must not shorten them"
    assert Config().worker.backoff.delays == ()


def test_a_list_of_delays_can_come_from_the_environment_and_be_overridden() -> None:
    environ = {"WORKER_BACKOFF": "1s,5s"}
    assert load(environ=environ, cwd="/nonexistent").config.worker.backoff.delays == (1.0, 5.0)
    over = load(environ=environ, sets=["worker.backoff.base=2s"], cwd="/nonexistent").config.worker.backoff
    assert over == Backoff(base=2.0)


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
def test_a_wrong_backoff_is_one_line(backoff: object, line: str) -> None:
    assert problems({"worker": {"backoff": backoff}}) == (line,)


def test_power_takes_a_base_above_a_second() -> None:
    assert config_from({"worker": {"backoff": {"strategy": "power", "base": "1100ms"}}}).worker.backoff.base == 1.1


def route_backoff(worker: object, route: object) -> Backoff | None:
    handler = {"match": "*", "use": "a:b", "backoff": route}
    return config_from({"worker": {"backoff": worker}, "handlers": [handler]}).handlers[0].backoff


def test_a_routes_backoff_takes_after_the_workers() -> None:
    assert route_backoff({"base": "2s", "jitter": 0.1}, {"max": "5s"}) == Backoff(base=2.0, jitter=0.1, max=5.0)
    assert route_backoff({"base": "2s"}, ["7s"]) == Backoff(delays=(7.0,), max=7.0, jitter=0.0)
    assert route_backoff(["7s"], {"base": "2s"}) == Backoff(base=2.0)
    assert route_backoff({"base": "2s"}, None) is None


def test_routes_do_not_take_after_each_other() -> None:
    routes = [
        {"match": "a", "use": "a:b", "backoff": {"base": "9s"}},
        {"match": "b", "use": "a:b", "backoff": {"max": "5s"}},
    ]
    assert config_from({"handlers": routes}).handlers[1].backoff == Backoff(max=5.0)
