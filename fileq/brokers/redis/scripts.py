"""The Lua scripts: reads the files, puts each together with the prelude, and makes the command that runs it.

The files in lua/ are one script per verb. The files in lua/prelude/ stand before each of them. A file without a shebang
is a part of settle_and_claim and is loaded with it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import NamedTuple, TypeAlias

from fileq.brokers.redis.keys import Keys
from fileq.config import Config

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Argument, ...]

PRELUDE = ("arguments", "checks", "counters", "search", "jobs", "ledger", "settlements")  # each uses those before it
SETTLE_AND_CLAIM = "settle_and_claim"


class Script(NamedTuple):
    sha: str
    text: bytes


@functools.cache
def all_scripts() -> dict[str, Script]:
    """Every script by its name. The prelude follows the shebang, which must be the first line."""
    folder = resources.files(__package__) / "lua"
    texts = {file.name.removesuffix(".lua"): file.read_bytes() for file in folder.iterdir() if file.is_file()}
    prelude = b"".join((folder / "prelude" / f"{name}.lua").read_bytes() for name in PRELUDE)
    parts = {name: text for name, text in texts.items() if not text.startswith(b"#!")}
    functions = (b"PARTS.%s = function()\n%send\n" % (name.encode(), text) for name, text in sorted(parts.items()))
    before = {SETTLE_AND_CLAIM: b"local PARTS = {}\n" + b"".join(functions)}
    scripts = {}
    for name in texts.keys() - parts.keys():
        shebang, _, body = texts[name].partition(b"\n")
        text = b"\n".join((shebang, prelude, before.get(name, b"") + body))
        scripts[name] = Script(hashlib.sha1(text, usedforsecurity=False).hexdigest(), text)
    return scripts


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
        self._fixed_args: tuple[str | int, ...] = (
            keys.records,
            keys.events,
            round(worker.heartbeat_ttl * 1000),
            round(worker.history_ttl * 1000),
            worker.completed_max,
            round(config.observability.stats_retention * 1000),
            len(keys.queues),
            *keys.queue_names,
        )

    def command(self, name: str, keys: Sequence[str] = (), args: Sequence[Argument] = ()) -> Command:
        """Runs the script with these keys and arguments of its own."""
        now_ms = self._clock() if self._clock is not None else b""
        all_keys = (*self._keys.fixed, *keys)
        return ("EVALSHA", all_scripts()[name].sha, len(all_keys), *all_keys, now_ms, *self._fixed_args, *args)

    def settle_and_claim(self, parts: Sequence[Part]) -> Command:
        keys: list[str] = []
        head: list[Argument] = [len(parts)]
        args: list[Argument] = []
        for part in parts:
            keys += part.keys
            args += part.args
            head += (part.verb, part.size, len(part.keys), len(part.args))
        return self.command(SETTLE_AND_CLAIM, keys, head + args)
