"""Tasks for the tests of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

import fileq


class Number(Struct):
    n: int


@fileq.task("double")
def double(job: fileq.JobView[Number], context: fileq.Context) -> Number:
    return Number(job.payload.n * 2)


@fileq.task("fail")
def fail(job: fileq.JobView[str], context: fileq.Context) -> None:
    raise OSError(job.payload)


@fileq.task("attempt")
def attempt(job: fileq.JobView[None], context: fileq.Context) -> None:
    raise OSError(f"attempt {context.attempt}")


@fileq.task("total")
async def total(job: fileq.JobView[list[int]], context: fileq.Context) -> int:
    return sum(job.payload)


@fileq.task("hang")
def hang(job: fileq.JobView[None], context: fileq.Context) -> None:
    context.cancelled.wait(60)


@fileq.task("again")
def again(job: fileq.JobView[None], context: fileq.Context) -> None:
    again.enqueue()


@fileq.task("wait_for_other")
def wait_for_other(job: fileq.JobView[None], context: fileq.Context) -> Number:
    return double.enqueue(Number(1)).wait()


@fileq.task("wait_async")
async def wait_async(job: fileq.JobView[None], context: fileq.Context) -> Number:
    return await (await fileq.AsyncClient().enqueue(double, Number(7))).wait(5)


@fileq.handler("**/*.txt")
def size(job: fileq.JobView, context: fileq.Context) -> int:
    return job.filesize


class OwnError(BaseException):
    """No Exception, like the outcomes of pytest."""


@fileq.task("interrupt")
def interrupt(job: fileq.JobView[str], context: fileq.Context) -> None:
    import pytest  # not in the workers that import this module

    errors: dict[str, Callable[[str], BaseException]] = {
        "ctrl-c": KeyboardInterrupt,
        "exit": SystemExit,
        "own": OwnError,
        "fail": pytest.fail.Exception,
        "skip": pytest.skip.Exception,
    }
    raise errors[job.payload](job.payload)


@fileq.task("interrupt_async")
async def interrupt_async(job: fileq.JobView[str], context: fileq.Context) -> None:
    interrupt(job, context)


@fileq.task("follow")
def follow(job: fileq.JobView[list[Any]], context: fileq.Context) -> None:
    context.enqueue(*job.payload)


@fileq.task("follow_with")
def follow_with(job: fileq.JobView[dict[str, Any]], context: fileq.Context) -> None:
    context.enqueue(double, Number(1), **job.payload)
