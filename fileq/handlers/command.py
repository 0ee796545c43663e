"""Command handlers: an argument list with placeholders, run as a process of its own.

No shell: a file name reaches the program as one argument or in the environment, whatever is in it. Only jobs of the
type `command` bring a line for the shell along, and there are none unless worker.allow_commands.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from fileq.core.errors import Permanent
from fileq.core.job import Job
from fileq.handlers.context import Context
from fileq.handlers.outcomes import CommandFailed, TimedOut, one_line
from fileq.handlers.subprocesses import Ended, Tail, run_process

TAIL = 16 * 1024  # bytes kept of stdout and of stderr
_LONGEST_JSON = 30 * 1024  # of each as JSON, so that both fit into a result
_LONGEST_SAID = 3_500  # characters of what a failed program said
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
# Placeholder → environment variable.
NAMES = {
    "filepath": "FILEQ_JOB_FILEPATH",
    "job_id": "FILEQ_JOB_ID",
    "type": "FILEQ_JOB_TYPE",
    "payload": "FILEQ_JOB_PAYLOAD",
    "attempt": "FILEQ_JOB_ATTEMPT",
    "filesize": "FILEQ_JOB_FILESIZE",
    "priority": "FILEQ_JOB_PRIORITY",
    "retries": "FILEQ_JOB_RETRIES",
    "creation_time": "FILEQ_JOB_CREATION_TIME",
    "trace_id": "FILEQ_JOB_TRACE_ID",
    "span_id": "FILEQ_JOB_SPAN_ID",
}


def command_problems(command: Sequence[str]) -> Iterator[str]:
    """Why this command would fail for every job; sentences that continue the name of its route."""
    program, *rest = command
    if _PLACEHOLDER.fullmatch(program):
        yield f"has {program} as its program; a file that was dropped is never executed"
    elif shutil.which(program) is None:
        yield f"has the program {program!r}, which can't be found or executed; install it or give its full path"
    for name in (found[1] for argument in rest if (found := _PLACEHOLDER.fullmatch(argument))):
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=1)
            advice = f"did you mean {{{near[0]}}}?" if near else f"there are {', '.join(f'{{{n}}}' for n in NAMES)}"
            yield f"has the unknown placeholder {{{name}}}; {advice}"


def command_warnings(command: Sequence[str]) -> Iterator[str]:
    """What is allowed and probably not meant."""
    for argument in command[1:]:
        names = _PLACEHOLDER.findall(argument)
        if not _PLACEHOLDER.fullmatch(argument) and any(name in NAMES for name in names):
            yield f"passes {argument!r} as it stands; only a whole argument is a placeholder"


def run_command(command: Sequence[str], job: Job, path: bytes, context: Context) -> dict[str, Any]:
    """Exit code and output of a configured command with this job's values in its places."""
    values = _values(job, path, context.attempt)
    arguments = [_argument(argument, values) for argument in command]
    return _run(arguments, os.path.basename(command[0]), values, context)


def run_shell(job: Job, path: bytes, context: Context) -> dict[str, Any]:
    """Exit code and output of the command that the job itself brings along: a line for the shell, or a list."""
    payload = job.payload_value
    command = payload.get("command") if isinstance(payload, dict) else None
    if isinstance(command, str) and command.strip():
        arguments = ["/bin/sh", "-c", command]
    elif isinstance(command, list) and command and all(isinstance(part, str) for part in command) and command[0]:
        arguments = command
    else:
        raise Permanent(f'the payload must be {{"command": "a line for the shell"}} or a list, and is {payload!r:.200}')
    values = _values(job, path, context.attempt)
    return _run([argument.encode() for argument in arguments], "the command", values, context)


def _run(arguments: list[bytes], name: str, values: dict[str, bytes], context: Context) -> dict[str, Any]:
    environment = {**os.environb, **{NAMES[place].encode(): value for place, value in values.items()}}
    if context.traceparent:
        environment[b"TRACEPARENT"] = context.traceparent.encode()
    try:
        ended = run_process(arguments, environment, cancelled=context.cancelled, timeout_s=context.time_left, tail=TAIL)
    except ValueError as error:
        raise Permanent(f"the job can't be handed to a command: {error}") from error
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Permanent("the job is too large for the arguments and environment of a command") from error
        raise
    if ended.stopped == "timeout":
        raise TimedOut(context.timeout_s)
    if ended.stopped == "cancelled":
        raise InterruptedError("cancelled")
    if ended.code != 0:
        raise _failure(name, ended)
    return {"exit": 0, "stdout": _fitting(ended.stdout), "stderr": _fitting(ended.stderr)}


def _failure(name: str, ended: Ended) -> CommandFailed:
    if ended.code is None:
        return CommandFailed(f"{name} has ended, and its exit code was lost", "lost")
    said = one_line(ended.stderr.text()) or one_line(ended.stdout.text())
    if len(said) > _LONGEST_SAID:
        said = "…" + said[-_LONGEST_SAID:]
    colon = f": {said}" if said else ""
    if ended.code > 0:
        return CommandFailed(f"{name} exited with {ended.code}{colon}", ended.code)
    try:
        ending = signal.Signals(-ended.code).name
    except ValueError:
        ending = f"signal {-ended.code}"
    return CommandFailed(f"{name} was killed by {ending}{colon}", ending)


def _values(job: Job, path: bytes, attempt: int) -> dict[str, bytes]:
    """What placeholders and variables stand for; empty where the job has no such thing."""
    texts = {
        "job_id": job.id,
        "type": job.type or "",
        "attempt": str(attempt),
        "filesize": str(job.filesize),
        "priority": job.priority,
        "retries": str(job.retries),
        "creation_time": job.creation_time,
        "trace_id": job.trace_id,
        "span_id": job.span_id,
    }
    payload = b"" if job.payload is msgspec.UNSET else bytes(job.payload)
    return {"filepath": path, "payload": payload} | {name: text.encode() for name, text in texts.items()}


def _argument(argument: str, values: dict[str, bytes]) -> bytes:
    found = _PLACEHOLDER.fullmatch(argument)
    return values[found[1]] if found else os.fsencode(argument)


def _fitting(tail: Tail) -> str:
    """The text, shortened at its front until its JSON fits: control characters take six bytes each there."""
    text = tail.text()
    while len(msgspec.json.encode(text)) > _LONGEST_JSON:
        text = "…" + text[len(text) // 4 + 1 :]
    return text
