"""fsck checks the counts of batches against each other and against their members, on every broker."""

import pytest

from fileq.cli.definitions.repair_commands import render_fsck as render
from fileq.cli.terminal import Screen
from fileq.commands.admin.fsck import broker_walk
from fileq.core.batch import BatchState, CallbackKind
from fileq.core.settlement import complete
from fileq.testing.conformance import MemoryHarness
from fileq.testing.conformance.batch_builders import add, batch_of, callback_jobs, counts, create, end
from fileq.testing.conformance.builders import burial, claim_one, record_of
from tests.conformance.fsck_checks import assert_repaired, check, kinds
from tests.conformance.harness import SqliteHarness
from tests.support.sqlite_store import change_one_row


def fill_batches(harness):
    """A parent with a child, with members in every state."""
    create(harness, CallbackKind.FINALLY, id="parent", allow_failures=True)
    create(harness, *CallbackKind, parent="parent", allow_failures=True)
    create(harness, id="empty")
    harness.broker.seal_batch("empty")
    add(harness, *"acdef")
    end(harness, complete)
    end(harness, burial)
    harness.broker.cancel(["d"])
    add(harness, "p", batch="parent")
    harness.broker.seal_batch("b")
    claim_one(harness, "w9")


def change_total(harness, by):
    if isinstance(harness, (MemoryHarness, SqliteHarness)):
        sql = "UPDATE batches SET facts = json_set(facts, '$.total', json_extract(facts, '$.total') + ?) WHERE id = 'b'"
        change_one_row(getattr(harness, "memory", harness.broker), sql, by)
    else:
        harness.client.hincrby(f"{harness.config.redis.prefix}:batch:b", "total", by)


def test_batches_with_right_counts_are_clean(harness):
    fill_batches(harness)
    report = check(harness)
    assert (report.is_clean, report.batches) == (True, 3), report
    assert "3 batches" in "\n".join(render(report, Screen(80)))


def test_counts_that_do_not_add_up_are_named_and_not_repaired(harness):
    fill_batches(harness)
    change_total(harness, 2)
    report = check(harness, repair=True)
    total = batch_of_any(harness).total
    assert (report.is_clean, kinds(report), report.repairs) == (False, [("miscounted", "b")], ())
    text = "\n".join(render(report, Screen(200)))
    assert f"batch b: its total is {total}, but its states add up to {total - 2}" in text


def batch_of_any(harness):
    [view] = harness.broker.batches_by_id(["b"])
    return view


def test_counts_that_are_right_at_the_second_check_are_not_reported(harness):
    fill_batches(harness)
    change_total(harness, 1)
    corrections = iter([-1])
    report = check(harness, meanwhile=lambda: change_total(harness, next(corrections, 0)))
    assert report.is_clean, report


@pytest.mark.parametrize("is_lost", [False, True])
def test_members_that_were_not_counted_are_counted_by_a_repair(harness, is_lost):
    """The record of a member was lost: it ended as a job of no batch, or its bytes were lost too."""
    create(harness, CallbackKind.FINALLY)
    add(harness, "a", "c")
    harness.broker.seal_batch("b")
    raw = record_of(harness, "a").raw
    harness.remove_record("a")
    if is_lost:
        harness.remove_raw("low", raw)
        end(harness, complete)
    else:
        end(harness, complete)
        end(harness, complete)
    report = check(harness)
    assert ("uncounted", "b") in kinds(report)
    done = assert_repaired(harness, "a", "c")
    assert ("reconciled", "b") in done
    assert counts(harness) == {"total": 2, "completed": 1, "deleted": 1} if is_lost else {"total": 2, "completed": 2}
    assert (batch_of(harness).state, callback_jobs(harness)) == (BatchState.FINISHED, {"b.finally"})


def test_a_member_that_only_lost_its_record_is_not_counted_as_deleted(harness, monkeypatch):
    """Its job gets a record again, and is counted when it has ended. A round of the repair finds one of the jobs."""
    monkeypatch.setattr(broker_walk, "CANDIDATES", 1)
    create(harness, CallbackKind.FINALLY)
    add(harness, "a", "c")
    harness.broker.seal_batch("b")
    for id in ("a", "c"):
        harness.remove_record(id)
    assert sorted(assert_repaired(harness, "a", "c")) == [("recorded", "a"), ("recorded", "c")]
    assert counts(harness) == {"total": 2, "waiting": 2}
    end(harness, complete)
    end(harness, complete)
    assert assert_repaired(harness, "a", "c") == [("reconciled", "b")]
    assert counts(harness) == {"total": 2, "completed": 2}
