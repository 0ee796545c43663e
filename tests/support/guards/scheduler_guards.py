"""The guards of the scheduler: its pauses, and what wakes it."""

from tests.support.guards.guard import Guard

SCHEDULING, WATCHING = "tests/unit/worker/test_scheduler.py::test_", "tests/integration/redis/test_due_watch.py::test_"

SCHEDULER_GUARDS = (
    Guard(
        "The scheduler does not pause while more jobs may be due",
        "a long list of due jobs takes a second for each batch",
        "        if promoted.count == PAGE:\n            return 0.0\n",
        "",
        SCHEDULING + "the_pause_ends_when_the_next_job_is_due_and_is_never_long",
    ),
    Guard(
        "The scheduler pauses until the next job is due",
        "short backoffs take a second",
        "max(0.001, (min(due_ms) - promoted.now_ms) / 1000)",
        "1.0",
        SCHEDULING + "the_pause_ends_when_the_next_job_is_due_and_is_never_long",
    ),
    Guard(
        "The scheduler never turns without a pause",
        "it keeps the broker busy",
        "max(0.001, (min(due_ms) - promoted.now_ms) / 1000)",
        "(min(due_ms) - promoted.now_ms) / 1000",
        SCHEDULING + "the_pause_ends_when_the_next_job_is_due_and_is_never_long",
    ),
    Guard(
        "The scheduler sleeps longer only while the broker reports earlier jobs",
        "a job that another process schedules is up to a second late",
        "if promoted.is_watched and not",
        "if not",
        SCHEDULING + "the_pause_ends_when_the_next_job_is_due_and_is_never_long",
    ),
    Guard(
        "A report that comes during a turn of the scheduler is kept",
        "a job that another process schedules is up to a second late",
        "        promoted = self._broker.promote(PAGE)\n",
        "        promoted = self._broker.promote(PAGE)\n        self.wake.clear()\n",
        SCHEDULING + "a_report_before_the_turn_is_answered_by_it_and_one_during_it_is_kept",
    ),
    Guard(
        "A scheduler learns of an earlier job that another process schedules",
        "the job is up to a second late",
        "select.EPOLLIN | select.EPOLLONESHOT",
        "0",
        WATCHING + "an_idle_scheduler_sleeps_until_another_process_schedules_a_job",
    ),
    Guard(
        "The answers to a scheduler's own questions do not wake it",
        "an idle worker asks the server all the time",
        "        self._reporter.disarm()  # the replies are no report\n",
        "",
        WATCHING + "nothing_is_reported_without_a_change",
    ),
    Guard(
        "A scheduler whose server refuses to report changes asks often",
        "each worker without the permission tries again and again, and jobs are late",
        "self._is_refused = any(isinstance(reply, ReplyError) for reply in replies)",
        "self._is_refused = False",
        WATCHING + "a_server_that_refuses_to_report_is_asked_often",
    ),
)
