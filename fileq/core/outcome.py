"""One attempt: its task, how it ended, what it leaves behind, and the kind of its error.

Executors make outcomes; the retry policy turns them into settlements. Values only. They are tagged, so that a child
process can send them to its parent as JSON or MessagePack.

A follow-up exists if and only if its settlement took effect: the broker applies both in one atomic step.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from fileq.core.job import ClaimKey, Job, Version
from fileq.core.job_options import JobOptions
from fileq.core.units import format_duration
from fileq.core.webhook import ANSWERED

FOLLOW_UPS_MAX = 100  # of one attempt
FOLLOW_UPS_MAX_BYTES = 256 << 10  # of one attempt, all together
OUTPUTS_MAX = 1_000  # of one attempt


class Task(Struct, frozen=True, array_like=True):
    """What to run and on what, as the pump hands it to an executor: plain values that can be sent to another process.
    `key` names the claim, `route` is the number of the job's route in Routes.

    `path` is the file as this machine sees it, b"" for a job without a file. When the task runs, the file must lie
    below one of `roots`. A file whose signature is no longer the job's is run only if `runs_changed`."""

    key: ClaimKey
    raw: bytes
    route: int
    path: bytes
    roots: tuple[bytes, ...]
    attempt: int
    timeout_s: float
    runs_changed: bool = False


class FollowUp(Struct, frozen=True):
    """A job to enqueue in the same step as another change.

    It is due `delay_ms` after that step or at `at_ms`, the later of the two. It is enqueued also if the ledger knows
    its `version`; the ledger learns the version, so that no producer enqueues it again."""

    job: Job
    queue: str
    delay_ms: int = 0
    at_ms: int = 0
    version: Version | None = None
    joins: bool = False  # the job becomes a member of the batch that its `batch_id` names
    is_own: bool = False  # fileq made the job, see core/own_jobs.py


class EndingPayload(Struct, frozen=True):
    """The payload of the jobs that `on_completed` and `on_dead` make: how the job before them ended."""

    id: str
    type: str | None
    path: str | None
    error: str | None
    path_b64: str | UnsetType = UNSET
    result: Raw | None = None


class Output(Struct, frozen=True):
    """A file that a job made, as it was when the job ended."""

    path: bytes
    size: int
    signature: str  # see core/job.py


class FollowUpRequest(Struct, frozen=True, omit_defaults=True):
    """A follow-up as its handler requested it, checked. Plain data, so that a child process can send it to its worker.

    A job of a `type`, with its `payload` in JSON (empty: none), or about the file at `path` on this machine. Its
    options have an id. An empty priority stands for the queue of the job that it follows."""

    options: JobOptions
    type: str = ""
    payload: bytes = b""
    path: bytes = b""
    size: int = 0
    signature: str = ""
    joins: bool = False  # it becomes a member of the batch of the job that it follows


class Made(Struct, frozen=True, omit_defaults=True):
    """What a handler wants to leave behind if its job is completed."""

    follow_ups: tuple[FollowUpRequest, ...] = ()
    outputs: tuple[Output, ...] = ()


def follow_up_id(parent_id: str, *place: object) -> str:
    """The id of the follow-up at this place of its parent, always the same: a run that is repeated gives the same ids.
    It does not contain the parent's id: a prefix of that must stay enough to name the parent, and the ids of a long
    chain of jobs must not grow."""
    import hashlib  # needed here only, and commands should start fast

    text = "\0".join((parent_id, *map(str, place))).encode(errors="surrogatepass")
    digest = hashlib.blake2b(text, digest_size=16, person=b"fileq follow-up").hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))


class Done(Struct, frozen=True, tag=True, omit_defaults=True):
    """The handler returned. `warning` says why its result could not be kept; "" if it could. `made` is what it leaves
    behind besides its result; None if that is nothing, as for most jobs."""

    result: bytes = b""
    warning: str = ""
    made: Made | None = None


class LostRoot(NamedTuple):
    root: bytes
    reason: str


class Failed(Struct, frozen=True, tag=True):
    """The attempt failed: an exception, a timeout, too much memory, a command's exit code.

    `kind` is the error's class, for the counters. `is_sample` says whether the circuit breaker counts the failure.
    `is_vanished`: no handler ran, because the file no longer exists, although its root does. `lost_root`: no handler
    ran, because this root cannot be accessed; the reason is why, as directory_problem() says it.
    `traceback` has the user's frames; "" if the handler raised nothing. `output` is the end of what it printed."""

    error: str
    kind: str
    is_permanent: bool = False
    after_s: float | None = None
    is_sample: bool = True
    is_vanished: bool = False
    lost_root: LostRoot | None = None
    traceback: str = ""
    output: str = ""


class Refused(Struct, frozen=True, tag=True):
    """No attempt was made: not a job, no handler for its type, or its deadline is over. The job is dead."""

    error: str
    kind: str


# How the cause begins if the whole worker died. A reaper finds that out later; on another machine, long after it.
WORKER_DIED = "its worker died ("
CRASHED = "crashed: "  # how the error of every other death begins


class Died(Struct, frozen=True, tag=True):
    """The process that ran the handler ended by a signal or an exit that fileq did not cause. `output` as in Failed."""

    cause: str
    output: str = ""

    @property
    def error(self) -> str:
        """`crashed: the handler process exited with status 7`: which process it was, in plain words."""
        if self.cause.startswith(WORKER_DIED):
            return self.cause
        if self.cause.startswith("the fork server "):
            return f"{CRASHED}{self.cause}"
        return f"{CRASHED}the handler process {'was ' * self.cause.startswith('killed by ')}{self.cause}"


class Changed(Struct, frozen=True, tag=True):
    """Nothing was run: the file is another version now, the one with this signature."""

    signature: str


class Cancelled(Struct, frozen=True, tag=True):
    """The cancellation was requested, and the handler has stopped; or the job was cancelled before it began, for this
    reason. `raised` is an error of the handler while it stopped, which is ignored but for the log."""

    reason: str = "cancelled"
    raised: Failed | None = None


class Released(Struct, frozen=True, tag=True):
    """The handler was stopped because the worker stops. Neither a failure nor a recovery is counted. `raised` as in
    Cancelled."""

    raised: Failed | None = None


FinalOutcome: TypeAlias = Done | Failed | Refused | Died | Cancelled | Released
# What a run can give. Died is reported by the executor when the process of the run ended. Refused and Released are only
# for jobs of fileq's own types: another program enqueued the job, or the broker can't be asked about that.
Ran: TypeAlias = Done | Failed | Died | Changed | Refused | Released
TaskOutcome: TypeAlias = Ran | Cancelled  # what an executor returns

TIMEOUT = "Timeout"  # the kind of the error


def timed_out(timeout_s: float, stack: str = "") -> Failed:
    """`stack` is where the handler was."""
    return Failed(f"timed out after {format_duration(timeout_s)}", TIMEOUT, traceback=stack)


# The kind of an error, found again from its text: the hourly counters, and `fileq stats`, count failures and deaths by
# kind, and records keep the text only. For most errors the text begins with the kind (`ValueError: …`); these are the
# texts of the others.

CRASH, WORKER_DEATH = "Crash", "WorkerDied"
DEATH_KINDS = frozenset({CRASH, WORKER_DEATH})  # counted as `recovered`, not as `failed`
# Tried in this order; the first that matches from the start of the text decides.
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    # The first error of the job stays in the text, see core/settlement.py.
    (re.compile(r".*; retried, but file vanished\Z", re.DOTALL), "FileVanished"),
    (re.compile(r"timed out after "), TIMEOUT),
    (re.compile(r"file vanished"), "FileVanished"),
    (re.compile(r"not a regular file"), "NotAFile"),
    (re.compile(r"deadline passed"), "DeadlinePassed"),
    (re.compile(r"not a job"), "Undecodable"),
    (re.compile(r"no handler for |commands in jobs are disabled|the job names neither "), "NoHandler"),
    (re.compile(r"refused: another program enqueued "), "ForeignJob"),
    (re.compile(r"['\"].* leads outside the allowed roots", re.DOTALL), "OutsideRoots"),
    (re.compile(r"the root ['\"]"), "RootMissing"),
    (re.compile(r"can't be prepared: "), "CannotPrepare"),
    (re.compile(r"can't be sent to a child process: "), "UnsendableTask"),
    (re.compile(r"its outcome has \d+ bytes; "), "OutcomeTooLong"),
    (re.compile(rf"{ANSWERED} (\d+)"), r"HTTP\1"),
    (re.compile(r"not sent: "), "NotSent"),
    (re.compile(r"stopped before there was an answer"), "Stopped"),
    (re.compile(r"webhook ['\"].* is disabled: "), "WebhookDisabled"),
    (re.compile(r"the webhook can't be read: "), "BrokerError"),
    (re.compile(r"the payload is not that of a delivery: "), "InvalidDelivery"),
    (re.compile(r"used \d+MB of memory, more than worker\.max_memory"), "MemoryLimit"),
    (re.compile(re.escape(WORKER_DIED)), WORKER_DEATH),
    (re.compile(re.escape(CRASHED)), CRASH),
    # The name of a command may contain spaces.
    (re.compile(r"[^:]+ exited with (\d+)"), r"exit \1"),
    (re.compile(r"[^:]+ was killed by (signal \d+|\w+)"), r"\1"),
    (re.compile(r"[^:]+ has ended, and its exit code was lost"), "lost"),
    (re.compile(r"([^\W\d]\w*)(?:: |$| \(at )"), r"\1"),
)


def kind_of(error: str) -> str:
    """The kind that `fileq stats` shows for this error; "" if its text has none."""
    for pattern, kind in _KINDS:
        if found := pattern.match(error):
            return found.expand(kind)
    return ""


def kind_of_death(cause: str) -> str:
    """The kind for an attempt whose process died: the child that ran the handler, or the whole worker."""
    return WORKER_DEATH if cause.startswith(WORKER_DIED) else CRASH
