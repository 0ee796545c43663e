"""What a broker promises about the registry of producers: which ones are alive, and what they do.

For operators only. No job depends on it, and nothing is decided by it. The rules of protocol.py hold here too.
"""

from __future__ import annotations

from typing import Protocol

from fileq.brokers.producer_types import ProducerInfo, ProducerView


class ProducerRegistry(Protocol):
    """Each producer reports itself with a lease. A report whose lease has ended no longer counts."""

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        """Replaces what is known of this producer. Its lease ends `ttl_ms` from now.

        May also delete reports of other producers whose lease has ended.

        Atomicity: the report. Repeat: the same, from the later time. Kill -9: the old report or the new one; it ends
        with its lease."""
        ...

    def remove_producer(self, id: str) -> None:
        """Removes the report of a producer that stops.

        Atomicity: the report. Repeat: no effect. Kill -9: removed, or it ends with its lease."""
        ...

    def producers(self) -> list[ProducerView]:
        """Every producer whose lease has not ended, by its id. Only reads."""
        ...
