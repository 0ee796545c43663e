"""The guards of child processes between two jobs, of the fork server, and of a reload."""

from tests.support.guards.guard import Guard

LEAKS = "tests/integration/executors/test_process_state.py::test_"
RESTORED = LEAKS + "the_next_task_in_the_same_child_finds_the_state_of_the_start"
REPLACED = LEAKS + "a_child_whose_state_can_not_be_restored_is_replaced_and_no_task_is_lost"
FROZEN = "tests/integration/executors/test_fork_server.py::test_a_frozen_fork_server_is_replaced"
RELOAD = "tests/integration/worker/test_reload.py::test_"
NEXT_JOB = "what one job changed reaches the next one"


def restored(what: str, text: str, mutant: str = "") -> Guard:
    return Guard(f"After every job {what}", NEXT_JOB, text, mutant, RESTORED)


STATE_GUARDS = (
    restored("the child is in its own directory", "            os.fchdir(self._directory)\n"),
    restored("the child has its own umask", "            os.umask(self._umask)\n"),
    restored(
        "the child has its own standard streams",
        "                os.dup2(saved, fd)\n",
        "                pass\n",
    ),
    restored("the child has its own variables", "            self._restore_environment()\n", "            pass\n"),
    restored("the alarm is off", "        _signal.alarm(0)\n"),
    restored("the child has its own signal mask", "        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)\n"),
    Guard(
        "A child in which a job left threads is replaced",
        NEXT_JOB,
        "        if _thread._count() != self._count and self._has_left_threads():\n",
        "        if False:\n",
        REPLACED,
    ),
    Guard(
        "A child whose resource limits a job changed is replaced",
        NEXT_JOB,
        '        if "resource" in sys.modules and self._are_limits_changed(sys.modules["resource"]):\n',
        "        if False:\n",
        REPLACED,
    ),
    Guard(
        "Tasks that a job of a child left on the event loop are cancelled",
        "they run beside the next job",
        "        if self.ends_left_tasks and not self._depth:\n",
        "        if False:\n",
        "tests/integration/handlers/test_async.py::"
        "test_a_task_that_a_job_of_a_child_left_is_cancelled_before_the_next_job",
    ),
    Guard(
        "A child is replaced after `worker.max_jobs_per_child` jobs",
        "memory that handlers leak grows without a limit",
        "        elif had_task and handle.jobs_done == self._max_jobs:\n",
        "        elif False:\n",
        LEAKS + "a_child_is_replaced_after_max_jobs_and_the_next_task_has_a_warm_child",
    ),
)

SERVER_GUARDS = (
    Guard(
        "A fork server that does not answer is given up",
        "no more children are started",
        "        if not self._watch.is_frozen(timeout_s):\n",
        "        if True:\n",
        FROZEN,
    ),
    Guard(
        "The time in which the worker was stopped as well does not count",
        "after a pause of the machine a fork server that works is replaced, and its jobs run again",
        "min(now_s - self._checked_s, CHECK_EVERY_S)",
        "now_s - self._checked_s",
        "tests/unit/worker/test_server_watch.py::test_the_time_in_which_the_worker_was_stopped_as_well_does_not_count",
    ),
    Guard(
        "An answer ends the wait for it",
        "a fork server that works is replaced, and its jobs run again",
        "        self._waited_s = 0.0\n        self.due_s = self._pinged_s",
        "        self.due_s = self._pinged_s",
        "tests/unit/worker/test_server_watch.py::test_a_server_that_answers_is_pinged_again_and_never_counts_as_frozen",
    ),
)

RELOAD_GUARDS = (
    Guard(
        "A new configuration with an error changes nothing",
        "a mistake in the file ends the worker",
        "        except (FileqError, OSError) as error:\n",
        "        except ZeroDivisionError as error:\n",
        RELOAD + "a_broken_configuration_is_refused_and_the_old_one_stays",
    ),
    Guard(
        "SIGHUP makes a service read its configuration",
        "a reload ends the service",
        "            signals.on_hangup = reloader.reload\n",
        "",
        RELOAD + "settings_are_taken_over_or_need_a_restart",
    ),
)

CHILD_GUARDS = (*STATE_GUARDS, *SERVER_GUARDS, *RELOAD_GUARDS)
