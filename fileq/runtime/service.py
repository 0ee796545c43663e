"""The interface of everything that a role runs in a thread of its own."""

from __future__ import annotations

from typing import Protocol


class Service(Protocol):
    """One loop in one thread. Every method may be called more than once."""

    name: str

    def start(self) -> None: ...

    def quiet(self) -> None:
        """Takes on no new work; work in progress continues."""
        ...

    def stop(self, timeout_s: float) -> None:
        """Ends within this many seconds."""
        ...

    def hurry(self) -> None:
        """Ends at once; work in progress is given back."""
        ...

    def problem(self) -> str:
        """Why it cannot do its work now; "" when it can."""
        ...

    def is_turning(self) -> bool:
        """Whether its loop has made progress recently."""
        ...
