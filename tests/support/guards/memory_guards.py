"""The guards of the memory broker, which is the reference for the other brokers."""

from tests.support.guards import promises
from tests.support.guards.guard import Guard, Promise


def guard(promise: Promise, text: str, mutant: str) -> Guard:
    return promise.on("memory", text, mutant)


MEMORY_GUARDS = (
    guard(promises.HELD, " or s.claim.raw not in store.processing[slot]:\n", ":\n"),
    guard(promises.LATE, "s.claim.token < store.settled_tokens.get(slot, 0) or ", ""),
    guard(promises.REPEATED, "if store.settled_tokens.get(slot) == s.claim.token:", "if False:"),
    guard(promises.REMEMBERED, "    store.settled_tokens[slot] = s.claim.token\n", ""),
    guard(promises.LEAVES_SLOT, "    store.processing[s.claim.slot].remove(s.claim.raw)\n", ""),
    guard(
        promises.SETTLING_RENEWS,
        "    store.renew_heartbeat(slot, now_ms)\n    return SettleResult.DONE\n",
        "    return SettleResult.DONE\n",
    ),
    guard(promises.FENCED_COUNTED, '        store.count(now_ms, "fenced")\n', ""),
    guard(promises.ONE_REAPER, "    if s.claim.raw not in store.processing[slot]:\n", "    if False:\n"),
    guard(promises.DEFERRAL_IS_NO_ATTEMPT, "        if s.verb is not Verb.DEFER:\n", "        if True:\n"),
    guard(promises.DEFERRALS_COUNTED, "        record.deferred_count += 1\n", ""),
    guard(promises.DEFERRAL_ENDS, "s.claim.queue, s.reason\n", "s.claim.queue, s.reason or record.deferred\n"),
    guard(promises.UNREGISTERED, " for slot in slots if slot in store.registry]", " for slot in slots]"),
    guard(
        promises.GIVEN_AGAIN,
        "self._held(slot) or self._claim(slot, buried, now_ms)",
        "self._claim(slot, buried, now_ms)",
    ),
    guard(promises.OWN_TOKEN, "        self.tokens[slot] += 1\n", "        self.tokens[slot] = 1\n"),
    guard(promises.CLAIM_RENEWS, "                store.renew_heartbeat(slot, now_ms)\n", ""),
    guard(promises.PAUSED, "if queue not in store.paused and store.queues[queue]:", "if store.queues[queue]:"),
    guard(promises.ADOPTED_ONCE, "if record is not None and record.queued:", "if record is not None:"),
    guard(promises.UNKNOWN_IS_GONE, "        if slot not in store.registry:\n", "        if False:\n"),
    guard(
        promises.RENEWED,
        "        store.renew_heartbeat(slot, now_ms)\n        if held == believed",
        "        if held == believed",
    ),
    guard(promises.LOST, "        if believed:\n", "        if False:\n"),
    guard(promises.UNEXPECTED, "        if believed:\n", "        if True:\n"),
    guard(
        promises.CANCELLED,
        "is_cancelled = record.is_cancel_requested or self",
        "is_cancelled = self",
    ),
    guard(
        promises.ALIVE,
        "            if store.is_alive(slot, now_ms) and not is_gone:\n",
        "            if False:\n",
    ),
    guard(
        promises.LEASE_ENDS,
        "self.alive_until_ms.get(slot, 0) > now_ms",
        "self.alive_until_ms.get(slot, 0) >= now_ms",
    ),
    guard(
        promises.ONLY_SILENT_SUSPECTS,
        "                if slot in gone or not store.is_alive(slot, now_ms)\n",
        "",
    ),
    guard(promises.STILL_HOLDS, "            if not store.processing[slot]:\n", "            if True:\n"),
    guard(promises.ID_ONCE, "return job.id if has_record(store, entry) else key_holder(", "return key_holder("),
    guard(
        promises.VERSION_ONCE,
        "if known is not None and known.knows(entry.version.signature) else None",
        "if False else None",
    ),
    guard(promises.VERSION_LEARNED, "        store.learn(entry.version, job.id)\n", "        pass\n"),
    guard(promises.LIMIT, "        if taken >= limit:\n", "        if taken > limit:\n"),
    guard(promises.LEDGER_UNCHANGED, "        if entries.get(path) != was:\n", "        if False:\n"),
    guard(promises.REALIGNED, "due_after_step(record.due_ms, record.since_ms, now_ms)", "None"),
    guard(promises.PROMOTED_LEAVES, "        del store.scheduled[raw]\n", ""),
    guard(promises.NOT_BEFORE_TIME, "waiting[:limit] if due_ms <= now_ms]", "waiting[:limit]]"),
    guard(promises.DUE_ONLY_THERE, "        if record.raw not in self._store.scheduled:\n", "        if False:\n"),
    guard(
        promises.DUE_ONLY_WAITING,
        "if record is None or record.state not in (State.SCHEDULED, State.RETRYING):",
        "if record is None:",
    ),
    guard(
        promises.RELOCATED,
        "if record is None or record.state not in (State.COMPLETED, State.DEAD):",
        "if record is None:",
    ),
    guard(
        promises.REGISTERED_AGAIN,
        "                if not self._store.is_alive(slot, now_ms):\n",
        "                if True:\n",
    ),
    guard(
        promises.GIVEN_BACK,
        "                    self._give_back(self._store.claim_of(slot, raw), now_ms)\n",
        "                    pass\n",
    ),
    guard(
        promises.RETRYING_STAYS, "        record.expires_ms = None\n        return record\n", "        return record\n"
    ),
    guard(promises.COPY_KEEPS_RECORD, "        if not record.queued:  # a copy", "        if True:  # a copy"),
    guard(promises.COPIES_SCHEDULED, "        while record.raw in self.scheduled:\n", "        while False:\n"),
    guard(promises.PROMOTED_COUNTED, "State.PENDING, 0, record.queued + 1\n", "State.PENDING, 0, record.queued\n"),
    guard(promises.IN_ITS_PLACE, " and record.raw not in place\n", "\n"),
    guard(promises.BALANCED, ".drift != drift:", ".drift == -1:"),
)
