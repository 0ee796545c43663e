"""The guards of the producer, of the endpoints and of what reaches a terminal."""

from tests.support.guards.guard import Guard

STABILITY, SWEEP = "fileq/producer/stability.py", "fileq/producer/ledger_sweep.py"
LOOKUP, ENQUEUER = "fileq/producer/ledger_lookup.py", "fileq/producer/enqueuer.py"
STABILITY_TESTS = "tests/unit/test_producer_stability.py tests/unit/test_producer_pipeline.py"
SWEEP_TESTS = "tests/unit/test_producer_ledger_sweep.py tests/unit/test_producer_forgetting.py"
ENQUEUER_TESTS = "tests/unit/test_producer_enqueuer.py"

OTHER_GUARDS = (
    Guard(
        "A file that changed meanwhile waits again",
        STABILITY,
        "        if not file.is_unchanged_since(earlier):\n",
        "        if False:\n",
        STABILITY_TESTS,
    ),
    Guard(
        "A change starts the settle time anew",
        STABILITY,
        "if waiting is None or is_closed or not file.is_unchanged_since(waiting.file):",
        "if waiting is None or is_closed:",
        STABILITY_TESTS,
    ),
    Guard(
        "The number of waiting files is bounded",
        STABILITY,
        "        if waiting is None and self.is_full:\n            return False\n",
        "",
        STABILITY_TESTS,
    ),
    Guard(
        "Times of a remote file system prove nothing",
        STABILITY,
        "if file.path in self._waiting or self._mounts.is_remote(os.path.dirname(file.path)):",
        "if file.path in self._waiting:",
        STABILITY_TESTS,
    ),
    Guard(
        "A file without its marker is not enqueued",
        STABILITY,
        "        if not self._rules.is_ready(path):\n",
        "        if False:\n",
        STABILITY_TESTS,
    ),
    Guard(
        "A missing file is forgotten only after a day",
        SWEEP,
        "elif now_ms - entry.missing_since_ms >= after_ms:",
        "elif True:",
        SWEEP_TESTS,
    ),
    Guard(
        "A file on another device is not missing",
        SWEEP,
        "    elif device != entry.device:\n",
        "    elif False:\n",
        SWEEP_TESTS,
    ),
    Guard(
        "A volume unmounted during a sweep forgets nothing",
        SWEEP,
        "yield 0 if mounts.refresh() else _apply(broker, changes)",
        "yield _apply(broker, changes)",
        SWEEP_TESTS,
    ),
    Guard(
        "A producer forgets only files that it covers",
        SWEEP,
        "            if covers(path)\n",
        "",
        SWEEP_TESTS,
    ),
    Guard(
        "An unreadable file is not missing",
        SWEEP,
        "    if exists is None:\n        return\n",
        "",
        SWEEP_TESTS,
    ),
    Guard(
        "A scan with errors clears the marks",
        SWEEP,
        "        if not is_complete:\n",
        "        if False:\n",
        SWEEP_TESTS,
    ),
    Guard(
        "An outage loses no scanned file",
        LOOKUP,
        "        self._unanswered += scanned\n",
        "        self._unanswered = scanned\n",
        "tests/unit/test_producer_outages.py tests/unit/test_producer_pipeline.py",
    ),
    Guard(
        "A version that the ledger knows is not enqueued again",
        LOOKUP,
        "if entry is None or not entry.knows(file.signature)",
        "if True",
        "tests/unit/test_producer_pipeline.py tests/unit/test_producer_run_once.py",
    ),
    Guard(
        "A throttled file is sent later",
        ENQUEUER,
        "            if result is EnqueueResult.THROTTLED:\n                continue\n",
        "",
        ENQUEUER_TESTS,
    ),
    Guard(
        "A file that waited for long is read again before it is sent",
        ENQUEUER,
        "if file is None or not file.is_unchanged_since(unsent.file):",
        "if file is None:",
        ENQUEUER_TESTS,
    ),
)
