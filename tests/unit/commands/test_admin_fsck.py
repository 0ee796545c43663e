"""The arithmetic of the balance: what is certain and what is only possible; and the Bloom filter of ids."""

from types import SimpleNamespace

import pytest

from fileq.brokers.types import Census
from fileq.commands.admin.fsck.broker_walk import (
    BloomFilter,
    agreed_excess,
    measurement_from,
    readable_id,
    record_for,
    tighten,
)


def census(produced, pending, *, adopted=0, completed=0):
    counters = {"produced": produced, "adopted": adopted, "completed": completed}
    return Census({"low": pending}, 0, 0, 0, 0, 0, 0, counters)


def walk(unclaimed=0, unrecorded=None):
    return SimpleNamespace(unclaimed=unclaimed, unrecorded=unclaimed if unrecorded is None else unrecorded)


@pytest.mark.parametrize(
    ("produced", "pending", "unclaimed", "excess"),
    [(5, 5, 0, 0), (5, 7, 2, 0), (5, 5, 1, 1), (5, 3, 0, 2), (5, 7, 0, -2), (5, 7, 1, -1)],
)
def test_on_a_quiet_system_the_excess_is_exact(produced, pending, unclaimed, excess):
    look = census(produced, pending)
    now = measurement_from(look, look, walk(unclaimed))
    assert (now.is_exact, now.excess) == (True, excess)


def test_on_a_busy_system_only_what_is_certain_counts():
    # Another program pushed two jobs meanwhile; there is no problem, and none is reported.
    now = measurement_from(census(5, 6), census(6, 9), walk(2))
    assert (now.is_exact, now.excess) == (False, 0)
    # More is missing than jobs of other programs could explain.
    now = measurement_from(census(9, 5), census(10, 5), walk(1))
    assert (now.is_exact, now.excess) == (False, 5)
    # There are more jobs than other programs could have pushed.
    now = measurement_from(census(5, 3, completed=6), census(5, 2, completed=7), walk(0))
    assert (now.is_exact, now.excess) == (False, -2)


def test_a_job_that_was_claimed_during_the_walk_is_not_foreign():
    now = measurement_from(census(5, 5), census(6, 6), walk(unclaimed=2, unrecorded=0))
    assert (now.is_exact, now.excess) == (True, 0)


def test_only_the_excess_that_both_measurements_prove_counts():
    def exact(excess):
        look = census(5, 5 - excess)
        return measurement_from(look, look, walk())

    assert agreed_excess(exact(2), exact(3)) == 2
    assert agreed_excess(exact(-2), exact(-3)) == -2
    assert agreed_excess(exact(2), exact(0)) == 0
    assert agreed_excess(exact(2), exact(-1)) == 0


def test_further_measurements_narrow_the_bounds():
    wide = measurement_from(census(5, 6), census(6, 9), walk(2))
    other = measurement_from(census(9, 9, completed=1), census(9, 10, completed=0), walk(1))
    narrow = tighten(wide, other)
    assert narrow.at_least == max(wide.at_least, other.at_least)
    assert narrow.at_most == min(wide.at_most, other.at_most)


def test_the_bloom_filter_has_no_false_negatives_and_few_false_positives():
    seen = BloomFilter(5_000)
    assert not any(seen.add(("queue", f"job-{i}")) for i in range(3))
    for i in range(5_000):
        seen.add(("queue", f"job-{i}"))
    assert all(("queue", f"job-{i}") in seen for i in range(5_000))
    assert sum(("dead_letter", f"job-{i}") in seen for i in range(5_000)) < 50
    assert seen.add(("queue", "job-7"))


def test_two_bloom_filters_have_different_false_positives():
    """Otherwise a lost job that one walk overlooks would be overlooked by every walk."""
    filters = BloomFilter(1), BloomFilter(1)
    for seen in filters:
        for i in range(20_000):
            seen.add(("queue", f"job-{i}"))
    false = [{i for i in range(5_000) if ("queue", f"lost-{i}") in seen} for seen in filters]
    assert len(false[0]) > 500, "the filters are far too small, so that there are many"
    assert len(false[0] & false[1]) < len(false[0]) / 2


def test_the_bloom_filter_has_a_bounded_size():
    assert BloomFilter(10**9).bits == 1 << 27


@pytest.mark.parametrize(
    ("raw", "id"),
    [
        (b'{"id":"a","filepath":"/x"', "a"),
        (b'{"filepath": "/x", "id": "b"}', "b"),
        (b'{"id": 7}', None),
        (b'{"id": ""}', None),
        (b"[1]", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_an_id_is_read_as_a_claim_reads_it(raw, id):
    assert readable_id(raw) == id


def test_bytes_that_are_not_a_job_need_a_record_only_in_the_dead_letter_queue():
    assert record_for("low", b"x", None, ("high", "low")) is None
    record = record_for("dead_letter", b"x", None, ("high", "low"))
    assert record is not None
    assert record.id.startswith("raw-")
