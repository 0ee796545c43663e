"""The guards of the verb `admit` on each broker: how many jobs of a route run in all workers, and how many start."""

from tests.support.guards.guard import Promise

WINDOW = "    if not now_ms < ends_ms <= now_ms + request.window_ms:\n"

HOLDERS = Promise(
    "No more jobs of a route are admitted than `max_running_total`",
    "the limit has no effect on other workers",
    "TestAdmit::test_as_many_as_the_limit_are_admitted_in_the_order_of_the_call",
)
STALE_HOLDERS = Promise(
    "A holder counts only while its slot holds the job",
    "a route that was full once stays full",
    "TestAdmit::test_every_settlement_frees_the_permit",
)
NOT_INHERITED = Promise(
    "The next job of a slot needs a permit of its own",
    "a slot continues with the permit of a job that has ended",
    "TestAdmit::test_the_next_job_of_a_slot_uses_a_permit_of_the_rate",
)
ADMITTED_AGAIN = Promise(
    "A job that is admitted again costs nothing",
    "after a lost reply a job uses two permits, or waits for itself",
    "TestAdmit::test_a_job_that_is_admitted_again_needs_no_second_permit",
)
ONLY_HELD = Promise(
    "A slot that lost its job is not admitted",
    "a job runs in a slot that no longer holds it",
    "TestAdmit::test_a_slot_that_lost_its_job_is_not_admitted",
)
RATE = Promise(
    "No more jobs of a route start in a window than its `rate`",
    "the rate has no effect",
    "TestAdmit::test_no_more_than_the_rate_start_in_a_window",
)
WINDOW_ENDS = Promise(
    "The window of a rate ends with its time",
    "a route starts one window of jobs and then no other",
    "TestAdmit::test_no_more_than_the_rate_start_in_a_window",
)
STALE_WINDOW = Promise(
    "A window that lasts longer than the rate says has ended",
    "after a change of `rate` from 1/h to 1/s jobs wait for an hour",
    "TestAdmit::test_a_window_that_is_longer_than_the_rate_says_has_ended",
)

ADMIT_GUARDS = (
    HOLDERS.on("redis", "if most > 0 and route.count >= most then", "if false then"),
    HOLDERS.on("rules", "request.max_running_total and len(holders) >= request.max_running_total", "False"),
    STALE_HOLDERS.on(
        "redis", "    if read('LPOS', before .. flat[i] .. after, flat[i + 1]) then\n", "    if true then\n"
    ),
    STALE_HOLDERS.on("sqlite", "WHERE route = ? AND NOT EXISTS ", "WHERE false AND route = ? AND NOT EXISTS "),
    NOT_INHERITED.on("redis", "if held == raw then", "if held then"),
    NOT_INHERITED.on("sqlite", " AND slots.held = holders.raw)", ")"),
    ADMITTED_AGAIN.on("redis", "  if held == raw then return { 'admitted', 0 } end\n", ""),
    ADMITTED_AGAIN.on("rules", "    if request.slot in holders:\n", "    if False:\n"),
    ONLY_HELD.on("redis", "  if not read('LPOS', processing, raw) then return { 'lost', 1 } end\n", ""),
    ONLY_HELD.on("rules", "    if slot_row is None or slot_row.raw != request.raw:\n", "    if False:\n"),
    RATE.on("redis", "if rate > 0 and route.used + route.taken >= rate then", "if false then"),
    RATE.on("rules", "    if started >= request.rate:\n", "    if False:\n"),
    WINDOW_ENDS.on("redis", "int_text(route.window))\n", "int_text(route.window * 1000))\n"),
    WINDOW_ENDS.on("rules", WINDOW, "    if not 0 < ends_ms <= now_ms + request.window_ms:\n"),
    STALE_WINDOW.on("redis", "if route.left < 0 or route.left > window then", "if route.left < 0 then"),
    STALE_WINDOW.on("rules", WINDOW, "    if not now_ms < ends_ms:\n"),
)
