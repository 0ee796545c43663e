"""What --json prints is documented field by field, and nothing else is."""

import re

import msgspec
import pytest

from fileq.cli.commands import all_commands
from fileq.commands.admin import schema
from fileq.commands.admin.control import Cancellation, JobCancellation, Pausing, Workers
from fileq.commands.admin.dlq import Answer, DeadJobs, Result
from fileq.commands.admin.fsck.report import Copies, Law, Problem, Repair, Report
from fileq.commands.admin.jobs import AttemptView, JobHistory, JobView
from fileq.commands.admin.looking import FileTrace, VersionTrace
from fileq.commands.admin.reprocess import Again, Reprocessed
from fileq.commands.admin.stats import ErrorCount, Flow, Process, QueueStats, Slot, Stats

DOCUMENTED = [
    (schema.STATS_FIELDS, Stats, (QueueStats, Process, Slot, Flow, ErrorCount)),
    (schema.WORKERS_FIELDS, Workers, (Process, Slot)),
    (schema.JOB_FIELDS, JobView, ()),
    (schema.HISTORY_FIELDS, JobHistory, (AttemptView,)),
    (schema.TRACE_FIELDS, FileTrace, (VersionTrace,)),
    (schema.CANCEL_FIELDS, Cancellation, (JobCancellation,)),
    (schema.PAUSE_FIELDS, Pausing, ()),
    (schema.DLQ_LIST_FIELDS, DeadJobs, ()),
    (schema.DLQ_ANSWER_FIELDS, Answer, (Result,)),
    (schema.REPROCESS_FIELDS, Reprocessed, (Again,)),
    (schema.FSCK_FIELDS, Report, (Law, Problem, Copies, Repair)),
]


def fields_of(struct):
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize(("documented", "struct", "inner"), DOCUMENTED, ids=[s.__name__ for _, s, _ in DOCUMENTED])
def test_the_documented_fields_are_those_of_the_answer(documented, struct, inner):
    top = {name for names, _ in documented for name in re.split(r", ", names) if not re.search(r"[.\[]", name)}
    lists = {names.split("[")[0].split(".")[0] for names, _ in documented if re.search(r"[.\[]", names)}
    assert top | lists == fields_of(struct)
    words = set(re.findall(r"\w+", " ".join(f"{names} {meaning}" for names, meaning in documented)))
    for struct in inner:
        assert fields_of(struct) <= words, struct


def test_every_admin_command_has_json_with_its_fields_and_examples():
    admin = [command for command in all_commands() if command.words[0] == "admin"]
    words = {" ".join(command.words[1:]) for command in admin}
    assert words == {
        *("stats", "peek", "purge-dlq", "list", "show", "trace", "dlq list", "dlq retry", "dlq delete", "cancel"),
        *("pause", "resume", "workers", "reprocess", "fsck"),
    }
    for command in admin:
        assert command.json_fields, command.name
        assert command.examples, command.name
