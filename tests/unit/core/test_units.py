"""Durations, sizes and rates are read as people write them, and written so that they can be read again."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.core.units import (
    Rate,
    format_duration,
    format_size,
    parse_duration,
    parse_point_in_time,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("1m", 60.0),
        ("1h30m", 5400.0),
        ("30d", 2_592_000.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("1.5s", 1.5),
        ("4s350ms", 4.35),
        ("1m5ms", 60.005),
        (" 30s ", 30.0),
        ("36500d", 3_153_600_000.0),
    ],
)
def test_durations_are_read_as_the_contract_writes_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5s", "5 s", "1m1h", "1s1s", "5x", "abc", "1h30", "infs", "1e3s"])
def test_an_invalid_duration_is_an_error_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="500ms, 30s"):
        parse_duration(text)


def test_the_error_for_a_number_without_a_unit_says_what_to_write() -> None:
    with pytest.raises(ValueError, match="such as 30s or 30ms"):
        parse_duration("30")


def test_a_duration_that_timers_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 36500d"):
        parse_duration("9" * 400 + "d")


@given(st.integers(min_value=0, max_value=36_500 * 86_400_000))
def test_every_whole_millisecond_survives_formatting(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.text(alphabet="0123456789.dhms", max_size=12))
def test_a_duration_that_is_read_reads_the_same_after_formatting(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.5, "500ms"), (90, "1m30s"), (86_400, "24h"), (2_592_000, "30d"), (0.0005, "0.5ms")],
)
def test_durations_are_written_in_the_units_people_use(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512 << 20),
        ("512MiB", 512 << 20),
        ("2g", 2 << 30),
        ("1.5 GB", 3 << 29),
        ("100B", 100),
        ("1K", 1024),
        ("2TB", 2 << 40),
    ],
)
def test_sizes_count_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "5XB", "1MB2KB"])
def test_an_invalid_size_is_an_error_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="such as 512MB or 2GB"):
        parse_size(text)


def test_the_error_for_a_size_without_a_unit_says_what_to_write() -> None:
    with pytest.raises(ValueError, match="such as 512MB"):
        parse_size("512")


@given(st.integers(min_value=0, max_value=1 << 50))
def test_every_size_survives_formatting(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_a_size_is_written_in_its_largest_whole_unit() -> None:
    assert [format_size(n) for n in (3 << 40, 3 << 30, 1536, 1000)] == ["3TB", "3GB", "1536B", "1000B"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10/s", Rate(10, 1000)), ("100/m", Rate(100, 60_000)), ("1/h", Rate(1, 3_600_000)), (" 5/s ", Rate(5, 1000))],
)
def test_rates_are_read_and_written_as_people_write_them(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate
    assert str(rate) == text.strip()


@pytest.mark.parametrize("text", ["", "10", "0/s", "-1/s", "1.5/s", "10/d", "10/ms", "10 / s", "10/2s", "/s", "x/s"])
def test_an_invalid_rate_is_an_error_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="10/s, 100/m or 1000/h, of at least 1"):
        parse_rate(text)


def test_a_local_time_that_the_clock_leaves_out_is_the_moment_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        left_out = parse_point_in_time("2027-03-28T02:30")
        usual = parse_point_in_time("2027-03-29T02:30")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert left_out == (1_806_197_400_000, "2027-03-28T03:30:00+02:00")
    assert usual.assumed == "2027-03-29T02:30:00+02:00"
