"""Outputs: the files that a completed job made, in its record and by path."""

import pytest
from msgspec.structs import replace

from fileq.core.outcome import Output
from fileq.core.settlement import Settlement, SettleResult, complete
from fileq.testing.conformance.builders import (
    EVERY_SETTLEMENT,
    burial,
    claim_one,
    enqueue,
    foreign,
    has_record,
    record_of,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness, MakeHarness

ODD = b"/out/\xff a\n.pdf"


def made(settlement: Settlement, *paths: bytes) -> Settlement:
    return replace(settlement, outputs=tuple(Output(path, 17, "17-1-i3") for path in paths))


def complete_with(harness: Harness, id: str, *paths: bytes) -> None:
    assert settle(harness, made(complete(running(harness, id)), *paths)) is SettleResult.DONE


def test_the_record_keeps_them_as_they_came(harness: Harness) -> None:
    outputs = (Output(ODD, 2**40, 'sig "1"'), Output(b"/out/b", 0, ""))
    settle(harness, replace(complete(running(harness)), outputs=outputs))
    assert record_of(harness, "a").outputs == outputs


def test_a_job_without_outputs_has_none(harness: Harness) -> None:
    complete_with(harness, "a")
    assert record_of(harness, "a").outputs == ()


def test_the_maker_of_a_path_is_found(harness: Harness) -> None:
    assert harness.broker.makers([]) == []
    assert harness.broker.makers([ODD]) == [None]
    complete_with(harness, "a", ODD, b"/out/b")
    complete_with(harness, "b", b"/out/c")
    paths = [b"/out/b", ODD, b"/out/", b"/out/c"]
    assert harness.another().makers(paths) == ["a", "a", None, "b"]
    assert harness.broker.known_files(paths) == [(None, "a"), (None, "a"), (None, None), (None, "b")]
    assert harness.broker.known_files([]) == []


def test_the_last_job_that_made_it_counts(harness: Harness) -> None:
    complete_with(harness, "a", b"/out/a", b"/out/b")
    complete_with(harness, "b", b"/out/a")
    assert harness.broker.makers([b"/out/a", b"/out/b"]) == ["b", "a"]


def test_a_maker_may_have_an_odd_id(harness: Harness) -> None:
    complete_with(harness, 'odd "id"\n\\ ü', b"/out/a")
    assert harness.broker.makers([b"/out/a"]) == ['odd "id"\n\\ ü']


def test_a_thousand_outputs_of_one_job(harness: Harness) -> None:
    paths = [b"/out/%d" % n for n in range(1000)]
    complete_with(harness, "a", *paths)
    assert len(record_of(harness, "a").outputs) == 1000
    assert harness.broker.makers(paths) == ["a"] * 1000


def test_a_maker_is_known_as_long_as_its_record_may_be(harness: Harness) -> None:
    ttl_s = harness.config.worker.history_ttl
    complete_with(harness, "a", b"/out/a")
    harness.advance(ttl_s - 1)
    assert harness.broker.makers([b"/out/a"]) == ["a"]
    complete_with(harness, "b", b"/out/b")
    harness.advance(1)
    assert harness.broker.makers([b"/out/a", b"/out/b"]) == [None, "b"]
    assert not has_record(harness, "a")


def test_a_maker_is_known_when_its_job_is_not_listed_any_more(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 1})
    complete_with(harness, "a", b"/out/a")
    complete_with(harness, "b")
    assert (has_record(harness, "a"), harness.broker.makers([b"/out/a"])) == (False, ["a"])


def test_a_fenced_or_repeated_settlement_changes_nothing(harness: Harness) -> None:
    enqueue(harness, "a")
    claim = claim_one(harness)
    settle(harness, made(complete(claim), b"/out/a"))
    complete_with(harness, "b", b"/out/a")
    assert settle(harness, made(complete(claim), b"/out/a", b"/out/b")) is SettleResult.FENCED
    assert harness.broker.makers([b"/out/a", b"/out/b"]) == ["b", None]


def test_a_job_that_runs_again_keeps_its_outputs_until_it_has_others(harness: Harness) -> None:
    complete_with(harness, "a", b"/out/a")
    for paths in ((), (b"/out/b",)):
        harness.push_raw("low", foreign("a"))
        settle(harness, made(complete(claim_one(harness)), *paths))
        assert [output.path for output in record_of(harness, "a").outputs] == (list(paths) or [b"/out/a"])


def test_only_a_completed_job_has_outputs(harness: Harness) -> None:
    claim = running(harness)
    for make in EVERY_SETTLEMENT.values():
        if make is not complete:
            with pytest.raises(ValueError, match="only a completed job has outputs"):
                made(make(claim), b"/out/a")
    assert settle(harness, burial(claim)) is SettleResult.DONE
