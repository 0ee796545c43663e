"""The verbs of the rulebook, put together. A backing adds its store and its lists by pages."""

from __future__ import annotations

from fileq.brokers.rules.batches import BatchVerbs
from fileq.brokers.rules.operators import OperatorVerbs
from fileq.brokers.rules.queues import QueueVerbs
from fileq.brokers.rules.repairs import RepairVerbs
from fileq.brokers.rules.schedules import ScheduleVerbs


class RulebookBroker(QueueVerbs, OperatorVerbs, RepairVerbs, ScheduleVerbs, BatchVerbs):
    """Every method that changes something is one unit of work; it can be repeated as brokers/protocol.py says."""
