"""Is this server fit to keep jobs: its version, whether it evicts or forgets, its clock, our rights. Changes nothing.

Where the server does not let us ask, the answer is that it can't be told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.finding import Finding, sound, unknown, wrong
from fileq.core.settlement import Verb

if TYPE_CHECKING:
    from fileq.brokers.redis.broker import RedisBroker

OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
MOST_SKEW_S = 2.0
_PROBE = "fileq-doctor"  # a slot that nobody registers: it is given no job
_FORBIDDEN = "this user may not ask"


def examine(broker: RedisBroker) -> list[Finding]:
    """What a start warns about. BrokerUnavailable if the server goes away meanwhile."""
    info = _info(broker)
    return [*_version(info), *_role(info), _eviction(broker, info), *_persistence(broker, info), _clock(broker)]


def _info(broker: RedisBroker) -> dict[str, str]:
    """Empty where it is forbidden."""
    reply = _asked(broker, "INFO")
    if not isinstance(reply, bytes):
        return {}
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, sign, value in lines if sign}


def _asked(broker: RedisBroker, *command: str) -> Any:
    """The answer; None where the server refuses to give one."""
    try:
        return broker.link.call(*command)
    except BrokerUnavailable:
        raise
    except BrokerError:
        return None


def _setting(broker: RedisBroker, name: str) -> str | None:
    reply = _asked(broker, "CONFIG", "GET", name)
    if not isinstance(reply, list) or len(reply) < 2:
        return None
    value: bytes = reply[1]
    return value.decode(errors="replace")


def _version(info: dict[str, str]) -> Iterator[Finding]:
    server = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{server}_version", "")
    name = server.capitalize()
    if not version:
        yield unknown("version", f"{_FORBIDDEN} for it", "allow INFO: ACL SETUSER … +info")
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    oldest = ".".join(map(str, OLDEST[server]))
    if numbers < OLDEST[server]:
        yield wrong("version", f"{name} {version}", f"upgrade it to {oldest} or later")
    else:
        yield sound("version", f"{name} {version}")


def _role(info: dict[str, str]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield wrong("role", "the server is a replica, which takes no jobs", "name the primary, or use Sentinel's URL")


def _eviction(broker: RedisBroker, info: dict[str, str]) -> Finding:
    policy = info.get("maxmemory_policy") or _setting(broker, "maxmemory-policy")
    limit = info.get("maxmemory") or _setting(broker, "maxmemory")
    if policy is None or limit is None:
        return unknown("eviction", f"{_FORBIDDEN} for maxmemory-policy", "see that it is noeviction")
    if policy == "noeviction":
        return sound("eviction", "maxmemory-policy is noeviction")
    if limit == "0":
        return sound("eviction", f"maxmemory-policy is {policy}, but there is no maxmemory")
    return wrong(
        "eviction",
        f"maxmemory-policy is {policy}: jobs vanish when memory is full",
        "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
    )


def _persistence(broker: RedisBroker, info: dict[str, str]) -> Iterator[Finding]:
    appends = info.get("aof_enabled")
    if appends is None:
        given = _setting(broker, "appendonly")
        appends = None if given is None else str(int(given == "yes"))
    saves = _setting(broker, "save")
    if appends == "1":
        yield sound("persistence", "append-only file")
    elif saves:
        yield sound("persistence", f"snapshots only ({saves}); a crash loses what came after the last one")
    elif appends == "0" and saves == "":
        yield wrong(
            "persistence",
            "neither an append-only file nor snapshots: a restart loses every job",
            "CONFIG SET appendonly yes, and the same in its configuration file",
        )
    else:
        yield unknown("persistence", f"{_FORBIDDEN} for appendonly and save", "see that appendonly is yes")
    for field, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if info.get(field, "ok") != "ok" and (appends == "1" or field.startswith("rdb")):
            yield wrong("persistence", f"the last {what} could not be written", "see the server's log and its disk")


def _clock(broker: RedisBroker) -> Finding:
    before_s = time.time()
    reply = _asked(broker, "TIME")
    after_s = time.time()
    if not isinstance(reply, list):
        return unknown("clock", f"{_FORBIDDEN} for the time", "allow TIME: ACL SETUSER … +time")
    server_s = int(reply[0]) + int(reply[1]) / 1e6
    # The server answered somewhere between the two.
    skew_s = max(before_s - server_s, server_s - after_s, 0.0)
    if skew_s > MOST_SKEW_S:
        direction = "behind" if server_s < before_s else "ahead of"
        return wrong(
            "clock",
            f"the server is {skew_s:.1f} s {direction} this machine",
            "synchronise both clocks (NTP): delayed jobs start by the server's, times are shown by this one's",
        )
    return sound("clock", f"within {MOST_SKEW_S:g} s of the server's")


def examine_rights(broker: RedisBroker) -> Finding:
    """Runs scripts on nothing: each looks at all rights before it would write."""
    trials: dict[str, Callable[[], object]] = {
        "read": lambda: broker.census(),
        "enqueue": lambda: broker.scripts.one("enqueue", [], (0,)),
        "claim": lambda: broker.settle_and_claim([], [_PROBE]),
        "complete": lambda: broker.turn_about_nothing(Verb.COMPLETE),
        "retry": lambda: broker.turn_about_nothing(Verb.RETRY),
        "bury": lambda: broker.turn_about_nothing(Verb.BURY),
        "release": lambda: broker.turn_about_nothing(Verb.RELEASE),
    }
    for verb, trial in trials.items():
        try:
            trial()
        except BrokerError as error:
            return wrong("rights", f"can't {verb}: {error}", "the README lists the rights fileq needs")
    return sound("rights", "enough to read, enqueue, claim and settle")
