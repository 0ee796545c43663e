"""The guards of what the workers of a fleet share: a push wakes one of them, and one of them does each duty."""

from tests.support.guards.guard import Guard, Promise

WAITING = "tests/integration/redis/test_waiting.py::test_"
SCHEDULING = "tests/unit/worker/test_scheduler.py::test_"

ONE_HOLDER = Promise(
    "A lease has one holder",
    "every worker of a fleet does the work of all",
    "TestReap::test_a_lease_has_one_holder",
)
LEASE_ENDS = Promise(
    "A lease that is not renewed ends",
    "after the death of its holder no due job is promoted",
    "TestReap::test_a_lease_that_is_not_renewed_ends",
)
LEASE_IS_SHORT = Promise(
    "A lease that lasts longer than the caller asks for is free",
    "after a step of the clock no due job is promoted if the holder is dead",
    "TestReap::test_a_lease_that_lasts_longer_than_asked_for_is_free",
)

FLEET_GUARDS = (
    Guard(
        "A claim that leaves jobs behind wakes another worker",
        "the rest of a burst waits for the end of a poll",
        "    if length[i] > 0 and not is_paused[i] then hand_on(i) end\n",
        "",
        WAITING + "a_burst_wakes_as_many_waiters_as_it_takes",
    ),
    ONE_HOLDER.on("redis", "if holder and holder ~= caller and holder ~= gone and counts then return holder end\n", ""),
    ONE_HOLDER.on("sqlite", 'if had not in ("", holder, instead_of) and counts:', "if False:"),
    LEASE_ENDS.on("redis", "redis.call('SET', lease, caller, 'PX', lasts)", "redis.call('SET', lease, caller)"),
    LEASE_ENDS.on("sqlite", "        del leases[ended]\n", "        pass\n"),
    LEASE_IS_SHORT.on(
        "redis", "local counts = lasts == '0' or redis.call('PTTL', lease) <= tonumber(lasts)", "local counts = true"
    ),
    LEASE_IS_SHORT.on("sqlite", "counts = ttl_ms == 0 or ends_ms - now_ms <= ttl_ms", "counts = True"),
    Guard(
        "Of many waiters a push wakes one",
        "each push costs a claim of every idle worker",
        "local is_mine = not holder or holder == ARGV[1]\n",
        "local is_mine = true\n",
        WAITING + "one_push_wakes_one_of_many_waiters",
    ),
    Guard(
        "A waiter that is closed hands the watch over",
        "while one worker is full, jobs wait although others are idle",
        "                connection.send(packed([command]))\n        self._drop()\n",
        "                pass\n        self._drop()\n",
        WAITING + "the_watch_goes_to_another_waiter_when_its_holder_is_closed",
    ),
    Guard(
        "A scheduler without the lease looks for cancellations",
        "a job that is to be cancelled runs on until the next renewal",
        "            self._note_cancels(self._broker.cancel_requests())\n",
        "            pass\n",
        SCHEDULING + "without_the_lease_it_promotes_nothing_and_looks_for_cancellations",
    ),
)
