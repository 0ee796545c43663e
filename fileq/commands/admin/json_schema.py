"""The fields that the admin commands print with --json: (field, type and meaning), for --help and docs/cli.md.

They are a contract: fields are added, never renamed or removed. This module must import nothing, because every run of
the command line loads it.
"""

from __future__ import annotations

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
    (
        "workers[]",
        "host, pid, version, started, queues, breaker, breakers, is_claiming, is_alive, slots, busy, jobs",
    ),
    ("workers[].lost_roots", "list of strings: why the files of some roots cannot be reached"),
    ("workers[].limits", "list of strings: limits of routes for which jobs wait"),
    ("workers[].deliveries", "number: deliveries of webhooks that run beside the slots; `busy` does not count them"),
    ("workers[].is_finishing", "boolean: the worker before a reload, which finishes its jobs and claims nothing"),
    (
        "workers[].heartbeat_age_s",
        "number or null: seconds since its last heartbeat; null if that is unknown or the heartbeat has ended",
    ),
    ("workers[].heartbeat_ttl_s", "number or null: how long a heartbeat lasts (worker.heartbeat_ttl of that worker)"),
    (
        "workers[].is_silent",
        "boolean: a heartbeat is overdue (is_alive) or has ended, or the process of this machine is gone",
    ),
    (
        "workers[].breakers[]",
        "those not closed: route, state, error, failure_share, next_probe (RFC 3339 or null), deferred (jobs)",
    ),
    ("workers[].jobs[]", "slot, job_id, filepath, type, running_s (number or null)"),
    (
        "producers[]",
        "those alive: id, host, pid, version, started, roots (the directories), state, problem, held_by, held_since, "
        "last_scan, enqueued, waiting",
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
WORKERS_FIELDS = (
    ("at", "string (RFC 3339): the time of the broker's clock"),
    (
        "workers[]",
        "host, pid, version, started, queues, breaker, breakers, is_claiming, is_alive, slots, busy, jobs",
    ),
    ("workers[].lost_roots", "list of strings: why the files of some roots cannot be reached"),
    ("workers[].limits", "list of strings: limits of routes for which jobs wait"),
    ("workers[].deliveries", "number: deliveries of webhooks that run beside the slots; `busy` does not count them"),
    ("workers[].is_finishing", "boolean: the worker before a reload, which finishes its jobs and claims nothing"),
    (
        "workers[].heartbeat_age_s",
        "number or null: seconds since its last heartbeat; null if that is unknown or the heartbeat has ended",
    ),
    ("workers[].heartbeat_ttl_s", "number or null: how long a heartbeat lasts (worker.heartbeat_ttl of that worker)"),
    (
        "workers[].is_silent",
        "boolean: a heartbeat is overdue (is_alive) or has ended, or the process of this machine is gone",
    ),
    (
        "workers[].breakers[]",
        "those not closed: route, state, error, failure_share, next_probe (RFC 3339 or null), deferred (jobs)",
    ),
    ("workers[].jobs[]", "slot, job_id, filepath, type, running_s (number or null); the longest running first"),
    ("slots, busy", "number: in all processes"),
    (
        "lost[]",
        "processes that died in the last hour and were removed: host, pid, since (without a heartbeat; with is_gone, "
        "when the process had ended at the latest), found, slots, jobs, is_gone",
    ),
)
# The fields of a JobSummary.
JOB_FIELDS = (
    ("id", "string"),
    ("state", "string: pending, scheduled, running, retrying, deferred, completed, dead, cancelled"),
    ("queue", "string: the queue of the job"),
    ("filepath", "string: the path on the producer, escaped where it is not UTF-8; empty for a job without a file"),
    ("filesize", "number: bytes"),
    ("type", "string or null"),
    ("priority", "string"),
    ("retries", "number: failed attempts that count against max_retries"),
    ("recoveries", "number: how often its worker died while running it"),
    ("attempts", "number: attempts that have ended"),
    ("error", "string: error of the last failed attempt, or why the job is dead"),
    ("worker", "string: id of the slot that runs or last ran the job"),
    ("created, started, ended, due", "string (RFC 3339) or null"),
    ("is_job", "boolean: false for bytes that are not a job"),
    ("deferred", "string: why a deferred job cannot run yet; otherwise empty"),
    ("deferred_count", "number: how often the job was deferred"),
    ("first_deferred, last_deferred", "string (RFC 3339) or null: when; null in lists"),
    ("moved_to", "string: where worker.after moved the file after the job had ended; empty if it did not"),
    ("output", "string: the end of what the last attempt of a dead job printed; empty if nothing"),
    ("moved_from", "string: first path of a file that was moved before the job was put back; empty if it was not"),
    ("fingerprint", "string: of a dead job, equal for jobs that died of the same cause; otherwise empty"),
)
HISTORY_FIELDS = (
    ("job", "object: as in `fileq admin list --json`"),
    ("json", "object: the job's own JSON; null for bytes that are not a job"),
    ("raw_b64", "string: those bytes in base64, empty if they are too long to be kept in the record; null for a job"),
    (
        "signature",
        "string or null: the version of the file: size-mtime in ns; also -i and the inode, if the job has it",
    ),
    ("is_cancel_requested", "boolean"),
    ("payload", "the payload of the job, or null"),
    (
        "batch_facts",
        "object or null: how the batch stood when it enqueued this callback: id, callback, total, completed, dead, "
        "cancelled, deleted, first_dead, first_error",
    ),
    ("result", "the result that the handler returned, or null"),
    ("attempts[]", "number, started, ended, duration_s, worker, outcome, error, traceback, output (empty if none)"),
    (
        "attempts[].duration_s",
        "if its worker died: until that was found; the error says how long it was gone",
    ),
    ("attempts[].deferred", "string: why the job was deferred last before this attempt; empty if it was not"),
    ("attempts[].is_fatal", "boolean: the job died of it"),
    ("attempts_forgotten", "number: how many of the first attempts are no longer recorded"),
    ("waits_for[]", "string: what keeps a waiting job from running, such as a paused queue; empty if nothing does"),
    ("parent_id", "string or null: the job that enqueued this one when it ended"),
    ("follow_ups[]", "string: ids of the jobs that this one enqueued when it ended"),
    ("outputs[]", "path, size, signature: the files that the job made"),
    ("batch", "string: the id of the batch that it is a member of; empty if it is in none"),
)
TRACE_FIELDS = (
    ("filepath", "string: the absolute path, escaped where it is not UTF-8"),
    ("missing_since_ms", "number: since when producers have not found the file; 0 if they find it"),
    ("versions[]", "newest first: signature, job_id, is_newest, is_in_ledger, size, modified_ns, job"),
    ("versions[].signature", "size-mtime in ns; also -i and the inode, -c and the hash, if the producer recorded them"),
    ("versions[].job", "as in `fileq admin show --json`; null if the record has expired"),
    ("made_by", "null, or the last job that made the file: job_id, filepath (empty for a job without a file), type"),
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

BATCH_FIELDS = (
    ("id, name, parent", "string: its id; its name and the id of its parent, empty if it has none"),
    ("state", "string: open, sealed or finished"),
    ("is_cancelled", "boolean: what had not ended is cancelled"),
    ("is_success", "boolean: finished, and every member was completed"),
    ("allow_failures, priority", "boolean and string: as it was created"),
    ("total", "number: the sum of the next six"),
    ("waiting, running, completed, dead, cancelled, deleted", "number of members; a child batch is one"),
    ("created, sealed, finished", "string (RFC 3339, UTC) or null"),
    ("first_dead, first_error", "string: the member that died first and its error; else empty"),
    ("callbacks[].kind, callbacks[].job_id", "string: then, catch or finally, and the id of its job"),
    ("callbacks[].is_fired", "boolean: the job was enqueued"),
    ("callbacks[].state, callbacks[].type", "string or null: of that job; null if it has no record"),
    ("callbacks[].error", "string: of that job"),
    ("failures[]", "id, filepath, type (null for a file), error, fingerprint and died of the first ten dead jobs"),
)
