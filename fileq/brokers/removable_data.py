"""What a broker may do in addition: notice that its data was deleted, replaced or lost under a process that uses it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class RemovableData(Protocol):
    """Optional: for a broker whose data can be deleted, replaced or lost under a process that uses it."""

    def check_present(self) -> str:
        """Returns what was lost since the last call; "" if nothing was. Raises BrokerRemoved if only a restart of the
        process helps. Called once a second by one thread, so it makes at most one cheap round trip. Only reads."""
        ...
