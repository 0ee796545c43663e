"""Several new jobs of one request, all checked before the first is enqueued."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from fileq.client.current_span import current_span
from fileq.client.job_options import options_of
from fileq.client.task_call import encoded_payload
from fileq.client.transport import REFUSED, JobRequest
from fileq.core.errors import BatchError, ConfigError
from fileq.server.api.job_endpoints import COMMAND_TYPE, NewJob, job_options
from fileq.server.decoding import invalid
from fileq.server.identity import Caller
from fileq.server.problems import FieldProblem
from fileq.server.services import Services


class AddedJob(Struct, frozen=True):
    """`result` is enqueued, duplicate if the id is that of a job which was there before, or vetoed."""

    id: str
    result: str


def add_jobs(
    services: Services, caller: Caller, jobs: Sequence[NewJob], *, batch: str = "", priority: str = ""
) -> tuple[AddedJob, ...]:
    """`batch` and `priority` are for jobs that name none. Raises ApiProblem with everything that is wrong."""
    requests: list[JobRequest] = []
    found: list[FieldProblem] = []
    for index, new in enumerate(jobs):
        try:
            requests.append(_request(new, caller, batch, priority))
        except ConfigError as error:
            found += (FieldProblem(f"/jobs/{index}", text) for text in error.problems)
    if found:
        raise invalid(found)
    accepted = services.transport.enqueue(requests)
    refused = [one.options.batch for one, job in zip(requests, accepted, strict=True) if job.fate == REFUSED]
    if refused:
        some = f"{len(refused)} of {len(requests)} jobs were not enqueued"
        raise BatchError(f"batch {refused[0]} takes no jobs any more, or does not exist; {some}")
    return tuple(AddedJob(job.id, job.fate) for job in accepted)


def _request(new: NewJob, caller: Caller, batch: str, priority: str) -> JobRequest:
    given = [name for name in ("type", "path", "command") if getattr(new, name) is not None]
    if len(given) != 1:
        raise ConfigError("give one of type, path and command" + (f", not {' and '.join(given)}" if given else ""))
    trace_id, span_id = current_span()
    options = replace(options_of(job_options(new, None)), trace_id=trace_id, span_id=span_id)
    options = replace(options, batch=options.batch or batch, priority=options.priority or priority)
    if new.path is not None:
        caller.check_path(new.path)
        if not isinstance(new.payload, UnsetType):
            raise ConfigError("payload goes with type; the job of a file has none")
        return JobRequest(options, path=new.path)
    type = COMMAND_TYPE if new.command is not None else new.type or ""
    caller.check_type(type)
    payload = {"command": new.command} if new.command is not None else new.payload
    has_none = isinstance(payload, UnsetType) or payload is None
    return JobRequest(options, type, None if has_none else encoded_payload(payload, type))
