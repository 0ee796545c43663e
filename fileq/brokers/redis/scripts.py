"""The Lua files: found, put together with their prelude, named by their digest, called in batches."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

from fileq.brokers.redis.link import Command, Link, Replies
from fileq.brokers.redis.names import Names
from fileq.config import Config

PRELUDE, TURN = "prelude", "settle_and_claim"


class Script(NamedTuple):
    sha: str
    text: bytes


@functools.cache
def all_scripts() -> dict[str, Script]:
    """Every script by its name. The prelude goes right behind the shebang, which must stay first; files without one
    are the parts of a turn, and go with it."""
    folder = resources.files(__package__) / "lua"
    texts = {file.name.removesuffix(".lua"): file.read_bytes() for file in folder.iterdir()}
    prelude = texts.pop(PRELUDE)
    parts = {name: text for name, text in texts.items() if not text.startswith(b"#!")}
    functions = (b"PARTS.%s = function()\n%send\n" % (name.encode(), text) for name, text in sorted(parts.items()))
    before = {TURN: b"local PARTS = {}\n" + b"".join(functions)}
    scripts = {}
    for name in texts.keys() - parts.keys():
        shebang, _, body = texts[name].partition(b"\n")
        text = b"\n".join((shebang, prelude, before.get(name, b"") + body))
        scripts[name] = Script(hashlib.sha1(text, usedforsecurity=False).hexdigest(), text)
    return scripts


class Call(NamedTuple):
    """One run of one script: its own keys and arguments; the fixed ones are added when it is sent."""

    name: str
    keys: Sequence[str] = ()
    args: Sequence[bytes | str | int] = ()


class Part(NamedTuple):
    """A verb's share of a turn: so many settlements or slots, with their keys and arguments."""

    verb: str
    size: int
    keys: Sequence[str]
    args: Sequence[bytes | str | int]


def turn_call(parts: Sequence[Part]) -> Call:
    keys: list[str] = []
    head: list[bytes | str | int] = [len(parts)]
    args: list[bytes | str | int] = []
    for part in parts:
        keys += part.keys
        args += part.args
        head += (part.verb, part.size, len(part.keys), len(part.args))
    return Call(TURN, keys, head + args)


class Scripts:
    """Runs scripts over a link, any number in one round trip. Thread-safe."""

    def __init__(self, link: Link, config: Config, names: Names, clock: Callable[[], int] | None) -> None:
        self._link = link
        self._names = names
        self._clock = clock
        worker = config.worker
        self._fixed_args: tuple[str | int, ...] = (
            names.records,
            names.events,
            round(worker.heartbeat_ttl * 1000),
            round(worker.history_ttl * 1000),
            worker.completed_max,
            round(config.observability.stats_retention * 1000),
            len(names.queues),
            *names.queue_names,
        )

    def run(self, *calls: Call) -> Replies:
        """The replies, errors in their places."""
        return self.post(*calls).take()

    def post(self, *calls: Call) -> PostedCalls:
        """As run(), in two steps."""
        return PostedCalls(self, self._link, [self._command(call) for call in calls])

    def one(self, name: str, keys: Sequence[str] = (), args: Sequence[bytes | str | int] = ()) -> Any:
        return self._link.value(self.run(Call(name, keys, args))[0])

    def load(self) -> None:
        for reply in self._link.send([("SCRIPT", "LOAD", script.text) for script in all_scripts().values()]):
            self._link.value(reply)

    def _command(self, call: Call) -> Command:
        now = self._clock() if self._clock is not None else b""
        keys = (*self._names.fixed, *call.keys)
        return ("EVALSHA", all_scripts()[call.name].sha, len(keys), *keys, now, *self._fixed_args, *call.args)

    def given_now(self) -> int | None:
        """The time a test has set; None when the server's own counts."""
        return self._clock() if self._clock is not None else None


class PostedCalls:
    """Calls on their way. Every script can be repeated, so a server that has lost them is given them all and the whole
    batch again."""

    def __init__(self, scripts: Scripts, link: Link, commands: Sequence[Command]) -> None:
        self._scripts = scripts
        self._link = link
        self._commands = commands
        self._posted = link.post(commands)

    def take(self) -> Replies:
        replies = self._posted.take()
        if any(isinstance(reply, NoScriptError) for reply in replies):
            self._scripts.load()
            # A server that crashed after obeying has lost its reply and its scripts together.
            was_repeated = replies.repeated
            replies = self._link.send(self._commands)
            replies.repeated |= was_repeated
        return replies

    def drop(self) -> None:
        self._posted.drop()
