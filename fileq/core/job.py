"""The job: its fields, its states and its JSON, its tags, the version of its file, the claim of a slot on it, and its
trace. Does no I/O and knows no broker.

A job is one JSON object. In what fileq writes, eight fields are always present and come first, in a fixed order. Of a
job that another program wrote only `id`, and `filepath` or `type`, are needed. The other fields are left out while
unset. Fields that this version does not know are kept unchanged, so that two versions can share a broker.
"""

from __future__ import annotations

import base64
import enum
import math
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from fileq.core.errors import JobError, Undecodable
from fileq.core.public_name import public
from fileq.core.units import LONGEST_S

# The wire name of Job.unknown. A job of another program that has such a field is decoded again, as an unknown field.
_UNKNOWN = "\x7f"

# Jobs come from other programs too, so each number has bounds: it must fit into a column, a message and a sum.
# check_content() has the same bounds, so that no job enters a broker that decode() would refuse.
COUNT_MAX = 2**31 - 1
BYTES_MAX = 2**63 - 1
Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=BYTES_MAX)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_S)]


class State(enum.StrEnum):
    """The state of a job. A job is in exactly one of these. A retrying job waits after an attempt that failed; a
    deferred one waits because it cannot run yet."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    RETRYING = "retrying"
    DEFERRED = "deferred"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def is_unfinished(self) -> bool:
        """Whether the job waits or runs. A dead job has ended, although an operator may put it back."""
        return self not in ENDED_STATES

    @property
    def is_waiting(self) -> bool:
        return self.is_unfinished and self is not State.RUNNING

    @classmethod
    def from_filter(cls, word: str) -> State:
        """The state for an operator's word. `processing` means `running`; `failed` means `retrying`."""
        return cls({"processing": "running", "failed": "retrying"}.get(word, word))


# The jobs of the place `scheduled`: each becomes due at its time. In the order of lists.
DELAYED_STATES = (State.RETRYING, State.DEFERRED, State.SCHEDULED)
ENDED_STATES = frozenset((State.COMPLETED, State.DEAD, State.CANCELLED))


@public()
class Job(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One job, immutable. but() makes a changed copy, which keeps the unknown fields."""

    id: str
    filepath: str
    filesize: Bytes
    priority: str
    retries: Count
    creation_time: str
    trace_id: str
    span_id: str
    # Before the payload: core/batch.py replaces its first mark. Of any form, as `tags`.
    batch_facts: Raw | UnsetType = UNSET
    type: str | None = None
    payload: Raw | UnsetType = UNSET
    max_retries: Count | None = None
    timeout: Seconds | None = None
    process_at: str | None = None
    deadline: str | None = None
    recoveries: Count = 0
    attempts_before: Count = 0  # an operator put it back last, which set `retries` and `recoveries` to 0
    signature: str | None = None  # the short form, which every release knows
    file_inode: Bytes | None = None
    filepath_b64: str | None = None
    batch_id: str | None = None
    error: str | None = None
    failed_at: str | None = None
    first_error: str | None = None  # of a job that was retried, or put back after its death
    moved_from: str | None = None  # the first path of a file that worker.after has moved, escaped where it is not UTF-8
    parent_id: str | None = None  # of the job that this one follows
    unique_key: str | None = None  # only one unfinished job has it
    breaker_probe: bool = False  # an operator tries this job to see if a cause is fixed: no open breaker defers it
    tags: Raw | UnsetType = UNSET  # of any form: other programs may have a field of this name
    unknown: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name=_UNKNOWN)

    @property
    def path(self) -> bytes:
        """The file's path as bytes, exactly as the producer found it."""
        if self.filepath_b64 is not None:
            return base64.b64decode(self.filepath_b64)
        return self.filepath.encode()

    @property
    def version(self) -> str | None:
        """The signature with the inode, as far as they are known."""
        if self.signature is None or self.file_inode is None:
            return self.signature
        return signature_text(self.signature, self.file_inode)

    @property
    def deadline_ms(self) -> int | None:
        """The deadline in ms since the epoch; None if there is none, or one that can't be read."""
        time = parse_time(self.deadline) if self.deadline is not None else None
        return round(time.timestamp() * 1000) if time is not None else None

    @property
    def payload_value(self) -> Any:
        """The payload as Python values; None if there is no payload."""
        return None if self.payload is UNSET else msgspec.json.decode(self.payload)

    @property
    def tag_values(self) -> dict[str, str]:
        """The tags; none if the field has another form than fileq gives it."""
        if self.tags is UNSET:
            return {}
        try:
            return _tags_decoder.decode(self.tags)
        except (msgspec.DecodeError, ValueError):
            return {}

    def at(self, path: bytes) -> Job:
        """A copy of this job about the same file, which was moved to another path."""
        if path == self.path:
            return self
        text, b64 = _path_fields(path)
        return self.but(filepath=text, filepath_b64=b64, moved_from=self.moved_from or self.filepath)

    def but(self, **changes: Any) -> Job:
        return msgspec.structs.replace(self, **changes)


class Version(Struct, frozen=True):
    """One version of one file: its path, its signature, and the device it was seen on ("" if unknown). Signature and
    device contain no blank and no line break."""

    path: bytes
    signature: str
    device: str = ""


FIELDS = frozenset(f.encode_name for f in msgspec.structs.fields(Job)) - {_UNKNOWN}

MAX_JOB_BYTES = 16 << 20  # of what a caller puts into a job: its payload and the fields that fileq does not know

# Longer bytes are never decoded, here and in prelude/jobs.lua. It is more than MAX_JOB_BYTES: the job has other fields,
# and a failed attempt adds its error.
MAX_DECODED_BYTES = MAX_JOB_BYTES + (1 << 20)

# A script of Redis finds the id of a job that begins with `id` and `filepath`, as fileq writes it, without parsing the
# rest. It parses other jobs, which stops the server for as long. So longer ones are no jobs, for every reader.
MAX_PARSED_BYTES = 1 << 20

# Lists and objects within each other. Deeper values take a parser's stack, and pages and commands grow with the depth.
MAX_NESTING = 64  # of a payload or a result
TOO_NESTED = f"has more than {MAX_NESTING} nested lists and objects; make it flatter"
MAX_DECODED_NESTING = MAX_NESTING + 16  # of a whole job: fileq puts results into the payloads of its own jobs

_FIRST_ID = re.compile(rb'\{"id":"([^"\\\x00-\x1f\x7f]+)","filepath":')
_FIRST_ID_TEXT = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*+"),"filepath":', re.DOTALL)  # with escapes

_decoder = msgspec.json.Decoder(Job)
_fields_decoder = msgspec.json.Decoder(dict[str, Raw])
_tags_decoder = msgspec.json.Decoder(dict[str, str])
_encoder = msgspec.json.Encoder()

# What is filled in for a field that another program left out: the same in every process, because each decodes the same
# bytes. The time of creation stays unknown; the record has that of the first claim.
_FILLED = {
    "filepath": Raw(b'""'),
    "filesize": Raw(b"0"),
    "priority": Raw(b'"low"'),
    "retries": Raw(b"0"),
    "creation_time": Raw(b'""'),
    "trace_id": Raw(b'""'),
    "span_id": Raw(b'""'),
}


def encode(job: Job) -> bytes:
    """The job as JSON: the eight fields first, then the optional ones that are set, then the unknown ones."""
    if job.unknown is UNSET:
        return _encoder.encode(job)
    known = _encoder.encode(msgspec.structs.replace(job, unknown=UNSET))
    return known[:-1] + b"," + _encoder.encode(job.unknown)[1:]


def check_content(job: Job, nesting: int = MAX_NESTING) -> None:
    """Raises JobError for a job that must not enter a broker: no worker could read it, or it is so long or so deeply
    nested that it would stop the broker or a reader for seconds."""
    for name, most in _NUMBERS.items():
        number = getattr(job, name)
        if number is not None and not 0 <= number <= most:
            raise JobError(f"{name} of job {job.id} is {number!r}; it must be from 0 to {most:.0f}")
    if defect := _defect(job):
        raise JobError(f"job {job.id!r:.220} can't be enqueued: {defect}")
    if job.payload is UNSET and job.unknown is UNSET:
        return
    parts = [*([] if job.payload is UNSET else [job.payload]), *([] if job.unknown is UNSET else job.unknown.values())]
    size = sum(memoryview(part).nbytes for part in parts)
    if size > MAX_JOB_BYTES:
        raise JobError(
            f"the payload of job {job.id} has {size} bytes; at most {MAX_JOB_BYTES} (16MB) can be enqueued: "
            "put the data into a file and its path into the payload"
        )
    if any(is_nested_deeper(bytes(part), nesting) for part in parts):
        raise JobError(f"the payload of job {job.id} {TOO_NESTED}")


_NUMBERS = {
    "filesize": BYTES_MAX,
    "retries": COUNT_MAX,
    "recoveries": COUNT_MAX,
    "attempts_before": COUNT_MAX,
    "timeout": LONGEST_S,
    "max_retries": COUNT_MAX,
    "file_inode": BYTES_MAX,
}
_STRUCTURE = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # an opening bracket is 1, a closing one -1
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[{]}"'))


def is_nested_deeper(raw: bytes, levels: int) -> bool:
    """Whether this JSON has more lists and objects within each other. Takes no stack, and time in proportion to the
    length; for few brackets next to none."""
    if raw.count(b"[") + raw.count(b"{") <= levels:
        return False
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without the text between them two quotes can go. What is left between quotes are the brackets in texts.
    steps = raw.translate(_STRUCTURE, _NO_STRUCTURE).replace(b'""', b"")
    if b'"' in steps:
        steps = b"".join(steps.split(b'"')[::2])
    return max(accumulate(memoryview(steps).cast("b")), default=0) > levels


def json_of(value: Any) -> bytes | str:
    """A payload or a result as JSON, or what is wrong with it, as the rest of a sentence."""
    try:
        result = msgspec.json.encode(value)
        if b"null" in result and (number := _number_outside_json(msgspec.to_builtins(value))) is not None:
            return f"contains {number}, which JSON does not have"
    except Exception as error:
        return f"is not JSON ({type(error).__name__}: {error})"
    return TOO_NESTED if is_nested_deeper(result, MAX_NESTING) else result


def _number_outside_json(value: Any) -> float | None:
    """A NaN or an infinity within the value; msgspec writes them as null."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return one
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
    return None


def decode(raw: bytes) -> Job:
    """The job in these bytes. Raises Undecodable and nothing else."""
    if len(raw) > MAX_DECODED_BYTES:
        raise Undecodable(f"not a job: it has {len(raw)} bytes; at most {MAX_DECODED_BYTES} are decoded")
    first = first_id(raw)
    if not first and len(raw) > MAX_PARSED_BYTES:
        first = _first_escaped_id(raw)
    # By a bound of its own: where the decoder gives up depends on how deep the stack of its caller is.
    if is_nested_deeper(raw, MAX_DECODED_NESTING):
        raise Undecodable(f"not a job: it has more than {MAX_DECODED_NESTING} nested lists and objects")
    try:
        try:
            job = _decoder.decode(raw)
            if job.unknown is not UNSET:
                job = _decode_foreign(raw)
        except msgspec.ValidationError:
            job = _decode_foreign(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"not a job: {error}") from error
    if defect := _defect(job):
        raise Undecodable(f"not a job: {defect}")
    # Lua reads the id at the beginning of a job that looks like ours, and never its other fields. Of two different ids
    # the decoder returns the last one: record and claim would be those of different jobs.
    if first and first != job.id.encode():
        raise Undecodable("not a job: it has two ids")
    return job


def first_id(raw: bytes) -> bytes:
    """The id that Lua reads at the beginning of these bytes; b"" if they do not begin as a job of fileq does."""
    first = _FIRST_ID.match(raw)
    return first[1] if first else b""


def _first_escaped_id(raw: bytes) -> bytes:
    """The id at the beginning of long bytes, of which Lua parses only this. Raises Undecodable if it is not there."""
    first = _FIRST_ID_TEXT.match(raw, 0, MAX_PARSED_BYTES)
    try:
        if first:
            return msgspec.json.decode(first[1], type=str).encode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise Undecodable(
        f"not a job: it has {len(raw)} bytes and does not begin with its id and filepath; at most {MAX_PARSED_BYTES} "
        'such bytes are decoded: write {"id":"…","filepath":"…" first, without blanks'
    )


def decode_or_none(raw: bytes) -> Job | None:
    try:
        return decode(raw)
    except Undecodable:
        return None


def _decode_foreign(raw: bytes) -> Job:
    """With fields that this version does not know, or without some that fileq would have written. prelude/jobs.lua has
    the same rule."""
    fields = _fields_decoder.decode(raw)
    if "filepath" not in fields and bytes(fields.get("type", b"null")) == b"null":
        raise Undecodable("not a job: it has neither filepath nor type")
    fields = {**_FILLED, **fields}
    unknown = {name: fields.pop(name) for name in list(fields) if name not in FIELDS}
    job = _decoder.decode(_encoder.encode(fields))
    # Each value is copied: a Raw is a view into the message, keeps it in memory and is not hashable.
    return job.but(unknown={name: value.copy() for name, value in unknown.items()}) if unknown else job


def _defect(job: Job) -> str:
    """What is wrong with a job whose fields have their types and bounds; "" if nothing is."""
    if not job.id:
        return "its id is empty"
    if "\0" in job.filepath:
        return "filepath holds a NUL"
    if job.filepath_b64 is not None:
        try:
            base64.b64decode(job.filepath_b64, validate=True)
        except ValueError as error:
            return f"filepath_b64 is not base64 ({error})"
    return ""


# An id that fileq makes. It has a short form. One that a caller chose has none: it may be the beginning of another one,
# such as `report-1` of `report-10`.
MADE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|raw-[0-9a-f]{40}")


def raw_id(raw: bytes) -> str:
    """The id for bytes that are not a job: the same bytes have the same id."""
    import hashlib  # it loads OpenSSL, and commands should start fast

    return "raw-" + hashlib.sha1(raw, usedforsecurity=False).hexdigest()


def file_job(
    path: bytes,
    *,
    size: int,
    priority: str,
    now: datetime,
    signature: str | None = None,
    inode: int = 0,
    id: str = "",
    type: str | None = None,
    payload: Raw | UnsetType = UNSET,
) -> Job:
    """A new job about a file. A path that is not UTF-8 is kept in filepath_b64. An inode of 0 is not recorded."""
    text, b64 = _path_fields(path)
    return Job(
        id=checked_id(id) if id else new_id(),
        filepath=text,
        filesize=size,
        priority=priority,
        retries=0,
        creation_time=rfc3339(now),
        trace_id="",
        span_id="",
        signature=signature,
        file_inode=inode or None,
        filepath_b64=b64,
        type=type,
        payload=payload,
    )


def _path_fields(path: bytes) -> tuple[str, str | None]:
    try:
        return path.decode(), None
    except UnicodeDecodeError:
        return path.decode(errors="backslashreplace"), base64.b64encode(path).decode()


def typed_job(type: str, payload: Any, *, priority: str, now: datetime, id: str = "") -> Job:
    encoded = UNSET if payload is None else Raw(_encoder.encode(payload))
    return file_job(b"", size=0, priority=priority, now=now, id=id, type=type, payload=encoded)


_VERSION_4 = 4 << 76 | 8 << 60  # the fixed bits of a UUID: version and variant
_RANDOM_BITS = ~(0xF << 76 | 0xC << 60)


def new_id() -> str:
    """A random UUID, version 4. Written here because uuid.uuid4() takes five times as long."""
    digits = f"{int.from_bytes(os.urandom(16)) & _RANDOM_BITS | _VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def checked_id(id: str) -> str:
    """The id that a caller chose. Raises JobError for one that is unsafe in a key, in an address, on a terminal or as
    an argument of a command."""
    if not _CHOSEN_ID.fullmatch(id):
        raise JobError(
            f"id {id!r:.220} can't be used; use up to 200 ASCII letters, digits and . _ : @ + = -, and begin with a "
            "letter, a digit or _"
        )
    return id


_CHOSEN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@+=-]{0,199}")


UNIQUE_KEY_LENGTH = 200


def check_unique_key(job: Job) -> None:
    key = job.unique_key
    if key is not None and not (0 < len(key) <= UNIQUE_KEY_LENGTH and key.isprintable()):
        raise JobError(
            f"unique_key {key!r} of job {job.id} can't be used; use 1 to {UNIQUE_KEY_LENGTH} printable characters"
        )


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# What RFC 3339 can say, in ms: the years 1 to 9999.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def rfc3339_ms(ms: int) -> str:
    """A time before or after what RFC 3339 can say, such as that of a file with a wrong date, becomes its first or last
    one."""
    return rfc3339(datetime.fromtimestamp(min(max(ms, FIRST_MS), LAST_MS) / 1000, UTC))


def stamp(ms: int) -> str | None:
    """A time for --json: RFC 3339, or null for 0."""
    return rfc3339_ms(ms) if ms else None


def parse_time(text: str) -> datetime | None:
    """A time that another program wrote, in UTC, or None if it can't be read: a wrong time never makes a job invalid.
    One that is in UTC before the year 1 or after 9999 is the first or the last time."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return (datetime.min if time.year == 1 else datetime.max).replace(tzinfo=UTC)


def parsed_ms(text: str) -> int:
    """The time that a job's JSON has; 0 for none."""
    moment = parse_time(text)
    return int(moment.timestamp() * 1000) if moment is not None else 0


# tags: short texts by name, chosen by the program that enqueues the job


TAGS_MAX = 20
OWN_TAGS = "fileq."  # how tags begin that a server adds; its clients can't give them
MADE_BY_TAG = "fileq.made_by"  # the id of the limited key that enqueued the job; see server/authentication.py
TAG_NAME_LENGTH, TAG_LENGTH = 100, 200


def encoded_tags(tags: Mapping[str, str]) -> Raw | UnsetType:
    """The field `tags` of a job. Raises JobError for tags that can't be used."""
    given = sum(not str(name).startswith(OWN_TAGS) for name in tags)
    if given > TAGS_MAX:
        raise JobError(f"there are {given} tags; a job can have {TAGS_MAX}")
    for name, value in tags.items():
        if not (isinstance(name, str) and 0 < len(name) <= TAG_NAME_LENGTH and name.isprintable()):
            raise JobError(f"the tag {name!r:.120} can't be used; use 1 to {TAG_NAME_LENGTH} printable characters")
        if not (isinstance(value, str) and len(value) <= TAG_LENGTH and value.isprintable()):
            raise JobError(f"the tag {name} is {value!r:.220}; use a string of up to {TAG_LENGTH} printable characters")
    return Raw(msgspec.json.encode(tags)) if tags else UNSET


# The signature of a version of a file as text, and when two signatures mean the same version.
#
#     <size>-<mtime in ns>[-i<inode>][-c<hash of the content>]
#
# The first two are always there; each of the others only if the producer recorded it (`producer.identity`). What one
# of two signatures lacks is not compared. So a ledger stays valid when `producer.identity` changes.

_FORM = re.compile(r"(.*?)(?:-i([0-9]+))?(?:-c([0-9a-f]+))?", re.DOTALL)


class SignatureParts(Struct, frozen=True):
    """`short` is size and time. `inode` and `content` are "" if the signature lacks them."""

    short: str
    inode: str = ""
    content: str = ""


def signature_text(short: str, inode: int | str = "", content: str = "") -> str:
    """The inode 0 and an empty text mean that it is not recorded."""
    return short + (f"-i{inode}" if inode else "") + (f"-c{content}" if content else "")


def split_signature(signature: str) -> SignatureParts:
    """Every text is a signature: one of another form is a short form as a whole."""
    match = _FORM.fullmatch(signature)
    assert match is not None
    return SignatureParts(match[1], match[2] or "", match[3] or "")


def is_same_version(one: str, other: str) -> bool:
    """Compares the contents if both signatures have a hash, else the inodes if both have one. lua/prelude/ledger.lua
    does the same."""
    if one == other:
        return True
    a, b = split_signature(one), split_signature(other)
    if a.short != b.short:
        return False
    if a.content and b.content:
        return a.content == b.content
    return not (a.inode and b.inode) or a.inode == b.inode


# claims


class ClaimKey(NamedTuple):
    """Identifies one claim: no slot uses a token twice."""

    slot: str
    token: int


class Claim(Struct, frozen=True):
    """One job that one slot holds."""

    slot: str
    token: int  # counts the slot's claims; a settlement whose token is settled already is a repeat
    queue: str
    raw: bytes  # exactly as in the slot's processing list
    job: Job | None  # None if the bytes are not a job
    record_id: str | None = None  # of the record that the claim wrote; None if the bytes have no readable id
    claimed_ms: int = 0
    defect: str = ""  # why the bytes are not a job
    # An earlier job of the same file is running, or a job that it waits for is unfinished. Set in a claim to run.
    is_blocked: bool = False
    is_cancelled: bool = False  # its batch is cancelled: it must be settled as cancelled. Set in a claim to run.

    @property
    def key(self) -> ClaimKey:
        return ClaimKey(self.slot, self.token)

    @property
    def id(self) -> str:
        return self.job.id if self.job is not None else raw_id(self.raw)

    @property
    def version(self) -> str | None:
        """The signature of the file that the job is about."""
        return self.job.version if self.job is not None else None

    @property
    def is_probe(self) -> bool:
        """An operator tries this job to see if a cause is fixed."""
        return self.job is not None and self.job.breaker_probe

    @property
    def has_failed(self) -> bool:
        """An attempt of it has failed or died, since an operator put it back last."""
        return self.job is not None and (self.job.retries > 0 or self.job.recoveries > 0)


class Buried(Struct, frozen=True):
    """Bytes that a broker buried instead of giving them to the slot: they are too long to be decoded, or another job
    has their id."""

    id: str
    slot: str
    queue: str
    error: str


# The trace of a job and the ids of its spans.
#
# A job carries the ids of the span it was produced in. Without them, its trace id is derived from the job's id and
# creation time, so that all its attempts share one trace. The span id of an attempt is derived too: the worker that
# exports the span and the process that runs the handler compute the same id without a message.

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")


def new_ids() -> tuple[str, str]:
    return os.urandom(16).hex(), new_span_id()


def new_span_id() -> str:
    return os.urandom(8).hex()


def parent_of(job: Job) -> tuple[str, str]:
    """The ids of the job's trace and of the span it was produced in; the latter is "" if missing or malformed."""
    trace_id, span_id = job.trace_id.lower(), job.span_id.lower()
    if _TRACE_ID.fullmatch(trace_id) is None:
        return _hash(16, job.id, job.creation_time), ""
    return trace_id, span_id if _SPAN_ID.fullmatch(span_id) else ""


def attempt_span_id(job: Job, claim: ClaimKey) -> str:
    return _hash(8, job.id, claim.slot, str(claim.token))


def attempt_of(job: Job) -> int:
    """The number of the current attempt, from 1."""
    return min(job.attempts_before + job.retries + job.recoveries + 1, COUNT_MAX)


def traceparent(trace_id: str, span_id: str) -> str:
    """The ids in W3C's `traceparent` format; "" if one is malformed."""
    if _TRACE_ID.fullmatch(trace_id) is None or _SPAN_ID.fullmatch(span_id) is None:
        return ""
    return f"00-{trace_id}-{span_id}-01"


def _hash(size: int, *parts: str) -> str:
    import hashlib  # it loads OpenSSL, and commands should start fast

    text = "\0".join(parts).encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=size).hexdigest()
