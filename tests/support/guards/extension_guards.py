"""The guards of follow-ups, middleware, hooks and before_enqueue."""

from tests.support.guards.guard import Guard

FOLLOWED, MADE, HOOKED, VETOED = (
    f"tests/unit/{name}.py::test_"
    for name in ("worker/test_follow_ups", "handlers/test_making", "runtime/test_hook_runner", "producer/test_enqueuer")
)
AROUND = "tests/integration/handlers/test_middleware.py::test_"
NOT_ENQUEUED = "what must happen after a job does not happen"

EXTENSION_GUARDS = (
    Guard(
        "What a handler requests is enqueued in the step that completes its job",
        NOT_ENQUEUED,
        "        made = ran.made if type(ran) is Done else None\n",
        "        made = None\n",
        FOLLOWED + "requested_jobs_are_enqueued_when_the_job_is_completed",
    ),
    Guard(
        "A job that is completed without running is followed by nothing",
        "a version that was never processed is reported as processed",
        "        if settlement.verb is not Verb.COMPLETE or settlement.superseded or settlement.vanished:\n",
        "        if settlement.verb is not Verb.COMPLETE:\n",
        FOLLOWED + "a_job_that_is_completed_without_running_is_followed_by_nothing",
    ),
    Guard(
        "The ledger learns the file of a follow-up",
        "a producer enqueues the file a second time",
        "            version = Version(path, signature)\n",
        "",
        FOLLOWED + "a_requested_file_is_known_to_the_ledger_under_the_producers_path",
    ),
    Guard(
        "Each death of a job has its own `on_dead`",
        "a job that dies again after `dlq retry` is not reported",
        '"on_dead", settlement.claim.claimed_ms)\n',
        '"on_dead")\n',
        FOLLOWED + "a_job_that_dies_again_after_it_was_put_back_is_mourned_again",
    ),
    Guard(
        "A job that is refused has its `on_dead`",
        NOT_ENQUEUED,
        "        self._settle(slot, settlement, claim.version, route)\n",
        "        slot.settle(settlement, route)\n",
        FOLLOWED + "a_job_that_is_refused_for_its_deadline_is_mourned",
    ),
    Guard(
        "A job that a reaper buries has its `on_dead`",
        NOT_ENQUEUED,
        "        settlements.append(add_follow_ups(with_order(settlement, version, rules)))\n",
        "        settlements.append(with_order(settlement, version, rules))\n",
        FOLLOWED + "a_reaper_that_buries_a_job_enqueues_its_on_dead",
    ),
    Guard(
        "A follow-up that the broker would refuse is an error in the handler",
        "the broker refuses the settlements of all jobs of the call",
        "        if checked.priority and self.queues and checked.priority not in self.queues:\n",
        "        if False:\n",
        MADE + "a_mistake_is_an_error_in_the_handler",
    ),
    Guard(
        "Routes that lead in a circle are refused",
        "two jobs follow each other without an end",
        "        if problems := loading.problems or chain_problems(found):\n",
        "        if problems := loading.problems:\n",
        "tests/unit/handlers/test_route_chains.py::test_routes_that_lead_in_a_circle_are_refused",
    ),
    Guard(
        "A handler that ends does not cancel the middleware around it",
        "every attempt below async middleware fails",
        "        if self.ends_left_tasks and not self._depth:\n",
        "        if self.ends_left_tasks:\n",
        AROUND + "a_handler_that_ends_below_async_middleware_does_not_cancel_it",
    ),
    Guard(
        "A plain handler below async middleware runs in the thread of its attempt",
        "it can't be stopped, and blocks all other async handlers",
        "        return await inner.call() if inner.is_async else await in_calling_thread(inner.call)\n",
        "        return await inner.call() if inner.is_async else inner.call()\n",
        AROUND + "plain_functions_run_in_the_thread_of_the_attempt_and_async_ones_on_the_loop",
    ),
    Guard(
        "A hook that raises ends neither the other hooks nor the worker",
        "hooks are no longer called",
        "        except BaseException as error:  # SystemExit",
        "        except Exception as error:  # SystemExit",
        HOOKED + "a_hook_that_raises_is_reported_once_a_minute_and_the_others_are_called",
    ),
    Guard(
        "A job that is given back when the worker stops starts no hook",
        "a hook reports the start of a job that did not run",
        " and not (isinstance(event, JobClaimed) and not event.is_run):\n",
        ":\n",
        HOOKED + "a_job_that_is_given_back_when_the_worker_stops_has_not_started",
    ),
    Guard(
        "A `before_enqueue` that raises does not end the producer",
        "one file stops all others",
        "            except Exception as error:\n                self._rules.counts.skip(SkipReason.VETO_FAILED",
        "            except OSError as error:\n                self._rules.counts.skip(SkipReason.VETO_FAILED",
        VETOED + "a_before_enqueue_that_fails_skips_the_file_and_is_reported_once_a_minute",
    ),
)
