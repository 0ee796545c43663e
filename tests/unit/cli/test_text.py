"""Text for a terminal: short, aligned, within its width, and without control characters."""

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from fileq.cli.batch_text import render_batches
from fileq.cli.definitions.key_commands import render_keys
from fileq.cli.terminal import Cell, Screen, age, columns, cut, plural, rate, table, wrapped
from fileq.commands.api_keys import KeyList, KeySummary
from fileq.core.api_key import Scope
from fileq.core.batch import Batch
from fileq.core.text import printable
from fileq.queries.documents import batch_document


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (-3, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (60, "1m00s"),
        (250, "4m10s"),
        (3_600, "1h00m"),
        (7_500, "2h05m"),
        (172_800, "2d00h"),
        (270_000, "3d03h"),
    ],
)
def test_an_age_has_two_units_at_most(seconds, text):
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"), [(0, "0"), (1234.5, "1,234/s"), (9.94, "9.9/s"), (0.5, "30.0/min"), (0.001, "3.6/h")]
)
def test_a_rate_has_a_readable_unit(per_second, text):
    assert rate(per_second) == text


def test_what_is_not_printable_is_escaped():
    assert printable("a\x1b[2J\n\u202eb\udcff") == "a\\x1b[2J\\n\\u202eb\\xff"
    assert printable("ünï 🦊") == "ünï 🦊"


def test_a_text_is_cut_on_the_right_or_on_the_left():
    assert cut("/data/inbox/a.pdf", 9, from_left=True) == "…ox/a.pdf"
    assert cut("ValueError: no", 6) == "Value…"
    assert cut("short", 5) == "short"
    assert cut("漢字漢字", 5) == "漢字…"
    assert columns("漢字e\u0301") == 5


def test_a_table_fits_the_screen_and_only_the_flexible_column_is_shortened():
    rows = [("id", "name"), ("0123456789", "x" * 100), ("1", "short")]
    lines = table(rows, Screen(40))
    assert [len(line) for line in lines] == [16, 40, 17]
    assert lines[1].startswith("0123456789  …xxx")


def test_colours_do_not_change_the_width():
    rows = [("a", "b"), (Cell("dead", "red"), "1")]
    plain, painted = table(rows, Screen(80)), table(rows, Screen(80, is_coloured=True))
    assert painted[1] == "\x1b[31mdead\x1b[0m  1"
    assert plain[1] == "dead  1"


def test_a_count_of_one_is_singular():
    assert (plural(1, "job"), plural(0, "job"), plural(1200, "job")) == ("1 job", "0 jobs", "1,200 jobs")


@pytest.mark.parametrize("character", ["\x9b", "\u2028", "\x85", "\x7f"])
def test_a_control_character_above_ascii_is_escaped_too(character):
    shown = printable(f"a{character}2Jb")
    assert character not in shown
    assert shown.isascii()


def test_a_note_on_a_terminal_ends_its_lines_between_words() -> None:
    text = "note: handlers.py has changed since the worker vm 7122 loaded it"
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        assert wrapped(text, terminal).splitlines() == [
            "note: handlers.py has changed since the",
            "  worker vm 7122 loaded it",
        ]
    os.close(ours)
    assert wrapped(text, io.StringIO()) == text


def test_one_long_cell_does_not_widen_a_table_without_a_bound() -> None:
    """L9: an id of 200 kB, pushed by another program, made every line of `fileq list` that long."""
    lines = table([("ID", "FILE"), ("x" * 200_000, "/a"), ("short", "/b")], Screen())
    assert max(map(len, lines)) < 300
    assert lines[1].split() == ["x" * 249 + "…", "/a"]


def test_a_list_of_batches_counts_deleted_jobs_in_a_column_of_their_own() -> None:
    few = batch_document(Batch("few", total=5, cancelled=3, deleted=2))
    none = batch_document(Batch("none", total=3, cancelled=3))
    head, row = (line.split() for line in render_batches([few], Screen(80, 24)))
    assert dict(zip(head, row, strict=True)).items() >= {"cancelled": "3", "deleted": "2"}.items()
    head, row = (line.split() for line in render_batches([none], Screen(80, 24)))
    assert dict(zip(head, row, strict=True))["cancelled"] == "3"
    assert "deleted" not in head


@pytest.mark.parametrize("types", [(), ("ocr", "thumbnail", "report")])
def test_a_list_of_keys_fits_80_columns_with_its_times(types: tuple[str, ...]) -> None:
    times = ("2026-01-31T18:00:00.000Z", "2099-04-01T06:30:00.000Z", "2026-01-31T18:05:00.000Z")
    key = KeySummary("a1b2c3d4", "n" * 20, (Scope.ENQUEUE,), *times, types)
    expired = KeySummary("e5f6a7b8", "old", (Scope.READ,), *times[:2], None, is_expired=True)
    lines = render_keys(KeyList((key, expired)), Screen(80, 24))
    assert max(map(len, lines)) <= 80
    assert ("  only  " in lines[0], "  type " in lines[1]) == (bool(types), bool(types))
    assert "n" * 20 in lines[1]
    assert "  2099-04-01 06:30Z  " in lines[1]
    assert "  expired 2099-04-01  never" in lines[2]
