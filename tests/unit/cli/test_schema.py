"""The documented --json fields are exactly the fields that are printed."""

import re

import msgspec
import pytest

from fileq.actions.bulk import ActionReport, JobChange
from fileq.actions.reprocess import ReprocessedFile, ReprocessReport
from fileq.cli.definitions import all_commands
from fileq.commands.admin import json_schema as schema
from fileq.commands.admin.fsck.report import Balance, DuplicateJob, Problem, Repair, Report
from fileq.commands.admin.pauses import PauseResult
from fileq.commands.admin.running_workers import BreakerReset, ReportedBreaker, WorkerList
from fileq.commands.admin.stats import ErrorCount, LastScan, ProducerProcess, QueueStats, Stats, Throughput
from fileq.commands.untaken_files import LocalTrace, UntakenVersion
from fileq.queries.dead_jobs import DeadJobs
from fileq.queries.documents import (
    AttemptDocument,
    BatchDocument,
    BreakerDocument,
    CallbackDocument,
    HeldJobDocument,
    JobDocument,
    OutputDocument,
    WorkerDocument,
)
from fileq.queries.job_queries import VersionTrace

DOCUMENTED = [
    (
        schema.STATS_FIELDS,
        Stats,
        (*(QueueStats, Throughput, ErrorCount, ProducerProcess, LastScan),),
    ),
    (schema.workers_fields(), WorkerList, (WorkerDocument, BreakerDocument, HeldJobDocument)),
    (schema.job_fields(), JobDocument, (AttemptDocument, OutputDocument)),
    (schema.TRACE_FIELDS, LocalTrace, (VersionTrace, UntakenVersion)),
    (schema.ACTION_FIELDS, ActionReport, (JobChange,)),
    (schema.BREAKER_RESET_FIELDS, BreakerReset, (ReportedBreaker,)),
    (schema.PAUSE_FIELDS, PauseResult, ()),
    (schema.DLQ_LIST_FIELDS, DeadJobs, ()),
    (schema.REPROCESS_FIELDS, ReprocessReport, (ReprocessedFile,)),
    (schema.batch_fields(), BatchDocument, (CallbackDocument,)),
    (schema.FSCK_FIELDS, Report, (Balance, Problem, DuplicateJob, Repair)),
]


def fields_of(struct):
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize(("documented", "struct", "inner"), DOCUMENTED, ids=[s.__name__ for _, s, _ in DOCUMENTED])
def test_the_documented_fields_are_those_of_the_document(documented, struct, inner):
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
        "dlq groups",
        *("pause", "resume", "workers", "reprocess", "fsck", "breaker reset", "events"),
        *(f"batch {word}" for word in ("create", "list", "show", "seal", "cancel", "retry")),
    }
    for command in admin:
        assert command.fields, command.name
        assert command.examples, command.name
