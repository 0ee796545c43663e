"""The Lua scripts: reads the files, puts each together with what it needs of the prelude, makes the command to run it.

The files in lua/ are one script per verb. A file without a shebang is a part of settle_and_claim. The files in
lua/prelude/ hold what the scripts share, in paragraphs: local functions and values with a blank line between them. A
script gets only the paragraphs it uses, because every call defines them again.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import NamedTuple, TypeAlias

from fileq.brokers.redis.keys import Keys
from fileq.config import Config

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Argument, ...]

PRELUDE = (  # in order of use
    *("arguments", "checks", "counters", "search", "jobs", "events", "withdrawals", "ledger", "entries", "follow_ups"),
    *("batches", "settlements"),
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
_ALL_PARTS = ("complete", "retry", "bury", "release", "cancel", "defer", "claim")
PARTS = {
    COMPLETE_AND_CLAIM: ("complete", "claim"),
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
    functions = (b"PARTS.%s = function()\n%send\n" % (part.encode(), _file(part)) for part in PARTS.get(name, ()))
    if name in PARTS:
        body = b"local PARTS = {}\n" + b"".join(functions) + body
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
