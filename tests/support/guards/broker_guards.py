"""The guards of the SQLite broker and the memory broker."""

from tests.support.guards.guard import Guard, conformance

SQLITE, MEMORY = "fileq/brokers/sqlite/", "fileq/brokers/memory/"


def on_sqlite(guarantee: str, file: str, text: str, mutant: str, *classes: str) -> Guard:
    return Guard(guarantee, SQLITE + file, text, mutant, conformance("sqlite", *classes))


def in_memory(guarantee: str, file: str, text: str, mutant: str, *classes: str) -> Guard:
    return Guard(guarantee, MEMORY + file, text, mutant, conformance("memory", *classes))


BROKER_GUARDS = (
    on_sqlite(
        "A settlement counts only if its slot still holds the job",
        "settlements.py",
        " or slot_row.raw != s.claim.raw:\n        work.count",
        ":\n        work.count",
        "TestSettle",
    ),
    on_sqlite(
        "A late call about an earlier claim is fenced",
        "settlements.py",
        " or s.claim.token < (slot_row.settled_token or 0)",
        "",
        "TestSettle",
    ),
    on_sqlite(
        "A repeated settlement has no second effect",
        "settlements.py",
        "    if slot_row is not None and slot_row.settled_token == s.claim.token:\n",
        "    if False:\n",
        "TestSettle",
    ),
    on_sqlite(
        "Settling renews the heartbeat",
        "settlements.py",
        "    work.renew_heartbeat(slot_row)\n",
        "",
        "settling_is_a_heartbeat",
    ),
    on_sqlite(
        "Of two reapers one moves the job",
        "settlements.py",
        "    if slot_row.raw != s.claim.raw:\n        return SettleResult.FENCED\n",
        "",
        "TestReap",
    ),
    on_sqlite(
        "A settled job leaves its slot",
        "settlements.py",
        "    work.change_slot(slot_row).raw = None\n",
        "",
        "TestSettle",
    ),
    on_sqlite(
        "A slot that is not registered gets no job",
        "queues.py",
        "if (row := work.slot(slot)) and row.info is not None}",
        "if (row := work.slot(slot))}",
        "TestClaim",
    ),
    on_sqlite(
        "A slot that holds a job gets that job again",
        "queues.py",
        "            if slot_row.raw is not None:\n                claims.append(",
        "            if False:\n                claims.append(",
        "TestClaim",
    ),
    on_sqlite(
        "A claimed job leaves its queue",
        "queues.py",
        "        work.queued.remove(claimed)\n",
        "",
        "TestClaim",
    ),
    on_sqlite(
        "A claim sets the heartbeat",
        "queues.py",
        "    slot_row.raw = raw\n    work.renew_heartbeat(slot_row)\n",
        "    slot_row.raw = raw\n    work.change_slot(slot_row)\n",
        "TestClaim",
    ),
    on_sqlite(
        "No job of a paused queue is claimed",
        "queues.py",
        " for queue in self._store.queue_names if queue not in paused}",
        " for queue in self._store.queue_names}",
        "TestPause",
    ),
    on_sqlite(
        "A slot with a heartbeat is not reaped",
        "queues.py",
        "if slot_row is None or work.is_alive(slot_row):",
        "if slot_row is None:",
        "TestReap",
    ),
    on_sqlite(
        "A reaped slot that still holds a job stays registered",
        "queues.py",
        "            if slot_row.raw is None:\n                work.change_slot(slot_row).forget",
        "            if True:\n                work.change_slot(slot_row).forget",
        "TestReap",
    ),
)
