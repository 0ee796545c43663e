"""What operators see of a producer: its state, its last scan and what holds it back, written to the broker.

Reads the producer from another thread and never changes it, so the producer's turns never wait for a report. A kill -9
leaves the last report, which ends with its lease.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from fileq import __version__
from fileq.brokers.local_processes import this_process
from fileq.brokers.protocol import ProducerRegistry
from fileq.brokers.types import ProducerInfo, ScanInfo
from fileq.config import Config
from fileq.core.errors import BrokerError, BrokerRemoved, BrokerUnavailable
from fileq.core.events import BrokerRefused, Emit
from fileq.core.job import wall_clock_ms
from fileq.producer.producer import Producer

REPORT_EVERY_S = 3.0


class ProducerReport:
    """Reports one producer with a lease of `worker.heartbeat_ttl`. `is_turning`: whether its loop makes progress."""

    name = "producer report"

    def __init__(
        self,
        config: Config,
        producer: Producer,
        registry: ProducerRegistry,
        *,
        emit: Emit,
        is_turning: Callable[[], bool] = lambda: True,
    ) -> None:
        self._producer = producer
        self._registry = registry
        self._emit = emit
        self._is_turning = is_turning
        root = os.fsencode(os.path.abspath(config.producer.scan_dir))
        self._root = root.decode(errors="backslashreplace")  # a name that is not UTF-8 cannot be JSON
        self._lease_s = config.worker.heartbeat_ttl
        self._host = socket.gethostname()
        self._started_s = time.monotonic()
        # host-pid-nonce: a restarted container has the same host and pid.
        self._id = f"{self._host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._is_reported = False
        self._is_refused = False

    def turn(self) -> float:
        """Writes a report and returns the seconds until the next one. An outage is silent: the producer reports it."""
        self._is_reported = False
        try:
            self._registry.report_producer(self._id, self.info(), round(self._lease_s * 1000))
            self._is_reported, self._is_refused = True, False
        except (BrokerUnavailable, BrokerRemoved):
            pass
        except BrokerError as error:
            # For example a missing permission. It must not stop the producer, so it is only logged, and once.
            if not self._is_refused:
                self._is_refused = True
                self._emit(BrokerRefused(str(error)))
        return min(REPORT_EVERY_S, self._lease_s / 3)

    def at_end(self) -> None:
        """At a clean stop. Does not try a broker that did not take the last report: the lease ends by itself."""
        if self._is_reported:
            with suppress(BrokerError):
                self._registry.remove_producer(self._id)

    def info(self) -> ProducerInfo:
        own = this_process()
        producer, finder = self._producer, self._producer.finder
        hold, scan = producer.enqueuer.hold, finder.last_scan
        last_scan = None
        if scan is not None:
            skipped = {reason.value: count for reason, count in scan.skipped.items()}
            began_ms, ended_ms = self._wall_ms(scan.began_s), self._wall_ms(scan.ended_s)
            last_scan = ScanInfo(began_ms, ended_ms, scan.found, scan.is_complete, skipped)
        if not self._is_turning():
            state = "stuck"
        elif finder.problem:
            state = "lost"
        elif hold is not None:
            state = "held"
        else:
            state = "scanning" if finder.is_scanning else "watching"
        return ProducerInfo(
            host=self._host,
            pid=os.getpid(),
            started_ms=self._wall_ms(self._started_s),
            version=__version__,
            roots=(self._root,),
            state=state,
            problem=finder.problem,
            held_by=hold.reason if hold is not None else "",
            held_since_ms=self._wall_ms(hold.since_s) if hold is not None else 0,
            last_scan=last_scan,
            enqueued=producer.counts.enqueued,
            waiting=producer.unsent,
            boot_id=own.boot_id,
            namespaces=own.namespaces,
            pid_start=own.pid_start,
        )

    def _wall_ms(self, monotonic_s: float) -> int:
        """That moment on the wall clock as it is now: right even if the clock was set since then."""
        return wall_clock_ms() - round((time.monotonic() - monotonic_s) * 1000)
