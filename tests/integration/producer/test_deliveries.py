"""A delivery with the installed program: its producer is killed halfway, one file is missing, one differs.

`tests/unit/producer/test_deliveries.py` has the rules; here producer, worker and broker are real."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fileq.core.batch import Batch, BatchState, CallbackKind, facts_of
from fileq.core.job import State, decode
from tests.support import program
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


def test_a_file_that_is_corrected_belongs_to_the_delivery_that_missed_it(each_setup: WorkerSetup) -> None:
    setup = each_setup
    directory = setup.inbox / "acme/day"
    directory.mkdir(parents=True)
    whole = {name: f"all of {name}".encode() for name in ("good", "missing", "different")}
    listed = [{"path": name, "sha256": hashlib.sha256(data).hexdigest()} for name, data in whole.items()]
    (directory / "good").write_bytes(whole["good"])
    (directory / "different").write_bytes(b"half of it")
    (directory / "x.manifest.json").write_text(json.dumps(listed))
    settings = {"producer__deliveries": json.dumps(DELIVERIES), "producer__settle_unclosed": "200ms"}
    producer = setup.worker(role="producer", **settings)
    setup.worker()
    wait_until((directory / "_FILEQ_FAILED").exists, 60, "the failed marker")
    producer.kill()
    producer.wait()
    [failed] = setup.broker.batch_page().batches

    for name in ("missing", "different"):
        (directory / name).write_bytes(whole[name])
    setup.worker(role="producer", **settings)

    def is_processed(name: str) -> bool:
        [entry] = setup.broker.lookup([bytes(directory / name)])
        size = len(whole[name])
        newest = [id for text, id in entry.versions if text.startswith(f"{size}-")] if entry is not None else []
        return bool(newest) and setup.states(newest[:1])["completed"] == 1

    wait_until(lambda: is_processed("missing") and is_processed("different"), 30, "the corrected files are processed")
    checks = [one["job_id"] for one in json.loads((directory / "_FILEQ_FAILED").read_text())["failed"]]
    assert len(checks) == 2
    retried = program.run("dlq", "retry", *checks, cwd=setup.directory, settings=setup.all_settings())
    assert retried.returncode == 0, retried.stderr
    setup.wait_for(State.COMPLETED, [*checks, f"{failed.id}.then"])
    [only] = setup.broker.batch_page().batches
    assert (only.id, only.state, only.dead) == (failed.id, BatchState.FINISHED, 0)
    assert set(only.fired) == {CallbackKind.THEN, CallbackKind.CATCH}


@pytest.mark.parametrize("rule", ["move", "delete"])
def test_files_are_compared_with_their_manifest_before_they_are_moved_or_deleted(
    each_setup: WorkerSetup, rule: str
) -> None:
    setup, directory = each_setup, each_setup.inbox / "acme/day"
    directory.mkdir(parents=True)
    data = {name: f"all of {name}".encode() for name in ("good", "long", "different")}
    for name, content in data.items():
        (directory / name).write_bytes(content)
    after = "delete" if rule == "delete" else f"move:{setup.directory / 'done'}"
    deliveries = [{**DELIVERIES[0], "deadline": "1h"}]
    setup.worker(role="producer", producer__deliveries=json.dumps(deliveries), producer__settle_unclosed="200ms")
    worker = setup.worker(worker__after__completed=after)

    def are_completed() -> bool:
        view = batch_of(setup, directory)
        return view is not None and view.completed == len(data)

    wait_until(are_completed, 30, "the jobs have completed")
    assert worker.stop() == 0
    assert len(list(setup.broker.orders(-1))) == len(data), "they wait for the seal"
    setup.worker(worker__after__completed=after)

    wrong = {"long": {"size": 3}, "different": {"sha256": "a" * 64}}
    right = {name: {"path": name, "sha256": hashlib.sha256(content).hexdigest()} for name, content in data.items()}
    listed = [{**entry, **wrong.get(name, {})} for name, entry in right.items()]
    (directory / "x.manifest.json").write_text(json.dumps(listed))
    wait_until((directory / "_FILEQ_FAILED").exists, 60, "the failed marker")
    failed = json.loads((directory / "_FILEQ_FAILED").read_text())
    errors = {Path(one["path"]).name: one["error"] for one in failed["failed"]}
    assert errors.keys() == {"long", "different"}
    assert errors["long"].startswith("Permanent: wrong size: ")
    assert errors["different"].startswith("Permanent: wrong checksum: ")
    view = batch_of(setup, directory)
    assert view is not None
    assert view.fired == (CallbackKind.CATCH,)
    wait_until(lambda: not any((directory / name).exists() for name in data), 30, "the files are gone")
    wait_until(lambda: not list(setup.broker.orders(-1)), 30, "no order is left")


def test_an_unchanged_file_belongs_to_the_next_delivery_that_lists_it(each_setup: WorkerSetup) -> None:
    setup, directory = each_setup, each_setup.inbox / "acme/day"
    deliver(directory, is_broken=False)
    deliveries = json.dumps([{**DELIVERIES[0], "deadline": "1h"}])
    setup.worker(role="producer", producer__deliveries=deliveries, producer__settle_unclosed="200ms")
    setup.worker()
    wait_until((directory / "_DONE").exists, 60, "the first delivery is done")
    (directory / "new").write_bytes(b"new")
    listed = json.loads((directory / "x.manifest.json").read_text())
    (directory / "x.manifest.json").write_text(json.dumps([*listed, {"path": "new"}]))

    def last() -> Batch:
        return setup.broker.batch_page().batches[0]

    wait_until(lambda: last().id.endswith("-2") and last().state is BatchState.FINISHED, 60, "the second one is done")
    assert (last().total, last().completed, last().fired) == (FILES + 1, FILES + 1, (CallbackKind.THEN,))
