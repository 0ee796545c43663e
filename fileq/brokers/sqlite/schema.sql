-- Schema 2. Applied as a whole, in one transaction, to an empty file: no semicolons in comments.
-- The elements of every place are the raw bytes of a job, what more is known of it is in its record.

-- One row a job. An integer key keeps rows that are written together on the same pages.
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
    expires_ms          INTEGER             -- wall clock, as every *_ms but slots.alive_until_ms and rate.ends_ms
);
CREATE INDEX records_expiring ON records (expires_ms) WHERE expires_ms IS NOT NULL;

-- The lowest position is the front: taken there, pushed at the other end.
CREATE TABLE queued (
    queue    TEXT NOT NULL,
    position INTEGER NOT NULL,
    raw      BLOB NOT NULL,
    PRIMARY KEY (queue, position)
) WITHOUT ROWID;

-- Positions between the ends of a queue that a cancelled job left empty: with them the ends tell the length. One that
-- lies outside means nothing, and goes when the queue is empty or the position is taken again.
CREATE TABLE holes (
    queue    TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (queue, position)
) WITHOUT ROWID;

-- Delayed and retrying. The same bytes wait once at most.
CREATE TABLE scheduled (
    due_ms INTEGER NOT NULL,
    raw    BLOB NOT NULL,
    PRIMARY KEY (due_ms, raw)
) WITHOUT ROWID;
CREATE UNIQUE INDEX scheduled_by_bytes ON scheduled (raw);

-- Completed and cancelled. Positions have no gaps: appended at the high end, trimmed at the low one.
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

-- One row a slot: registry entry, processing list, heartbeat and last settlement. What is left of a slot that
-- went is its token, so that a settlement from its former life is never taken for one of its next.
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

-- The producers' shared rate limit: one row once the first permit was taken.
CREATE TABLE rate (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    boot    TEXT NOT NULL,
    ends_ms INTEGER NOT NULL,               -- CLOCK_MONOTONIC of that boot
    taken   INTEGER NOT NULL
);

-- Written only while somebody listens, and only the newest are kept.
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    body   BLOB NOT NULL
);
