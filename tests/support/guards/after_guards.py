"""The guards of what happens to a file after its job: the orders on the broker, and the moves."""

from tests.support.guards.guard import Guard, Promise

LOST_ORDER = "the file of a job whose worker was killed stays where it was"
KILLED = "tests/integration/worker/test_after_killed.py::test_"
MOVING = "tests/unit/files/test_exclusive_move.py::test_"

KEPT = Promise(
    "The order for a file is kept in the step that ends its job",
    LOST_ORDER,
    "TestFinishOrders::test_a_settlement_leaves_its_order",
)
FINISHED = Promise(
    "A finished order is removed",
    "each worker does all orders again and again",
    "TestFinishOrders::test_a_finished_order_is_gone_and_a_repeat_of_its_settlement_does_not_bring_it_back",
)
PUT_BACK = Promise(
    "A job that is put back has no order",
    "the file is moved away while its job waits",
    "TestFinishOrders::test_a_later_settlement_replaces_the_order_and_a_revival_removes_it",
)
UNREGISTERED = Promise(
    "The order of a slot that is gone is found at once",
    "the file of a job whose worker was killed is moved later than it could be",
    "TestFinishOrders::test_the_order_of_a_slot_that_is_not_registered_is_found_at_once",
)

ORDER_GUARDS = (
    KEPT.on("redis", "    keep_order(job)\n", ""),
    KEPT.on("rules", "    if s.order:\n", "    if False:\n"),
    Promise(
        "The order for the file of a job that a reaper buries is kept in the same step",
        "the file of a job that killed its workers stays where it was",
        "TestFinishOrders::test_the_order_of_a_job_that_a_reaper_buries_is_found_at_once",
    ).on("redis", "  keep_order(job)\n  add_event(job.event)\n  keep_member(job)\nend\n", "  keep_member(job)\nend\n"),
    FINISHED.on(
        "redis",
        "if total > 0 then redis.call('HDEL', orders, unpack(ids)) end\n",
        "",
    ),
    FINISHED.on(
        "rules",
        "            work.remove_orders([id for id, _ in done])\n",
        "",
    ),
    PUT_BACK.on(
        "redis",
        "    redis.call('HDEL', orders, id)\n",
        "",
    ),
    PUT_BACK.on(
        "rules",
        "    work.remove_orders([revival.id])\n",
        "",
    ),
    UNREGISTERED.on("redis", " or not read('HGET', WORKERS, slot)) then", ") then"),
    Guard(
        "A reaper gives the broker an order with the burial",
        "the file of a job that killed its workers stays where it was",
        "        settlements.append(add_follow_ups(with_order(settlement, version, rules)))\n",
        "        settlements.append(settlement)\n",
        "tests/unit/worker/test_reaper.py::test_the_order_for_the_file_goes_with_a_burial",
    ),
    Guard(
        "A worker does the orders that others left behind",
        LOST_ORDER,
        '            moved_to = self._do(action) if action is not None else b""\n',
        "            moved_to = None\n",
        KILLED + "the_file_of_a_job_that_a_reaper_buries_is_moved",
    ),
    Guard(
        "An order that was done for another worker is finished",
        "the record never says where the file is",
        "        if done:\n            self._broker.finish_orders(done)\n",
        "",
        KILLED + "the_file_of_a_job_that_a_reaper_buries_is_moved",
    ),
)

DELIVERY_GUARDS = (
    Guard(
        "The file of an open delivery is neither moved nor deleted",
        "a file that differs from its manifest is taken for right",
        "        if not action.delivery:\n",
        "        if True:\n",
        "tests/integration/producer/test_deliveries.py::"
        "test_files_are_compared_with_their_manifest_before_they_are_moved_or_deleted",
    ),
)

MOVE_GUARDS = (
    Guard(
        "Without RENAME_NOREPLACE a private name is not taken twice",
        "a file of the user is lost",
        "    if exists(Place(directory, private)):\n",
        "        if False:\n",
        MOVING + "a_private_name_is_never_taken_twice",
    ),
)

AFTER_GUARDS = (*ORDER_GUARDS, *DELIVERY_GUARDS, *MOVE_GUARDS)
