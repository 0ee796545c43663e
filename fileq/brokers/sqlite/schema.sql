-- Applied as a whole, in one transaction, to an empty file.
-- Every place holds the raw bytes of its jobs. Everything more that is known of a job is in its record.
-- Changing a comment inside a statement changes the text that SQLite stores in the file.

-- One row for each job. An integer key keeps rows that are written together on the same pages.
CREATE TABLE records (
    number              INTEGER PRIMARY KEY,
    id                  TEXT NOT NULL UNIQUE,
    state               TEXT NOT NULL,
    raw                 BLOB NOT NULL,
    queue               TEXT NOT NULL,
    queued              INTEGER NOT NULL,   -- its elements in queues that were accounted for
    worker              TEXT NOT NULL,
    created_ms          INTEGER NOT NULL,
    started_ms          INTEGER NOT NULL,
    ended_ms            INTEGER NOT NULL,
    due_ms              INTEGER NOT NULL,
    error               TEXT NOT NULL,
    result              BLOB NOT NULL,
    attempts            BLOB NOT NULL,      -- JSON, the newest last
    attempt_count       INTEGER NOT NULL,
    is_cancel_requested INTEGER NOT NULL,
    deferred            TEXT NOT NULL DEFAULT '',
    deferred_count      INTEGER NOT NULL DEFAULT 0,
    moved_to            BLOB NOT NULL DEFAULT x'',
    after               BLOB NOT NULL DEFAULT x'',
    since_ms            INTEGER NOT NULL DEFAULT 0,
    extra               BLOB NOT NULL DEFAULT x'',  -- JSON of what few jobs have, see RareFacts
    batch               TEXT NOT NULL DEFAULT '',   -- that the job is a member of
    member              INTEGER,            -- 0 while the batch counts it as unfinished, 1 as dead, else NULL
    expires_ms          INTEGER             -- wall clock, as every *_ms but slots.alive_until_ms and ends_ms
);
CREATE INDEX records_expiring ON records (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX records_members ON records (batch, member) WHERE member IS NOT NULL;

-- The lowest position is the front: jobs are claimed there and pushed at the other end.
CREATE TABLE queued (
    queue    TEXT NOT NULL,
    position INTEGER NOT NULL,
    raw      BLOB NOT NULL,
    PRIMARY KEY (queue, position)
) WITHOUT ROWID;

-- Positions between the ends of a queue that a cancelled job left empty. A queue's length follows from its ends and
-- its holes. A hole outside the ends has no meaning and is deleted when the queue is empty or the position is used.
CREATE TABLE holes (
    queue    TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (queue, position)
) WITHOUT ROWID;

-- Scheduled, retrying and deferred jobs. The same bytes are there at most once.
CREATE TABLE scheduled (
    due_ms INTEGER NOT NULL,
    raw    BLOB NOT NULL,
    PRIMARY KEY (due_ms, raw)
) WITHOUT ROWID;
CREATE UNIQUE INDEX scheduled_by_bytes ON scheduled (raw);

-- Completed and cancelled jobs. Positions have no gaps: jobs are appended at the high end and trimmed at the low end.
CREATE TABLE ended (
    state    TEXT NOT NULL,
    position INTEGER NOT NULL,
    raw      BLOB NOT NULL,
    PRIMARY KEY (state, position)
) WITHOUT ROWID;

CREATE TABLE dead (
    position INTEGER PRIMARY KEY,
    raw      BLOB NOT NULL,
    crc      INTEGER NOT NULL               -- of the bytes, a narrow index to find them by
);
CREATE INDEX dead_by_bytes ON dead (crc);

-- One row for each slot: registry entry, processing list, heartbeat and last settlement. A deregistered slot keeps its
-- token, so that its late settlement is never mistaken for one made after it was registered again.
CREATE TABLE slots (
    slot           TEXT PRIMARY KEY,
    info           BLOB,                    -- JSON, NULL while not registered
    held           BLOB,                    -- the element in its processing list
    boot           TEXT NOT NULL,
    alive_until_ms INTEGER NOT NULL,        -- CLOCK_MONOTONIC of that boot
    token          INTEGER NOT NULL,
    settled        INTEGER,
    gone_ms        INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE ledger (
    path  BLOB PRIMARY KEY,
    entry BLOB NOT NULL                     -- JSON
) WITHOUT ROWID;

CREATE TABLE stats (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE hourly (
    hour  INTEGER NOT NULL,
    name  TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (hour, name)
) WITHOUT ROWID;

CREATE TABLE paused (queue TEXT PRIMARY KEY) WITHOUT ROWID;

-- How often an operator reset the breaker of a route. The empty name stands for all routes.
CREATE TABLE breaker_resets (
    route  TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) WITHOUT ROWID;

-- What each producer reported last, for operators. A report counts until its lease ends.
CREATE TABLE producers (
    id             TEXT PRIMARY KEY,
    info           BLOB NOT NULL,           -- JSON
    boot           TEXT NOT NULL,
    alive_until_ms INTEGER NOT NULL         -- CLOCK_MONOTONIC of that boot
) WITHOUT ROWID;

-- The producers' shared rate limit. It has one row after the first permit.
CREATE TABLE rate (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    boot    TEXT NOT NULL,
    ends_ms INTEGER NOT NULL,               -- CLOCK_MONOTONIC of that boot
    taken   INTEGER NOT NULL
);

-- Which jobs of limited routes were admitted. A row counts only while the slot holds these bytes.
CREATE TABLE holders (
    route TEXT NOT NULL,
    slot  TEXT NOT NULL,
    raw   BLOB NOT NULL,
    PRIMARY KEY (route, slot)
) WITHOUT ROWID;

-- How many jobs of a route with a rate have started in its window.
CREATE TABLE route_windows (
    route   TEXT PRIMARY KEY,
    boot    TEXT NOT NULL,
    ends_ms INTEGER NOT NULL,               -- CLOCK_MONOTONIC of that boot
    started INTEGER NOT NULL
) WITHOUT ROWID;

-- What a worker still has to do with the file of a job that has ended.
CREATE TABLE orders (
    id    TEXT PRIMARY KEY,                 -- of the job
    slot  TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body  BLOB NOT NULL
) WITHOUT ROWID;

-- The job that took each unique key last. It has the key while its record says that it is unfinished.
CREATE TABLE unique_keys (
    key TEXT PRIMARY KEY,
    id  TEXT NOT NULL
) WITHOUT ROWID;

-- The jobs that have a deadline, and when to look at each; see `overdue` in brokers/protocol.py. A job that has ended
-- stays until then.
CREATE TABLE deadlines (
    id          TEXT PRIMARY KEY,
    look_ms     INTEGER NOT NULL,
    position    INTEGER                     -- where it was pushed into its queue last
) WITHOUT ROWID;
CREATE INDEX deadlines_by_look ON deadlines (look_ms, id);

-- The job that made each file last.
CREATE TABLE made (
    path       BLOB PRIMARY KEY,
    id         TEXT NOT NULL,
    expires_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX made_expiring ON made (expires_ms);

-- The catalog, and the last revision that each kind has used. The kind `cancels` has no documents: it counts the requests
-- to cancel running jobs.
CREATE TABLE documents (
    kind     TEXT NOT NULL,
    name     TEXT NOT NULL,
    revision INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE TABLE catalog_revisions (
    kind     TEXT PRIMARY KEY,
    revision INTEGER NOT NULL
) WITHOUT ROWID;

-- The columns are those of ScheduleState.
CREATE TABLE schedules (
    name        TEXT PRIMARY KEY,
    revision    TEXT NOT NULL,
    next_ms     INTEGER NOT NULL,
    last_ms     INTEGER NOT NULL,
    last_job_id TEXT NOT NULL,
    is_paused   INTEGER NOT NULL,
    runs        INTEGER NOT NULL,
    missed      INTEGER NOT NULL
) WITHOUT ROWID;

-- One row for each batch. A finished one is kept for 30 days.
CREATE TABLE batches (
    id          TEXT PRIMARY KEY,
    parent      TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,           -- 0 while it is unfinished
    facts       BLOB NOT NULL,              -- JSON of what changes, see core/batch.py
    fixed       BLOB NOT NULL               -- JSON of its callbacks and of what its creator keeps here
);
CREATE INDEX batches_by_age ON batches (created_ms, id);
CREATE INDEX batches_unfinished ON batches (created_ms, id) WHERE finished_ms = 0;
CREATE INDEX batches_expiring ON batches (finished_ms) WHERE finished_ms > 0;
CREATE INDEX batches_by_parent ON batches (parent) WHERE parent <> '';

-- Members that no record marks: unfinished (0) and dead (1) ones whose record was lost, and jobs that had ended when they
-- joined (2). A record that is deleted leaves its mark here.
CREATE TABLE batch_members (
    batch TEXT NOT NULL,
    state INTEGER NOT NULL,
    id    TEXT NOT NULL,
    PRIMARY KEY (batch, state, id)
) WITHOUT ROWID;
CREATE TRIGGER members_without_record AFTER DELETE ON records WHEN OLD.member IS NOT NULL
BEGIN
    INSERT OR IGNORE INTO batch_members VALUES (OLD.batch, OLD.member, OLD.id);
END;

-- Written only while a subscriber exists. Only the newest are kept.
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    body   BLOB NOT NULL
);
