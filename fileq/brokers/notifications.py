"""What a broker returns to callers that wait: a waiter for jobs, a subscription to events, reports of due times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


class Waiter(Protocol):
    """Wakes one pump when a queue may hold a job. Used by one thread, and never claims or moves a job."""

    def fileno(self) -> int:
        """A descriptor for select or epoll. It is readable when an armed waiter has something to report."""
        ...

    def arm(self, paused: frozenset[str] = frozenset()) -> float:
        """Watches every queue except the paused ones. Returns the longest time to wait, in seconds.

        After that time the pump should call settle_and_claim without having been woken. May be repeated at any time.
        A job pushed before the call wakes the pump too."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Blocks until there may be work (True) or the timeout ends (False)."""
        ...

    def close(self) -> None: ...


class Subscription(Protocol):
    """The events of all processes since the subscription began, in the order of the transitions.

    Delivery is best effort: a kill -9 between a transition and its event loses the event, never the transition."""

    def get(self, timeout_s: float) -> bytes | None:
        """The next event as JSON, or None after the timeout."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class DueReports(Protocol):
    """What a broker may do in addition: report that a job or a schedule is due earlier than promote() has said, or
    that a cancellation was requested."""

    def report_due_changes(self, changed: Callable[[], None]) -> None:
        """From now on calls `changed`, in any thread, when what a reply with `is_watched` said has changed.

        Such a reply is followed by one call at most. `changed` must return at once."""
        ...
