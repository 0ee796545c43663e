"""The order in which a claim tries the queues: by priority, except for a small share that starts at a lower queue."""

from __future__ import annotations


class ClaimOrder:
    """Strict priority, except that every (1/share)th claim starts at a lower queue, taking those in rotation.

    Counts the claims of one process. A claim that finds no job does not count."""

    def __init__(self, queues: tuple[str, ...], share: float) -> None:
        self.queues = queues
        self.every = round(1 / share) if share > 0 and len(queues) > 1 else 0
        self.claims = 0

    def next_order(self) -> tuple[str, ...]:
        """The queues in the order in which the next claim tries them."""
        if not self.every or (self.claims + 1) % self.every:
            return self.queues
        lower = self.queues[1:]
        first = lower[((self.claims + 1) // self.every - 1) % len(lower)]
        return (first, *(queue for queue in self.queues if queue != first))

    def claimed(self) -> None:
        """Counts a claim that found a job."""
        self.claims += 1
