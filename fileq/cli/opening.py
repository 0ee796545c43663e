"""Opens the broker for somebody who waits in front of the screen: soon, or not at all."""

from __future__ import annotations

import threading
from importlib import import_module

import msgspec

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.errors import BrokerUnavailable, ConfigError

# With the program's own start this stays under two seconds.
OPEN_TIMEOUT_S = 1.2
STEP_S = 0.05


def open_for_operator(config: Config, *, create: bool = False) -> FullBroker:
    """The broker, or BrokerUnavailable if it has not answered after OPEN_TIMEOUT_S, whatever keeps it from that."""
    if config.broker_kind == "memory":
        raise ConfigError(
            "broker is 'memory', which lives and ends with the process that runs it; "
            "from outside there is nothing to see: set sqlite or redis"
        )
    if config.broker_kind == "sqlite":
        # No time limit: opening never waits for another writer, and a migration must be left to finish.
        return open_broker(config, create=create)
    return _in_time(_hurried(config), create=create)


def _hurried(config: Config) -> Config:
    """One connection, opened when needed; a lost one is given up as fast as the first."""
    redis = msgspec.structs.replace(
        config.redis, min_idle_conns=0, dial_timeout=min(config.redis.dial_timeout, OPEN_TIMEOUT_S)
    )
    return msgspec.structs.replace(config, redis=redis)


def _in_time(config: Config, *, create: bool) -> FullBroker:
    """Opened by a thread that is left behind if it takes too long: names that don't resolve, several addresses,
    Sentinels or cluster nodes each have a time-out of their own, and no setting bounds their sum."""
    if config.broker_kind == "redis":
        # Before the clock starts: to load it takes a busy machine longer than any server to answer.
        import_module("fileq.brokers.redis.broker")
    opened: list[FullBroker] = []
    failed: list[BaseException] = []
    is_there = threading.Event()

    def open_it() -> None:
        try:
            opened.append(open_broker(config, create=create, answered=is_there.set))
        except BaseException as error:
            failed.append(error)
        is_there.set()

    thread = threading.Thread(target=open_it, name="open", daemon=True)
    thread.start()
    # In steps: on a machine that is too busy to wake us in time, the thread that opens is late by as much.
    if not any(is_there.wait(STEP_S) for _ in range(round(OPEN_TIMEOUT_S / STEP_S))):
        raise BrokerUnavailable(
            f"{config.broker_kind} at {config.broker_location} is away: no answer within {OPEN_TIMEOUT_S:g} s"
        )
    thread.join()  # what is there may be far away; its own time-outs hold for the rest
    if failed:
        raise failed[0]
    return opened[0]
