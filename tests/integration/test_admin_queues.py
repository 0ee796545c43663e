"""`fileq admin pause|resume`, on both brokers."""

from __future__ import annotations

import pytest

from fileq.testing.conformance.builders import enqueue
from tests.support.command_line import CommandLine


def test_a_queue_is_paused_and_resumed_and_repeating_changes_nothing(shell: CommandLine) -> None:
    enqueue(shell, "a")
    expected = {"queue": "low", "is_paused": True, "has_changed": True, "waiting": 1}
    assert shell.json("admin", "pause", "low") == expected
    assert shell.json("pause", "low") == {**expected, "has_changed": False}
    assert shell.broker.census().paused == {"low"}
    assert shell.run("resume", "low") == "low is open, 1 job waiting\n"
    assert shell.run("resume", "low") == "low is already open, 1 job waiting\n"
    assert shell.json("resume", "low") == {**expected, "is_paused": False, "has_changed": False}
    assert shell.broker.census().paused == frozenset()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", "nope"), "no queue is named 'nope'; the queues are high, low"),
        (("resume", "dead_letter"), "no queue is named 'dead_letter'"),
        (("pause",), "QUEUE"),
    ],
)
def test_a_wrong_argument_is_one_line(shell: CommandLine, words: tuple[str, ...], said: str) -> None:
    assert said in shell.fail(*words, code=2)
    assert shell.broker.census().paused == frozenset()
