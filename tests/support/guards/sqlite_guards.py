"""The guards of the rulebook and of the tables of SQLite."""

from tests.support.guards import promises
from tests.support.guards.guard import Guard, Promise

TRANSACTIONS = "tests/integration/sqlite/test_transactions.py::"


def guard(promise: Promise, text: str, mutant: str) -> Guard:
    return promise.on("sqlite", text, mutant)


def rule(promise: Promise, text: str, mutant: str) -> Guard:
    return promise.on("rules", text, mutant)


SQLITE_GUARDS = (
    rule(promises.HELD, " or slot_row.raw != s.claim.raw:\n        work.count", ":\n        work.count"),
    rule(promises.LATE, " or s.claim.token < (slot_row.settled_token or 0)", ""),
    rule(
        promises.REPEATED,
        "if slot_row is not None and slot_row.settled_token == s.claim.token:",
        "if False:",
    ),
    rule(promises.REMEMBERED, "    slot_row.settled_token = s.claim.token\n", ""),
    rule(promises.LEAVES_SLOT, "    work.change_slot(slot_row).raw = None\n", ""),
    rule(
        promises.SETTLING_RENEWS,
        "    work.renew_heartbeat(slot_row)\n    return SettleResult.DONE\n",
        "    return SettleResult.DONE\n",
    ),
    rule(promises.FENCED_COUNTED, '        work.count("fenced")\n', ""),
    rule(promises.ONE_REAPER, "    if slot_row.raw != s.claim.raw:\n", "    if False:\n"),
    rule(promises.DEFERRAL_IS_NO_ATTEMPT, "        if s.verb is not Verb.DEFER:\n", "        if True:\n"),
    rule(promises.DEFERRALS_COUNTED, "        record.deferred_count += 1\n", ""),
    rule(promises.DEFERRAL_ENDS, "s.claim.queue, s.reason\n", "s.claim.queue, s.reason or record.deferred\n"),
    guard(
        promises.UNREGISTERED,
        "if (row := work.slots.get(slot)) and row.is_registered}",
        "if (row := work.slots.get(slot))}",
    ),
    rule(
        promises.GIVEN_AGAIN,
        "            if slot_row.raw is not None:\n                claims.append(",
        "            if False:\n                claims.append(",
    ),
    guard(promises.LEAVES_QUEUE, "        work.queued.remove_first(claimed)\n", ""),
    rule(promises.OWN_TOKEN, "work.change_slot(slot_row).next_token())", "slot_row.token)"),
    rule(
        promises.CLAIM_RENEWS,
        "    slot_row.raw = raw\n    work.renew_heartbeat(slot_row)\n",
        "    slot_row.raw = raw\n    work.change_slot(slot_row)\n",
    ),
    rule(
        promises.PAUSED,
        " for queue in self.store.queue_names if queue not in paused}",
        " for queue in self.store.queue_names}",
    ),
    guard(
        promises.NOT_STARVED,
        "        if not self.every or (self.claims + 1) % self.every:\n",
        "        if True:\n",
    ),
    rule(promises.ADOPTED_ONCE, "queue, raw)\n    if record.queued:\n", "queue, raw)\n    if True:\n"),
    guard(
        promises.UNKNOWN_IS_GONE,
        "    if slot_row is None or not slot_row.is_registered:\n        return Renewal",
        "    if slot_row is None:\n        return Renewal",
    ),
    rule(
        promises.RENEWED,
        '    work.renew_heartbeat(slot_row)\n    if (slot_row.raw or b"") != believed:',
        '    if (slot_row.raw or b"") != believed:',
    ),
    rule(promises.LOST, "        if believed or slot_row.raw is None:\n", "        if slot_row.raw is None:\n"),
    rule(promises.UNEXPECTED, "        if believed or slot_row.raw is None:\n", "        if True:\n"),
    rule(
        promises.CANCELLED,
        "(record.is_cancel_requested or is_batch_cancelled(work, record))",
        "is_batch_cancelled(work, record)",
    ),
    rule(
        promises.ALIVE,
        "if slot_row is None or (work.is_alive(slot_row) and not is_gone):",
        "if slot_row is None:",
    ),
    rule(promises.LEASE_ENDS, "return self.left_ms(slot_row) > 0", "return self.left_ms(slot_row) >= 0"),
    guard(
        promises.ONLY_SILENT_SUSPECTS,
        "found = [row for row in slots if not work.is_alive(row)]",
        "found = slots",
    ),
    rule(
        promises.STILL_HOLDS,
        "            if slot_row.raw is None:\n                work.change_slot(slot_row).forget",
        "            if True:\n                work.change_slot(slot_row).forget",
    ),
    rule(
        promises.ID_ONCE,
        "return job.id if has_record(work, entry) else key_holder(",
        "return key_holder(",
    ),
    rule(
        promises.VERSION_ONCE,
        "        if known is not None and known.knows(version.signature):\n",
        "        if False:\n",
    ),
    rule(promises.VERSION_LEARNED, "        work.learn(version, job.id)\n", "        pass\n"),
    rule(
        promises.LIMIT,
        "        if self._taken >= self._limit:\n",
        "        if self._taken > self._limit:\n",
    ),
    rule(
        promises.LEDGER_UNCHANGED,
        "append(work.ledger.get(path) == was)",
        "append(True)",
    ),
    guard(
        promises.PROMOTED_LEAVES,
        '        self.db.executemany("DELETE FROM scheduled WHERE due_ms = ? AND raw = ?", due)\n',
        "",
    ),
    guard(
        promises.NOT_BEFORE_TIME,
        "FROM scheduled WHERE due_ms <= ? ORDER",
        "FROM scheduled WHERE due_ms > ? - 1000000 ORDER",
    ),
    rule(promises.REALIGNED, "_due_after_step(record.due_ms, record.since_ms, work.now_ms)", "None"),
    rule(
        promises.DUE_ONLY_THERE,
        "                if work.unschedule(record.raw):\n",
        "                if work.unschedule(record.raw) or True:\n",
    ),
    rule(
        promises.DUE_ONLY_WAITING,
        "if record is None or record.state not in DELAYED_STATES:",
        "if record is None:",
    ),
    rule(
        promises.RELOCATED,
        "if record is None or record.state not in (State.COMPLETED, State.DEAD):",
        "if record is None:",
    ),
    rule(
        promises.REGISTERED_AGAIN,
        "                if not work.is_alive(slot_row):\n",
        "                if True:\n",
    ),
    rule(
        promises.GIVEN_BACK,
        "_give_back(work, claim_of(work, slot_row))\n",
        "pass\n",
    ),
    rule(promises.RETRYING_STAYS, "        record.expires_ms = None\n", ""),
    rule(promises.COPY_KEEPS_RECORD, "        if not record.queued:  # a copy", "        if True:  # a copy"),
    rule(
        promises.COPIES_SCHEDULED,
        '            record.raw += b" "\n',
        "            break\n",
    ),
    rule(promises.PROMOTED_COUNTED, "State.PENDING, 0, record.queued + 1\n", "State.PENDING, 0, record.queued\n"),
    rule(promises.IN_ITS_PLACE, "return (record.queue, record.raw) not in waiting", "return True"),
    rule(promises.RESTORED_ONCE, "        waiting.add((record.queue, record.raw))\n", ""),
    rule(promises.BALANCED, "is_exact=True).drift != drift:", "is_exact=True).drift == -1:"),
    Guard(
        "A heartbeat from another boot does not count",
        "after a reboot the jobs of dead workers wait forever",
        " - self.monotonic_ms) if slot_row.boot == self.boot else 0",
        " - self.monotonic_ms)",
        TRANSACTIONS + "test_a_lease_ends_with_a_reboot",
    ),
    Guard(
        "Leases run on the monotonic clock",
        "a step of the wall clock reaps live workers",
        "self.boot, self.monotonic_ms + ttl_ms\n",
        "self.boot, self.now_ms + ttl_ms\n",
        TRANSACTIONS + "test_a_step_of_the_wall_clock_ends_no_lease",
    ),
    Guard(
        "A slot that registers again does not reuse a token",
        "an outcome from before counts for a new claim",
        "        self.info = self.raw = self.settled_token = None\n",
        "        self.info = self.raw = self.settled_token = None\n        self.token = 0\n",
        TRANSACTIONS + "test_a_settlement_from_before_a_slot_was_registered_again_is_fenced",
    ),
    Guard(
        "A commit reaches the disk before it is acknowledged",
        "a power failure loses jobs that were enqueued",
        'connection.execute("PRAGMA synchronous = FULL")',
        'connection.execute("PRAGMA synchronous = NORMAL")',
        "tests/integration/sqlite/test_opening.py::test_every_commit_reaches_the_disk_before_it_is_acknowledged",
    ),
    Guard(
        "A write lock that is granted too late is released",
        "all processes wait for a lock that none of them uses",
        "                if granted.is_set() and not is_ours:\n                    self.release()\n",
        "",
        "tests/integration/sqlite/test_locks.py::test_a_lock_granted_at_the_moment_of_the_timeout_is_released",
    ),
)
