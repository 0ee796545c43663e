"""The signature of a version of a file. Every process computes it here, so that all of them agree.

A signature changes when the size or the modification time changes. The ledger, the job and the check before a handler
runs compare signatures, never contents.
"""

from __future__ import annotations

import os


def make_signature(size: int, mtime_ns: int) -> str:
    return f"{size}-{mtime_ns}"


def signature_of(status: os.stat_result) -> str:
    return make_signature(status.st_size, status.st_mtime_ns)
