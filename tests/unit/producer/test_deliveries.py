"""Deliveries: when a directory of files is sealed as a batch, and what becomes of files that are missing or differ."""

import hashlib
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fileq.brokers.types import WorkerInfo
from fileq.commands.built_in_jobs import check_delivered
from fileq.config import config_from
from fileq.core.batch import Batch, BatchState
from fileq.core.delivery import CHECK_TYPE
from fileq.core.errors import BrokerError, ConfigError, Permanent
from fileq.core.job import Job, decode
from fileq.core.settlement import complete
from fileq.files import status
from fileq.files.manifest import ManifestEntry, read_manifest
from fileq.files.status import found_at
from fileq.producer import deliveries, delivery_completion
from fileq.producer.deliveries import DeliveryRegister
from fileq.producer.delivery_completion import ChecksumReader, LookLimits, look_at
from fileq.producer.finder.scan import ScanRules
from tests.support.producer_scenario import UNCLOSED, FakeWatcher, Scenario

LOOK = UNCLOSED  # the time between two looks


@pytest.fixture(autouse=True)
def watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeWatcher, "made", [])
    monkeypatch.setattr("fileq.producer.finder.finder.DirectoryWatcher", FakeWatcher)


def scenario(root: Path, **delivery: Any) -> Scenario:
    given = {"match": "acme/*/", "then": "load", "catch": "tell", **delivery}
    given.setdefault("complete", {"marker": "COMPLETED"})
    return Scenario(root, deliveries=[given])


def batches(s: Scenario) -> list[Batch]:
    """Oldest first."""
    return list(s.broker.real.batch_page().batches)[::-1]


def batch(s: Scenario) -> Batch:
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
    outside = "x.manifest.json: the manifest lists '../outside', which is not below its directory"
    assert s.events.fields("delivery.unreadable")["error"] == outside
    manifest(s, "acme/a", "1")
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED


def test_at_the_deadline_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"}, deadline="2h")
    s.add("acme/a/1")
    (s.root / "acme/a/x.manifest.json").write_text('[{"path": 7}]')
    s.run(LOOK)
    s.run(7200.0)
    look_until_sealed(s, 2)
    (check,) = checks(s)
    assert check.payload_value["incomplete"].startswith("after 2h it could not be read (x.manifest.json: the manifest")


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


def deliver_again(s: Scenario, **wrong: str) -> None:
    """The second delivery: the files 1 and 2 of the first one, unchanged, and the file 3."""
    s.clock.advance(LOOK)
    s.add("acme/a/3")
    manifest(s, "acme/a", "1", "2", "3", **wrong)
    s.make_event(closed="acme/a/3")
    look_until_sealed(s)


def test_an_unchanged_file_that_the_next_manifest_lists_belongs_to_that_delivery_too(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"}, deadline="1h")
    s.add("acme/a/1", "acme/a/2")
    manifest(s, "acme/a", "1", "2")
    look_until_sealed(s)
    complete_jobs(s)
    deliver_again(s, **{"2": "f" * 64})
    first, second = batches(s)
    assert (first.state, first.total) == (BatchState.FINISHED, 2)
    assert (second.state, second.total, second.completed) == (BatchState.SEALED, 4, 2)
    (check,) = checks(s)
    assert check.payload_value["path"] == str(s.root / "acme/a/2")
    assert [job.filepath for job in s.jobs() if job.filepath] == [str(s.root / "acme/a/3")], "none is processed again"


def test_an_unchanged_file_whose_job_has_not_ended_is_awaited(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    s.add("acme/a/1", "acme/a/2")
    manifest(s, "acme/a", "1", "2")
    look_until_sealed(s)
    deliver_again(s)
    assert [one.state for one in batches(s)] == [BatchState.SEALED, BatchState.OPEN]
    complete_jobs(s)
    look_until_sealed(s)
    assert [(one.state, one.total) for one in batches(s)] == [(BatchState.FINISHED, 2), (BatchState.FINISHED, 3)]


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
    register = DeliveryRegister(s.broker.real, bytes(s.root))
    register.refresh()
    (record,) = register.records()
    assert record.batch_id == ""
    assert s.events.count("delivery.sealed") == 0


def seal_with_a_file_that_is_gone(s: Scenario, **listed: Any) -> None:
    s.add("acme/a/1", "acme/a/2")
    s.run(LOOK)
    complete_jobs(s)
    (s.root / "acme/a/x.manifest.json").write_text(json.dumps([{"path": "1", **listed}, {"path": "2"}]))
    os.unlink(s.path("acme/a/1"))
    look_until_sealed(s)


def test_a_file_of_a_manifest_that_its_handler_removed_has_come(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    seal_with_a_file_that_is_gone(s, size=1)
    assert (batch(s).state, batch(s).total) == (BatchState.FINISHED, 2)


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ({"size": 2}, "wrong size: .*/1 has 1 bytes, the manifest says 2"),
        ({"size": 2, "sha256": "0" * 64}, "wrong size: .*/1 has 1 bytes, the manifest says 2"),
        ({"sha256": hashlib.sha256(b"x").hexdigest()}, "missing: .*/1 is in the manifest and does not exist"),
    ],
)
def test_a_file_of_a_manifest_that_is_gone_is_not_taken_for_right(
    tmp_path: Path, listed: dict[str, Any], problem: str
) -> None:
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    seal_with_a_file_that_is_gone(s, **listed)
    assert batch(s).state is BatchState.SEALED
    (check,) = checks(s)
    with pytest.raises(Permanent, match=problem):
        check_delivered(SimpleNamespace(payload=check.payload_value), RUNNING, s.config)


def test_a_check_says_what_was_wrong_with_a_file_that_is_gone_since(tmp_path: Path) -> None:
    s = Scenario(tmp_path / "in")
    job = check_job(s, "1", size=1, sha256="a" * 64, found_size=1, found_sha256="b" * 64)
    with pytest.raises(Permanent, match=f"wrong checksum: .*/1 has sha256 {'b' * 64}, the manifest says {'a' * 64}"):
        check_delivered(job, RUNNING, s.config)


def test_of_two_producers_one_opens_a_delivery(tmp_path: Path) -> None:
    s = scenario(tmp_path / "in")
    registers = [DeliveryRegister(s.broker.real, bytes(s.root)) for _ in range(2)]
    for register in registers:
        register.refresh()
    path = s.path("acme/a")
    opened = [register.open(path, now_ms).first_ms for register, now_ms in zip(registers, (1, 2), strict=True)]
    assert opened == [1, 1]


def test_the_register_is_not_read_again_after_a_write_of_our_own(tmp_path: Path) -> None:
    """B9: each delivery that was opened read the documents of all others."""
    s = scenario(tmp_path / "in")
    s.run()
    s.add(*(f"acme/{n}/1" for n in range(40)))
    s.run(60)
    s.run(LOOK)
    assert len(batches(s)) == 40
    assert s.broker.calls.count("documents") <= 2


def test_what_another_producer_wrote_between_two_writes_is_read(tmp_path: Path) -> None:
    """B9: only if all that was written since the last reading is our own, nothing is read."""
    s = scenario(tmp_path / "in")
    ours, other = (DeliveryRegister(s.broker.real, bytes(s.root)) for _ in range(2))
    for register in (ours, other):
        register.refresh()
    ours.open(s.path("acme/a"), 1)
    other.open(s.path("acme/b"), 1)
    ours.open(s.path("acme/c"), 1)
    for register in (ours, other):
        register.refresh()
        assert {record.path for record in register.records()} == {s.path(f"acme/{name}") for name in "abc"}


RUNNING: Any = SimpleNamespace(cancelled=threading.Event())  # the context of an attempt that goes on


def check_job(s: Scenario, path: str, **fields: Any) -> Any:
    payload = {"directory": str(s.root), "path": str(s.root / path), **fields}
    return SimpleNamespace(payload=payload)


def test_a_check_fails_with_what_is_wrong_and_succeeds_when_it_is_fixed(tmp_path: Path) -> None:
    s = Scenario(tmp_path / "in")
    right = hashlib.sha256(b"x").hexdigest()
    job = check_job(s, "1", sha256=right, also=["missing: 2"], also_more=4)
    with pytest.raises(Permanent, match=r"missing: .*/1 is in the manifest.*; also: missing: 2 and 4 more"):
        check_delivered(job, RUNNING, s.config)
    s.add("1", size=2)
    with pytest.raises(
        Permanent, match=f"wrong checksum: .*/1 has sha256 {hashlib.sha256(b'xx').hexdigest()}.*{right}"
    ):
        check_delivered(job, RUNNING, s.config)
    with pytest.raises(Permanent, match=r"wrong size: .*/1 has 2 bytes, the manifest says 1"):
        check_delivered(check_job(s, "1", size=1), RUNNING, s.config)
    s.add("1", size=1)
    assert check_delivered(job, RUNNING, s.config)["size"] == 1


@pytest.mark.parametrize("kind", ["link", "linked directory", "pipe", "directory", "outside", "no root", "dots"])
def test_a_check_opens_only_a_regular_file_of_its_delivery(tmp_path: Path, kind: str) -> None:
    """C1 and H6: neither a job that a client made nor a link in a delivery reveals the hash or the size of a file."""
    s = Scenario(tmp_path / "in")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    delivery = s.root / "a"
    delivery.mkdir()
    directory, path = delivery, delivery / "1"
    match kind:
        case "link":
            path.symlink_to(secret)
        case "linked directory":
            (delivery / "sub").symlink_to(tmp_path)
            path = delivery / "sub" / "secret"
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "outside":
            directory, path = Path("/proc/self"), Path("/proc/self/environ")
        case "no root":
            directory, path = Path("/dev"), Path("/dev/zero")
        case "dots":
            path = Path(f"{delivery}/../../secret")
    for wrong in ({"sha256": "0" * 64}, {"size": 1_000_000}):
        job: Any = SimpleNamespace(payload={"directory": str(directory), "path": str(path), **wrong})
        with pytest.raises(Permanent) as caught:
            check_delivered(job, RUNNING, s.config)
        assert "has sha256" not in str(caught.value)
        assert "bytes" not in str(caught.value)


def test_an_error_of_one_delivery_is_reported_once_and_the_others_go_on(tmp_path: Path) -> None:
    """H5: whatever fails for one delivery, in any step, stays with it."""
    s = scenario(tmp_path / "in", done_marker="_DONE")
    s.add("acme/a/1", "acme/a/COMPLETED", "acme/b/1", "acme/b/COMPLETED")
    real = s.broker.real.create_batch

    def refuses_one(new: Any) -> bool:
        if "acme_a" in new.id:
            raise BrokerError("refused")
        return real(new)

    s.broker.real.create_batch = refuses_one  # type: ignore[method-assign]
    look_until_sealed(s)
    complete_jobs(s)
    s.run(LOOK)
    assert (s.root / "acme/b/_DONE").exists()
    assert s.events.count("delivery.failed") == 1
    assert s.events.fields("delivery.failed")["directory"] == str(s.root / "acme/a")
    s.broker.real.create_batch = real  # type: ignore[method-assign]
    s.run(60)
    look_until_sealed(s)
    complete_jobs(s)
    s.run(LOOK)
    assert (s.root / "acme/a/_DONE").exists()


def test_a_document_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    """H5: one document of the register that is no record ended the ending of all deliveries."""
    s = scenario(tmp_path / "in", done_marker="_DONE")
    s.broker.real.put_document("deliveries", "x", b'{"path": 7}')
    s.add("acme/a/1", "acme/a/COMPLETED")
    look_until_sealed(s)
    complete_jobs(s)
    s.run(LOOK)
    assert (s.root / "acme/a/_DONE").exists()


def test_a_delivery_of_too_many_entries_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    """B4: a look at the directory of one delivery had no bound."""
    s = scenario(tmp_path / "in", done_marker="_DONE")
    s.producer = s.start(max_memory=3 * delivery_completion.ENTRY_BYTES)
    s.add("acme/a/1", "acme/a/sub/2", "acme/a/sub/3", "acme/a/COMPLETED", "acme/b/1", "acme/b/COMPLETED")
    look_until_sealed(s)
    complete_jobs(s)
    s.run(LOOK)
    assert (s.root / "acme/b/_DONE").exists()
    assert not (s.root / "acme/a/_DONE").exists()
    assert s.events.count("delivery.unreadable") == 1
    assert "more than 3 entries" in s.events.fields("delivery.unreadable")["error"]


def test_the_names_in_a_delivery_of_too_many_entries_are_not_all_read(tmp_path: Path) -> None:
    """A sender decides how many there are; they were read into one list before they were counted."""
    given = {"match": "acme/*/", "complete": {"marker": "COMPLETED"}}
    rules = ScanRules(config_from({"producer": {"scan_dir": str(tmp_path), "deliveries": [given]}}))
    directory = tmp_path / "acme/a"
    directory.mkdir(parents=True)
    place = rules.deliveries.of(os.fsencode(directory))
    assert place is not None
    peaks = []
    for known in (0, 2_000):
        for n in range(known, known + 2_000):
            (directory / f"{n:0200}").touch()
        tracemalloc.start()
        with pytest.raises(OSError, match="more than 100 entries"):
            look_at(place, rules, None, 0, 100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.25, peaks


def test_an_open_delivery_keeps_none_of_its_files_in_memory(tmp_path: Path) -> None:
    """Each one kept all of them, and a sender may open any number of deliveries."""
    s = scenario(tmp_path / "in", done_marker="_DONE")
    s.add(*(f"acme/a/{n}" for n in range(300)))
    tracemalloc.start()
    look_until_sealed(s)
    assert batch(s).total == 300
    made_in = tracemalloc.Filter(True, status.__file__, status.found_at.__code__.co_firstlineno + 1)
    found = tracemalloc.take_snapshot().filter_traces([made_in])
    tracemalloc.stop()
    assert sum(one.count for one in found.statistics("lineno")) < 100


@pytest.mark.parametrize("follows_links", [False, True])
def test_a_linked_file_of_a_manifest_is_a_problem_and_is_not_read(tmp_path: Path, follows_links: bool) -> None:
    """H6: neither the size nor the checksum of what a link leads to is compared, also where links are followed."""
    given = {"match": "acme/*/", "complete": {"manifest": "*.manifest.json"}, "deadline": "1h", "done_marker": "_DONE"}
    s = Scenario(tmp_path / "in", deliveries=[given], follow_symlinks=follows_links)
    (tmp_path / "out").write_bytes(b"secret")
    s.add("acme/a/1", "other/2", size=3)
    (s.root / "acme/a/2").symlink_to(s.root / "other/2")
    (s.root / "acme/a/3").symlink_to(tmp_path / "out")
    (s.root / "acme/a/sub").symlink_to(s.root / "other")
    listed = [{"path": "1", "size": 3}, {"path": "2", "size": 1}, {"path": "3", "size": 1}]
    listed += [{"path": "2x", "sha256": "0" * 64}, {"path": "sub/2", "sha256": "0" * 64}]
    (s.root / "acme/a/x.manifest.json").write_text(json.dumps(listed))
    s.run(LOOK)
    s.run(3600)
    look_until_sealed(s)
    found = checks(s)
    assert len(found) == 4
    text = json.dumps([job.payload_value for job in found])
    assert "has sha256" not in text
    assert "bytes" not in text


def test_a_file_of_a_manifest_that_cannot_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H6: a file that is a pipe while its checksum is read is neither waited for nor taken for right."""
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    s.add("acme/a/1", "acme/a/2")
    manifest(s, "acme/a", "1", "2")
    file, away = s.root / "acme/a/2", tmp_path / "away"
    read = ChecksumReader.step

    def raced(reader: ChecksumReader) -> None:
        file.rename(away)
        os.mkfifo(file)
        read(reader)
        away.rename(file)

    monkeypatch.setattr(ChecksumReader, "step", raced)
    look_until_sealed(s)
    (check,) = checks(s)
    assert check.payload_value["path"] == str(file)


def test_a_file_that_vanishes_while_checksums_are_read_lets_the_producer_rest(tmp_path: Path) -> None:
    """C2: a sender that removes a file at this moment kept the producer busy for ever."""
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    s.add("acme/a/1", "acme/a/2")
    manifest(s, "acme/a", "1", "2")
    reader = s.producer._deliveries  # to see the moment; the rest is by its effects
    for _ in range(1000):
        s.clock.advance(LOOK)
        s.producer.turn()
        if reader.is_reading:
            break
    assert reader.is_reading
    (s.root / "acme/a/2").unlink()
    for _ in range(6):
        s.run(LOOK)  # fails if the producer never comes to rest
    assert batch(s).state is BatchState.SEALED  # it had come: workers remove files too


def test_a_marker_is_not_written_through_a_link_to_the_directory(tmp_path: Path) -> None:
    """C2: the directory itself is replaced by a link, after its delivery was sealed."""
    s = scenario(tmp_path / "in", done_marker="_DONE")
    (tmp_path / "victim").mkdir()
    s.add("acme/a/1", "acme/a/COMPLETED")
    look_until_sealed(s)
    (s.root / "acme/a").rename(tmp_path / "moved")
    (s.root / "acme/a").symlink_to(tmp_path / "victim")
    complete_jobs(s)
    s.run(LOOK)
    assert list((tmp_path / "victim").iterdir()) == []
    assert batch(s).state is BatchState.FINISHED


def test_the_checksums_of_many_deliveries_are_read_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: each delivery of a sender with large files made every turn of the producer longer."""
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    for name in "abc":
        s.add(f"acme/{name}/1")
        manifest(s, f"acme/{name}", "1")
    stepped: list[ChecksumReader] = []
    monkeypatch.setattr(ChecksumReader, "step", lambda reader: stepped.append(reader))  # they never end
    for _ in range(30):
        s.clock.advance(LOOK)
        before = len(stepped)
        s.producer.turn()
        assert len(stepped) - before <= 1
    assert len(set(stepped[-3:])) == 3


def test_a_manifest_is_read_once_however_often_and_in_how_many_deliveries_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: it was parsed at each look, and hard links of one file in many deliveries delayed all other files."""
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    (tmp_path / "list").write_text('["1", "2"]')
    for name in "abc":
        s.add(f"acme/{name}/1")
        os.link(tmp_path / "list", s.root / f"acme/{name}/x.manifest.json")
    read: list[bytes] = []
    monkeypatch.setattr(
        delivery_completion, "RECENT_NS", -(10**18)
    )  # the clock of the scenario is not that of the files

    def counted(raw: bytes, *rest: Any) -> list[ManifestEntry]:
        read.append(raw)
        return read_manifest(raw, *rest)

    monkeypatch.setattr(delivery_completion, "read_manifest", counted)
    look_until_sealed(s)
    assert len(batches(s)) == 3
    assert len(read) == 1
    for name in "abc":
        s.add(f"acme/{name}/2")
        s.make_event(closed=f"acme/{name}/2")
    look_until_sealed(s)
    assert {one.state for one in batches(s)} == {BatchState.SEALED}
    assert len(read) == 1


def test_a_manifest_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    """S2: a second change within one tick of the file system's clock leaves the times of the first."""
    file = tmp_path / "list"
    file.write_text('["1"]')
    changed_ns = file.stat().st_ctime_ns
    clock_ns = changed_ns
    reader = delivery_completion.ManifestReader(lambda: clock_ns, LookLimits())
    read = reader.entries(os.open(file, os.O_RDONLY))
    assert reader.entries(os.open(file, os.O_RDONLY)) is not read
    clock_ns = changed_ns + delivery_completion.RECENT_NS + 1
    kept = reader.entries(os.open(file, os.O_RDONLY))
    assert reader.entries(os.open(file, os.O_RDONLY)) is kept == read


def test_what_is_kept_of_manifests_is_bounded(tmp_path: Path) -> None:
    """S2"""
    limits = LookLimits(manifest_entries=2500)
    reader = delivery_completion.ManifestReader(lambda: time.time_ns() + 10**12, limits)
    (tmp_path / "a").write_text('["1"]')
    (tmp_path / "b").write_text("[1]")
    (tmp_path / "c").write_text('["3"]')

    def entries(name: str) -> list[ManifestEntry]:
        return reader.entries(os.open(tmp_path / name, os.O_RDONLY))

    first = entries("a")
    with pytest.raises(ConfigError):
        entries("b")
    assert entries("a") is first
    last = entries("c")
    assert entries("a") is first
    assert entries("c") is last
    with pytest.raises(ConfigError):
        entries("b")
    assert entries("a") is not first


def test_long_looks_leave_half_of_the_time_to_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: with many deliveries one look followed the other, and files outside of them waited."""
    s = scenario(tmp_path / "in", complete={"files": 2})
    for number in range(20):
        s.add(f"acme/{number}/1")
    s.run(LOOK)
    looked: list[float] = []

    def slow(*arguments: Any) -> delivery_completion.DirectoryLook:
        s.clock.advance(3.0)
        looked.append(s.clock.monotonic())
        return delivery_completion.look_at(*arguments)

    monkeypatch.setattr(deliveries, "look_at", slow)
    began_s = s.clock.monotonic()
    for _ in range(200):
        s.clock.advance(0.1)
        s.producer.turn()
    assert looked
    assert len(looked) * 3.0 <= (s.clock.monotonic() - began_s) / 2 + 3.0


SHA256 = "0" * 64


def sparse(path: Path, size: int = 4 << 40) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def test_a_file_of_another_size_than_the_manifest_says_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: `truncate -s 4T` made a file that takes no space, and the producer read it for hours."""
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"})
    s.add("acme/a/1")
    sparse(s.root / "acme/a/1")
    entry = {"path": "1", "size": 5, "sha256": SHA256}
    (s.root / "acme/a/x.manifest.json").write_text(json.dumps([entry]))
    monkeypatch.setattr(ChecksumReader, "step", lambda reader: pytest.fail("it is read"))
    look_until_sealed(s)
    assert batch(s).state is BatchState.SEALED
    (check,) = checks(s)
    assert check.payload_value["size"] == 5


def test_a_file_that_cannot_be_read_before_the_deadline_keeps_no_delivery_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: a manifest without its size had it read past the deadline."""
    s = scenario(tmp_path / "in", complete={"manifest": "*.manifest.json"}, deadline="1h")
    for name in "12":
        s.add(f"acme/a/{name}")
    sparse(s.root / "acme/a/1")
    right = hashlib.sha256(b"x").hexdigest()
    entries = [{"path": "1", "sha256": SHA256}, {"path": "2", "sha256": right}]
    (s.root / "acme/a/x.manifest.json").write_text(json.dumps(entries))
    read = os.pread

    def slow(fd: int, size: int, at: int) -> bytes:
        s.clock.advance(0.05)
        return read(fd, size, at)

    monkeypatch.setattr("fileq.producer.content_check.os.pread", slow)
    deliveries = s.producer._deliveries  # to see the moment; the rest is by its effects
    for _ in range(1000):
        s.clock.advance(LOOK)
        s.producer.turn()
        if deliveries.is_reading:
            break
    assert deliveries.is_reading
    s.clock.advance(3600.0)
    for _ in range(10):
        s.clock.advance(LOOK)
        s.producer.turn()
    assert batch(s).state is BatchState.SEALED
    (check,) = checks(s)
    assert check.payload_value["path"] == str(s.root / "acme/a/1")


def test_what_is_appended_to_a_file_while_it_is_read_is_not_read(tmp_path: Path) -> None:
    """S4: a file that grows faster than it is read had no end."""
    file = tmp_path / "a"
    file.write_bytes(b"abcdef")
    found = found_at(bytes(file), file.stat())
    file.write_bytes(b"abcdef" * 1000)
    reader = ChecksumReader([found], lambda path: os.open(path, os.O_RDONLY), time.monotonic)
    while not reader.is_done:
        reader.step()
    assert (reader.found, reader.failed) == ({}, {found.path: "it changed while it was read"})
