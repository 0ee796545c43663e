"""Finds files, waits until each one is complete, and enqueues every version once, within the rate limit.

A pipeline, read straight down in producer.py:

    finder/            found files: what scans and file-system events name
    ledger_lookup.py   of the scanned files, the versions that the ledger does not know
    stability.py       files that have stopped changing
    enqueuer.py        jobs, in batches, within the rate limit

Each stage has a `turn(now_s)` that returns a batch for the next one. No stage calls an earlier one.
"""
