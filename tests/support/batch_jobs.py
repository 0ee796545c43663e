"""Tasks for the tests of batches. `is_fixed` lets those succeed that fail at first."""

from __future__ import annotations

import os

import msgspec

import fileq

is_fixed = False


@fileq.task("doubled")
def doubled(job: fileq.JobView[int], context: fileq.Context) -> int:
    return 2 * job.payload


@fileq.task("breaks", max_retries=0)
def breaks(job: fileq.JobView[int], context: fileq.Context) -> None:
    if not is_fixed:
        raise ValueError("still broken")


@fileq.task("grows")
def grows(job: fileq.JobView[int], context: fileq.Context) -> None:
    assert context.batch is not None
    context.batch.add(doubled, job.payload)


@fileq.task("grows_by_file")
def grows_by_file(job: fileq.JobView[str], context: fileq.Context) -> None:
    assert context.batch is not None
    path = os.path.join(job.payload, "part.bin")
    with open(path, "w") as file:
        file.write("part")
    context.batch.add_file(path)


@fileq.task("after")
def after(job: fileq.JobView[dict[str, object] | None], context: fileq.Context) -> fileq.BatchFacts | None:
    return context.batch.facts if context.batch is not None else None


class Report(msgspec.Struct, forbid_unknown_fields=True):
    batch_id: str
    error: int


@fileq.task("typed_after")
def typed_after(job: fileq.JobView[Report], context: fileq.Context) -> str:
    assert context.batch is not None
    try:
        context.batch.add(doubled, 1)
    except fileq.JobError as error:
        return f"{job.payload.batch_id}, {job.payload.error}: {error}"
    return "added"


@fileq.task("grows_parent")
def grows_parent(job: fileq.JobView[None], context: fileq.Context) -> str:
    assert context.batch is not None
    assert context.batch.parent is not None
    context.batch.parent.add(doubled, 1)
    return context.batch.parent.id
