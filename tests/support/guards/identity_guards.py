"""The guards of what makes a file a new version: size, time, inode, content."""

from tests.support.guards.guard import Guard, Promise

PRODUCER, PROGRAM = (
    "tests/unit/producer/test_identity.py::test_",
    "tests/integration/producer/test_file_identity.py::test_",
)
LOST = "a file that replaces another of the same size and time is never processed"
CHECKING = "tests/unit/producer/test_content.py::test_"
AGAIN = "with another producer.identity every file is processed again"

ANOTHER = Promise(
    "Another inode is a new version", LOST, "TestLedgerIdentity::test_another_inode_or_another_content_is_a_new_version"
)
SAME = Promise(
    "Parts that one of two signatures lacks are not compared",
    AGAIN,
    "TestLedgerIdentity::test_a_version_is_the_same_if_nothing_that_both_have_differs",
)
IDENTITY_GUARDS = (
    ANOTHER.on("redis", "  return not (inode and other_inode) or inode == other_inode\n", "  return true\n"),
    SAME.on("redis", "  return not (inode and other_inode) or inode", "  return inode"),
    ANOTHER.on("sqlite", "    return not (a.inode and b.inode) or a.inode == b.inode\n", "    return True\n"),
    SAME.on("sqlite", "    return not (a.inode and b.inode) or a", "    return a"),
    Guard(
        "A producer compares inodes",
        LOST,
        "        if keeps_inodes(filesystem):\n",
        "        if False:\n",
        PROGRAM + "a_replaced_file_is_processed_again_by_default_and_not_by_stat",
    ),
    Guard(
        "Inodes count only where the file system keeps them",
        "every file of a network file system is processed again and again",
        "        if keeps_inodes(filesystem):\n",
        "        if True:\n",
        PRODUCER + "where_inodes_are_not_kept_they_do_not_count_and_that_is_said_once",
    ),
    Guard(
        "A version that is recorded without an inode is known",
        AGAIN,
        "if not (inode and c[1].inode)), (-1, None))",
        "if not inode), (-1, None))",
        PROGRAM + "a_replaced_file_is_processed_again_by_default_and_not_by_stat",
    ),
    Guard(
        "A file that was replaced before its job runs is a changed one",
        "a job runs on a version that has a job of its own, so that version runs twice",
        "    is_kept = split_signature(expected).inode",
        "    is_kept = False and split_signature(expected).inode",
        PROGRAM + "a_file_replaced_before_its_job_runs_is_handled_as_any_changed_one",
    ),
    Guard(
        "A file that was replaced while its job ran is kept",
        "a file that was never processed is deleted",
        "    return None if is_same_version(now, expected) else now\n",
        "    return None if short == split_signature(expected).short else now\n",
        PROGRAM + "a_file_replaced_while_it_is_processed_is_not_deleted",
    ),
    Guard(
        "A worker compares inodes only where it sees those of the producer",
        "over NFS each job reads the ledger before it runs",
        '.inode != "" and keeps_inodes(filesystem_type(path))',
        '.inode != ""',
        PRODUCER + "a_worker_compares_inodes_only_where_it_sees_those_of_the_producer",
    ),
    Guard(
        "With identity: content, unchanged content is not a new version",
        "a touch or a restore makes every file run again",
        "is_newest = place == 0 and parts.content == file.content",
        "is_newest = False",
        PROGRAM + "by_content_a_touched_file_is_not_processed_again_and_a_replaced_one_is",
    ),
    Guard(
        "Only the newest content is compared",
        "a file that gets back an earlier content is not processed",
        "is_newest = place == 0 and ",
        "is_newest = ",
        CHECKING + "only_the_newest_content_is_compared",
    ),
    Guard(
        "A file that changed while it was read becomes stable first",
        "half a file is processed",
        "if now is not None and now.is_unchanged_since(file):",
        "if now is not None:",
        CHECKING + "a_file_that_changes_while_it_is_read_waits_again",
    ),
    Guard(
        "A file known by size, time and inode is not read",
        "each event of a file reads all of it",
        "if entry is not None and self._identity.entry_if_known(file, entry) is not None:\n"
        "                    self._rules.counts",
        "if False:\n                    self._rules.counts",
        CHECKING + "a_new_file_is_read_once_and_its_hash_is_recorded",
    ),
    Guard(
        "Files whose contents are compared stay until the broker has answered",
        "an outage of the broker loses files until the next scan",
        "            self._broker.update_ledger(changes)\n        self._read.clear()\n",
        "            self._read.clear()\n            self._broker.update_ledger(changes)\n        self._read.clear()\n",
        CHECKING + "an_outage_loses_nothing",
    ),
)
