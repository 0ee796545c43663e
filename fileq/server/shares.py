"""What clients share: of each such thing there is a limit in total, and a lower one for each caller."""

from __future__ import annotations

from collections import Counter

from fileq.server.problems import ApiProblem


class Share:
    """Belongs to the event loop. `what` names the things in a refusal, `one` what a caller is."""

    def __init__(self, what: str, most: int, most_of_one: int, *, one: str = "key", retry_after_s: int = 5) -> None:
        self._what = what
        self._most = most
        self._most_of_one = most_of_one
        self._one = one
        self._retry_after_s = retry_after_s
        self._taken = Counter[str]()
        self._total = 0

    def take(self, caller: str, amount: int = 1) -> None:
        """Raises ApiProblem if the caller, or all callers together, would have too many. What is taken must be given
        back."""
        if self._taken[caller] + amount > self._most_of_one:
            raise self._busy(f"this {self._one} has the most {self._what} that one may have, {self._most_of_one:,}")
        if self._total + amount > self._most:
            raise self._busy(f"there are {self._most:,} {self._what}, the most at a time")
        self._taken[caller] += amount
        self._total += amount

    def give_back(self, caller: str, amount: int = 1) -> None:
        self._total -= amount
        self._taken[caller] -= amount
        if not self._taken[caller]:
            del self._taken[caller]

    def _busy(self, detail: str) -> ApiProblem:
        # The rest of a body is not read, so the connection can't be used again.
        headers = {"Connection": "close"}
        return ApiProblem("busy", f"{detail}; try again", retry_after_s=self._retry_after_s, headers=headers)
