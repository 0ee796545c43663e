"""What the admin commands print with --json: (field, its type and meaning), for --help and the reference. A contract:
fields are added, never renamed or removed. Imports nothing, so that a list of commands costs nothing."""

from __future__ import annotations

STATS_FIELDS = (
    ("broker, where", "string: which broker, and its place"),
    ("at", "string (RFC 3339): when, by the broker's clock"),
    ("queues[]", "name, length, oldest_age_s (number or null: of the next job out), is_paused"),
    ("scheduled", "number: delayed and retrying jobs"),
    ("processing", "number: jobs that slots hold"),
    ("heartbeats", "number: slots that are alive"),
    ("completed, dead, cancelled", "number: jobs listed there"),
    ("totals", "object: every counter since the beginning, such as produced, adopted, completed, failed, dead"),
    ("this_hour, last_hour", "seconds, produced, completed, failed (attempts), dead"),
    ("now", "the same since an earlier refresh, with --watch; else null"),
    ("eta_s", "number or null: seconds until the backlog is done at the present rate"),
    ("workers[]", "host, pid, version, started, queues, breaker, is_alive, slots, busy, jobs"),
    ("workers[].jobs[]", "slot, job_id, filepath, type, running_s (number or null)"),
    ("errors[]", "kind, this_hour, last_hour: failed attempts by kind of error"),
)
WORKERS_FIELDS = (
    ("at", "string (RFC 3339): when, by the broker's clock"),
    ("workers[]", "host, pid, version, started, queues, breaker, is_alive, slots, busy, jobs"),
    ("workers[].jobs[]", "slot, job_id, filepath, type, running_s (number or null); the longest running first"),
    ("slots, busy", "number: of all processes"),
)
# (field, meaning) of a JobView, for the commands' documentation.
JOB_FIELDS = (
    ("id", "string"),
    ("state", "string: pending, scheduled, running, retrying, completed, dead, cancelled"),
    ("queue", "string: the queue it belongs to"),
    ("filepath", "string: as the producer sees it, escaped where it is not UTF-8; empty for a job of a type"),
    ("filesize", "number: bytes"),
    ("type", "string or null"),
    ("priority", "string"),
    ("retries", "number: failed attempts that count"),
    ("recoveries", "number: times its worker died under it"),
    ("attempts", "number: attempts that ended"),
    ("error", "string: of the last failed attempt, or why it is dead"),
    ("worker", "string: the slot that has or had it"),
    ("created, started, ended, due", "string (RFC 3339) or null"),
    ("is_job", "boolean: false for bytes that are no job"),
)
HISTORY_FIELDS = (
    ("job", "object: as in `fileq admin list --json`"),
    ("json", "object: the job as it travels; null for bytes that are no job"),
    ("raw_b64", "string: those bytes in base64; else null"),
    ("signature", "string or null: which version of the file"),
    ("is_cancel_requested", "boolean"),
    ("result", "what its handler returned, or null"),
    ("attempts[]", "number, started, ended, duration_s, worker, outcome, error"),
    ("attempts_forgotten", "number: of the first attempts, when there were more than are kept"),
)
TRACE_FIELDS = (
    ("filepath", "string: the absolute path, escaped where it is not UTF-8"),
    ("missing_since_ms", "number: since when a producer has missed the file; 0 if it has not"),
    ("versions[]", "newest first: signature, job_id, is_newest, is_in_ledger, size, modified_ns, job"),
    ("versions[].job", "what `fileq admin show --json` prints, or null when its record has expired"),
)
CANCEL_FIELDS = (
    ("results[]", "id, result (cancelled, requested, ended, unknown), state (string or null)"),
    ("within_s", "number: seconds within which a requested one is told to stop"),
)
PAUSE_FIELDS = (
    ("queue", "string"),
    ("is_paused", "boolean: how it is now"),
    ("has_changed", "boolean: false if it was so already"),
    ("waiting", "number: jobs in it"),
)
DLQ_LIST_FIELDS = (
    ("total", "number: jobs in the dead-letter queue"),
    ("jobs[]", "newest first, as in `fileq admin list --json`"),
)
DLQ_ANSWER_FIELDS = (
    ("count", "number: how many were, or with --dry-run would be, put back or deleted"),
    ("is_dry_run", "boolean"),
    ("results[]", "id, result (retried, deleted, refused, unknown), filepath, reason; at most 1000 with --all"),
)
PURGE_FIELDS = (
    ("deleted", "number: dead jobs that were deleted"),
    ("dead", "number: dead jobs there were"),
)
REPROCESS_FIELDS = (
    ("enqueued", "number: files that were, or with --dry-run would be, enqueued again"),
    ("missing", "number: files that are not there any more, left out"),
    ("unfinished", "number: files whose last job has not ended yet, left out"),
    ("is_dry_run", "boolean"),
    ("files[]", "filepath, result (enqueued, missing, unfinished), job_id (string or null); at most 1000"),
)
FSCK_FIELDS = (
    ("is_clean", "boolean: nothing is wrong (after --repair: any more)"),
    ("law", "produced, adopted; pending, scheduled (with retrying), running, dead, completed, cancelled, deleted"),
    ("law.unclaimed", "number: elements that other programs pushed and nobody has claimed yet"),
    ("law.is_exact", "boolean: false when too much moved to count these, so that only bounds are known"),
    ("law.excess", "number: jobs missing for certain; below 0: too many"),
    ("problems[]", "kind (lost, unheld, unrecorded, silent, forsaken), id, state, filepath; at most 1000"),
    ("problem_count", "number: of all that were found, up to 10,000 of a kind at a time"),
    ("duplicates[]", "id, count: copies that other programs pushed; each runs; no drift"),
    ("undecodable", "number: elements that are no jobs"),
    ("elements, records, slots", "number: looked at"),
    ("repairs[]", "action (reaped, reinstated, recorded, enqueued, forgotten, counted), id, detail; in their order"),
    ("is_repair", "boolean: --repair was given; the rest is how it is after it"),
)
