"""What makes a file a new version, by `producer.identity`."""

import os

import pytest
from msgspec.structs import replace

from fileq.brokers.types import Entry, LedgerEntry
from fileq.core.job import Version, split_signature
from fileq.files import status
from fileq.files.status import changed_version, signature_of
from fileq.testing.conformance.builders import a_job
from tests.support.inodes import replace_unnoticed
from tests.support.producer_scenario import RESCAN, UNCLOSED, Scenario

pytestmark = pytest.mark.usefixtures("fake_watchers")


@pytest.fixture(autouse=True)
def on_ext4(monkeypatch):
    mount(monkeypatch, "ext4")


def mount(monkeypatch, kind):
    monkeypatch.setattr(status, "read_mountinfo", f"27 1 254:0 / / rw - {kind} /dev/vda rw\n".encode)


def restart(scenario, identity):
    scenario.config = replace(scenario.config, producer=replace(scenario.config.producer, identity=identity))
    scenario.producer = scenario.start()
    scenario.run(UNCLOSED + 1)


def inodes(scenario, name):
    return [split_signature(signature).inode for signature, _ in scenario.entry(name).versions]


def inode(scenario, name):
    return str((scenario.root / name).stat().st_ino)


@pytest.mark.parametrize(("identity", "jobs"), [("inode", 2), ("stat", 1)])
@pytest.mark.parametrize("is_event", [False, True])
def test_another_inode_is_a_new_version_if_inodes_count(tmp_path, identity, jobs, is_event):
    scenario = Scenario(tmp_path / "in", identity=identity)
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    replace_unnoticed(scenario.root / "a", b"y")
    if is_event:
        scenario.make_event(closed="a")
        scenario.run()
        scenario.run(UNCLOSED)
    else:
        scenario.run(RESCAN)
    assert len(scenario.jobs()) == jobs
    scenario.run(RESCAN)
    assert len(scenario.jobs()) == jobs


def test_the_inode_is_in_the_job_and_in_the_ledger(scenario):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    [job] = scenario.jobs()
    assert job.version == f"{job.signature}-i{inode(scenario, 'a')}"
    assert scenario.entry("a").versions == ((job.version, job.id),)


@pytest.mark.parametrize("kind", ["nfs4", "overlay", "fuse.sshfs", "vfat"])
def test_where_inodes_are_not_kept_they_do_not_count_and_that_is_said_once(tmp_path, monkeypatch, kind):
    mount(monkeypatch, kind)
    scenario = Scenario(tmp_path / "in")
    scenario.add("a", "b")
    scenario.run(UNCLOSED + 1)
    scenario.run(UNCLOSED)
    replace_unnoticed(scenario.root / "a", b"y")
    scenario.run(RESCAN)
    assert (len(scenario.jobs()), inodes(scenario, "a")) == (2, [""])
    assert "update_ledger" not in scenario.broker.calls
    assert [f["filesystem"] for name, f in scenario.events.events if name == "producer.inodes_not_compared"] == [kind]


def test_a_version_of_an_older_release_is_known_and_gets_its_inode(scenario):
    scenario.add("a")
    old = signature_of(os.stat(scenario.path("a")))
    scenario.broker.real.enqueue([Entry(a_job("old"), "low", Version(scenario.path("a"), old, "ext4:/dev/vda"))])
    scenario.run(UNCLOSED + 1)
    recorded = LedgerEntry(((f"{old}-i{inode(scenario, 'a')}", "old"),), device="ext4:/dev/vda")
    assert (scenario.entry("a"), [job.id for job in scenario.jobs()]) == (recorded, ["old"])
    scenario.broker.calls.clear()
    scenario.run(RESCAN)
    assert set(scenario.broker.calls) <= {"knows", "lookup", "ledger"}, "it is written once"
    replace_unnoticed(scenario.root / "a", b"y")
    scenario.run(RESCAN)
    assert len(scenario.jobs()) == 2


def test_a_producer_that_does_not_see_inodes_leaves_those_of_another_producer(scenario, monkeypatch):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    recorded = scenario.entry("a").versions
    mount(monkeypatch, "fuse.sshfs")
    replace_unnoticed(scenario.root / "a", b"x")
    restart(scenario, "inode")
    assert (len(scenario.jobs()), scenario.entry("a").versions) == (1, recorded)


def test_after_a_restore_one_scan_by_stat_makes_the_new_inodes_known(scenario):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    replace_unnoticed(scenario.root / "a", b"x")
    restart(scenario, "stat")
    assert (len(scenario.jobs()), inodes(scenario, "a")) == (1, [""])
    restart(scenario, "inode")
    assert (len(scenario.jobs()), inodes(scenario, "a")) == (1, [inode(scenario, "a")])


def test_a_scan_of_known_files_reads_no_mount_table(scenario, monkeypatch):
    scenario.add("a", "b/c")
    scenario.run(UNCLOSED + 1)
    monkeypatch.setattr(status, "keeps_inodes", lambda filesystem: pytest.fail("the inodes are equal"))
    monkeypatch.setattr("fileq.producer.ledger_stages.keeps_inodes", status.keeps_inodes)
    scenario.run(RESCAN)
    assert scenario.names() == ["a", "b/c"]


@pytest.mark.parametrize(("kind", "is_changed"), [("ext4", True), ("tmpfs", True), ("nfs4", False), ("overlay", False)])
def test_a_worker_compares_inodes_only_where_it_sees_those_of_the_producer(tmp_path, monkeypatch, kind, is_changed):
    mount(monkeypatch, kind)
    path = tmp_path / "a"
    path.write_bytes(b"x")
    short = signature_of(path.stat())
    was = f"{short}-i{path.stat().st_ino}"
    assert changed_version(bytes(path), path.stat(), was) is None
    replace_unnoticed(path, b"y")
    assert changed_version(bytes(path), path.stat(), was) == (f"{short}-i{path.stat().st_ino}" if is_changed else None)
    assert changed_version(bytes(path), path.stat(), short) is None
