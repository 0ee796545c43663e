"""Enqueues jobs that an operator requests, as a client does. Checks all of them before it enqueues the first.

After a kill -9 each job is enqueued completely or not at all; repeated with the same --id, the command enqueues nothing
twice.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry, Record
from fileq.client.broker_transport import enqueued, entries_of
from fileq.client.job_endings import JobEndings
from fileq.client.transport import Accepted
from fileq.config import Config
from fileq.core.errors import BrokerError, ConfigError, JobError
from fileq.core.job_options import EnqueueOptions, JobOptions, JobRequest, read_options
from fileq.core.own_jobs import check_type
from fileq.core.text import repeated_key, unknown_key
from fileq.core.units import PointInTime, parse_point_in_time
from fileq.queries.documents import JobDocument, job_document, job_without_record
from fileq.queries.job_queries import wait_reasons
from fileq.runtime.produce_spans import ProduceSpans

COMMAND_TYPE = "command"
RECHECK_S = 10.0  # of jobs that --wait waits for


class RequestedJob(Struct, frozen=True):
    """A job that a person gave as JSON: a command, or a type with a payload, and its own options."""

    type: str
    payload: bytes | None  # JSON
    options: Mapping[str, Any]  # fields of JobOptions
    run_at: PointInTime | None = None


class _JobText(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of such JSON. All but `command`, `type`, `payload` and `run_at` are options of `fileq enqueue` too."""

    command: str | list[str] | None = None
    type: str | None = None
    payload: Any = None
    id: str | None = None
    priority: str | None = None
    max_retries: int | None = None
    timeout: int | float | str | None = None
    delay: int | float | str | None = None
    run_at: str | None = None


class Enqueuing:
    """Enqueues entries. `jobs` holds what the broker acknowledged, also after an outage in the middle."""

    def __init__(self, broker: FullBroker, config: Config) -> None:
        self._broker = broker
        self.spans = ProduceSpans(config)
        self.jobs: list[Accepted] = []

    def enqueue(self, entries: Sequence[Entry]) -> None:
        for entry, answer in zip(entries, enqueued(self._broker, entries), strict=True):
            self.jobs.append(Accepted(answer.id, answer.fate))  # without the record: there may be very many
            self.spans.add([entry] if answer.fate is EnqueueResult.ENQUEUED else ())


def requested(subjects: Sequence[str]) -> list[str | RequestedJob]:
    """The arguments, with those in JSON decoded. ConfigError names everything that is wrong in them."""
    found: list[str | RequestedJob] = []
    problems: list[str] = []
    for subject in subjects:
        try:
            found.append(_requested_job(subject) if subject.lstrip().startswith("{") else subject)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found


def _requested_job(text: str) -> RequestedJob:
    value = json_argument(text, "the argument", """'{"command": "ls"}'; a file with such a name is given as ./{…""")
    shown = f"the argument is {text!r:.200}"
    if unknown := [name for name in value if name not in _JobText.__struct_fields__]:
        raise ConfigError([f"{shown}; {unknown_key(name, _JobText.__struct_fields__)}" for name in unknown[:10]])
    try:
        given = msgspec.convert(value, _JobText)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"{shown}; {where.rstrip('`')}: {what}") from None
    if (given.command is None) == (given.type is None) or (given.command is not None and given.payload is not None):
        raise ConfigError(
            f'{shown}; it must have a command, such as \'{{"command": "ls -l"}}\' or '
            '\'{"command": ["ls", "-l"]}\', or else a type, with or without a payload'
        )
    type, payload = given.type, given.payload
    if type is not None:
        _check_type("type", type)
    else:
        type, payload, line = COMMAND_TYPE, {"command": given.command}, given.command
        if not (line.strip() if isinstance(line, str) else line and line[0]):
            advice = "give a line such as 'ls -l' or a list such as ['ls', '-l']"
            raise ConfigError(f"{shown}; the command is empty; {advice}")
    if given.id == "":
        raise ConfigError(f"{shown}; id is empty; give an id, or leave out the key")
    names = ("id", "priority", "max_retries", "timeout", "delay")
    own = {name: own for name in names if (own := getattr(given, name)) is not None}
    try:
        run_at = None if given.run_at is None else parse_point_in_time(given.run_at)
        options = read_options(cast(EnqueueOptions, own), EnqueueOptions)
    except ValueError as error:
        raise ConfigError(f"{shown}; run_at is {given.run_at!r}; it must be {error}") from None
    except ConfigError as error:
        raise ConfigError([f"{shown}; {problem}" for problem in error.problems]) from None
    if run_at is not None and given.delay is not None:
        raise ConfigError(f"{shown}; delay and run_at are both set; give one of them")
    options |= {"at_ms": run_at.ms} if run_at is not None else {}
    return RequestedJob(type, None if payload is None else msgspec.json.encode(payload), options, run_at)


def job_of_type(type: str, payload: str | None) -> RequestedJob:
    _check_type("--type", type)
    value = None if payload is None else json_argument(payload, "--payload", """'{"key": "value"}'""")
    return RequestedJob(type, None if payload is None else msgspec.json.encode(value), {})


def entries_for(
    config: Config,
    subjects: Sequence[str | RequestedJob],
    options: Mapping[str, Any],
    found_at: Callable[[bytes], bytes] = lambda path: b"",
) -> list[Entry]:
    """One entry for each file or requested job, in their order. ConfigError names everything that is wrong.

    `options` are fields of JobOptions for all of them; what the JSON of a job says has precedence: callers refuse an
    option that contradicts it. `found_at` is that of entries_of()."""
    queues = _queues_of_tasks(config, {subject.type for subject in subjects if isinstance(subject, RequestedJob)})
    requests: list[JobRequest] = []
    for subject in subjects:
        if isinstance(subject, str):
            requests.append(JobRequest(JobOptions(**options), path=subject))
        else:
            own = {"priority": queues.get(subject.type, ""), **options, **subject.options}
            requests.append(JobRequest(JobOptions(**own), subject.type, subject.payload))
    entries = entries_of(config, requests, datetime.now(UTC), found_at, lambda entry: entry, may_look=True)
    if twice := [id for id, count in Counter(entry.job.id for entry in entries).items() if count > 1]:
        raise ConfigError([f"id {id!r} is given to two jobs; each needs an id of its own" for id in twice])
    return entries


def _queues_of_tasks(config: Config, types: Set[str]) -> dict[str, str]:
    """The queues of the tasks that modules of `imports` have for these types and that name one, as a client has them. A
    module that can't be imported here is left out."""
    types = types - {COMMAND_TYPE}
    if not types or not config.imports:
        return {}
    from fileq.handlers.importing import import_if_possible  # slow to import
    from fileq.handlers.registry import REGISTRY

    import_if_possible(config.imports)
    return {type: task.priority for type in types if (task := REGISTRY.task(type)) is not None and task.priority}


def _check_type(name: str, type: str) -> None:
    if not type or not type.isprintable():
        raise ConfigError(f"{name} is {type!r}; it must be the type of a route, in printable characters")
    try:
        check_type(type)
    except JobError as error:
        raise ConfigError(f"{name.removesuffix('type')}{error}") from error


def json_argument(text: str, what: str, example: str) -> Any:
    """The value that an argument has in JSON; raises ConfigError."""
    try:
        value, twice = msgspec.json.decode(text.encode()), repeated_key(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ConfigError(f"{what} is {text!r:.200}; it must be JSON such as {example} ({error})") from None
    if twice:
        raise ConfigError(f"{what} is {text!r:.200}; the key {twice[:50]!r} is given twice")
    return value


def endings_of_jobs(broker: FullBroker, report: Callable[[str], None]) -> JobEndings:
    """Make it before the jobs are enqueued. `report` gets the begin and the end of each outage of the broker, and once
    each what keeps the jobs from running, such as a paused queue."""
    report_once = functools.cache(report)

    def report_waits(records: Sequence[Record | None]) -> None:
        for text in dict.fromkeys(text for texts in wait_reasons(broker, records).values() for text in texts):
            report_once(f"still waiting: {text}")

    return JobEndings(broker, report=report, on_recheck=report_waits, recheck_s=RECHECK_S)


def documents_of(broker: FullBroker, ids: Sequence[str]) -> list[JobDocument]:
    """What has no record, or can't be read now, has the status `unknown`."""
    try:
        records = broker.records(ids)
    except BrokerError:
        records = [None] * len(ids)
    pairs = zip(ids, records, strict=True)
    return [job_document(one) if one is not None else job_without_record(id) for id, one in pairs]
