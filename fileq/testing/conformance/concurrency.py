"""Calls that a test runs at the same time."""

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Runs the calls in threads that start together; returns their results in order or raises the first error."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []
    start = Barrier(len(calls))

    def run(index: int) -> None:
        try:
            start.wait(30)
            results[index] = calls[index]()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
