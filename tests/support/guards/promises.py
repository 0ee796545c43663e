"""The guarantees that the brokers share. The name of each is what a guard of redis, SQLite or memory refers to."""

from tests.support.guards.guard import Promise

# settling

HELD = Promise(
    "A settlement counts only if its slot still holds the job",
    "a worker that was reaped settles a job that another one runs",
    "TestSettle::test_after_losing_the_lease_it_changes_nothing_and_is_fenced",
)
LATE = Promise(
    "A late call about an earlier claim is fenced",
    "a call that the server executes late settles the claim of another attempt",
    "TestSettle::test_a_late_call_about_an_earlier_claim_of_the_same_bytes_is_fenced",
)
REPEATED = Promise(
    "A repeated settlement has no second effect",
    "after a lost reply the outcome is rejected or counted twice",
    "TestSettle::test_the_same_call_twice_is_done_already",
)
REMEMBERED = Promise(
    "Each slot's last settlement is remembered",
    "a repeat after a lost reply is taken for a stale outcome",
    "TestSettle::test_the_same_call_twice_is_done_already",
)
TWICE_IN_ONE_CALL = Promise(
    "The same settlement twice in one call takes effect once",
    "a job is completed twice",
    "TestSettle::test_the_same_settlement_twice_in_one_call_takes_effect_once",
)
TWO_CLAIMS_IN_ONE_CALL = Promise(
    "Two claims of one job are settled once in one call",
    "a job that was given again after a lost reply is completed twice",
    "TestSettle::test_two_claims_of_one_job_settled_in_one_call_take_effect_once",
)
LEAVES_SLOT = Promise(
    "A settled job leaves its slot",
    "the job is in two places and runs again",
    "TestSettle::test_a_settled_job_is_in_one_place_and_its_slot_is_free",
)
SETTLING_RENEWS = Promise(
    "Settling renews the heartbeat",
    "a busy slot is reaped although its worker lives",
    "TestSettle::test_settling_is_a_heartbeat",
)
FENCED_COUNTED = Promise(
    "Fenced outcomes are counted",
    "operators do not see that workers lose their jobs",
    "TestSettle::test_after_losing_the_lease_it_changes_nothing_and_is_fenced",
)
RETRYING_STAYS = Promise(
    "A retried job's record does not expire, even after a copy completed",
    "a job that waits loses its history and its queue",
    "TestRetry::test_a_retrying_record_does_not_expire_though_a_copy_has_completed",
)
DEAD_STAYS = Promise(
    "A dead job's record does not expire, even after a copy completed",
    "a dead job loses its error",
    "TestBury::test_a_dead_copy_keeps_the_record_when_another_completes",
)
COPY_KEEPS_RECORD = Promise(
    "The record stays while a copy of the job waits",
    "the copy counts as the job of another program",
    "TestComplete::test_the_record_is_kept_while_a_copy_still_waits",
)
COPIES_SCHEDULED = Promise(
    "Two copies with the same bytes are both scheduled",
    "one of two jobs is lost",
    "TestRetry::test_identical_bytes_that_are_both_retried_both_survive",
)
DEFERRAL_IS_NO_ATTEMPT = Promise(
    "A deferral is no attempt and keeps the error",
    "a job deferred by an open breaker looks as if it had run",
    "TestDefer::test_the_error_and_the_attempts_of_an_earlier_failure_stay",
)
DEFERRALS_COUNTED = Promise(
    "Every deferral is counted in the record",
    "operators do not see how often a job was deferred",
    "TestDefer::test_the_last_reason_is_kept_and_every_deferral_counted",
)
DEFERRAL_ENDS = Promise(
    "A job that ran is no longer deferred",
    "the record names a reason that has ended",
    "TestDefer::test_every_other_end_ends_the_deferral_too",
)

# claiming

UNREGISTERED = Promise(
    "A slot that is not registered gets no job",
    "a claim executed late takes a job that no worker knows of",
    "TestClaim::test_a_claim_that_arrives_after_its_slot_was_deregistered_gives_nothing",
)
GIVEN_AGAIN = Promise(
    "A slot that holds a job gets that job again",
    "after a lost reply a slot holds two jobs, and one of them never runs",
    "TestClaim::test_a_slot_that_holds_a_job_is_given_that_one_again",
)
SLOT_NAMED_TWICE = Promise(
    "A slot named twice in a call gets one job",
    "a slot holds two jobs, and one of them never runs",
    "TestClaim::test_a_slot_named_twice_in_one_call_gets_one_job",
)
LEAVES_QUEUE = Promise(
    "A claimed job leaves its queue",
    "two slots run the same job",
    "TestClaim::test_a_claim_moves_the_job_into_the_processing_list_of_its_slot",
)
CLAIM_RENEWS = Promise(
    "A claim sets the heartbeat",
    "a slot is reaped although it has just got a job",
    "TestClaim::test_a_claim_is_a_heartbeat",
)
OWN_TOKEN = Promise(
    "Each claim of a slot has its own token",
    "the outcome of an earlier attempt counts for a later one",
    "TestSettle::test_two_claims_of_one_job_settled_in_one_call_take_effect_once",
)
VAIN_CLAIM_RENEWS = Promise(
    "Settling together with a claim that finds no job renews the heartbeat",
    "a slot that has just settled is reaped",
    "TestRelease::test_settling_and_a_claim_in_vain_in_one_call_are_a_heartbeat",
)
VAIN_CLAIM_ALONE = Promise(
    "A claim that finds no job does not renew a lease that ran out",
    "a slot whose job was reaped looks alive",
    "TestClaim::test_a_claim_that_finds_no_job_changes_nothing",
)
PAUSED = Promise(
    "No job of a paused queue is claimed",
    "jobs run although an operator paused their queue",
    "TestPause::test_nothing_is_claimed_from_a_paused_queue",
)
NOT_STARVED = Promise(
    "A share of the claims starts at a lower queue",
    "a busy high queue starves the low one",
    "TestClaim::test_the_starvation_share_of_claims_starts_from_the_lower_queue",
)
ADOPTED_ONCE = Promise(
    "A job of another program is counted when it is claimed, and once",
    "fsck reports jobs that were lost or came from nowhere",
    "TestCensus::test_a_job_is_adopted_once",
)

# renewing and reaping

UNKNOWN_IS_GONE = Promise(
    "Renewing an unknown slot answers gone",
    "a worker that was reaped continues under an id that gets no jobs",
    "TestRenew::test_after_losing_the_lease_it_changes_nothing_and_returns_gone",
)
RENEWED = Promise(
    "A renewal extends the lease",
    "every job that takes longer than a heartbeat is reaped",
    "TestRenew::test_a_renewal_lasts_exactly_one_ttl",
)
LOST = Promise(
    "A slot learns that it lost its job",
    "two workers run the job until both have ended",
    "TestRenew::test_a_slot_that_holds_another_job_than_it_believes_has_lost_its_job",
)
UNEXPECTED = Promise(
    "A slot learns of a job that it holds without knowing it",
    "a job whose claim had no reply never runs",
    "TestRenew::test_a_slot_that_believes_to_be_idle_gets_the_job_it_holds",
)
CANCELLED = Promise(
    "A running job learns of its cancellation",
    "cancelled jobs run to their end",
    "TestCancel::test_the_worker_of_a_running_job_learns_it_at_its_next_renewal",
)
ALIVE = Promise(
    "A slot with a heartbeat is not reaped",
    "the job of a live worker runs a second time",
    "TestReap::test_a_live_slot_is_not_reaped",
)
LEASE_ENDS = Promise(
    "A lease ends exactly after the ttl",
    "a dead slot counts as alive",
    "TestReap::test_a_lease_ends_exactly_after_the_ttl",
)
ONLY_SILENT_SUSPECTS = Promise(
    "Only slots without a heartbeat are suspects",
    "reapers try to take jobs from live workers",
    "TestReap::test_only_slots_without_a_heartbeat_are_suspects",
)
ONE_REAPER = Promise(
    "Of two reapers one moves the job",
    "a recovered job is in its queue twice",
    "TestReap::test_a_settlement_for_a_job_the_slot_no_longer_holds_is_fenced",
)
REAPED_ONCE = Promise(
    "A job named twice in one reap is moved once",
    "a recovered job is in its queue twice",
    "TestReap::test_a_job_named_twice_in_one_call_is_moved_once",
)
REAPED_LEAVES = Promise(
    "A reaped job leaves the dead slot",
    "the next reaper gives it back again",
    "TestReap::test_a_dead_slots_job_goes_to_the_front_of_its_queue",
)
STILL_HOLDS = Promise(
    "A reaped slot that still holds a job stays registered",
    "no reaper finds the job before the next sweep",
    "TestReap::test_a_slot_that_still_holds_a_job_is_not_removed",
)

# enqueueing and the ledger

ID_ONCE = Promise(
    "An id is enqueued once",
    "a repeat after a lost reply enqueues the job twice",
    "TestEnqueue::test_the_same_call_twice_has_no_second_effect",
)
ID_ALONE_ONCE = Promise(
    "The id of a job that is enqueued alone is enqueued once",
    "a repeat after a lost reply enqueues the job twice",
    "TestEnqueue::test_a_job_alone_is_enqueued_like_a_job_of_a_batch",
)
VERSION_ONCE = Promise(
    "A version is enqueued once",
    "every scan enqueues every file again",
    "TestLedger::test_a_version_is_enqueued_once",
)
VERSION_LEARNED = Promise(
    "The ledger learns a version in the step that enqueues it",
    "a producer killed in between enqueues the file twice",
    "TestLedger::test_a_version_is_enqueued_once",
)
LIMIT = Promise(
    "No window has more permits than the limit",
    "producers exceed their rate limit",
    "TestRateLimit::test_the_limit_holds_over_several_calls_of_one_window",
)
LEDGER_UNCHANGED = Promise(
    "A ledger entry that changed is not replaced",
    "a sweep forgets a version that was enqueued in the meantime, and it runs again",
    "TestLedger::test_update_ledger_leaves_an_entry_that_has_changed_meanwhile",
)

# waiting jobs

PROMOTED_LEAVES = Promise(
    "A promoted job leaves `scheduled`",
    "it is promoted again and again",
    "TestPromote::test_the_same_call_twice_promotes_once",
)
NOT_BEFORE_TIME = Promise(
    "No job is promoted before its time",
    "backoffs and delays have no effect",
    "TestPromote::test_the_earliest_goes_first",
)
REALIGNED = Promise(
    "After the clock steps back, a job waits for its own delay only",
    "delayed jobs wait for as long as the step",
    "TestRealign::test_a_second_step_is_noticed_like_the_first",
)
PROMOTED_COUNTED = Promise(
    "A promoted job still counts as produced",
    "fsck reports jobs that came from nowhere",
    "TestPromote::test_a_promoted_job_is_one_that_was_produced",
)
PUSHED_STAYS = Promise(
    "The record of a job that goes back to its queue does not expire",
    "a pending job loses its history",
    "TestRecords::test_a_copy_that_goes_back_to_its_queue_removes_the_expiry",
)
DUE_LEAVES = Promise(
    "A job made due leaves `scheduled`",
    "it runs now, and again when its time comes",
    "TestDueNow::test_scheduled_retrying_and_deferred_jobs_go_to_the_end_of_their_queues",
)
DUE_ONLY_THERE = Promise(
    "Only a job that is in `scheduled` is made due",
    "a job that was lost is in its queue without being counted, or twice",
    "TestDueNow::test_a_job_that_is_not_in_scheduled_is_left_to_a_repair",
)
DUE_ONLY_WAITING = Promise(
    "Only a job that waits for its time is made due",
    "the record of a running job says that it waits",
    "TestDueNow::test_a_scheduled_copy_of_a_running_job_stays_where_it_is",
)
RELOCATED = Promise(
    "Only a completed or dead job gets a new path",
    "a running job is retried with a path that it does not have",
    "TestFinishOrders::test_a_job_that_has_not_ended_or_is_unknown_stays_as_it_is",
)

# the registry, dead letters and repairs

REGISTERED_AGAIN = Promise(
    "Registering again does not renew a heartbeat",
    "a slot that is stuck looks alive",
    "TestRegistry::test_registering_again_is_not_a_heartbeat",
)
GIVEN_BACK = Promise(
    "Deregistering gives the job back",
    "a worker that stops loses the jobs that it holds",
    "TestRegistry::test_what_a_deregistered_slot_held_goes_to_the_front_of_its_queue",
)
GIVEN_BACK_ONCE = Promise(
    "A slot named twice is deregistered once",
    "its job is in its queue twice",
    "TestRegistry::test_a_slot_named_twice_gives_its_job_back_once",
)
REVIVED_ONCE = Promise(
    "Of two operators one revives a dead job",
    "the job is in its queue twice",
    "TestDeadLetter::test_the_same_call_twice_revives_once",
)
DISCARDED_ONCE = Promise(
    "A dead job is deleted once",
    "fsck reports a job that was lost",
    "TestDeadLetter::test_discarding_twice_deletes_once",
)
IN_ITS_PLACE = Promise(
    "A job that is in its place is not restored",
    "a repair puts every job into its queue a second time",
    "TestRepair::test_a_job_that_is_where_its_record_says_is_not_lost",
)
RESTORED_ONCE = Promise(
    "A job named twice is restored once",
    "the job is in its queue twice",
    "TestRepair::test_a_job_named_twice_is_restored_once",
)
BALANCED = Promise(
    "The counters are balanced only if the drift is as expected",
    "a repair hides jobs that were lost in the meantime",
    "TestRepair::test_balance_changes_a_counter_only_if_the_drift_is_exactly_as_given",
)
WAITING_MOVES_NOTHING = Promise(
    "Waiting for jobs moves none",
    "jobs change their order",
    "TestWaiting::test_waiting_moves_nothing",
)
