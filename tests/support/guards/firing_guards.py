"""The guards of what workers do with schedules: every time has one job or is counted, and none is forgotten."""

from tests.support.guards.guard import SUITE, Guard

OF_STEPS, OF_CRON = "tests/unit/core/test_schedule_steps.py::test_", "tests/unit/core/test_cron.py::test_"
OF_FIRING, OF_REGISTRATION = (
    "tests/unit/worker/test_schedule_firing.py::test_",
    "tests/unit/worker/test_schedule_registration.py::test_",
)

FIRING_GUARDS: tuple[Guard, ...] = (
    Guard(
        "Of missed times of a schedule those are counted that are not made up",
        "times are neither fired nor counted",
        "    missed = max(0, late - made_up)\n",
        "    missed = max(0, late - made_up - 1)\n",
        OF_STEPS + "every_slot_of_a_long_outage_ends_once",
    ),
    Guard(
        "After a long outage a schedule counts its missed times in parts, and passes over none that is made up",
        "the scheduler is busy for minutes, or the last times are lost",
        "    if late == len(slots):",
        "    if False:",
        OF_STEPS + "every_slot_of_a_long_outage_ends_once",
    ),
    Guard(
        "A time that is due when the definition of its schedule changes is not forgotten",
        "a restart with a new configuration loses it",
        "min(now_ms, was_next_ms - 1)",
        "now_ms",
        OF_STEPS + "the_next_slot_of_a_changed_definition",
    ),
    Guard(
        "In an hour that clocks repeat, the next time of a schedule is not in the past",
        "a time fires twice",
        "            if found_ms > ms:\n",
        "            if True:\n",
        OF_CRON + "within_a_repeated_hour_no_time_is_in_the_past",
    ),
    Guard(
        "A next time that was fired in the meantime is not set again when a schedule is defined",
        "it fires twice",
        "next_ms if next_ms > state.last_ms else state.next_ms",
        "next_ms",
        SUITE + "TestSchedules::test_a_next_slot_that_has_been_fired_meanwhile_is_not_set_again",
        "memory",
    ),
    Guard(
        "A schedule whose times were changed gets another next time",
        "it waits for a time of its former definition",
        "was is None or not is_same_times(was.definition, definition)",
        "False",
        OF_REGISTRATION + "other_times_have_another_next_slot",
    ),
    Guard(
        "A schedule that a configuration pauses from the start does not fire before it is paused",
        "it fires once after a kill between two steps",
        "NEVER_MS if document.is_paused else next_slot(definition, now_ms=now_ms)",
        "next_slot(definition, now_ms=now_ms)",
        OF_REGISTRATION + "what_a_kill_between_two_steps_leaves_is_repaired",
    ),
    Guard(
        "Times in a pause of a schedule are not made up",
        "a resumed schedule fires all of them",
        "    next_ms = next_slot(known.document.definition, now_ms=now_ms, last_ms=known.state.last_ms)\n",
        "    next_ms = known.state.next_ms\n",
        OF_REGISTRATION + "resume_makes_up_nothing",
    ),
    Guard(
        "A broken schedule stops only itself",
        "no schedule after it fires",
        "        except Exception as error:  # of any kind: it stops only this schedule\n",
        "        except ZeroDivisionError as error:\n",
        OF_FIRING + "a_broken_schedule_stops_only_itself_and_is_reported_once",
    ),
    Guard(
        "A broken schedule does not keep the scheduler busy",
        "every worker reads all schedules 25 times a second",
        "        if self._broken and self._monotonic() < self._looks_again_s:\n",
        "        if False:\n",
        OF_FIRING + "a_broken_schedule_is_looked_at_once_a_second",
    ),
    Guard(
        "Workers with different configurations keep each other's schedules",
        "each removes those of the other",
        "if found is None or (found.document is not None and found.document.unclaimed_ms):",
        "if found is None:",
        OF_REGISTRATION + "workers_with_different_configurations_keep_each_others_schedules",
    ),
)
