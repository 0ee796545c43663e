"""The guards of the capture of what handlers print: whose output it is, and its bounds."""

from tests.support.guards.guard import Guard

TAIL = "fileq/handlers/output.py"
UNIT, REAL = "tests/unit/worker/test_executors_output.py::test_", "tests/integration/worker/test_output.py::test_"
BOUNDED = UNIT + "the_tail_and_a_line_are_bounded_also_for_bytes_that_are_not_text"
FLOOD = UNIT + "more_lines_than_allowed_in_a_second_are_counted"

OUTPUT_GUARDS = (
    Guard(
        "A handler does not know the secret of the marks",
        "what a handler prints ends the output of its task, or becomes a record of another logger",
        "os.urandom(12).hex().encode()",
        "b'0' * 24",
        UNIT + "a_mark_without_the_secret_of_the_child_is_text",
    ),
    Guard(
        "A mark that two reads have cut is put together",
        "the end of a task is overlooked, and its output contains a mark",
        "        self._rest = data[kept:]\n",
        "",
        UNIT + "marks_are_found_however_reads_cut_them",
    ),
    Guard(
        "Text longer than any mark does not wait for the end of a mark",
        "a handler that prints no newline fills the memory of the worker",
        "        if kept < len(data) - select.PIPE_BUF:\n",
        "        if False:\n",
        UNIT + "what_is_longer_than_any_mark_is_not_kept_for_its_end",
    ),
    Guard(
        "A mark is not longer than what the kernel writes at once",
        "two processes mix their output, and a mark is lost",
        "LoggedRecord(level, logger, text))) > select.PIPE_BUF:",
        "LoggedRecord(level, logger, text))) > select.PIPE_BUF << 10:",
        UNIT + "a_long_record_is_cut_so_that_the_kernel_writes_it_at_once",
    ),
    Guard(
        "No mark is written into a file of the handler",
        "a handler that closes all descriptors gets its file damaged",
        "        if not is_same(self._fd, self._status):\n",
        "        if False:\n",
        UNIT + "no_mark_is_written_into_a_file_that_took_the_place_of_the_pipe",
    ),
    Guard(
        "Only the tail of a stream is kept",
        "a handler that prints much fills the memory of the worker",
        "            del self._kept[: -self._limit]\n",
        "",
        UNIT + "a_tail_is_the_last_bytes_and_not_more",
    ),
    Guard(
        "A record keeps at most 8 KiB of output",
        "bytes that are not text make a record three times as long",
        "        if len(encoded) <= TAIL:\n",
        "        if True:\n",
        BOUNDED,
    ),
    Guard(
        "A printed line is cut at 4 KiB",
        "one line fills the log",
        "    if len(line) <= LONGEST_LINE:\n",
        "    if True:\n",
        UNIT + "a_long_line_and_a_long_record_are_reported_with_their_beginning",
    ),
    Guard(
        "Only the beginning of an endless line is kept",
        "a handler that prints no newline fills the memory of the worker",
        "part[: LONGEST_LINE + 1 - len(self._line)]",
        "part",
        UNIT + "of_a_line_without_end_only_the_beginning_is_in_memory",
    ),
    Guard(
        "At most 200 lines of a task become events in a second",
        "a handler that prints without end fills the log",
        "        return self._line_count < LINES_A_SECOND\n",
        "        return True\n",
        FLOOD,
    ),
    Guard(
        "Lines that do not become events are counted",
        "operators do not see that lines are missing",
        '                    self._skipped += data.count(b"\\n", start)\n',
        "",
        FLOOD,
    ),
    Guard(
        "The last reads of a pipe are bounded",
        "a process that a task left and that prints without end stops the worker",
        "            while left and self._last_end",
        "            while self._last_end",
        UNIT + "after_the_end_of_a_child_a_process_that_goes_on_writing_is_not_read_for_ever",
    ),
    Guard(
        "The pipe of a dead child is read before its task ends",
        "the last words of a handler that died are lost",
        "            handle.output_is_left = True  # perhaps: its last words count\n",
        "",
        "tests/integration/executors/test_process_deaths.py::test_the_pump_reads_the_last_words_of_a_child_itself",
    ),
    Guard(
        "Output that an outcome announces is read before the outcome counts",
        "a failed attempt keeps nothing of what its handler printed, or the next task keeps it",
        "            self.output_is_left = length >= OUTPUT_IS_LEFT\n",
        "",
        REAL + "tasks_of_one_child_are_not_mixed_up_and_a_completed_job_keeps_nothing",
    ),
)
