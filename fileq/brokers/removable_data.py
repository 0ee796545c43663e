"""What a broker may do in addition: notice that its data was deleted or replaced under a process that uses it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class RemovableData(Protocol):
    """Optional: for a broker whose data can be deleted or replaced under a process that uses it."""

    def check_present(self) -> None:
        """Raises BrokerRemoved if that happened. Called once a second, so it makes no round trip. Only reads."""
        ...
