"""The jobs that calls.sh submits."""

from __future__ import annotations

import msgspec

import fileq


class Report(msgspec.Struct):
    pages: int


@fileq.task("report")
def report(job: fileq.JobView[Report], context: fileq.Context) -> dict[str, int]:
    return {"pages": job.payload.pages}


@fileq.task("broken")
def broken(job: fileq.JobView[None], context: fileq.Context) -> None:
    raise fileq.Permanent("the printer is on fire")
