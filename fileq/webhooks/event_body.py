"""The body of a delivery: `{"type", "timestamp", "data"}`, at most BODY_MAX bytes. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from fileq.core.job import Job, rfc3339_ms
from fileq.core.settlement import Settlement
from fileq.core.webhook import TEST_EVENT

BODY_MAX = 20_000
# How many characters are kept of an error and of other texts if a body is too long. JSON may need six bytes for each.
ERROR_KEPT, TEXT_KEPT = 1_500, 150
_encoder = msgspec.json.Encoder()


class DeliveryPayload(Struct, frozen=True):
    """The payload of a job of type fileq.webhook. `body` is sent exactly as it is, in every attempt."""

    webhook: str
    body: Raw


class _Told(Struct, frozen=True):
    type: str


def event_of(payload: DeliveryPayload) -> str:
    return msgspec.json.decode(payload.body, type=_Told).type


def settled_data(settlement: Settlement, job: Job) -> dict[str, Any]:
    """The `data` of a message about the end of an attempt."""
    data = _job_data(job, settlement.claim.queue)
    return data | {
        "attempt": job.retries + job.recoveries + 1,
        "outcome": settlement.outcome,
        "duration_ms": settlement.duration_ms,
        "error": settlement.error or None,
        "result": Raw(settlement.result) if settlement.result else None,
    }


def withdrawn_data(job: Job, queue: str) -> dict[str, Any]:
    """The `data` of a message about a job that was cancelled while it waited."""
    return _job_data(job, queue) | {
        "attempt": None,
        "outcome": "cancelled",
        "duration_ms": None,
        "error": None,
        "result": None,
    }


def body_of(event: str, now_ms: int, data: dict[str, Any]) -> bytes:
    """The body, within BODY_MAX. Fields that had to be shortened or left out are named in `data.cut`."""
    for cut in ((), ("result",), ("result", "error"), tuple(data)):
        shortened = {name: _shortened(name, value) if name in cut else value for name, value in data.items()}
        changed = [name for name in cut if shortened[name] != data[name]]
        body = _encoder.encode(
            {"type": event, "timestamp": rfc3339_ms(now_ms), "data": shortened | ({"cut": changed} if changed else {})}
        )
        if len(body) <= BODY_MAX:
            return body
    raise AssertionError(f"a body of {len(body)} bytes can't be shortened")


def test_body(name: str, now_ms: int) -> bytes:
    return body_of(TEST_EVENT, now_ms, {"webhook": name, "message": "this is a test of fileq"})


def _shortened(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value[: ERROR_KEPT if name == "error" else TEXT_KEPT]
    return None if isinstance(value, Raw | dict) else value


def _job_data(job: Job, queue: str) -> dict[str, Any]:
    path = {"path": job.filepath or None} | ({"path_b64": job.filepath_b64} if job.filepath_b64 is not None else {})
    return {
        "id": job.id,
        "type": job.type,
        **path,
        "priority": queue,
        "created": job.creation_time,
        "batch_id": job.batch_id,
        "tags": job.tag_values or None,
    }
