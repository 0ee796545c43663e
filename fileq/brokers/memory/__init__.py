from fileq.brokers.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
