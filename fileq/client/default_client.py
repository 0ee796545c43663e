"""The client that tasks use by themselves: made at its first use, from the configuration of the program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fileq.client.client import Client

_lock = threading.Lock()
_clients: list[Client] = []  # the last one counts


def default_client() -> Client:
    """Raises ConfigError if the configuration of the program is wrong."""
    with _lock:
        if not _clients:
            from fileq.client.client import Client  # imports more than a module that only defines tasks needs

            _clients.append(Client())
        return _clients[-1]


@contextmanager
def replaced_by(client: Client) -> Iterator[None]:
    """Tasks use this client meanwhile: for tests."""
    with _lock:
        _clients.append(client)
    try:
        yield
    finally:
        with _lock:
            _clients.remove(client)
