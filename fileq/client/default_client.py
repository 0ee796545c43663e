"""The client that tasks use by themselves: made at its first use, from the configuration of the program. In a test with
fileq.testing.queue it is the client of the test queue, to which every other client of the process is led too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fileq.client.client import Client

_lock = threading.Lock()
_made: list[Client] = []  # at most one
_of_tests: list[Client] = []  # of the test queues that are open; the last one counts


def default_client() -> Client:
    """Raises ConfigError if the configuration of the program is wrong."""
    with _lock:
        if _of_tests:
            return _of_tests[-1]
        if not _made:
            from fileq.client.client import Client  # imports more than a module that only defines tasks needs

            _made.append(Client())
        return _made[0]


def client_of_test() -> Client | None:
    """The client of the test queue; None outside of tests."""
    with _lock:
        return _of_tests[-1] if _of_tests else None


@contextmanager
def replaced_by(client: Client) -> Iterator[None]:
    """Tasks and clients use this client meanwhile: for tests."""
    with _lock:
        _of_tests.append(client)
    try:
        yield
    finally:
        with _lock:
            _of_tests.remove(client)
