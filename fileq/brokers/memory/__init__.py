"""The memory broker: one process, nothing on disk. For tests and trials."""

from __future__ import annotations

from fileq.brokers.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
