"""The Lua scripts: reads the files, puts each together with what it needs of the prelude, makes the command to run it,
and lays out its keys and arguments.

The files in lua/ are one script per verb; claim.lua is the last part of settle_and_claim. Those in lua/prelude/ hold
what the scripts share, in paragraphs: local functions and values with a blank line between them. A script gets only the
paragraphs it uses, because every call defines them again.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import resources
from typing import NamedTuple, TypeAlias

import msgspec

from fileq.brokers import wire_events
from fileq.brokers.redis.layout import Keys
from fileq.brokers.types import Entry, entry_of
from fileq.config import Config
from fileq.core.job import Version, encode
from fileq.core.outcome import FollowUp, Output
from fileq.core.own_jobs import origin_of
from fileq.core.settlement import Settlement, Verb

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Argument, ...]

PRELUDE = (  # in order of use
    *("common", "search", "jobs", "events", "withdrawals", "ledger", "entries", "follow_ups", "batches", "settlements"),
)
SETTLE_AND_CLAIM = "settle_and_claim"
COMPLETE_AND_CLAIM = "complete_and_claim"  # the same for the usual call: smaller, so that it runs faster
SETTLE_AND_FOLLOW = "settle_and_follow"  # the same for settlements with follow-ups or outputs
SETTLE_MEMBERS = "settle_members"  # the same for members of batches, also with follow-ups or outputs
ENQUEUE_MEMBERS = "enqueue_members"  # enqueue for jobs that join batches
PUT_WHEN_FULL = "put_when_full"  # put_document for a document that serves to free memory
# What `fsck` looks at, by the scripts that repair it. A full server runs no other script that may write.
LOOK_FOR_LOST = "look_for_lost"
LOOK_FOR_UNRECORDED = "look_for_unrecorded"
CLAIM = "claim"
_ALL_PARTS = ("complete", "retry", "bury", "release", "cancel", "defer", CLAIM)
PARTS = {
    COMPLETE_AND_CLAIM: ("complete", CLAIM),
    **dict.fromkeys((SETTLE_AND_CLAIM, SETTLE_AND_FOLLOW, SETTLE_MEMBERS), _ALL_PARTS),
}
LOOKS = {LOOK_FOR_LOST: "restore", LOOK_FOR_UNRECORDED: "create_record"}
FLAGS = {**dict.fromkeys(LOOKS, b"no-writes"), PUT_WHEN_FULL: b"allow-oom"}  # where they are not those of the file
VARIANTS = {  # name → its file
    **dict.fromkeys(PARTS, SETTLE_AND_CLAIM),
    ENQUEUE_MEMBERS: "enqueue",
    PUT_WHEN_FULL: "put_document",
    **LOOKS,
}
# What the variants do in addition: they set functions of lua/prelude/ as hooks, which settlements.lua, entries.lua and
# enqueue.lua call.
_HOOKS = {
    SETTLE_AND_FOLLOW: b"read_hook, require_hook, keep_hook = read_follow_ups, require_follow_ups, keep_follow_ups\n",
    SETTLE_MEMBERS: b"read_hook, require_hook, keep_hook = read_follow_ups, require_members, keep_member\n"
    b"joining = JOINING\n",
    ENQUEUE_MEMBERS: b"joining = JOINING\n",
}
_USUAL_PARTS = frozenset(PARTS[COMPLETE_AND_CLAIM])
_COMMENTS = re.compile(rb"^ *--.*\n", re.MULTILINE)
_PART = re.compile(rb"^function PARTS\.(\w+)\(\).*?^end\n", re.MULTILINE | re.DOTALL)
_DEFINED = re.compile(rb"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)
_WORD = re.compile(rb"(?<![.\w])[A-Za-z_]\w*")  # a name, but not a field after a dot


class Script(NamedTuple):
    sha: str
    text: bytes


class Paragraph(NamedTuple):
    names: frozenset[bytes]
    words: frozenset[bytes]
    text: bytes


_by_sha: dict[Argument, Script] = {}


@functools.cache
def script(name: str) -> Script:
    shebang, _, body = _file(VARIANTS.get(name, name)).partition(b"\n")
    if name in PARTS:
        body = _PART.sub(lambda found: found[0] if found[1].decode() in PARTS[name] else b"", body)
        body = b"local PARTS = {}\nfunction PARTS.claim()\n%send\n" % _file(CLAIM) + body
    if name in FLAGS:
        shebang = b"#!lua flags=" + FLAGS[name]
    body = _HOOKS.get(name, b"") + body
    text = b"".join((shebang, b"\n", *_needed_by(body), body))
    sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
    return _by_sha.setdefault(sha, Script(sha, text))


def scripts_in(commands: Iterable[Command]) -> list[Script]:
    """The scripts that these commands run."""
    return [_by_sha[sha] for sha in dict.fromkeys(c[1] for c in commands if c[0] == "EVALSHA")]


def _file(name: str) -> bytes:
    """The text of a file without its comments: the server has no use for them."""
    return _COMMENTS.sub(b"", (resources.files(__package__) / "lua" / f"{name}.lua").read_bytes())


@functools.cache
def _prelude() -> tuple[Paragraph, ...]:
    texts = (text.strip() + b"\n" for name in PRELUDE for text in _file(f"prelude/{name}").split(b"\n\n"))
    return tuple(Paragraph(_names_in(text), frozenset(_WORD.findall(text)), text) for text in texts)


def _names_in(text: bytes) -> frozenset[bytes]:
    return frozenset(name for names in _DEFINED.findall(text) for name in names.split(b", "))


def _needed_by(body: bytes) -> list[bytes]:
    """The paragraphs that the script uses. Each uses only those before it, so one walk back finds them all."""
    wanted, needed = set(_WORD.findall(body)), []
    for paragraph in reversed(_prelude()):
        if not wanted.isdisjoint(paragraph.names):
            wanted |= paragraph.words
            needed.append(paragraph.text)
    return needed[::-1]


class Part(NamedTuple):
    """One verb's part of settle_and_claim: how many settlements or slots, with their keys and arguments."""

    verb: str
    size: int
    keys: Sequence[str]
    args: Sequence[Argument]


class Scripts:
    """Makes commands that run scripts, with the keys and arguments that all scripts share. Sends nothing."""

    def __init__(self, config: Config, keys: Keys, clock: Callable[[], int] | None) -> None:
        self._keys = keys
        self._clock = clock
        worker = config.worker
        self._retention_ms = round(config.observability.stats_retention * 1000)
        self._fixed_args: tuple[str | int, ...] = (
            keys.records,
            keys.events,
            round(worker.heartbeat_ttl * 1000),
            round(worker.history_ttl * 1000),
            worker.completed_max,
            self._retention_ms,
            len(keys.queues),
            *keys.queue_names,
        )

    def command(self, name: str, keys: Sequence[str] = (), args: Sequence[Argument] = ()) -> Command:
        """Runs the script with these keys and arguments of its own."""
        now_ms = self._clock() if self._clock is not None else b""
        all_keys = (*self._keys.fixed, *keys)
        return ("EVALSHA", script(name).sha, len(all_keys), *all_keys, now_ms, *self._fixed_args, *args)

    def enqueue_plain(self, id: str, raw: bytes, queue: str, event: bytes) -> Command:
        """Runs a script that does not share the keys and arguments of the others: it is called for every single job."""
        keys, now_ms = self._keys, self._clock() if self._clock is not None else b""
        names = keys.records + id, keys.queue_of[queue], keys.stats
        args = now_ms, raw, queue, keys.events, event, self._retention_ms
        return ("EVALSHA", script("enqueue_plain").sha, 3, *names, *args)

    def next_due(self) -> Command:
        """Runs another script that does not share the keys and arguments of the others."""
        now_ms = self._clock() if self._clock is not None else b""
        keys = self._keys.scheduled, self._keys.schedules, self._keys.cancels, self._keys.deadlines
        return ("EVALSHA", script("next_due").sha, len(keys), *keys, now_ms)

    def lease(self, name: str, holder: str, ttl_ms: int, instead_of: str) -> Command:
        """As next_due()."""
        return ("EVALSHA", script("lease").sha, 1, self._keys.lease(name), holder, ttl_ms, instead_of)

    def watch(self, holder: str, lasts_ms: int) -> Command:
        """As next_due()."""
        keys = (self._keys.watch, self._keys.paused, *self._keys.queues)
        return ("EVALSHA", script("watch").sha, len(keys), *keys, holder, lasts_ms, *self._keys.queue_names)

    def settle_and_claim(
        self, parts: Sequence[Part], *, has_extras: bool = False, has_members: bool = False
    ) -> Command:
        """`has_extras`: a settlement has follow-ups or outputs. `has_members`: one may be about a member of a batch."""
        keys: list[str] = []
        head: list[Argument] = [len(parts)]
        args: list[Argument] = []
        for part in parts:
            keys += part.keys
            args += part.args
            head += (part.verb, part.size, len(part.keys), len(part.args))
        is_usual = _USUAL_PARTS.issuperset(part.verb for part in parts)
        name = SETTLE_AND_FOLLOW if has_extras else COMPLETE_AND_CLAIM if is_usual else SETTLE_AND_CLAIM
        name = SETTLE_MEMBERS if has_members else name
        return self.command(name, keys, head + args)


# The arguments of scripts: jobs that come in, as lua/prelude/entries.lua and lua/prelude/follow_ups.lua read them, and
# settlements, as lua/prelude/settlements.lua does.


_NO_VERSION = Version(b"", "")
_COMPLETED = "completed"  # the outcome
_encoder = msgspec.json.Encoder()


def entry_args(entry: Entry, keys: Keys) -> tuple[Argument, ...]:
    job, version = entry.job, entry.version or _NO_VERSION
    return (
        job.id,
        encode(job),
        keys.queue_numbers[entry.queue],
        version.path,
        version.signature,
        version.device,
        ("a" if entry.always else "") + ("d" if entry.fills_delivery else ""),
        entry.delay_ms,
        entry.at_ms,
        job.unique_key or "",
        (job.batch_id or "") if entry.joins else "",
        origin_of(job) if entry.is_own else "",
        "" if (deadline_ms := job.deadline_ms) is None else deadline_ms,
    )


def is_plain_entry(entry: Entry) -> bool:
    """Whether lua/enqueue_plain.lua can enqueue it."""
    is_due = not entry.delay_ms and not entry.at_ms
    is_special = entry.joins or entry.is_own or entry.job.deadline is not None
    return is_due and entry.version is None and entry.job.unique_key is None and not is_special


def extras(
    follow_ups: Sequence[FollowUp], keys: Keys, outputs: Sequence[Output] = ()
) -> tuple[Sequence[str], Sequence[Argument]]:
    """The keys and arguments of follow-ups and outputs."""
    records = (keys.record(follow_up.job.id) for follow_up in follow_ups)
    args: list[Argument] = [len(follow_ups)]
    for follow_up in follow_ups:
        args += entry_args(entry_of(follow_up), keys)
    args += (len(outputs), _encoder.encode(outputs) if outputs else b"")
    return (keys.unique, *records, *(keys.made(output.path) for output in outputs)), args


def laid_out(
    settlements: Sequence[Settlement], layout: Keys, claiming: Collection[str] = ()
) -> tuple[list[str], list[Argument]]:
    """The keys and arguments of settlements. A plain completion, the usual case, has the short form."""
    keys: list[str] = []
    args: list[Argument] = []
    for s in settlements:
        claim, is_plain, has_extras = s.claim, _is_plain(s), bool(s.follow_ups or s.outputs)
        flags = "n" if claim.slot in claiming else ""
        flags += ("" if is_plain else _long_flags(s)) + ("o" if s.order else "") + ("f" if has_extras else "")
        duration: Argument = b"" if s.duration_ms is None else s.duration_ms
        result = s.result if s.verb is not Verb.BURY else s.fingerprint
        keys += (*layout.of_slot(claim.slot), layout.records + _record_id(s))
        args += (claim.slot, claim.token, claim.raw, f"{layout.queue_numbers[claim.queue]}{flags}", result, duration)
        if not is_plain:
            args += _long_args(s)
        if s.order:
            keys.append(layout.orders)
            args.append(s.order)
        if has_extras:
            extra_keys, extra_args = extras(s.follow_ups, layout, s.outputs)
            keys += extra_keys
            args += extra_args
    return keys, args


def _record_id(s: Settlement) -> str:
    """Bytes that are no job are released under the id that the claim script read from them, and buried under an id made
    of the bytes."""
    if s.claim.job is None and s.verb is Verb.RELEASE and s.claim.record_id is not None:
        return s.claim.record_id
    return s.claim.id


def _is_plain(s: Settlement) -> bool:
    """A completion of which the script knows everything else: it makes the attempt and the event itself."""
    is_usual = s.verb is Verb.COMPLETE and s.claim.job is not None and s.next_raw == s.claim.raw and s.leaves is None
    return is_usual and s.outcome == _COMPLETED and not s.error and _is_plain_text(s.claim.slot)


@functools.lru_cache(maxsize=1024)
def _is_plain_text(text: str) -> bool:
    """Whether it is the same in JSON."""
    return _encoder.encode(text) == f'"{text}"'.encode()


def _long_flags(s: Settlement) -> str:
    has_no_id = s.claim.job is None and s.claim.record_id is None
    facts = {"d": s.died, "r": s.refused, "s": s.superseded, "u": has_no_id}
    return "x" + "".join(letter for letter, is_so in facts.items() if is_so)


def _long_args(s: Settlement) -> tuple[Argument, ...]:
    mistaken_id = (s.claim.record_id or "") if s.claim.job is None else ""
    version = (s.leaves.path, s.leaves.signature, s.leaves.device) if s.leaves else (b"", "", "")
    error = (s.error or s.reason).encode(errors="backslashreplace")
    event = wire_events.settled(s)
    return s.claim.id, _attempt_tail(s), event, s.next_raw, error, s.kind, s.delay_ms, mistaken_id, *version


def _attempt_tail(s: Settlement) -> bytes:
    """The attempt as JSON from `,"worker"` on: the script puts the server's times before it."""
    tail = _plain_tail(s.claim.slot, s.outcome)
    if s.duration_ms is not None:
        tail += b',"duration_ms":%d' % s.duration_ms
    if s.verb is Verb.BURY:
        tail += b',"is_fatal":true'
    if not s.error:
        return tail
    tail += b',"error":' + _encoder.encode(s.error)
    if s.traceback:
        tail += b',"traceback":' + _encoder.encode(s.traceback)
    return tail + b',"output":' + _encoder.encode(s.output) if s.output else tail


@functools.lru_cache(maxsize=1024)
def _plain_tail(slot: str, outcome: str) -> bytes:
    return b"," + _encoder.encode({"worker": slot, "outcome": outcome})[1:-1]
