"""Opens the broker for an operator's command: within two seconds, or not at all. Roles open theirs elsewhere."""

from __future__ import annotations

import threading
from importlib import import_module

import msgspec

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.errors import BrokerUnavailable, ConfigError
from fileq.core.text import broker_name
from fileq.core.units import short_duration

# Together with the start of the program this stays under two seconds.
OPEN_TIMEOUT_S = 1.2
STEP_S = 0.05


def open_for_operator(config: Config, *, create: bool = False) -> FullBroker:
    """Raises BrokerUnavailable if the broker has not answered after OPEN_TIMEOUT_S, for any reason."""
    if config.broker_kind == "memory":
        raise ConfigError(
            "broker is 'memory', which exists only inside the process that runs it; "
            "other processes can't read it: set sqlite or redis"
        )
    if config.broker_kind == "sqlite":
        # No time limit: opening never waits for another writer.
        return open_broker(config, create=create)
    return _open_in_time(_with_short_timeouts(config), create=create)


def _with_short_timeouts(config: Config) -> Config:
    """One connection, opened when needed; a reconnect fails as fast as the first connection."""
    redis = msgspec.structs.replace(
        config.redis, min_idle_conns=0, dial_timeout=min(config.redis.dial_timeout, OPEN_TIMEOUT_S)
    )
    return msgspec.structs.replace(config, redis=redis)


def _open_in_time(config: Config, *, create: bool) -> FullBroker:
    """Opens in a daemon thread, which is abandoned if it takes too long.

    DNS, several addresses, Sentinels and cluster nodes each have their own timeout, and no setting bounds their sum."""
    if config.broker_kind == "redis":
        # Imported before the time limit starts: on a busy machine the import takes longer than a server's answer.
        import_module("fileq.brokers.redis.broker")
    opened: list[FullBroker] = []
    failed: list[BaseException] = []
    has_answered = threading.Event()

    def open_it() -> None:
        try:
            opened.append(open_broker(config, create=create, answered=has_answered.set))
        except BaseException as error:
            failed.append(error)
        has_answered.set()

    thread = threading.Thread(target=open_it, name="open", daemon=True)
    thread.start()
    # In steps: where the machine is too busy to wake this thread in time, the opening thread is as late, so the limit
    # is counted in wake-ups and not in elapsed time.
    if not any(has_answered.wait(STEP_S) for _ in range(round(OPEN_TIMEOUT_S / STEP_S))):
        server = f"{broker_name(config.broker_kind)} at {config.broker_location}"
        raise BrokerUnavailable(f"{server} is unavailable: no answer within {short_duration(OPEN_TIMEOUT_S)}")
    thread.join()  # the broker has answered; from here its own timeouts apply
    if failed:
        raise failed[0]
    return opened[0]
