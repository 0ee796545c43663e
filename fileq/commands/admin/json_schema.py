"""The fields that the commands print with --json: (field, type and meaning), for --help and docs/cli.md.

They are a contract: fields are added, never renamed or removed. Those of queries/documents.py are read from their
declarations, when they are asked for: every run of the command line loads this module, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    from msgspec import Struct

    Fields: TypeAlias = tuple[tuple[str, str], ...]


def job_fields() -> Fields:
    from fileq.queries.documents import JobDocument

    return declared_fields(JobDocument)


def listed_job_fields() -> Fields:
    return (("jobs[]", "one object for each job"), *((f"jobs[].{name}", meaning) for name, meaning in job_fields()))


def list_fields() -> Fields:
    return (("has_more", "boolean: --limit left out others"), *listed_job_fields())


def workers_fields() -> Fields:
    from fileq.queries.documents import WorkerDocument

    return (
        ("at", "string (RFC 3339): the time of the broker's clock"),
        ("workers[]", "one object for each process"),
        *((f"workers[].{name}", meaning) for name, meaning in declared_fields(WorkerDocument)),
        ("slots, busy", "number: in all processes"),
        (
            "lost[]",
            "processes that died in the last hour and were removed: host, pid, since (without a heartbeat; with "
            "is_gone, when the process had ended at the latest), found, slots, jobs, is_gone",
        ),
    )


def batch_fields() -> Fields:
    from fileq.queries.documents import BatchDocument

    return declared_fields(BatchDocument)


def declared_fields(document: type[Struct]) -> Fields:
    """The fields of a document with the descriptions that it declares, and below them those of the objects in it."""
    return tuple(_declared(document, ""))


def _declared(document: type[Struct], prefix: str) -> Iterator[tuple[str, str]]:
    from typing import get_args, get_type_hints

    from msgspec import Meta, Struct
    from msgspec.structs import fields

    hints = get_type_hints(document, include_extras=True)
    for field in fields(document):
        name = prefix + field.encode_name
        notes = getattr(hints[field.name], "__metadata__", ())
        kind = getattr(hints[field.name], "__origin__", hints[field.name]) if notes else hints[field.name]
        meaning = next((note.description for note in notes if isinstance(note, Meta) and note.description), "")
        objects = [one for one in get_args(kind) if isinstance(one, type) and issubclass(one, Struct)]
        if not objects:
            words = _type_words(kind)
            if any(isinstance(note, Meta) and note.extra_json_schema for note in notes):
                words = words.replace("string", "string (RFC 3339)")
            yield name, f"{words}{f': {meaning}' if meaning else ''}"
            continue
        is_list = getattr(kind, "__origin__", None) is tuple
        if objects[0].__name__ == "JobDocument":
            yield f"{name}[]" if is_list else name, f"{meaning}; as in `fileq admin list --json`"
            continue
        names = ", ".join(inner.encode_name for inner in fields(objects[0]))
        yield f"{name}[]" if is_list else name, f"{f'{meaning}: ' if meaning else ''}{names}"
        below = f"{name}[]." if is_list else f"{name}."
        yield from (row for row in _declared(objects[0], below) if ": " in row[1])


def _type_words(kind: Any) -> str:
    from typing import Any, get_args

    none = type(None)
    if none in (parts := get_args(kind)):
        return " or ".join([*(_type_words(part) for part in parts if part is not none), "null"])
    if kind is Any:
        return "any value"
    origin = getattr(kind, "__origin__", kind)
    names = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", tuple: "list of strings"}
    return names[origin]


STATS_FIELDS = (
    ("broker, where", "string: the kind of the broker, and its address or file"),
    ("at", "string (RFC 3339): the time of the broker's clock"),
    ("queues[]", "name, length, oldest_age_s (number or null: age of the next job), is_paused"),
    ("queues[].pause", "by, at (RFC 3339), reason (empty if none was given); null if it is not paused or not known"),
    ("scheduled", "number: scheduled, retrying and deferred jobs"),
    ("processing", "number: jobs held by slots, those included that are about to be deferred"),
    (
        "heartbeats",
        "number: slots that are alive: their heartbeat has not ended; those included that hold jobs claimed in advance",
    ),
    ("completed, dead, cancelled", "number: jobs in these lists"),
    ("orders", "number: files of ended jobs that are still to be moved or deleted (worker.after)"),
    ("totals", "object: all counters since the first start, such as produced, adopted, completed, failed, dead"),
    ("this_hour, last_hour", "seconds, produced, completed, failed (attempts), dead, refused (no attempt)"),
    ("now", "the same over the last refreshes, with --watch; else null"),
    (
        "eta_s",
        "number or null: seconds until the backlog is done at the current rate; null if that is unknown, as while a job"
        " runs for much longer than the others took",
    ),
    ("eta_per_second", "number or null: that rate: jobs that were completed or became dead, per second"),
    ("eta_basis", "string or null: of which time: last_minute, or last_hours if no job ended in the last minute"),
    ("workers[]", "as in `fileq admin workers --json`"),
    (
        "producers[]",
        "those alive: id, host, pid, version, started_at, roots (the directories), state, problem, held_by, "
        "held_since, last_scan, enqueued, waiting",
    ),
    (
        "producers[].state",
        "string: scanning, watching, held, lost (a directory cannot be read), stuck (no progress) or gone (a process "
        "of this machine that has ended without a clean stop)",
    ),
    ("producers[].problem", "string: why a directory cannot be read; empty if it can"),
    (
        "producers[].held_by",
        "string: the setting that limits enqueueing now, such as producer.rate_limit_per_sec; empty if none does; "
        "held_since (RFC 3339 or null): without a break since then",
    ),
    ("producers[].last_scan", "null, or the last full scan: began, ended (RFC 3339), seconds, found, is_complete"),
    ("producers[].last_scan.skipped", "object: how many entries it passed over, by reason: excluded, symlink, …"),
    ("producers[].enqueued", "number: files enqueued since its start; waiting: files found and not enqueued yet"),
    ("schedules", "count, paused (numbers), late (names of those that no worker fires, a minute after their time)"),
    ("errors[]", "kind, this_hour, last_hour: failed attempts, deaths of processes and refused jobs by kind of error"),
)
TRACE_FIELDS = (
    ("path", "string: the absolute path, escaped where it is not UTF-8"),
    ("missing_since", "string (RFC 3339) or null: since when producers have not found the file; null if they find it"),
    ("versions[]", "newest first: signature, job_id, is_newest, is_in_ledger, size, modified_ns, job"),
    ("versions[].signature", "size-mtime in ns; also -i and the inode, -c and the hash, if the producer recorded them"),
    ("versions[].job", "as in `fileq admin show --json`; null if the record has expired"),
    ("made_by", "null, or the last job that made the file: job_id, path (null for a job without a file), type"),
    ("is_partial", "not all records were searched for other jobs of the file; always false here"),
    ("untaken", "null, or the file on this machine if it has changed since: size, modified_ns, reason (not enqueued)"),
)
ACTION_FIELDS = (
    ("count", "number: jobs that were changed, or would be with --dry-run"),
    ("is_dry_run", "boolean"),
    (
        "results[]",
        "id; result: retried, deleted, cancelled or requested (of the worker that runs the job; requested_before by an "
        "earlier command), with --dry-run would_retry, would_delete or would_cancel, otherwise refused, unknown (there "
        "is no such job) or gone (changed by another caller); filepath (where its file is now); reason; at most 1000 "
        "with --all",
    ),
)
BREAKER_RESET_FIELDS = (
    ("route", "string: the route whose breakers are reset; empty for all routes"),
    ("open[]", "the breakers of that route that workers report: host, pid, route, state, error"),
    ("within_s", "number: time until every worker has reset its breakers"),
    ("is_configured", "boolean: the configuration of the command has this route"),
)
PAUSE_FIELDS = (
    ("queue", "string"),
    ("is_paused", "boolean: the state after the command"),
    ("has_changed", "boolean: false if the queue was in this state before"),
    ("waiting", "number: jobs in the queue"),
    ("reason, old_reason", "string: why it is paused, and why it was before the command; empty if no reason is known"),
)
DLQ_LIST_FIELDS = (
    ("total", "number: jobs in the dead-letter queue"),
    ("jobs[]", "newest first, as in `fileq admin list --json`"),
)
DLQ_GROUPS_FIELDS = (
    ("by", "string: fingerprint, directory, kind or type"),
    ("total", "number: jobs in the dead-letter queue"),
    ("scanned", "number: dead jobs that were looked at, the newest first"),
    ("is_partial", "boolean: older dead jobs were not looked at"),
    ("group_count", "number: groups found, those beyond --limit included"),
    ("groups[]", "the largest first"),
    ("groups[].key", "string: the fingerprint, directory, kind or type that its jobs share"),
    ("groups[].count", "number: jobs"),
    ("groups[].fingerprint, error, kind, type, sample_id, sample_path", "string: of the newest job; type may be null"),
    ("groups[].first, last", "string (RFC 3339) or null: when the first and the last of them became dead"),
    ("groups[].directories[], extensions[]", "name and count: where most of its files are, at most 3 of each"),
    ("groups[].newest_ids", "list of strings: the ids of its newest 20 jobs"),
    ("groups[].timeline", "24 numbers: its deaths in equal parts of the time from timeline_from to timeline_until"),
    ("timeline_from, timeline_until", "string (RFC 3339) or null: the first and the last death that was seen"),
)
PURGE_FIELDS = (
    ("deleted", "number: dead jobs that were deleted"),
    ("dead", "number: dead jobs before the command"),
)
REPROCESS_FIELDS = (
    ("enqueued", "number: files that were enqueued again, or would be with --dry-run"),
    ("missing", "number: files that no longer exist, skipped"),
    ("unfinished", "number: files whose last job has not ended yet, skipped"),
    ("is_dry_run", "boolean"),
    (
        "files[]",
        "filepath, result (enqueued, missing, unfinished; would_enqueue with --dry-run), job_id (string or null); "
        "at most 1000",
    ),
)
FSCK_FIELDS = (
    ("is_clean", "boolean: there is no problem; with --repair: none remains"),
    (
        "law",
        "both sides of the balance: produced, adopted; pending, scheduled (with retrying and deferred), running, dead, "
        "completed, cancelled, deleted",
    ),
    ("law.unclaimed", "number: jobs that other programs pushed and no worker has claimed yet"),
    ("law.is_exact", "boolean: false if the system was too busy to count them, so that only bounds are known"),
    ("law.excess", "number: jobs that are certainly missing; below 0: surplus jobs"),
    ("problems[]", "kind, id, state, filepath; at most 1000"),
    (
        "problems[].kind",
        "string: lost (not where its record says), unheld (running, but no slot holds it), unrecorded (without a "
        "record), silent (its slot is dead), forsaken (a file whose job left no trace); of a batch: miscounted (its "
        "counts do not agree, `state` says how), uncounted (it has not counted members that have ended, `state` says "
        "how many)",
    ),
    ("problem_count", "number: all problems that were found, up to 10,000 of a kind at a time"),
    ("duplicates[]", "id, count: copies pushed by other programs; each of them runs; not a problem"),
    ("undecodable", "number: list elements that are not jobs"),
    ("elements, records, slots, batches", "number: how many were checked"),
    (
        "repairs[]",
        "action (reaped, reinstated, recorded, enqueued, forgotten, counted, reconciled), id, detail; in their order",
    ),
    ("is_repair", "boolean: --repair was given; the other fields describe the state after it"),
)
