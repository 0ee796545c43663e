"""`fileq events`: follows the events that the broker publishes, also across its outages. Only reads."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from fileq.brokers.notifications import Subscription
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import WireEvent
from fileq.core.errors import BrokerUnavailable
from fileq.core.text import printable
from fileq.core.units import short_duration

GET_TIMEOUT_S = 1.0
RETRY_S = 1.0
_decode = msgspec.json.Decoder(WireEvent).decode


def follow(
    broker: FullBroker,
    show: Callable[[bytes], None],
    report: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows every event from now on, for ever. `report` gets the begin and the end of each outage of the broker.

    A broker that is unreachable at the start is an error. Events published during an outage are not shown."""
    subscription = broker.subscribe()
    try:
        report(f"following the events of {broker.kind} at {broker.where}; Ctrl-C ends")
        while True:
            try:
                event = subscription.get(GET_TIMEOUT_S)
            except BrokerUnavailable as error:
                report(f"{error}; trying again every {RETRY_S:g} s")
                subscription.close()
                subscription = _subscribe_again(broker, sleep)
                report("connected again; events published in between are missing")
                continue
            if event is not None:
                show(event)
    finally:
        subscription.close()


def _subscribe_again(broker: FullBroker, sleep: Callable[[float], None]) -> Subscription:
    while True:
        sleep(RETRY_S)
        try:
            return broker.subscribe()
        except BrokerUnavailable:
            continue


def event_line(event: bytes) -> str:
    """`18:51:50Z job:completed /data/a.pdf queue=low duration=3ms id=…`; an error comes last."""
    e = _decode(event)
    moment = time.strftime("%H:%M:%SZ", time.gmtime(e.at / 1000))
    fields = {
        "queue": e.priority,
        "duration": short_duration(e.duration_ms / 1000) if e.duration_ms else "",
        "failures": str(e.retry_count) if e.retry_count else "",
        "id": e.job_id,
        "error": e.error,
    }
    shown = " ".join(f"{name}={value}" for name, value in fields.items() if value)
    return printable(f"{moment} {e.event:<13} {' '.join(filter(None, (e.filepath, e.type, shown)))}")
