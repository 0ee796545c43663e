"""The guards of the memory broker, which is the reference for the other brokers."""

from tests.support.guards import promises
from tests.support.guards.guard import Guard, Promise

SETTLEMENTS, QUEUES, ENTRIES, STORE, REPAIRER = (
    f"fileq/brokers/memory/{name}.py" for name in ("settlements", "queues", "entries", "store", "repairer")
)


def guard(promise: Promise, file: str, text: str, mutant: str) -> Guard:
    return promise.on("memory", file, text, mutant)


MEMORY_GUARDS = (
    guard(promises.HELD, SETTLEMENTS, " or s.claim.raw not in store.processing[slot]:\n", ":\n"),
    guard(promises.LATE, SETTLEMENTS, "s.claim.token < store.settled_tokens.get(slot, 0) or ", ""),
    guard(promises.REPEATED, SETTLEMENTS, "if store.settled_tokens.get(slot) == s.claim.token:", "if False:"),
    guard(promises.REMEMBERED, SETTLEMENTS, "    store.settled_tokens[slot] = s.claim.token\n", ""),
    guard(promises.LEAVES_SLOT, SETTLEMENTS, "    store.processing[s.claim.slot].remove(s.claim.raw)\n", ""),
    guard(promises.SETTLING_RENEWS, SETTLEMENTS, "    store.renew_heartbeat(slot, now_ms)\n", ""),
    guard(promises.FENCED_COUNTED, SETTLEMENTS, '        store.count(now_ms, "fenced")\n', ""),
    guard(promises.ONE_REAPER, SETTLEMENTS, "    if s.claim.raw not in store.processing[slot]:\n", "    if False:\n"),
    guard(promises.DEFERRAL_IS_NO_ATTEMPT, SETTLEMENTS, "        if s.verb is not Verb.DEFER:\n", "        if True:\n"),
    guard(promises.DEFERRALS_COUNTED, SETTLEMENTS, "        record.deferred_count += 1\n", ""),
    guard(
        promises.DEFERRAL_ENDS, SETTLEMENTS, "s.claim.queue, s.reason\n", "s.claim.queue, s.reason or record.deferred\n"
    ),
    guard(promises.UNREGISTERED, QUEUES, " for slot in slots if slot in store.registry]", " for slot in slots]"),
    guard(
        promises.GIVEN_AGAIN,
        QUEUES,
        "self._held(slot) or self._claim(slot, buried, now_ms)",
        "self._claim(slot, buried, now_ms)",
    ),
    guard(promises.OWN_TOKEN, STORE, "        self.tokens[slot] += 1\n", "        self.tokens[slot] = 1\n"),
    guard(promises.CLAIM_RENEWS, QUEUES, "                store.renew_heartbeat(slot, now_ms)\n", ""),
    guard(promises.PAUSED, QUEUES, "if queue not in store.paused and store.queues[queue]:", "if store.queues[queue]:"),
    guard(promises.ADOPTED_ONCE, QUEUES, "if record is not None and record.queued:", "if record is not None:"),
    guard(promises.UNKNOWN_IS_GONE, QUEUES, "        if slot not in store.registry:\n", "        if False:\n"),
    guard(
        promises.RENEWED,
        QUEUES,
        "        store.renew_heartbeat(slot, now_ms)\n        if held == believed",
        "        if held == believed",
    ),
    guard(promises.LOST, QUEUES, "        if believed:\n", "        if False:\n"),
    guard(promises.UNEXPECTED, QUEUES, "        if believed:\n", "        if True:\n"),
    guard(
        promises.CANCELLED,
        QUEUES,
        "is_cancelled = record.is_cancel_requested or self",
        "is_cancelled = self",
    ),
    guard(promises.ALIVE, QUEUES, "            if store.is_alive(slot, now_ms):\n", "            if False:\n"),
    guard(
        promises.LEASE_ENDS,
        STORE,
        "self.alive_until_ms.get(slot, 0) > now_ms",
        "self.alive_until_ms.get(slot, 0) >= now_ms",
    ),
    guard(promises.ONLY_SILENT_SUSPECTS, QUEUES, "                if not store.is_alive(slot, now_ms)\n", ""),
    guard(promises.STILL_HOLDS, QUEUES, "            if not store.processing[slot]:\n", "            if True:\n"),
    guard(
        promises.ID_ONCE, ENTRIES, "return job.id if has_record(store, entry) else key_holder(", "return key_holder("
    ),
    guard(
        promises.VERSION_ONCE,
        QUEUES,
        "if known is not None and known.knows(entry.version.signature) else None",
        "if False else None",
    ),
    guard(promises.VERSION_LEARNED, ENTRIES, "        store.learn(entry.version, job.id)\n", "        pass\n"),
    guard(promises.LIMIT, QUEUES, "        if taken >= limit:\n", "        if taken > limit:\n"),
    guard(promises.LEDGER_UNCHANGED, QUEUES, "        if entries.get(path) != was:\n", "        if False:\n"),
    guard(promises.REALIGNED, QUEUES, "due_after_step(record.due_ms, record.since_ms, now_ms)", "None"),
    guard(promises.PROMOTED_LEAVES, QUEUES, "        del store.scheduled[raw]\n", ""),
    guard(promises.NOT_BEFORE_TIME, QUEUES, "waiting[:limit] if due_ms <= now_ms]", "waiting[:limit]]"),
    guard(
        promises.DUE_ONLY_THERE, QUEUES, "        if record.raw not in self._store.scheduled:\n", "        if False:\n"
    ),
    guard(
        promises.DUE_ONLY_WAITING,
        QUEUES,
        "if record is None or record.state not in (State.SCHEDULED, State.RETRYING):",
        "if record is None:",
    ),
    guard(
        promises.RELOCATED,
        "fileq/brokers/memory/file_orders.py",
        "if record is None or record.state not in (State.COMPLETED, State.DEAD):",
        "if record is None:",
    ),
    guard(
        promises.REGISTERED_AGAIN,
        QUEUES,
        "                if not self._store.is_alive(slot, now_ms):\n",
        "                if True:\n",
    ),
    guard(
        promises.GIVEN_BACK,
        QUEUES,
        "                    self._give_back(self._store.claim_of(slot, raw), now_ms)\n",
        "                    pass\n",
    ),
    guard(promises.RETRYING_STAYS, STORE, "        record.expires_ms = None\n", ""),
    guard(promises.COPY_KEEPS_RECORD, STORE, "        if not record.queued:  # a copy", "        if True:  # a copy"),
    guard(promises.COPIES_SCHEDULED, STORE, "        while record.raw in self.scheduled:\n", "        while False:\n"),
    guard(
        promises.PROMOTED_COUNTED, STORE, "State.PENDING, 0, record.queued + 1\n", "State.PENDING, 0, record.queued\n"
    ),
    guard(promises.IN_ITS_PLACE, REPAIRER, " and record.raw not in place\n", "\n"),
    guard(promises.BALANCED, REPAIRER, ".drift != drift:", ".drift == -1:"),
)
