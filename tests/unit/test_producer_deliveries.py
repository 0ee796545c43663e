"""Deliveries: when a directory of files is sealed as a batch, and what becomes of files that are missing or differ."""

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fileq.brokers.batches import BatchView
from fileq.brokers.types import WorkerInfo
from fileq.commands.built_in_jobs import check_delivered
from fileq.core.batch import BatchState
from fileq.core.delivery import CHECK_TYPE
from fileq.core.errors import BrokerError, Permanent
from fileq.core.job import Job, decode
from fileq.core.settlement import complete
from fileq.producer.deliveries.register import DeliveryRegister
from tests.support.producer_scenario import UNCLOSED, FakeWatcher, Scenario

LOOK = UNCLOSED  # the time between two looks


@pytest.fixture(autouse=True)
def watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeWatcher, "made", [])
    monkeypatch.setattr("fileq.producer.finder.tree_watch.DirectoryWatcher", FakeWatcher)


def scenario(root: Path, **delivery: Any) -> Scenario:
    given = {"match": "acme/*/", "then": "load", "catch": "tell", **delivery}
    given.setdefault("complete", {"marker": "COMPLETED"})
    return Scenario(root, deliveries=[given])


def batches(s: Scenario) -> list[BatchView]:
    """Oldest first."""
    return list(s.broker.real.batch_page().batches)[::-1]


def batch(s: Scenario) -> BatchView:
    (only,) = batches(s)
    return only


def checks(s: Scenario) -> list[Job]:
    return [job for job in s.jobs() if job.type == CHECK_TYPE]


def complete_jobs(s: Scenario) -> None:
    broker = s.broker.real
    broker.register({"slot": WorkerInfo("host", 1, 0, "1", ("high", "low"))})
    while claims := broker.settle_and_claim([], ["slot"]).claims:
        broker.settle_and_claim([complete(claims[0])], [])


def look_until_sealed(s: Scenario, looks: int = 6) -> None:
    for _ in range(looks):
        s.run(LOOK)


def test_files_of_a_directory_join_one_batch_and_others_none(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in")
    s.add("acme/a/1.txt", "acme/a/deep/2.txt", "acme/b/3.txt", "other/4.txt", "acme/5.txt")
    s.run(LOOK)
    names = {os.path.basename(job.filepath): job.batch_id for job in s.jobs()}
    assert names["1.txt"] == names["2.txt"] is not None
    assert names["3.txt"] not in (None, names["1.txt"])
    assert names["4.txt"] is names["5.txt"] is None


@pytest.mark.parametrize("order", ["first", "middle", "last"])
def test_a_marker_seals_whenever_it_comes(tmp_path: Path, order: str) -> None:
    s = scenario(tmp_path / "in")
    steps = {"first": ["COMPLETED", "1", "2"], "middle": ["1", "COMPLETED", "2"], "last": ["1", "2", "COMPLETED"]}
    for name in steps[order]:
        s.add(f"acme/a/{name}")
        s.make_event(closed=f"acme/a/{name}")
        s.run(1.0)
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED
    assert batch(s).total == 2
    assert "COMPLETED" not in "".join(s.names())


def test_a_delivery_without_its_marker_stays_open(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in")
    s.add("acme/a/1.txt", "acme/a/deep/COMPLETED")  # a marker counts only at the delivery's own level
    look_until_sealed(s)
    assert batch(s).state is BatchState.OPEN
    assert batch(s).total == 2


def test_a_delivery_is_sealed_when_so_many_files_came(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"files": 3})
    s.add("acme/a/1", "acme/a/2")
    look_until_sealed(s)
    assert batch(s).state is BatchState.OPEN
    complete_jobs(s)
    os.unlink(s.path("acme/a/1"))  # as worker.after does; it came all the same
    s.add("acme/a/3")
    s.make_event(closed="acme/a/3")
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED


def test_a_quiet_delivery_is_sealed(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"quiet": "60s"})
    s.add("acme/a/1")
    s.run(LOOK)
    s.run(40.0)
    s.add("acme/a/2")
    s.make_event(closed="acme/a/2")
    s.run(40.0)
    assert batch(s).state is BatchState.OPEN
    for _ in range(15):
        s.run(LOOK)
    assert batch(s).state is BatchState.SEALED


def manifest(s: Scenario, directory: str, *names: str, **wrong: str) -> None:
    entries = []
    for name in names:
        path = s.root / directory / name
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "0" * 64
        entries.append({"path": name, "sha256": wrong.get(name, sha256)})
    (s.root / directory / "x.manifest.json").write_text(json.dumps(entries))


def test_a_manifest_seals_when_all_its_files_came(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    s.add("acme/a/1", "acme/a/2")
    manifest(s, "acme/a", "1", "2", "3")
    look_until_sealed(s)
    assert batch(s).state is BatchState.OPEN
    s.add("acme/a/3")
    manifest(s, "acme/a", "1", "2", "3")
    s.make_event(closed="acme/a/3")
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED
    assert batch(s).total == 3
    assert checks(s) == []


def test_missing_and_different_files_are_checks_that_name_each_other(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"}, deadline="1h")
    s.add("acme/a/1", "acme/a/2")
    manifest(s, "acme/a", "1", "2", "3", **{"2": "f" * 64})
    look_until_sealed(s)
    assert batch(s).state is BatchState.OPEN
    s.run(3600.0)
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED
    assert batch(s).total == 4  # the two files, and one check for each problem
    found = {os.path.basename(job.payload_value["path"]): job.payload_value for job in checks(s)}
    assert sorted(found) == ["2", "3"]
    assert found["2"]["found_sha256"] == hashlib.sha256(b"x").hexdigest()
    assert "missing" in found["2"]["also"][0]
    assert "wrong checksum" in found["3"]["also"][0]


def test_at_the_deadline_a_delivery_without_its_marker_is_incomplete(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", deadline="2h")
    s.add("acme/a/1")
    s.run(LOOK)
    s.run(7200.0)
    look_until_sealed(s, 2)
    assert batch(s).state is BatchState.SEALED
    (check,) = checks(s)
    assert "COMPLETED" in check.payload_value["incomplete"]


def test_a_broken_manifest_is_reported_once_and_read_again(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    s.add("acme/a/1")
    path = s.root / "acme/a/x.manifest.json"
    path.write_text('[{"path": "../outside"}]')
    look_until_sealed(s)
    assert [name for name, _ in s.events.events if name.startswith("delivery.")] == [
        "delivery.opened",
        "delivery.unreadable",
    ]
    manifest(s, "acme/a", "1")
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED


def test_files_that_are_known_and_completed_count_at_once(tmp_path: Path) -> None:
    s = Scenario(tmp_path / "in")
    s.add("acme/a/1", "acme/a/2")
    s.run(LOOK)
    complete_jobs(s)
    with_deliveries = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    with_deliveries.broker.real = s.broker.real
    s = with_deliveries
    s.add("acme/a/3")
    manifest(s, "acme/a", "1", "2", "3")
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED
    assert (batch(s).total, batch(s).completed) == (3, 2)


def test_a_second_delivery_into_the_same_directory_is_a_batch_of_its_own(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", done_marker="_DONE")
    s.add("acme/a/1", "acme/a/COMPLETED")
    look_until_sealed(s)
    complete_jobs(s)
    look_until_sealed(s, 2)
    done = json.loads((s.root / "acme/a/_DONE").read_text())
    assert (done["total"], done["completed"], done["failed"]) == (1, 1, [])

    s.add("acme/a/2")
    s.make_event(closed="acme/a/2")
    look_until_sealed(s)
    first, second = batches(s)
    assert first.state is BatchState.FINISHED
    assert second.state is BatchState.OPEN, "the marker is that of the first delivery"
    assert not (s.root / "acme/a/_DONE").exists()
    s.add("acme/a/COMPLETED")
    look_until_sealed(s)
    complete_jobs(s)
    look_until_sealed(s, 2)
    assert [(one.state, one.total) for one in batches(s)] == [(BatchState.FINISHED, 1)] * 2
    assert json.loads((s.root / "acme/a/_DONE").read_text())["batch_id"] == second.id


def test_another_producer_goes_on_with_a_delivery(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", done_marker="_DONE")
    s.add("acme/a/1")
    s.run(LOOK)
    s.producer = s.start()
    s.add("acme/a/2", "acme/a/COMPLETED")
    look_until_sealed(s)
    assert (batch(s).state, batch(s).total) == (BatchState.SEALED, 2)


def test_a_lost_reply_at_any_call_changes_nothing(tmp_path: Path) -> None:
    for verb in ("put_document", "create_batch", "enqueue", "join_batch", "seal_batch"):
        s = scenario(tmp_path / verb, complete={"manifest": "*.manifest.json"}, deadline="1h")
        lost = {verb}
        s.broker.loses_reply = lambda name, lost=lost: name in lost and not lost.clear()  # type: ignore[misc]
        s.add("acme/a/1")
        manifest(s, "acme/a", "1", "2")
        for seconds in (LOOK, LOOK, 3600.0, LOOK, LOOK, LOOK, LOOK):
            try:
                s.run(seconds)
            except BrokerError:
                s.run()
        assert (batch(s).state, batch(s).total) == (BatchState.SEALED, 2), verb
        assert len(checks(s)) == 1, verb


def test_a_file_after_the_seal_begins_the_next_delivery(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in")
    s.add("acme/a/1")
    s.run(LOOK)
    s.broker.real.seal_batch(batch(s).id)  # as another producer does
    s.add("acme/a/2")
    s.make_event(closed="acme/a/2")
    s.run(0.1)
    s.run(1.0)  # it is stable; the next look is not due yet
    assert [decode(raw).batch_id for raw in s.broker.real.peek("low", 9)] == [one.id for one in batches(s)]
    assert len(batches(s)) == 2


def test_news_between_two_looks_keeps_a_delivery_open(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in")
    s.add("acme/a/0", "acme/a/COMPLETED")
    s.run(LOOK)
    assert batch(s).state is BatchState.OPEN, "one look is not enough"
    for number in range(1, 6):
        s.add(f"acme/a/{number}")
        s.make_event(closed=f"acme/a/{number}")
        s.run(LOOK)
        assert batch(s).state is BatchState.OPEN
    look_until_sealed(s)
    assert (batch(s).state, batch(s).total) == (BatchState.SEALED, 6)


def test_a_marker_without_files_seals_nothing(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in")
    s.add("acme/a/COMPLETED")
    look_until_sealed(s)
    assert (batch(s).state, batch(s).total) == (BatchState.OPEN, 0)


def test_a_delivery_that_an_operator_cancelled_is_over(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"files": 5})
    s.add("acme/a/1")
    s.run(LOOK)
    s.broker.real.cancel_batch(batch(s).id)
    look_until_sealed(s)
    (record,) = DeliveryRegister(s.broker.real, bytes(s.root)).refresh()
    assert record.batch_id == ""
    assert s.events.count("delivery.sealed") == 0


def test_files_of_a_manifest_that_workers_moved_away_have_come(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    s.add("acme/a/1", "acme/a/2")
    s.run(LOOK)
    complete_jobs(s)
    manifest(s, "acme/a", "1", "2")
    os.unlink(s.path("acme/a/1"))
    look_until_sealed(s)
    assert (batch(s).state, batch(s).total) == (BatchState.FINISHED, 2)


def test_of_two_producers_one_opens_a_delivery(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in")
    registers = [DeliveryRegister(s.broker.real, bytes(s.root)) for _ in range(2)]
    for register in registers:
        register.refresh()
    path = s.path("acme/a")
    opened = [register.open(path, now_ms).first_ms for register, now_ms in zip(registers, (1, 2), strict=True)]
    assert opened == [1, 1]


def check_job(s: Scenario, path: str, **fields: Any) -> Any:
    payload = {"directory": str(s.root), "path": str(s.root / path), **fields}
    return SimpleNamespace(payload=payload)


def test_a_check_fails_with_what_is_wrong_and_succeeds_when_it_is_fixed(tmp_path: Path) -> None:
    s = Scenario(tmp_path / "in")
    right = hashlib.sha256(b"x").hexdigest()
    job = check_job(s, "1", sha256=right, also=["missing: 2"], also_more=4)
    with pytest.raises(Permanent, match=r"missing: .*/1 is in the manifest.*; also: missing: 2 and 4 more"):
        check_delivered(job, s.config)
    s.add("1", size=2)
    with pytest.raises(
        Permanent, match=f"wrong checksum: .*/1 has sha256 {hashlib.sha256(b'xx').hexdigest()}.*{right}"
    ):
        check_delivered(job, s.config)
    with pytest.raises(Permanent, match=r"wrong size: .*/1 has 2 bytes, the manifest says 1"):
        check_delivered(check_job(s, "1", size=1), s.config)
    s.add("1", size=1)
    assert check_delivered(job, s.config)["size"] == 1
