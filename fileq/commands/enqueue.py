"""Enqueues jobs that an operator requests. Checks all of them before it enqueues the first.

client/new_entries.py makes the entries. After a kill -9 each job is enqueued completely or not at all; repeated with
the same --id, the command enqueues nothing twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry
from fileq.client.job_options import JobOptions
from fileq.client.new_entries import FileEntries, typed_entry
from fileq.config import Config
from fileq.core.errors import ConfigError, JobError
from fileq.runtime.produce_spans import ProduceSpans

BATCH = 500  # jobs in one call of the broker
COMMAND_TYPE = "command"


class EnqueuedJob(Struct, frozen=True):
    """One job of the call, as `--json` prints it."""

    id: str
    fate: EnqueueResult
    filepath: str
    type: str | None
    priority: str
    process_at: str | None


class Enqueuing:
    """Enqueues entries in batches. `jobs` holds what the broker acknowledged, also after an outage in the middle."""

    def __init__(self, broker: FullBroker, config: Config) -> None:
        self._broker = broker
        self._spans = ProduceSpans(config)
        self.jobs: list[EnqueuedJob] = []

    def enqueue(self, entries: Sequence[Entry]) -> None:
        for start in range(0, len(entries), BATCH):
            batch = entries[start : start + BATCH]
            fates = self._broker.enqueue(batch).results
            self.jobs += map(_enqueued_job, batch, fates)
            self._spans.add([entry for entry, fate in zip(batch, fates, strict=True) if fate == "enqueued"])

    def send_spans(self) -> str:
        """Sends the `produce` spans; returns the reason why some were not sent, or ""."""
        return self._spans.send()


def _enqueued_job(entry: Entry, fate: EnqueueResult) -> EnqueuedJob:
    job = entry.job
    return EnqueuedJob(job.id, fate, job.filepath, job.type, job.priority, job.process_at)


def entries_for(
    config: Config, subjects: Sequence[str], options: JobOptions, moved_to: Callable[[bytes], bytes] = lambda path: b""
) -> list[Entry]:
    """One entry for each file, or command in JSON, in their order. ConfigError names everything that is wrong.

    `moved_to` is called for files that do not exist, and returns where a worker moved the file, or b""."""
    _check_options(config, options, len(subjects))
    files = FileEntries(config, moved_to)
    made: list[Entry] = []
    problems: list[str] = []
    batch_id = str(uuid.uuid4()) if len(subjects) > 1 else None
    for subject in subjects:
        try:
            if subject.lstrip().startswith("{"):
                made.append(_typed(config, COMMAND_TYPE, _command(subject), options, batch_id))
            else:
                made.append(files.entry(subject, options, datetime.now(UTC), batch_id))
        except ConfigError as error:
            problems += error.problems
        except JobError as error:
            problems.append(f"--{error}")
    if problems:
        raise ConfigError(problems)
    return made


def entry_of_type(config: Config, type: str, payload: str | None, options: JobOptions) -> Entry:
    """The entry of a job without a file."""
    _check_options(config, options, 1)
    if not type or not type.isprintable():
        raise ConfigError(f"--type is {type!r}; it must be the type of a route, in printable characters")
    value = None if payload is None else _json(payload, "--payload", """'{"key": "value"}'""")
    return _typed(config, type, value, options, None)


def _check_options(config: Config, options: JobOptions, count: int) -> None:
    priorities = config.worker.priorities
    if options.priority and options.priority not in priorities:
        raise ConfigError(f"--priority is {options.priority!r}; it must be one of {', '.join(priorities)}")
    if options.id and count > 1:
        raise ConfigError(f"--id is {options.id!r}, but there are {count} jobs to enqueue; --id is for a single job")


def _typed(config: Config, type: str, payload: Any, options: JobOptions, batch_id: str | None) -> Entry:
    try:
        raw = None if payload is None else msgspec.json.encode(payload)
        return typed_entry(config, type, raw, options, datetime.now(UTC), batch_id)
    except JobError as error:
        raise ConfigError(f"--{error}") from error


def _command(text: str) -> Any:
    value = _json(text, "the argument", """'{"command": "ls"}'; a file with such a name is given as ./{…""")
    line = value.get("command")
    is_list = isinstance(line, list) and bool(line) and all(isinstance(part, str) for part in line) and bool(line[0])
    if not is_list and not (isinstance(line, str) and line.strip()):
        raise ConfigError(
            f"the argument is {text!r:.200}; it must have a command, "
            """such as '{"command": "ls -l"}' or '{"command": ["ls", "-l"]}'"""
        )
    return value


def _json(text: str, what: str, example: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ConfigError(f"{what} is {text!r:.200}; it must be JSON such as {example} ({error})") from None
