"""An id or a name that the broker does not have is exit code 1, whichever command got it; a wrong word is 2."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine


@pytest.mark.parametrize(
    "words",
    [
        *(("show", "none"), ("cancel", "none"), ("dlq", "retry", "none"), ("dlq", "delete", "none")),
        *(("batch", word, "none") for word in ("show", "seal", "cancel", "retry")),
        *(("schedule", word, "none") for word in ("show", "next", "pause", "resume", "run", "remove")),
        *(("webhook", word, "none") for word in ("remove", "test", "deliveries", "rotate", "enable")),
        ("keys", "revoke", "none"),
        ("trace", "none"),
    ],
    ids=" ".join,
)
def test_a_name_that_the_broker_does_not_have_is_exit_1(shell: CommandLine, words: tuple[str, ...]) -> None:
    shell.run(*words, code=1)
    shell.run(*words, "--json", code=1)


@pytest.mark.parametrize(
    "words",
    [
        *(("list",), ("dlq", "list"), ("dlq", "retry", "--all"), ("dlq", "delete", "--all", "--yes")),
        ("cancel", "--all", "--yes"),
    ],
    ids=" ".join,
)
def test_a_filter_by_a_batch_that_does_not_exist_is_exit_1(shell: CommandLine, words: tuple[str, ...]) -> None:
    assert "no batch has the id 'none' (finished ones are kept for 30 days); see 'fileq batch list'" in shell.fail(
        *words, "--batch", "none", code=1
    )
    batch = shell.json("batch", "create", "-q")["id"]
    shell.run(*words, "--batch", batch)


@pytest.mark.parametrize(
    "words",
    [("list",), ("dlq", "list"), ("dlq", "retry", "--all"), ("cancel", "--all", "--yes"), ("reprocess",)],
    ids=" ".join,
)
def test_a_filter_by_a_schedule_that_does_not_exist_is_exit_1(shell: CommandLine, words: tuple[str, ...]) -> None:
    assert "no schedule is named 'nightyl'" in shell.fail(*words, "--schedule", "nightyl", code=1)
    shell.run("schedule", "add", "nightly", "@daily", "--type", "report", "-q")
    shell.run(*words, "--schedule", "nightly")


@pytest.mark.parametrize("words", [("pause", "none"), ("resume", "none"), ("peek", "--queue", "none")], ids=" ".join)
def test_a_queue_is_a_setting_so_an_unknown_one_is_exit_2(shell: CommandLine, words: tuple[str, ...]) -> None:
    assert "no queue is named 'none'" in shell.fail(*words, code=2)
