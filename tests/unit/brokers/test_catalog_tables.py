"""Tables and capped logs: how everything reads and writes documents of the catalog."""

from __future__ import annotations

import pytest
from msgspec import Struct

from fileq.brokers import catalog
from fileq.brokers.catalog import TRIES, CappedLog, Table, entry_name
from fileq.brokers.memory import MemoryBroker
from fileq.config import Config
from fileq.core.errors import Conflict


class Note(Struct, frozen=True):
    text: str


NOTES = Table[Note]("notes", Note)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(Config())


@pytest.mark.parametrize("body", [b"{", b'{"text":1}', b'{"text":"\xff"}', b"[" * 5_000])
def test_a_document_that_can_not_be_read_is_as_if_there_were_none(broker: MemoryBroker, body: bytes) -> None:
    NOTES.put(broker, "good", Note("a"))
    broker.put_document("notes", "bad", body)
    named: list[str] = []
    assert NOTES.read(broker.documents("notes"), lambda name, error: named.append(name)) == {"good": Note("a")}
    assert (named, NOTES.get(broker, "bad")) == (["bad"], None)
    assert NOTES.change(broker, "bad", lambda known: known or Note("new")) == Note("new")
    assert NOTES.all(broker) == {"good": Note("a"), "bad": Note("new")}


def test_a_change_is_made_to_what_another_process_has_written_meanwhile(broker: MemoryBroker) -> None:
    def added(known: Note | None) -> Note:
        if known is None:
            NOTES.put(broker, "n", Note("theirs"))
        return Note(f"{known.text if known is not None else ''} ours")

    assert NOTES.change(broker, "n", added) == NOTES.get(broker, "n") == Note("theirs ours")


def test_a_change_gives_up_when_others_are_faster_every_time(broker: MemoryBroker) -> None:
    texts = iter(range(2 * TRIES))

    def overtaken(known: Note | None) -> Note:
        NOTES.put(broker, "n", Note(f"theirs {next(texts)}"))
        return Note("ours")

    with pytest.raises(Conflict):
        NOTES.change(broker, "n", overtaken)
    assert NOTES.get(broker, "n") == Note(f"theirs {TRIES - 1}")


def test_a_log_keeps_the_newest_entries_and_counts_an_unreadable_document_as_one(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "TRIM_ONE_IN", 1)
    log = CappedLog[list[str]]("words", list[str], 5, len)
    for number, words in enumerate((["a"], ["b", "c"], ["d"], ["e", "f"])):
        log.add(broker, entry_name(1_700_000_000_000 + number), words)
    assert log.newest(broker.documents("words")) == [["e", "f"], ["d"], ["b", "c"]]
    broker.put_document("words", entry_name(1_700_000_000_009), b"{")
    log.trim(broker)
    assert log.newest(broker.documents("words")) == [["e", "f"], ["d"]]
    log.add(broker, entry_name(1_700_000_000_010), ["x"] * 9)
    assert log.newest(broker.documents("words")) == [["x"] * 9], "the newest stays"
