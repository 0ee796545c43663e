"""The guards of the producer: stability, the ledger, enqueueing, the registry of producers."""

from tests.support.guards.guard import Guard, Promise

SETTLING, SWEEPING, FORGETTING, OUTAGES, PIPELINE, ENQUEUEING, CLOCKS, MARKERS = (
    f"tests/unit/producer/test_{name}.py::test_"
    for name in ("stability", "ledger_sweep", "forgetting", "outages", "pipeline", "enqueuer", "clock_guard", "markers")
)
DELIVERIES = "tests/unit/producer/test_deliveries.py::test_"

AT_FIRST_SIGHT = "TestLedger::test_only_the_newest_version_of_a_file_that_is_there_is_known_at_first_sight"
NEWEST = Promise(
    "A version is known at first sight only if it is the ledger's", "a changed file is not enqueued", AT_FIRST_SIGHT
)
THERE = Promise("A file with a mark is checked", "it is forgotten although it exists", AT_FIRST_SIGHT)

KNOWN_GUARDS = (
    NEWEST.on("memory", "newest == signature or ", "newest.startswith(signature) or "),
    THERE.on("sqlite", "not self.missing_since_ms and (newest", "(newest"),
    NEWEST.on("redis", 'value.startswith((signature + b" ", signature + b"-c"))', "value.startswith(signature)"),
    THERE.on("redis", " and _MISSING_LINE not in value", ""),
    Guard(
        "A clock that was ahead does not stop sweeps",
        "missing files are never forgotten",
        "        if last_ms > now_ms:\n",
        "        if False:\n",
        FORGETTING + "a_sweep_by_a_clock_that_was_ahead_is_repeated",
    ),
)

STABILITY_GUARDS = (
    Guard(
        "A file that changed in the meantime waits again",
        "half a file is processed",
        "        if not file.is_unchanged_since(earlier):\n",
        "        if False:\n",
        SETTLING + "a_file_that_changed_unnoticed_is_counted_and_waits_for_the_longer_time",
    ),
    Guard(
        "A change restarts the settle time",
        "half a file is processed",
        "if waiting is None or is_closed or not file.is_unchanged_since(waiting.file):",
        "if waiting is None or is_closed:",
        SETTLING + "a_change_starts_the_longer_time_even_after_a_close",
    ),
    Guard(
        "The number of waiting files is bounded",
        "the memory of the producer grows without bound",
        "        if waiting is None and self.is_full:\n            return False\n",
        "",
        SETTLING + "without_room_new_files_are_rejected_and_waiting_files_are_updated",
    ),
    Guard(
        "Times of a remote file system prove nothing",
        "half a file is processed, because another machine wrote its time",
        "if file.path in self._waiting or self._mounts.is_remote(os.path.dirname(file.path)):",
        "if file.path in self._waiting:",
        PIPELINE + "on_a_network_file_system_timestamps_do_not_count",
    ),
    Guard(
        "A file without its marker is not enqueued",
        "`producer.ready_suffix` has no effect",
        "            elif markers is not None and (refusal := markers.refusal(file, marker)):\n",
        "            elif refusal := None:\n",
        PIPELINE + "a_closed_file_without_its_marker_gets_no_job",
    ),
    Guard(
        "A marker is removed with the file that it announced",
        "the next file of that name is processed half-written",
        "            self._markers.remove(done)\n",
        "            pass\n",
        MARKERS + "a_marker_is_removed_with_its_file_and_the_next_file_waits_for_its_own",
    ),
    Guard(
        "A marker that is older than its file does not count",
        "a marker that was left behind announces a half-written file",
        " or self._is_older(marker, file):\n            return SkipReason",
        ":\n            return SkipReason",
        MARKERS + "a_marker_that_is_older_than_its_file_does_not_count",
    ),
    Guard(
        "A marker of a later version is not removed",
        "that version is never processed",
        "            if now is not None and not now.is_unchanged_since(file):\n",
        "            if False:\n",
        MARKERS + "a_marker_of_a_version_that_was_not_enqueued_stays",
    ),
    Guard(
        "After a clock step no file counts as old",
        "half a file is processed",
        " and self._monotonic() >= self._untrusted_until_s",
        "",
        CLOCKS + "after_a_step_forward_nothing_has_aged_until_the_settle_time_has_passed",
    ),
)

LEDGER_GUARDS = (
    Guard(
        "A missing file is forgotten only after a day",
        "a file that comes back is processed again",
        "elif now_ms - entry.missing_since_ms >= self._forget_after_ms:",
        "elif True:",
        SWEEPING + "a_missing_file_is_marked_and_forgotten_after_a_day",
    ),
    Guard(
        "A file on another device is not missing",
        "an unmounted volume is forgotten, and all its files run again",
        "            if device != entry.device:\n",
        "            if False:\n",
        SWEEPING + "files_of_an_unmounted_volume_are_not_forgotten",
    ),
    Guard(
        "A volume unmounted during a sweep forgets nothing",
        "all its files run again",
        "if not self._mounts.refresh() and changes:",
        "if changes:",
        SWEEPING + "unmounting_a_volume_during_the_sweep_marks_nothing",
    ),
    Guard(
        "A producer forgets only files that it covers",
        "the files of another producer run again",
        " if self._rules.covers(path)",
        "",
        SWEEPING + "an_entry_of_a_file_that_the_rules_exclude_is_left_alone",
    ),
    Guard(
        "An unreadable file is not missing",
        "it runs again once it can be read",
        "        except (OSError, ValueError):\n            return  # whether",
        "        except (OSError, ValueError):\n            after = None  # whether",
        SWEEPING + "a_file_that_cannot_be_checked_is_not_forgotten",
    ),
    Guard(
        "A scan with errors clears the marks",
        "a broken disk makes files run again",
        "        if not is_complete:\n",
        "        if False:\n",
        FORGETTING + "a_scan_with_an_error_starts_the_day_anew",
    ),
    Guard(
        "A file that is found again loses its mark",
        "it is forgotten although it exists",
        "            self._broker.update_ledger(changes)\n        self._unanswered = []\n",
        "            pass\n        self._unanswered = []\n",
        FORGETTING + "a_scan_that_finds_a_missing_file_again_clears_its_mark",
    ),
    Guard(
        "An outage loses no scanned file",
        "it waits for the next scan",
        "        self._unanswered += scanned\n",
        "        self._unanswered = scanned\n",
        OUTAGES + "an_outage_of_the_lookup_loses_nothing",
    ),
    Guard(
        "A version that the ledger knows is not sent",
        "each scan sends every file to the broker",
        "            if after is None:\n                new.append(file)\n",
        "            if True:\n                new.append(file)\n",
        PIPELINE + "an_older_version_that_comes_back_is_known",
    ),
)

ENQUEUER_GUARDS = (
    Guard(
        "A throttled file is sent later",
        "it waits for the next scan",
        "            if result is EnqueueResult.THROTTLED:\n                continue\n",
        "",
        ENQUEUEING + "a_window_needs_one_call_and_gets_no_more_than_its_permits",
    ),
    Guard(
        "A file that waited for long is read again before it is sent",
        "half a file is processed",
        "if file is None or not file.is_unchanged_since(unsent.file):",
        "if file is None:",
        ENQUEUEING + "a_file_that_changed_while_it_waited_for_its_permit_is_returned_as_changed",
    ),
    Guard(
        "An unsent version is replaced by a newer one",
        "a job is about a version that no longer exists",
        "if unsent is None or not file.is_unchanged_since(unsent.file):",
        "if unsent is None:",
        ENQUEUEING + "a_newer_version_replaces_one_that_was_not_sent",
    ),
    Guard(
        "A call repeated after a lost reply has the same ids",
        "a file is enqueued twice",
        "if unsent is None or not file.is_unchanged_since(unsent.file):",
        "if True:",
        ENQUEUEING + "the_same_version_added_twice_keeps_its_id",
    ),
    Guard(
        "While max_pending jobs are pending, none is added",
        "`producer.max_pending` has no effect",
        "        if allowed <= 0:\n            self.throttle.too_many_pending(now_s)\n",
        "        if allowed <= 0:\n            return self._batch\n",
        ENQUEUEING + "while_max_pending_jobs_wait_none_is_added",
    ),
)

PRODUCER_LEASE = Promise(
    "A producer whose lease has expired is not listed",
    "`stats` shows a producer that was killed as alive",
    "TestProducers::test_a_producer_disappears_when_its_lease_ends",
)
OTHERS_LEASES = Promise(
    "A report does not delete a producer whose lease is valid",
    "of several producers `stats` shows one",
    "TestProducers::test_a_report_renews_the_lease",
)
ENDED = '"DELETE FROM producers WHERE id = ? OR boot != ? OR alive_until_ms <= ?"'

REGISTRY_GUARDS = (
    PRODUCER_LEASE.on("redis", "if ends and tonumber(ends) > now then", "if ends then"),
    PRODUCER_LEASE.on("sqlite", "alive_until_ms > ? ORDER", "alive_until_ms > ? - 1000000 ORDER"),
    OTHERS_LEASES.on(
        "redis",
        "if reports[i] ~= id and ends <= now then",
        "if reports[i] ~= id then",
    ),
    OTHERS_LEASES.on("sqlite", ENDED, '"DELETE FROM producers WHERE id = ? OR boot != ? OR ?"'),
)

DELIVERY_GUARDS = (
    Guard(
        "The names in a delivery are counted while they are read",
        "a sender fills the memory of the producer with one directory",
        "            for name in _names_in(opened):",
        "            for name in list(_names_in(opened)):",
        DELIVERIES + "the_names_in_a_delivery_of_too_many_entries_are_not_all_read",
    ),
)

PRODUCER_GUARDS = (
    *DELIVERY_GUARDS,
    *KNOWN_GUARDS,
    *STABILITY_GUARDS,
    *LEDGER_GUARDS,
    *ENQUEUER_GUARDS,
    *REGISTRY_GUARDS,
)
