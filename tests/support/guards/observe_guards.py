"""The guards of the endpoints, of the metrics and of what reaches a terminal."""

from tests.support.guards.guard import Guard

STUCK = "tests/integration/observe/test_stuck.py::test_"

OBSERVE_GUARDS = (
    Guard(
        "/healthz is 503 while a service is stuck",
        "no supervisor restarts a process that stands still",
        "_json(HTTPStatus.SERVICE_UNAVAILABLE, problem) if problem else ",
        "",
        STUCK + "a_service_that_stands_still_is_named",
    ),
    Guard(
        "/healthz names the stuck service",
        "operators do not see what is stuck",
        '{"stuck": stuck} if stuck else {}',
        '{"status": "ok"}',
        STUCK + "a_service_that_stands_still_is_named",
    ),
    Guard(
        "A stuck pump is not turning",
        "/healthz is 200 although no job runs",
        " and time.monotonic() - self._turned_s < self._stuck_s",
        "",
        STUCK + "a_pump_whose_turn_does_not_end_is_not_turning",
    ),
    Guard(
        "A stuck loop is not turning",
        "/healthz is 200 although no dead worker is reaped",
        " and time.monotonic() - self._moved_s < STUCK_S",
        "",
        "tests/unit/runtime/test_loop.py::test_one_that_has_stood_still_for_long_is_not_turning",
    ),
    Guard(
        "No control character of a log line reaches the terminal",
        "a file name moves the cursor or forges a line",
        "    text = printable(value)\n",
        "    text = value\n",
        "tests/unit/observe/test_logs.py::test_on_a_console_nothing_breaks_a_line_or_moves_the_cursor",
    ),
    Guard(
        "No control character above ASCII reaches the terminal",
        "\\x9b and U+2028 in a file name move the cursor or break a line",
        "c if c.isprintable() else",
        'c if c.isprintable() or c > "\\x7f" else',
        "tests/unit/cli/test_text.py::test_a_control_character_above_ascii_is_escaped_too",
    ),
    Guard(
        "No control character in a table of jobs reaches the terminal",
        "a file name moves the cursor or forges a line",
        "        return printable(filepath)\n",
        "        return filepath\n",
        "tests/integration/cli/test_jobs.py::test_names_from_outside_cannot_move_the_cursor",
    ),
    Guard(
        "A JSON log line is ASCII",
        "U+2028 in a file name breaks a line",
        "        if line.isascii():\n",
        "        if True:\n",
        "tests/unit/observe/test_logs.py::test_any_value_of_a_field_gives_one_line_of_ascii",
    ),
    Guard(
        "An unknown reason makes no new series",
        "the number of series grows without bound",
        "self._skipped[reason] += count",
        "self._skipped[reason] = self._skipped.get(reason, 0) + count",
        "tests/unit/observe/test_metrics.py::test_an_unknown_reason_makes_no_new_series",
    ),
    Guard(
        "TB is a unit of sizes",
        "a memory limit of 1TB is refused",
        '{"T": 1 << 40, "G": 1 << 30,',
        '{"G": 1 << 30,',
        "tests/unit/core/test_units.py::test_sizes_count_in_powers_of_1024",
    ),
)
