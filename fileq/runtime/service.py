"""What a role is made of: loops that start, go quiet and stop; and the one channel on which they tell what they do."""

from __future__ import annotations

from typing import Protocol


class Service(Protocol):
    """One loop in a thread of its own. Each method may be called twice."""

    name: str

    def start(self) -> None: ...

    def quiet(self) -> None:
        """Take nothing new; what is under way goes on."""
        ...

    def stop(self, deadline_s: float) -> None:
        """End within this many seconds."""
        ...

    def hurry(self) -> None:
        """End at once; what is under way is given back."""
        ...

    def problem(self) -> str:
        """Why it can't do its work at the moment; "" when it can."""
        ...

    def is_turning(self) -> bool:
        """Whether its loop has moved lately."""
        ...
