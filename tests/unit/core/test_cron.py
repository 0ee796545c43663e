"""Cron expressions: the same times as cronsim, in every zone, through every change of the clock."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from fileq.core.schedule import InvalidCron, InvalidZone, parsed

YEARS = range(2014, 2024)
ZONES = (
    *("Europe/Berlin", "Europe/London", "Europe/Dublin", "Europe/Chisinau", "America/New_York", "America/Sao_Paulo"),
    *("America/Santiago", "America/Havana", "America/St_Johns", "America/Asuncion", "Asia/Tehran", "Asia/Beirut"),
    *("Asia/Gaza", "Asia/Kolkata", "Asia/Amman", "Africa/Cairo", "Africa/Casablanca", "Australia/Lord_Howe"),
    *("Pacific/Auckland", "Pacific/Chatham"),
)
EXPRESSIONS = ("30 2 * * *", "0 0 * * *", "15 */2 * * *", "*/20 1-3 * * 0", "59 1,2 * * 6,0")


def changes_of(zone: ZoneInfo) -> list[datetime]:
    """The days, in UTC, on which the clocks of a zone change in ten years, found by their offset."""
    days = [datetime(year, month, day, tzinfo=UTC) for year in YEARS for month in range(1, 13) for day in range(1, 29)]
    return [
        one
        for one, next_one in pairwise(days)
        if one.astimezone(zone).utcoffset() != next_one.astimezone(zone).utcoffset()
    ]


def ms(time: datetime) -> int:
    return round(time.timestamp()) * 1000


@pytest.mark.parametrize("zone", ZONES)
def test_the_times_around_every_change_of_the_clock_are_those_of_cronsim(zone: str) -> None:
    """Whatever slot a scheduler starts from, it continues as cronsim does that started days before."""
    info = ZoneInfo(zone)
    changes = changes_of(info)
    assert changes or zone == "Asia/Kolkata"
    for change in changes or [datetime(2024, 3, 30, tzinfo=UTC)]:
        for text in EXPRESSIONS:
            cron = parsed(text, zone)
            direct: list[int] = []
            for time in islice(CronSim(text, change.astimezone(info)), 12):
                if not direct or ms(time) > direct[-1]:
                    direct.append(ms(time))
            chained = [direct[0]]
            while len(chained) < len(direct):
                chained.append(cron.next_after(chained[-1]))
            assert chained == direct


@pytest.mark.parametrize("zone", ZONES)
def test_ten_years_of_a_daily_time_are_those_of_cronsim(zone: str) -> None:
    start = datetime(2014, 1, 1, tzinfo=ZoneInfo(zone))
    direct = [ms(time) for time in islice(CronSim("30 2 * * *", start), 3650)]
    assert list(islice(parsed("30 2 * * *", zone).times_after(ms(start)), 400)) == direct[:400]
    chosen = random.Random(zone).sample(range(3649), 100)
    assert [parsed("30 2 * * *", zone).next_after(direct[i]) for i in chosen] == [direct[i + 1] for i in chosen]


def test_within_a_repeated_hour_no_time_is_in_the_past() -> None:
    """In Berlin the clock shows 2:30 twice on this day."""
    second = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    assert parsed("45 2 * * *", "Europe/Berlin").next_after(ms(second)) == ms(datetime(2024, 10, 28, 1, 45, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        (" @WEEKLY ", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
    ],
)
def test_an_alias_stands_for_its_fields(text: str, fields: str) -> None:
    now_ms = 1_700_000_000_000
    assert list(islice(parsed(text).times_after(now_ms), 5)) == list(islice(parsed(fields).times_after(now_ms), 5))


@pytest.mark.parametrize(
    ("text", "now_s", "next_s"),
    [("@every 15m", 100, 900), ("@every 15m", 900, 1800), ("@every 1s", 7, 8), ("@every 1h30m", 0, 5400)],
)
def test_every_counts_from_the_epoch(text: str, now_s: int, next_s: int) -> None:
    assert parsed(text).next_after(now_s * 1000) == next_s * 1000


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "0 fields"),
        ("*", "it has 1 field$"),
        ("* * * *", "4 fields"),
        ("0 * * * * *", "6 fields"),
        ("61 * * * *", "its minute is invalid"),
        ("0 0 * * 1-9", "its day-of-week is invalid"),
        ("a b c d e", "its minute is invalid"),
        ("0 0 30 2 *", "is invalid"),
        ("0 0 */20 2 MON#5", "no day"),
        ("@fortnightly", "@hourly"),
        ("@every", "after @every"),
        ("@every 15", "15s or 15ms"),
        ("@every 500ms", "at least 1s"),
        ("@every 1.5s", "whole seconds"),
        ("0 " * 101, "at most 200 characters"),
    ],
)
def test_a_wrong_expression_is_refused_with_what_is_wrong(text: str, word: str) -> None:
    with pytest.raises(InvalidCron, match=word):
        parsed(text)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Europe/Berlim", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("../etc/passwd", ""),
        ("", ""),
        ("Europe", ""),
    ],
)
def test_a_wrong_zone_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(InvalidZone, match="a time zone such as") as caught:
        parsed("@daily", name)
    assert nearest in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("30 2 * * 1-5", "Weekdays at 02:30"),
        ("5 18 * * MON-FRI", "Weekdays at 18:05"),
        ("0 9 * * sat,sun", "Weekends at 09:00"),
        ("0 9 * * 7", "Sundays at 09:00"),
        ("15 4 * * wed", "Wednesdays at 04:15"),
        ("@daily", "Every day at 00:00"),
        ("@every 1m", "Every minute"),
        ("@every 90s", "Every 90 seconds"),
        ("@every 120m", "Every 2 hours"),
        ("@hourly", "At the start of every hour"),
        ("*/5 * * * *", "Every 5 minutes"),
        ("0 12 13 * 5", "At 12:00 on the 13th day of month or on Friday"),
        ("0 6 1 * *", "At 06:00 on the first day of every month"),
    ],
)
def test_an_expression_is_explained_in_plain_words(text: str, words: str) -> None:
    assert parsed(text, "Europe/Berlin").explain() == words
