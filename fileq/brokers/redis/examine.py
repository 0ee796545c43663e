"""Checks whether the server is fit to keep jobs: version, role, eviction, persistence, clock, permissions of this user.

Changes nothing. Where the server forbids a question, the finding is "unknown".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fileq.brokers.redis.scripts import Part
from fileq.brokers.redis.store import WORKER_CONNECTIONS, RedisStore
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.finding import Finding, sound, unknown, wrong
from fileq.core.settlement import Verb
from fileq.core.units import short_duration

OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
MOST_SKEW_S = 2.0
_PROBE = "fileq-doctor"  # a slot that is never registered, so a claim gives it no job
_RIGHTS = "docs/redis.md lists the permissions fileq needs"
_FULL = "make room: delete dead jobs ('fileq purge-dlq'), or raise maxmemory"
_APPEND = "CONFIG SET appendonly yes, and the same in its configuration file"
_FORBIDDEN = "this user is not permitted to ask"


def examine(store: RedisStore) -> list[Finding]:
    """Everything but the permissions. BrokerUnavailable if the server goes away meanwhile."""
    info = _info(store)
    return [
        *_version(info),
        *_role(info),
        _eviction(store, info),
        *_persistence(store, info),
        _clock(store),
        *_connections(store, info),
    ]


def _info(store: RedisStore) -> dict[str, str]:
    """The fields of INFO; empty if it is forbidden."""
    reply = _reply_or_none(store, "INFO")
    if not isinstance(reply, bytes):
        return {}
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, sign, value in lines if sign}


def _reply_or_none(store: RedisStore, *command: str) -> Any:
    """The reply; None if the server refuses the command."""
    try:
        return store.call(*command)
    except BrokerUnavailable:
        raise
    except BrokerError:
        return None


def _setting(store: RedisStore, name: str) -> str | None:
    reply = _reply_or_none(store, "CONFIG", "GET", name)
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


def _eviction(store: RedisStore, info: dict[str, str]) -> Finding:
    policy = info.get("maxmemory_policy") or _setting(store, "maxmemory-policy")
    limit = info.get("maxmemory") or _setting(store, "maxmemory")
    if policy is None or limit is None:
        return unknown("eviction", f"{_FORBIDDEN} for maxmemory-policy", "make sure that it is noeviction")
    if policy == "noeviction":
        return sound("eviction", "maxmemory-policy is noeviction")
    if limit == "0":
        return sound("eviction", f"maxmemory-policy is {policy}, but there is no maxmemory")
    return wrong(
        "eviction",
        f"maxmemory-policy is {policy}: jobs vanish when memory is full",
        "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
    )


def _persistence(store: RedisStore, info: dict[str, str]) -> Iterator[Finding]:
    appends = info.get("aof_enabled")
    if appends is None:
        given = _setting(store, "appendonly")
        appends = None if given is None else str(int(given == "yes"))
    saves = _setting(store, "save")
    if appends == "1":
        yield sound("persistence", "append-only file")
    elif saves:
        yield wrong("persistence", f"snapshots only ({saves}): a crash loses every job since the last one", _APPEND)
    elif appends == "0" and saves == "":
        yield wrong("persistence", "neither an append-only file nor snapshots: a restart loses every job", _APPEND)
    else:
        yield unknown("persistence", f"{_FORBIDDEN} for appendonly and save", "make sure that appendonly is yes")
    for field, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if info.get(field, "ok") != "ok" and (appends == "1" or field.startswith("rdb")):
            yield wrong("persistence", f"the last {what} could not be written", "see the server's log and its disk")


def _clock(store: RedisStore) -> Finding:
    before_s = time.time()
    reply = _reply_or_none(store, "TIME")
    after_s = time.time()
    if not isinstance(reply, list):
        return unknown("clock", f"{_FORBIDDEN} for the time", "allow TIME: ACL SETUSER … +time")
    server_s = int(reply[0]) + int(reply[1]) / 1e6
    # The server read its clock at some moment between the two.
    skew_s = max(before_s - server_s, server_s - after_s, 0.0)
    if skew_s > MOST_SKEW_S:
        direction = "behind" if server_s < before_s else "ahead of"
        return wrong(
            "clock",
            f"the server is {short_duration(skew_s)} {direction} this machine",
            "synchronise both clocks (NTP): delayed jobs start by the server's, times are shown by this one's",
        )
    return sound("clock", f"within {short_duration(MOST_SKEW_S)} of the server's")


def _connections(store: RedisStore, info: dict[str, str]) -> Iterator[Finding]:
    """Whether the server has room for another half of the connections it has."""
    if not (connected := info.get("connected_clients", "")) or not (most := info.get("maxclients", "")):
        return
    workers = sum(line.startswith("fileq:worker:") for line in _client_names(store))
    detail = f"{int(connected):,} of maxclients {int(most):,}" + (f", {workers:,} of workers" if workers else "")
    if 3 * int(connected) > 2 * int(most):
        advice = f"a worker takes up to {WORKER_CONNECTIONS}: raise maxclients and the server's open-file limit"
        yield wrong("connections", detail, advice)
    else:
        yield sound("connections", detail)


def _client_names(store: RedisStore) -> list[str]:
    """The names of all connections to the server; none if it is forbidden to list them."""
    reply = _reply_or_none(store, "CLIENT", "LIST")
    if not isinstance(reply, bytes):
        return []
    fields = (line.partition(" name=")[2] for line in reply.decode(errors="replace").splitlines())
    return [name.partition(" ")[0] for name in fields]


def examine_permissions(store: RedisStore) -> Finding:
    """Runs scripts with nothing to do: each checks all its permissions before it would write."""
    admit_keys = (*store.keys.of_route(_PROBE), store.keys.processing(_PROBE))
    trials: dict[str, Callable[[], object]] = {
        "read": lambda: store.run("census", (), store.keys.split_patterns()),
        "enqueue": lambda: store.run("enqueue", (), (0,)),
        "report a producer": lambda: store.run("report_producer", (store.keys.producers,)),
        "claim": lambda: _try(store, Part("claim", 1, store.keys.of_slot(_PROBE), (0, 0, 0, _PROBE))),
        **{verb.value: partial(_try, store, Part(verb.value, 0, (), ())) for verb in Verb if verb is not Verb.CANCEL},
        "limit routes": lambda: store.run("admit", admit_keys, ("", "", 0, _PROBE, "", 1, 1, 1000)),
    }
    for verb, trial in trials.items():
        try:
            trial()
        except BrokerError as error:
            return wrong("permissions", f"can't {verb}: {error}", _FULL if "OOM" in str(error) else _RIGHTS)
    return sound("permissions", "enough to read, enqueue, claim and settle")


def _try(store: RedisStore, part: Part) -> None:
    for answer in store.link.reply(store.scripts.settle_and_claim([part])):
        store.link.checked(answer)
