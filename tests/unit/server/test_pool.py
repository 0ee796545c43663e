"""The threads of the server: never more calls at a time than allowed, and an answer also if the broker hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fileq.server.limits import BrokerPool
from fileq.server.problems import ApiProblem


def test_calls_beyond_the_limit_are_refused_and_a_call_that_hangs_is_the_broker_away() -> None:
    release = threading.Event()

    async def scenario() -> None:
        pool = BrokerPool(calls_max=2, scans_max=1)
        assert await pool.call(lambda: 7) == 7
        with pytest.raises(KeyError):
            await pool.call(lambda: {}["x"])
        scan = asyncio.create_task(pool.call(release.wait, scans_for="a key", timeout_s=60))
        await asyncio.sleep(0)
        with pytest.raises(ApiProblem, match=r"^busy"):
            await pool.call(lambda: 1, scans_for="another")
        assert await pool.call(lambda: 2) == 2, "a list does not hold up other calls"
        with pytest.raises(ApiProblem, match=r"^broker-away"):
            await pool.call(release.wait, timeout_s=0.05)
        with pytest.raises(ApiProblem, match=r"^broker-away"):
            await pool.call(lambda: 3)  # both threads hang
        release.set()
        assert await scan
        assert await pool.call(lambda: 4, scans_for="another") == 4

    asyncio.run(scenario())


def test_threads_that_are_taken_by_long_calls_are_busy_and_the_broker_is_not_away() -> None:
    """N3: the answer was that the broker does not answer, while all threads did what may take long."""
    release = threading.Event()

    async def scenario() -> None:
        pool = BrokerPool(calls_max=1)
        long = asyncio.create_task(pool.call(release.wait, timeout_s=60))
        await asyncio.sleep(0)
        for _ in range(2):  # in the second round it has run for longer than a call of the broker takes
            with pytest.raises(ApiProblem, match=r"^busy: too many requests are being served"):
                await pool.call(lambda: 1)
        release.set()
        assert await long

    asyncio.run(scenario())


def test_the_lists_of_one_caller_leave_a_turn_to_others() -> None:
    """Medium: one key starves all: it has some of the turns for lists, never all."""
    release = threading.Event()

    async def scenario() -> None:
        pool = BrokerPool()
        scans = [asyncio.create_task(pool.call(release.wait, scans_for="greedy", timeout_s=60)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiProblem, match=r"^busy: this key reads 2 lists already"):
            await pool.call(lambda: 1, scans_for="greedy")
        assert await pool.call(lambda: 2, scans_for="another") == 2
        release.set()
        assert await asyncio.gather(*scans) == [True, True]
        assert await pool.call(lambda: 3, scans_for="greedy") == 3

    asyncio.run(scenario())
