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

PRELUDE = "prelude"


class Script(NamedTuple):
    sha: str
    text: bytes


@functools.cache
def all_scripts() -> dict[str, Script]:
    """Every verb by its name. The prelude goes right behind the shebang, which must stay first."""
    folder = resources.files(__package__) / "lua"
    prelude = (folder / f"{PRELUDE}.lua").read_bytes()
    scripts = {}
    for file in folder.iterdir():
        name = file.name.removesuffix(".lua")
        if name != PRELUDE:
            shebang, _, body = file.read_bytes().partition(b"\n")
            text = shebang + b"\n" + prelude + b"\n" + body
            scripts[name] = Script(hashlib.sha1(text, usedforsecurity=False).hexdigest(), text)
    return scripts


class Call(NamedTuple):
    """One run of one script: its own keys and arguments; the fixed ones are added when it is sent."""

    name: str
    keys: Sequence[str] = ()
    args: Sequence[bytes | str | int] = ()


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
        """The replies, errors in their places. Every script can be repeated, so a server that has lost them
        is given them all and the whole batch again."""
        commands = [self._command(call) for call in calls]
        replies = self._link.send(commands)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            self.load()
            # A server that crashed after obeying has lost its reply and its scripts together.
            was_repeated = replies.repeated
            replies = self._link.send(commands)
            replies.repeated |= was_repeated
        return replies

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
