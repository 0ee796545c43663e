"""What the parts of the broker on Redis share: the connections, the scripts, the keys, the clock, the claim order.

Owns every call to the server except the blocking ones (waiting.py). Keeps no job and no copy of the server's state.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fileq.brokers.local_waiter import ClaimOrder
from fileq.brokers.redis.connection import ReplyError
from fileq.brokers.redis.due_watch import DueWatch
from fileq.brokers.redis.encoding import as_record
from fileq.brokers.redis.keys import Keys
from fileq.brokers.redis.link import InFlightCall, Link
from fileq.brokers.redis.scripts import Argument, Command, Scripts
from fileq.brokers.types import Record
from fileq.config import Config

SCAN_COUNT = 1000
_ESCAPES = str.maketrans({c: f"\\{c}" for c in "*?[]\\^"})


class RedisStore:
    """Calls to one server. Thread-safe. `clock` replaces the server's time in tests."""

    def __init__(self, config: Config, *, role: str = "", clock: Callable[[], int] | None = None) -> None:
        self.config = config
        self.keys = Keys(config)
        self.queues = self.keys.queue_names
        self.link = Link(config, role)
        self.scripts = Scripts(config, self.keys, clock)
        self.order = ClaimOrder(self.queues, config.worker.starvation_share)
        self.tokens: Counter[str] = Counter()  # claims of each slot so far; a token tells two claims of a slot apart
        self.last_offsets: dict[str, int] = {}  # of each list, counted from its tail: where a search begins
        self.page_sizes: dict[str, int] = {}  # of each list: how many of its elements make a page
        self.patience = 1.0  # see protocol.Broker
        self.due_watch = DueWatch(self.link, self.scripts.next_due)
        self._clock = clock

    def close(self) -> None:
        self.due_watch.close()
        self.link.close()

    def calls(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, in one round trip; the first error reply is raised."""
        if not commands:
            return []
        replies = InFlightCall(self.link, commands, list).take()
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                self.link.checked(reply, _name_of(command))
        return replies

    def calls_in_batches(self, commands: Sequence[Command]) -> list[Any]:
        """As calls(), in as many round trips as it takes to keep each short."""
        batches = (commands[start : start + SCAN_COUNT] for start in range(0, len(commands), SCAN_COUNT))
        return [reply for batch in batches for reply in self.calls(batch)]

    def call(self, *command: Argument) -> Any:
        return self.calls([command])[0]

    def run(self, script: str, keys: Sequence[str] = (), args: Sequence[Argument] = ()) -> Any:
        """What the script returns."""
        return self.link.reply(self.scripts.command(script, keys, args))

    def now_ms(self) -> int:
        return self._clock() if self._clock is not None else time.time_ns() // 1_000_000

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        """The record of each job; None where there is none."""
        found = zip(ids, self.calls([("HGETALL", self.keys.record(id)) for id in ids]), strict=True)
        return [as_record(id, dict(zip(flat[::2], flat[1::2], strict=True))) for id, flat in found]

    def unregistered_slots(self) -> list[str]:
        """Slots that have a processing list and no registry entry."""
        before, after, _, _ = self.keys.split_patterns()
        registered = {slot.decode() for slot in self.call("HKEYS", self.keys.workers)}
        found = {
            key.decode()[len(before) : len(key.decode()) - len(after)]
            for keys in self.scan(before, after, kind="list")
            for key in keys
        }
        return sorted(found - registered)

    def scan(self, before: str, after: str = "", *, kind: str) -> Iterator[list[bytes]]:
        """All keys of this type that start and end with these texts, page by page."""
        pattern = f"{before.translate(_ESCAPES)}*{after.translate(_ESCAPES)}"
        cursor: bytes | int = 0
        while True:
            cursor, keys = self.call("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", kind)
            yield keys
            if int(cursor) == 0:
                return


def _name_of(command: Command) -> str:
    """What an error says of a command. An error of a script names its own one."""
    return "" if command[0] == "EVALSHA" else " ".join(map(str, command[:2]))
