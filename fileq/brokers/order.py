"""In which order a claim tries the queues: by priority, but for a small share that starts lower."""

from __future__ import annotations


class ClaimOrder:
    """Strict priority, except that every (1/share)th claim starts from a lower queue, these in turn.

    Counts the claims of one process; only claims that found a job count."""

    def __init__(self, queues: tuple[str, ...], share: float) -> None:
        self.queues = queues
        self.every = round(1 / share) if share > 0 and len(queues) > 1 else 0
        self.claims = 0

    def next_order(self) -> tuple[str, ...]:
        """The queues to try for the next claim."""
        if not self.every or (self.claims + 1) % self.every:
            return self.queues
        lower = self.queues[1:]
        first = lower[((self.claims + 1) // self.every - 1) % len(lower)]
        return (first, *(queue for queue in self.queues if queue != first))

    def claimed(self) -> None:
        self.claims += 1
