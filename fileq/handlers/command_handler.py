"""Runs a command as the handler of a job: an argument list with placeholders, in a process of its own.

Never passes a file name to a shell: it is one argument or an environment variable, with any bytes in it. With
`safe_open` the command gets the file that was checked as an inherited descriptor, not by its name. Only jobs of
the type `command` carry a shell line of their own, and a worker runs those only with worker.allow_commands.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal

import msgspec
from msgspec import Struct

from fileq.core.errors import Permanent
from fileq.core.job import Job
from fileq.files.descriptor_limit import restore_limit_of
from fileq.handlers.context import CancelFlag, Context
from fileq.handlers.job_file import GivenFile
from fileq.handlers.outcomes import CommandFailed, TimedOut, one_line
from fileq.handlers.output import Tail, current_sink

TAIL = 16 * 1024  # bytes kept of stdout and of stderr
_MAX_JSON = 30 * 1024  # bytes of JSON for each of the two, so that both fit into a result
_MAX_SHOWN = 3_500  # characters of a failed program's output in the error
_NEEDS_NAME = "a program that needs the name of the file, or opens it in another process, needs safe_open: false"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_JOB_FIELDS = ("filesize", "priority", "retries", "creation_time", "trace_id", "span_id")  # that are one to one
# Placeholder → environment variable: FILEQ_JOB_ID, FILEQ_JOB_FILEPATH …
NAMES = {
    name: f"FILEQ_JOB_{name.removeprefix('job_').upper()}"
    for name in ("filepath", "real_filepath", "job_id", "type", "payload", "batch_facts", "attempt", *_JOB_FIELDS)
}


def command_problems(command: Sequence[str]) -> Iterator[str]:
    """Why this command would fail for every job. Each text continues a sentence that begins with the route's name."""
    program, *rest = command
    if _PLACEHOLDER.fullmatch(program):
        yield f"has {program} as its program; a dropped file is never executed"
    elif shutil.which(program) is None:
        yield f"has the program {program!r}, which can't be found or executed; install it or give its full path"
    for name in (found[1] for argument in rest if (found := _PLACEHOLDER.fullmatch(argument))):
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=1)
            advice = f"did you mean {{{near[0]}}}?" if near else f"known: {', '.join(f'{{{n}}}' for n in NAMES)}"
            yield f"has the unknown placeholder {{{name}}}; {advice}"


def command_warnings(command: Sequence[str]) -> Iterator[str]:
    """What is valid but probably a mistake; texts as those of command_problems()."""
    for argument in command[1:]:
        names = _PLACEHOLDER.findall(argument)
        if not _PLACEHOLDER.fullmatch(argument) and any(name in NAMES for name in names):
            yield f"passes {argument!r} unchanged; a placeholder must be a whole argument"


def run_command(
    command: Sequence[str], job: Job, file: GivenFile, context: Context, hidden: Sequence[str]
) -> dict[str, Any]:
    """Exit code and output of a configured command, its placeholders replaced by this job's values; without one of the
    command in the job's payload. The variables in `hidden` are not in its environment."""
    values = _values(job, file, context.attempt)
    if command:
        name, arguments = os.path.basename(command[0]), [_argument(argument, values) for argument in command]
    else:
        name, arguments = "the command", [argument.encode() for argument in _command_in(job.payload_value)]
    environment = {**os.environb, **{NAMES[name].encode(): value for name, value in values.items()}}
    for variable in hidden:
        environment.pop(os.fsencode(variable), None)
    if context.traceparent:
        environment[b"TRACEPARENT"] = context.traceparent.encode()
    sink = current_sink()
    try:
        result = run_process(
            arguments,
            environment,
            inherited=file.inherited,
            cancelled=context.cancelled,
            timeout_s=context.time_left,
            on_output=sink.write if sink is not None else _print,
        )
    except ValueError as error:
        raise Permanent(f"the job can't be handed to a command: {error}") from error
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Permanent("the job is too large for the arguments and environment of a command") from error
        raise
    if result.stopped == "timeout":
        raise TimedOut(context.timeout_s)
    if result.stopped == "cancelled":
        raise InterruptedError("cancelled")
    if result.code != 0:
        raise _failure(name, result, arguments, file)
    return {"exit": 0, "stdout": _fitting(result.stdout), "stderr": _fitting(result.stderr)}


def _print(output: bytes) -> None:
    """To stderr, where the output of a function goes if nothing captures it. Never the reason why a command fails."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or replaced by a stream of text
        sys.stderr.buffer.write(output)
        sys.stderr.buffer.flush()


def _command_in(payload: Any) -> list[str]:
    """A line for the shell, or a list of arguments."""
    command = payload.get("command") if isinstance(payload, dict) else None
    if isinstance(command, str) and command.strip():
        return ["/bin/sh", "-c", command]
    if isinstance(command, list) and command and all(isinstance(part, str) for part in command) and command[0]:
        return command
    raise Permanent(f'the payload must be {{"command": "a line for the shell"}} or a list, and is {payload!r:.200}')


def _failure(name: str, result: ProcessResult, arguments: Sequence[bytes], file: GivenFile) -> CommandFailed:
    if result.code is None:
        return CommandFailed(f"{name} has ended, and its exit code was lost", "lost")
    output = one_line(result.stderr.text()) or one_line(result.stdout.text())
    if len(output) > _MAX_SHOWN:
        output = "…" + output[-_MAX_SHOWN:]
    details = f": {output}" if output else ""
    note, hint = file.note_on(details), ""
    details += note
    if os.path.exists(file.path) and not os.access(file.path, os.R_OK, effective_ids=True):
        is_said = "permission" in details.lower() and file.shown in details
        details += "" if is_said else f"; the worker's user has no permission to read {file.shown}"
    elif note:
        details += f"; {_NEEDS_NAME}"
    elif file.inherited and file.path in arguments:
        hint = f"hint: the file was given as {os.fsdecode(file.path)}; {_NEEDS_NAME}"
    if result.code > 0:
        return CommandFailed(f"{name} exited with {result.code}{details}", result.code, hint)
    try:
        signal_name = signal.Signals(-result.code).name
    except ValueError:
        signal_name = f"signal {-result.code}"
    return CommandFailed(f"{name} was killed by {signal_name}{details}", signal_name, hint)


def _values(job: Job, file: GivenFile, attempt: int) -> dict[str, bytes]:
    """The values of the placeholders and environment variables; empty for fields that the job does not have."""
    texts = {"job_id": job.id, "type": job.type or "", "attempt": str(attempt)}
    texts |= {name: str(getattr(job, name)) for name in _JOB_FIELDS}
    payload = b"" if job.payload is msgspec.UNSET else bytes(job.payload)
    facts = b"" if job.batch_facts is msgspec.UNSET else bytes(job.batch_facts)
    paths = {"filepath": file.path, "real_filepath": file.name}
    return {**paths, "payload": payload, "batch_facts": facts, **{name: text.encode() for name, text in texts.items()}}


def _argument(argument: str, values: dict[str, bytes]) -> bytes:
    found = _PLACEHOLDER.fullmatch(argument)
    if not found:
        return os.fsencode(argument)
    name, value = found[1], values[found[1]]
    # Other programs and clients choose these values, and the command would take such a one as an option. A payload may
    # be a negative number; it is JSON, so it can't be an option with a name.
    if value.startswith(b"-") and name != "payload":
        shown = value.decode(errors="backslashreplace")
        raise Permanent(f"{{{name}}} is {shown!r:.120}, which the command would take as an option; it was not run")
    # Any program that pushes jobs chooses their ids, and commands make names of files of them.
    if name == "job_id" and (b"/" in value or value in (b".", b"..")):
        shown = value.decode(errors="backslashreplace")
        raise Permanent(f"{{{name}}} is {shown!r:.120}, which the command could take as a path; it was not run")
    return value


def _fitting(tail: Tail) -> str:
    """The text, shortened at its front until its JSON fits: JSON needs six bytes for a control character."""
    text = tail.text()
    while len(msgspec.json.encode(text)) > _MAX_JSON:
        text = "…" + text[len(text) // 4 + 1 :]
    return text


# Runs a program in a process group of its own: reads its output, keeps the last bytes, kills the group at the end.
#
# Knows nothing of jobs. When this process exits by itself, an atexit hook kills the programs that still run. A kill
# -9 leaves them running. If this process is a child of the fork server, the fork server kills them; commands
# therefore run in children unless their route says `isolation: thread`.

TERM_GRACE_S = 3.0  # from SIGTERM to SIGKILL of a cancelled program; shorter than CANCEL_GRACE_S of the executors
_POLL_EVERY_S = 0.05  # the longest time until a cancellation is seen
_CHUNK = 64 * 1024
_RUNNING: set[int] = set()  # pids that the atexit hook kills: daemon threads do not reach their `finally` then
_SPAWNING = threading.Lock()
_SPAWN_TIMEOUT_S = 5.0
_MAX_LAST_CHUNKS = 32  # read after the exit: a process outside the group may still hold the pipe and write to it


class ProcessResult(Struct, frozen=True):
    """How a program ended. `code` is its exit code, or minus the number of the signal that killed it; None if other
    code in this process has reaped it. `stopped` is the reason why run_process() stopped it, if it did."""

    code: int | None
    stdout: Tail
    stderr: Tail
    stopped: Literal["", "cancelled", "timeout"] = ""


def run_process(
    arguments: Sequence[bytes],
    environment: Mapping[bytes, bytes],
    *,
    inherited: Collection[int],
    cancelled: CancelFlag,
    timeout_s: float,
    on_output: Callable[[bytes], None] | None,
) -> ProcessResult:
    """Start a program and wait for its end; stop it on cancellation or timeout. TAIL bytes of each stream are kept.
    `on_output` gets what it prints, while it runs. The program inherits the descriptors `inherited`, under their
    numbers, and no others. Raises OSError or ValueError if it can't be started."""
    ends_s = time.monotonic() + timeout_s
    with _SPAWNING:  # the atexit hook must find every program that was started before it
        spawned = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            pass_fds=inherited,
            start_new_session=True,
        )
        _RUNNING.add(spawned.pid)
    restore_limit_of(spawned.pid)
    with spawned as process:
        try:
            with contextlib.closing(_Watch(process, on_output)) as watch:
                return watch.until_end(cancelled, ends_s)
        finally:
            # Before Popen reaps it: until then the kernel gives its number to no other group.
            _signal_group(process.pid, signal.SIGKILL)
            _RUNNING.discard(process.pid)


@atexit.register
def _kill_running() -> None:
    """A process that exits leaves no program running, although its daemon threads do not finish."""
    is_locked = _SPAWNING.acquire(timeout=_SPAWN_TIMEOUT_S)
    for pid in tuple(_RUNNING):
        _signal_group(pid, signal.SIGKILL)
    if is_locked:
        _SPAWNING.release()


class _Watch:
    def __init__(self, process: subprocess.Popen[bytes], on_output: Callable[[bytes], None] | None) -> None:
        self._on_output = on_output
        assert process.stdout is not None
        assert process.stderr is not None
        self._pid = process.pid
        self._stdout, self._stderr = Tail(TAIL), Tail(TAIL)
        self._tails = {process.stdout.fileno(): self._stdout, process.stderr.fileno(): self._stderr}
        self._selector = selectors.DefaultSelector()
        for fd in self._tails:
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
        self._pidfd = -1
        with contextlib.suppress(OSError):  # an old kernel or a strict sandbox: polling finds the exit
            self._pidfd = os.pidfd_open(self._pid)
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def until_end(self, cancelled: CancelFlag, ends_s: float) -> ProcessResult:
        stopped: Literal["", "cancelled", "timeout"] = ""
        kill_s = ends_s
        while not (exit_status := self._exit_status()):
            now_s = time.monotonic()
            if now_s >= kill_s:
                stopped = stopped or "timeout"
                _signal_group(self._pid, signal.SIGKILL)
            elif not stopped and cancelled.is_set():
                stopped = "cancelled"
                kill_s = min(ends_s, now_s + TERM_GRACE_S)
                _signal_group(self._pid, signal.SIGTERM)
            for key, _ in self._selector.select(_POLL_EVERY_S):
                self._read(key.fd)
        for fd in self._tails:
            for _ in range(_MAX_LAST_CHUNKS):
                if not self._read(fd):
                    break
        return ProcessResult(exit_status[0], self._stdout, self._stderr, stopped)

    def close(self) -> None:
        self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def _read(self, fd: int) -> bool:
        """Read once; False if there was nothing to read. A stream at its end is no longer watched."""
        if fd not in self._tails:
            return False
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
            return False
        self._tails[fd].add(chunk)
        if self._on_output is not None:
            self._on_output(chunk)
        return True

    def _exit_status(self) -> tuple[int | None] | None:
        """The code of ProcessResult in a tuple once the program has exited, else None. Does not reap: Popen does."""
        try:
            info = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return (None,)
        if info is None:
            return None
        return (info.si_status if info.si_code == os.CLD_EXITED else -info.si_status,)


def _signal_group(pid: int, number: int) -> None:
    # The group has ended, or it belongs to another user and can't be signalled.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
