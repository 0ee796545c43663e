"""How many jobs a worker claims beyond `worker.count` while its jobs are tiny.

A round trip has a fixed price, for the worker and for the broker. With tiny jobs it costs more than the jobs. So a
worker that ends thousands of jobs a second claims the next ones before it has room to run them: one round trip then
carries dozens. They wait in the worker, in the order of their claims, and never make more than `worker.count` jobs
run.

No job waits long in a worker. It claims in advance only what it ends within AHEAD_S at its present rate, in whole
shares of `worker.count` where these fit, and only while these two hold:
- A job runs for less than TURNOVER_S on average. Round trips do not count: a worker that is far from its server gains
  most from claiming in advance.
- Each slot ends a job within CYCLE_S, round trips included. A worker with little to do leaves the jobs to others.

If a claimed job has waited for WAIT_MAX_S, because slow jobs came, all waiting jobs are released to the fronts of
their queues, and the worker claims none in advance for a while. Pure: the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable

HELD_MAX = 64  # claims of a worker, running ones included; with this many slots it claims nothing in advance
AHEAD_S = 0.008
TURNOVER_S = 0.005
CYCLE_S = 0.02
WAIT_MAX_S = 0.016
WINDOW_S = 0.005  # how long one measurement of the rate takes at least
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
GOOD_S = 10.0  # if the last release is longer ago than this, the next pause is a short one again


class Prefetch:
    """`depth` is how many jobs may be claimed beyond `count` now."""

    def __init__(self, count: int, *, is_allowed: bool, monotonic: Callable[[], float]) -> None:
        self._count = count
        # Not with one slot: such a worker runs jobs strictly in the order of their queue, which two calls could change.
        self.extra_max = max(0, HELD_MAX - count) if is_allowed and count > 1 else 0
        self._monotonic = monotonic
        self._rate = self._mean_running = 0.0
        self._ended = self._running = 0
        self._busy_s = 0.0  # how long tasks have run since the measurement began, added up over all slots
        self._since_s = self._last_s = monotonic()
        self._pause_s = FIRST_PAUSE_S
        self._resumes_s = self._gave_up_s = float("-inf")
        self.depth = 0

    def ended(self, count: int, running: int) -> None:
        """`count` tasks have ended since the last call, and `running` tasks run now. Call it in every turn, also
        without news: the rate of an idle worker must fall to 0."""
        if not self.extra_max:
            return
        now_s = self._monotonic()
        self._busy_s += self._running * (now_s - self._last_s)
        self._ended += count
        self._running, self._last_s = running, now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s < WINDOW_S:
            return
        kept = 0.5 if elapsed_s < 2 * WINDOW_S else 0.0  # the weight of earlier measurements
        self._rate += (1 - kept) * (self._ended / elapsed_s - self._rate)
        self._mean_running += (1 - kept) * (self._busy_s / elapsed_s - self._mean_running)
        self._since_s, self._ended, self._busy_s = now_s, 0, 0.0
        are_tasks_short = self._mean_running <= self._rate * TURNOVER_S
        is_fast = are_tasks_short and self._rate * CYCLE_S >= self._count and now_s >= self._resumes_s
        self.depth = self._whole_shares(min(self.extra_max, int(self._rate * AHEAD_S))) if is_fast else 0

    def _whole_shares(self, depth: int) -> int:
        """Rounds the depth so that each of the two calls in flight brings whole shares of `count` jobs.

        What is left over would run as a small share, which costs nearly as much as a whole one."""
        unit = 2 * self._count
        if unit > self._count + self.extra_max:
            return depth
        return max(1, (self._count + depth) // unit) * unit - self._count

    def give_up(self) -> None:
        """A job has waited too long: claims none in advance for a while. Each pause is twice as long as the last."""
        now_s = self._monotonic()
        is_repeated = now_s - self._gave_up_s < GOOD_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if is_repeated else FIRST_PAUSE_S
        self._gave_up_s, self._resumes_s = now_s, now_s + self._pause_s
        self.depth = 0
