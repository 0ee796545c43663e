"""Finds files, waits until each one is complete, and enqueues every version once, within the rate limit.

A pipeline, read straight down in producer.py:

    finder/            found files: what scans and file-system events name
    ledger_stages.py   of the scanned files, the versions that the ledger does not know; forgets files that are gone
    stability.py       files that have stopped changing
    content_check.py   files with another content, if contents are compared
    enqueuer.py        jobs, in batches, within the rate limit
    deliveries.py      batches of the files of one directory

Each stage has a `turn(now_s)` that returns a batch for the next one. No stage calls an earlier one.
"""
