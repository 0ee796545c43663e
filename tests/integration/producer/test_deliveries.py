"""A delivery with the installed program: its producer is killed halfway, one file is missing, one differs.

`tests/unit/producer/test_deliveries.py` has the rules; here producer, worker and broker are real."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fileq.core.batch import Batch, BatchState, CallbackKind, facts_of
from fileq.core.job import decode
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

FILES, MISSING, DIFFERENT = 60, 7, 9
DELIVERIES = [
    {
        "match": "acme/*/",
        "complete": {"manifest": "*.manifest.json"},
        "deadline": "3s",
        "allow_failures": True,
        "then": "note",
        "catch": "note",
        "done_marker": "_DONE",
    }
]


def deliver(directory: Path, *, is_broken: bool) -> None:
    directory.mkdir(parents=True)
    listed = []
    for number in range(FILES):
        data = f"{directory.name} {number}".encode()
        if not (is_broken and number == MISSING):
            (directory / f"{number}.dat").write_bytes(data)
        sha256 = "a" * 64 if is_broken and number == DIFFERENT else hashlib.sha256(data).hexdigest()
        listed.append({"path": f"{number}.dat", "size": len(data), "sha256": sha256})
    (directory / "x.manifest.json").write_text(json.dumps(listed))


def batch_of(setup: WorkerSetup, directory: Path) -> Batch | None:
    return next((one for one in setup.broker.batch_page().batches if one.name == str(directory)), None)


def test_a_delivery_with_a_missing_and_a_different_file_fails_and_names_both(each_setup: WorkerSetup) -> None:
    setup = each_setup
    broken, whole = setup.inbox / "acme/broken", setup.inbox / "acme/whole"
    deliver(broken, is_broken=True)
    settings = {
        "producer__deliveries": json.dumps(DELIVERIES),
        "producer__settle_unclosed": "200ms",
        "producer__rate_limit_per_sec": 0,
    }
    producer = setup.worker(role="producer", **settings)
    wait_until(lambda: batch_of(setup, broken), 30, "the delivery is opened")
    producer.kill()
    producer.wait()

    setup.worker(role="producer", **settings)
    setup.worker()
    deliver(whole, is_broken=False)
    wait_until((broken / "_FILEQ_FAILED").exists, 60, "the failed marker")
    wait_until((whole / "_DONE").exists, 60, "the done marker")

    failed = json.loads((broken / "_FILEQ_FAILED").read_text())
    assert (failed["total"], failed["completed"], failed["dead"]) == (FILES + 1, FILES - 1, 2)
    errors = {Path(one["path"]).stem: one["error"] for one in failed["failed"]}
    assert "missing: " in errors[str(MISSING)]
    assert "wrong checksum: " in errors[str(DIFFERENT)]
    view = batch_of(setup, broken)
    assert view is not None
    assert (view.state, view.fired) == (BatchState.FINISHED, (CallbackKind.CATCH,))
    (catch,) = setup.broker.records([f"{view.id}.catch"])
    assert catch is not None
    facts = facts_of(decode(catch.raw))
    assert facts is not None
    error = facts.first_error
    assert f"/{MISSING}.dat" in error
    assert f"/{DIFFERENT}.dat" in error

    done = batch_of(setup, whole)
    assert done is not None
    assert (done.total, done.completed, done.fired) == (FILES, FILES, (CallbackKind.THEN,))
