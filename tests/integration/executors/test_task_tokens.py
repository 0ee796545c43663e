"""The tokens of tasks: the kernel gives each one to the child or to the worker, never to both."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from fileq.worker.executors.process.messages import MAX_TOKENS, TaskTokens, TokenReader


@pytest.fixture
def tokens() -> Iterator[TaskTokens]:
    with closing(TaskTokens()) as tokens:
        yield tokens


def number(n: int) -> bytes:
    return n.to_bytes(4, "little")


CHILD = """
import os, sys
fd, taken = int(sys.argv[1]), b""
os.write(1, b"ready\\n")
while not taken.endswith(bytes(4)):
    try:
        taken += os.read(fd, 4)
    except BlockingIOError:
        continue
sys.stdout.buffer.write(taken)
"""


def test_a_token_is_read_by_the_child_or_by_the_worker_and_never_by_both(tokens: TaskTokens) -> None:
    """The child takes what it can while the worker takes back what it can."""
    command = [sys.executable, "-c", CHILD, str(tokens.child_end)]
    numbers = range(1, 100_001)
    taken_back: list[int] = []
    with subprocess.Popen(command, pass_fds=[tokens.child_end], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        for start in range(0, len(numbers), MAX_TOKENS):
            tokens.put(numbers[start : start + MAX_TOKENS])
            while left := tokens.take_back(5):
                taken_back += left
        tokens.put([0])
        taken, _ = child.communicate()
    assert taken_back
    assert len(taken) > 4
    by_child = [int.from_bytes(taken[at : at + 4], "little") for at in range(0, len(taken) - 4, 4)]
    assert sorted(taken_back + by_child) == list(numbers)


def test_the_pipe_can_be_written_to_only_when_no_token_is_left(tokens: TaskTokens) -> None:
    poll = select.poll()
    poll.register(tokens.fd, select.POLLOUT)
    child = TokenReader(tokens.child_end)
    for _ in range(3000):  # more than fit into one page
        assert poll.poll(0)
        tokens.put([1, 2])
        assert not poll.poll(0)
        assert child.take(number(1))
        assert not poll.poll(0)
        assert child.take(number(2))


def test_programs_that_a_handler_starts_do_not_inherit_the_tokens(tokens: TaskTokens) -> None:
    assert not os.get_inheritable(tokens.fd)
    assert not os.get_inheritable(tokens.child_end)


def test_neither_side_waits_for_a_token(tokens: TaskTokens) -> None:
    assert tokens.take_back() == []
    assert not TokenReader(tokens.child_end).take(number(1))
