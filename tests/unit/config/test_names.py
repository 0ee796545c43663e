"""Priorities, their queues, and the names of keys in the broker."""

from __future__ import annotations

import pytest

from fileq.brokers.redis.layout import Keys
from fileq.config import Config, config_from, load
from tests.support.config_loading import problems_of


def test_every_default_key_name_begins_with_the_prefix() -> None:
    config = config_from({"redis": {"prefix": "{acme}"}})
    worker = config.worker
    assert worker.queues == {"high": "{acme}:high_priority", "low": "{acme}:low_priority"}
    assert worker.processing_list_pattern == "{acme}:worker:%s:processing"
    assert worker.heartbeat_key_pattern == "{acme}:processing:worker:%s"
    assert (worker.completed_list, worker.dead_letter_list) == ("{acme}:completed", "{acme}:dead_letter")
    assert config.producer.rate_limit_key == "{acme}:rate_limit:producer"


def test_a_key_name_that_is_set_stays_exactly_as_it_is() -> None:
    own = {"completed_list": "jobqueue:completed", "queues": {"low": "jobqueue:low_priority"}}
    worker = config_from({"redis": {"prefix": "acme"}, "worker": own}).worker
    assert worker.completed_list == "jobqueue:completed"
    assert worker.queues == {"high": "acme:high_priority", "low": "jobqueue:low_priority"}


def test_a_pattern_replaces_only_its_placeholder() -> None:
    keys = Keys(Config())
    assert keys.processing("host-1-0") == "jobqueue:worker:host-1-0:processing"
    assert keys.heartbeat("50%s") == "jobqueue:processing:worker:50%s"


def test_queues_have_the_number_and_order_of_the_priorities() -> None:
    worker = config_from({"worker": {"priorities": ["low", "urgent"], "queues": {"urgent": "u"}}}).worker
    assert list(worker.queues.items()) == [("low", "jobqueue:low_priority"), ("urgent", "u")]


def test_a_queue_without_a_priority_is_an_error() -> None:
    assert problems_of({"worker": {"queues": {"urgent": "u"}}}) == (
        "worker.queues.urgent belongs to no priority; add 'urgent' to worker.priorities (high, low) or remove it",
    )


def test_each_queue_has_a_variable_named_after_its_priority() -> None:
    environ = {
        "WORKER_PRIORITIES": "now,next-day,low",
        "WORKER_QUEUES": "now=a,low=b",
        "WORKER_QUEUES_NOW": "c",
        "FILEQ_WORKER_QUEUES_NEXT_DAY": "d",
        "WORKER_QUEUES_HIGH": "not ours: there is no such priority",
    }
    loaded = load(environ=environ, cwd="/nonexistent")
    assert loaded.config.worker.queues == {"now": "c", "next-day": "d", "low": "b"}
    assert loaded.origins["worker.queues.next-day"].name == "FILEQ_WORKER_QUEUES_NEXT_DAY"


def test_a_key_without_a_value_overrides_nothing() -> None:
    sets = ["worker.queues={high: h, low: l}", "worker.queues={high: ~}"]
    assert load(sets=sets, environ={}, cwd="/nonexistent").config.worker.queues == {"high": "h", "low": "l"}


def test_the_default_priority_must_exist_if_it_is_set() -> None:
    assert problems_of({"producer": {"default_priority": "urgent"}}) == (
        "producer.default_priority is 'urgent'; it must be one of worker.priorities: high or low",
    )


def test_a_single_priority_is_enough() -> None:
    assert config_from({"worker": {"priorities": ["only"]}}).producer.default_priority == "only"
    (line,) = problems_of({"worker": {"priorities": ["only"]}, "producer": {"default_priority": "low"}})
    assert line == "producer.default_priority is 'low'; it must be one of worker.priorities: only"


def test_an_unset_default_priority_is_the_last_one_if_there_is_no_low() -> None:
    config = config_from({"worker": {"priorities": ["urgent", "normal"]}})
    assert config.producer.default_priority == "normal"
    assert config.high_priority == "urgent"
    config = config_from({"worker": {"priorities": ["low", "high"]}})
    assert (config.producer.default_priority, config.high_priority) == ("low", "high")


def test_priorities_do_not_repeat() -> None:
    assert problems_of({"worker": {"priorities": ["high", "low", "high"]}}) == (
        "worker.priorities is ['high', 'low', 'high']; it must be a list without duplicates",
    )


def test_an_invalid_priority_is_one_line_not_several() -> None:
    worker = {"priorities": ["a b", "urgent"], "queues": {"urgent": "u"}}
    (line,) = problems_of({"worker": worker, "producer": {"default_priority": "urgent"}})
    assert line.startswith("worker.priorities[0] is 'a b'")


@pytest.mark.parametrize(
    ("worker", "line"),
    [
        (
            {"completed_list": "x", "dead_letter_list": "x"},
            "worker.dead_letter_list is 'x', which worker.completed_list uses too; each needs a name of its own",
        ),
        (
            {"queues": {"high": "x", "low": "x"}},
            "worker.queues.low is 'x', which worker.queues.high uses too; each needs a name of its own",
        ),
        (
            {"completed_list": "jobqueue:dead_letter"},
            "worker.dead_letter_list is 'jobqueue:dead_letter', which worker.completed_list uses too; "
            "each needs a name of its own",
        ),
        (
            {"completed_list": "jobqueue:cancelled"},
            "worker.completed_list is 'jobqueue:cancelled', which fileq itself uses too; each needs a name of its own",
        ),
        (
            {"heartbeat_key_pattern": "jobqueue:worker:%s:processing"},
            "worker.heartbeat_key_pattern is 'jobqueue:worker:%s:processing', which worker.processing_list_pattern "
            "uses too; each needs a name of its own",
        ),
    ],
)
def test_two_uses_of_one_key_name_are_an_error(worker: dict[str, object], line: str) -> None:
    assert problems_of({"worker": worker}) == (line,)
