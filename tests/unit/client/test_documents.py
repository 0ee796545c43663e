"""Documents of a server of another version: fields may be missing, and there may be others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from fileq.brokers.types import Record
from fileq.core.batch import Batch
from fileq.core.job import State
from fileq.queries.documents import BatchDocument, EnqueuedDocument, JobDocument, batch_document, enqueued_document

JOB = enqueued_document(Record("a", State.DEAD, b"not a job", "low"), "")
BATCH = batch_document(Batch("b"))


@pytest.mark.parametrize(("document", "kind"), [(JOB, JobDocument), (JOB, EnqueuedDocument), (BATCH, BatchDocument)])
def test_a_document_of_another_version_can_be_decoded(document: Struct, kind: type[Struct]) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(document)
    for name in fields.keys() - {"id"}:
        other = {key: value for key, value in fields.items() if key != name} | {"unknown_yet": [1]}
        assert msgspec.json.decode(msgspec.json.encode(other), type=kind).id == fields["id"]  # type: ignore[attr-defined]
