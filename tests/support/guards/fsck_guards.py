"""The guards of fsck: it reports only what two checks prove, and changes the counters last."""

from tests.support.guards.guard import Guard

UNIT = "tests/unit/commands/test_admin_fsck.py::test_"
CLEAN, DAMAGE, MANY, FILES = (
    f"tests/conformance/test_fsck_{name}.py::test_" for name in ("clean", "damage", "many", "lost_files")
)

FSCK_GUARDS = (
    Guard(
        "Each Bloom filter has other false positives",
        "a lost job that one walk overlooks is overlooked by all",
        "        self._salt = os.urandom(8)\n",
        "        self._salt = b''\n",
        UNIT + "two_bloom_filters_have_different_false_positives",
    ),
    Guard(
        "The counters change only after two rounds that find nothing",
        "a lost job that one walk overlooks is counted as deleted",
        "ROUNDS_BEFORE_COUNTING = 2\n",
        "ROUNDS_BEFORE_COUNTING = 1\n",
        MANY + "a_lost_job_that_one_walk_overlooks_is_not_counted_as_deleted",
    ),
    Guard(
        "A job is lost only if a second check confirms it",
        "fsck reports a job that was moving",
        "    found.lost = {id: walk.lost[id] for id in _confirmed(broker.lost, list(walk.lost))}\n",
        "    found.lost = dict(walk.lost)\n",
        CLEAN + "an_element_that_comes_back_between_two_checks_is_not_reported",
    ),
    Guard(
        "A slot is dead for fsck only if two looks find it silent",
        "a repair takes the job of a live worker",
        "        found.silent = [still_silent[slot] for slot in walk.silent if slot in still_silent]\n",
        "        found.silent = list(walk.silent.values())\n",
        CLEAN + "a_slot_that_renews_between_two_checks_is_not_dead",
    ),
    Guard(
        "Only the excess that two measurements prove counts",
        "fsck reports jobs that were moving",
        "        return min(first.excess, second.excess)\n",
        "        return max(first.excess, second.excess)\n",
        UNIT + "only_the_excess_that_both_measurements_prove_counts",
    ),
    Guard(
        "A walk beside busy workers gives bounds only",
        "fsck reports jobs that were claimed during its walk",
        "    if is_quiet(before, after):\n",
        "    if True:\n",
        UNIT + "on_a_busy_system_only_what_is_certain_counts",
    ),
    Guard(
        "Only jobs that the balance proves to be ours get a record",
        "jobs of other programs are counted as produced",
        "[: max(0, found.excess - restored)]",
        "[:]",
        DAMAGE + "only_jobs_of_ours_get_a_record_and_those_of_other_programs_do_not",
    ),
    Guard(
        "More files without a record than missing jobs prove nothing",
        "files whose jobs have ended are processed again",
        "        if len(found) > missing:\n",
        "        if False:\n",
        FILES + "more_files_without_a_record_than_jobs_are_missing_prove_nothing",
    ),
    Guard(
        "Files are enqueued again only if no record was removed early",
        "files whose jobs have ended are processed again",
        "    if max(census.completed, census.cancelled) >= config.worker.completed_max:\n",
        "    if False:\n",
        FILES + "a_file_is_not_enqueued_again_if_its_record_may_have_been_removed",
    ),
)
