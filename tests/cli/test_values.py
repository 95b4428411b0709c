"""Texts into values: numbers, durations, times, sizes, names."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from spoolctl.cli.spec import TYPES, Flag
from spoolctl.cli.values import CONVERTERS, PROBES, BadValue, convert
from spoolctl.cli.when import timestamp
from spoolctl.core.limits import LIMITS
from spoolctl.errors import InvalidInput

BAD = object()


def value(kind: str, text: str, **more: Any) -> Any:
    try:
        return convert(Flag("--x", kind, "", **more), text)
    except InvalidInput:
        return BAD


def test_every_type_has_a_converter() -> None:
    assert set(CONVERTERS) == set(TYPES) - {"boolean"}


@pytest.mark.parametrize("kind", sorted(PROBES))
def test_probes_are_what_they_say(kind: str) -> None:
    check = {"key_value": "env"}.get(kind)
    assert value(kind, PROBES[kind].valid, check=check) is not BAD
    for text in PROBES[kind].invalid:
        limit = "wait_seconds" if kind == "float" else None
        assert value(kind, text, check=check, limit=limit) is BAD, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("+7", 7),
        ("007", 7),
        ("9223372036854775807", 2**63 - 1),
        *((bad, BAD) for bad in ("", "0", "-1", "9223372036854775808", "9" * 5000, "1_000")),
        *((bad, BAD) for bad in ("0x10", "1.0", " 1", "1 ", "1e3", "٣", "²", "+", "-", "--1")),
    ],
)
def test_integers(text: str, expected: object) -> None:
    assert value("integer", text, limit="id") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e2", 100.0),
        ("86400", 86400.0),
        *((bad, BAD) for bad in ("0", "-1", "nan", "inf", "1e400", "1e-400", "", " 1", "1_0")),
        *((bad, BAD) for bad in ("86400.1", "infinity", "0x1", "1.2.3", "e5")),
    ],
)
def test_floats(text: str, expected: object) -> None:
    assert value("float", text, limit="wait_seconds") == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("2.", 2.0),
        ("0", 0.0),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("365000d", 31536000000.0),
        ("1h30m", 5400.0),
        ("1d2h3m4s", 93784.0),
        *((bad, BAD) for bad in ("", "-1", "+1", "1 h", "1H", "5w", "1e3", ".", "h", "1m1h")),
        *((bad, BAD) for bad in ("1m1m", "1h30", "365001d", "9" * 400, "1..5", "٣s", "nan", " 1")),
    ],
)
def test_durations(text: str, seconds: object) -> None:
    assert value("duration", text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64K", 65536),
        ("64k", 65536),
        ("10M", 10 << 20),
        ("1G", 1 << 30),
        ("2T", 2 << 40),
        *((bad, BAD) for bad in ("", "K", "1.5M", "-1", "1KB", "4095", "9" * 30 + "G")),
    ],
)
def test_sizes(text: str, size: object) -> None:
    assert value("size", text, limit="output_bytes") == size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dead", ("dead",)),
        (" dead , done ", ("dead", "done")),
        ("dead,dead", ("dead",)),
        *((bad, BAD) for bad in ("", ",", "dead,", "dead,,done", "Dead", "de ad")),
    ],
)
def test_lists_of_choices(text: str, expected: object) -> None:
    assert value("enum_csv", text, choices=("dead", "done")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", ((2, 2),)),
        ("2,64-78", ((2, 2), (64, 78))),
        *((bad, BAD) for bad in ("", "0", "256", "5-3", "1,,2", "-1", "a-b")),
    ],
)
def test_exit_codes(text: str, expected: object) -> None:
    assert value("exit_codes", text) == expected


def test_lists_of_durations() -> None:
    assert value("duration_csv", "10,30, 1m") == (10.0, 30.0, 60.0)
    assert value("duration_csv", "10,") is BAD


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "0", "x" * 64])
def test_queue_names(name: str) -> None:
    assert value("queue", name) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "ä", "a/b", "x" * 65, "a\n", "a\0"])
def test_what_is_no_queue_name(name: str) -> None:
    assert value("queue", name) is BAD


def test_keys_are_stripped() -> None:
    assert value("string", " k \t", check="key") == "k"
    for bad in ("", "   ", "a\tb", "a\x1bb", "x" * 257):
        assert value("string", bad, check="key") is BAD


def test_tags_and_variables() -> None:
    assert value("key_value", "a=b=c", check="tag") == ("a", "b=c")
    assert value("key_value", "a=", check="tag") == ("a", "")
    assert value("key_value", "a", check="tag_filter") == ("a", None)
    assert value("key_value", "a=", check="tag_filter") == ("a", "")
    assert value("key_value", "A B=x y", check="env") == ("A B", "x y")
    for bad in ("", "a", "=b", "a b=c", "x" * 129 + "=1", "a=" + "x" * 1025):
        assert value("key_value", bad, check="tag") is BAD, bad
    for bad in ("", "A", "=b", "x" * 129 + "=1", "a=" + "x" * 4097, "a=\0"):
        assert value("key_value", bad, check="env") is BAD, bad


def test_words_besides_numbers() -> None:
    flag = Flag("--x", "integer", "", limit="budget", words=("unlimited",))
    assert convert(flag, "unlimited") == "unlimited"
    assert convert(flag, "0") == 0


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("-5", -5.0),
        ("+1700000000", 1700000000.0),
        ("1700000000.5", 1700000000.5),
        ("31536000000", 31536000000.0),
        ("2027-01-15T09:00:00Z", 1800003600.0),
        ("2027-01-15T09:00Z", 1800003600.0),
        ("2027-01-15t09:00:00z", 1800003600.0),
        ("2027-01-15T09:00:00.25+00:00", 1800003600.25),
        ("2027-01-15T09:00:00,25+0000", 1800003600.25),
        ("2027-01-15T11:00:00+02", 1800003600.0),
        ("2027-01-15T04:00:00-05:00", 1800003600.0),
        ("2027-01-15T04:00", 1800003600.0),
        ("2027-01-15 04:00", 1800003600.0),
        ("2027-01-15", 1799989200.0),
        ("2026-11-01T01:30", 1793511000.0),  # occurs twice: the first
    ],
)
@pytest.mark.usefixtures("new_york")
def test_timestamps(text: str, seconds: float) -> None:
    assert timestamp(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "nan", "inf", "1e400", "1e3", " 0", "31536000001", "-31536000001"),
        *("2027", "20270115", "1700000000000", "9999-12-31", "2027-13-01", "2027-02-30"),
        *("2027-01-15T25:00", "2027-01-15T09:00:60Z", "2027-01-15T09:00+25:00"),
        *("2027-01-15T09:00+01:99", "2027-1-5", "2027-01-15T", "24:00", "9:5", "tomorow"),
        "2027-03-14T02:30",  # skipped when the clocks go forward
    ],
)
@pytest.mark.usefixtures("new_york")
def test_what_is_no_timestamp(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        timestamp(text)
    assert getattr(caught.value, "remediation", None)
    assert "timedelta" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("23:59", "2026-06-10 23:59:00"),
        ("09:00", "2026-06-11 09:00:00"),
        ("12:00:30", "2026-06-10 12:00:30"),
        ("12:00", "2026-06-11 12:00:00"),
        ("tomorrow 9:00", "2026-06-11 09:00:00"),
        ("tomorrow", "2026-06-11 00:00:00"),
        ("today 9:00", "2026-06-10 09:00:00"),
    ],
)
@pytest.mark.usefixtures("new_york")
def test_near_times_are_the_next_ones(text: str, expected: str) -> None:
    now = datetime(2026, 6, 10, 12, 0, 0)
    assert str(datetime.fromtimestamp(timestamp(text, now=now))) == expected


@pytest.mark.parametrize(
    ("now", "text", "past", "expected"),
    [
        # The clocks skip 02:30 on March 14 and show 01:30 twice on November 7.
        ("2027-03-14T15:00Z", "02:30", False, "2027-03-15T06:30Z"),
        ("2027-03-14T05:30Z", "02:30", False, "2027-03-15T06:30Z"),
        ("2027-03-14T15:00Z", "02:30", True, "2027-03-13T07:30Z"),
        ("2027-03-15T05:00Z", "02:30", True, "2027-03-13T07:30Z"),
        ("2027-11-07T04:50Z", "01:30", False, "2027-11-07T05:30Z"),
        ("2027-11-07T05:50Z", "01:30", False, "2027-11-07T06:30Z"),
        ("2027-11-07T06:50Z", "01:30", False, "2027-11-08T06:30Z"),
        ("2027-11-07T06:10Z", "01:30", True, "2027-11-07T05:30Z"),
    ],
)
@pytest.mark.usefixtures("new_york")
def test_near_times_where_the_clocks_change(now: str, text: str, past: bool, expected: str) -> None:
    here = datetime.fromtimestamp(timestamp(now))
    assert timestamp(text, now=here, past=past) == timestamp(expected)


@pytest.mark.parametrize("text", ["2027-04-30", "tomorrow"])
def test_a_day_begins_where_the_clocks_skip_midnight(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TZ", "EET-2EEST,M4.5.5/0,M10.5.4/24")  # Cairo
    time.tzset()
    try:
        now = datetime(2027, 4, 29, 12, 0)
        assert timestamp(text, now=now) == timestamp("2027-04-29T22:00Z")
        with pytest.raises(BadValue):
            timestamp(f"{text} 0:00", now=now)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12:00", "2026-07-01 12:00"),
        ("12:01", "2026-06-30 12:01"),
        ("23:59", "2026-06-30 23:59"),
        ("yesterday", "2026-06-30 00:00"),
        ("yesterday 23:00", "2026-06-30 23:00"),
        ("today 9:00", "2026-07-01 09:00"),
        ("today 13:00", "2026-07-01 13:00"),
    ],
)
def test_near_times_of_the_past_are_the_last_ones(text: str, expected: str) -> None:
    now = datetime(2026, 7, 1, 12, 0)
    assert timestamp(text, now=now, past=True) == datetime.fromisoformat(expected).timestamp()


def test_a_moment_is_so_long_ago_or_a_time() -> None:
    before = time.time()
    for text, ago_s in (("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("0s", 0), (".5m", 30)):
        assert before - ago_s - 1 < value("moment", text) < time.time() - ago_s + 1
    assert value("moment", "1800000000.5") == 1_800_000_000.5
    assert value("moment", "2026-07-01T00:00:00Z") == 1_782_864_000.0
    with pytest.raises(BadValue) as refused:
        convert(Flag("--x", "moment", ""), "90")
    assert "90s" in str(refused.value.remediation)


def test_the_largest_time_and_duration_are_the_published_ones() -> None:
    assert LIMITS["timestamp_epoch_seconds"].maximum == LIMITS["duration_seconds"].maximum
    assert timedelta(days=365_000).total_seconds() == LIMITS["duration_seconds"].maximum


def test_dates_do_not_need_a_zone_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "No/Such_Zone")
    assert timestamp("2027-01-15T09:00Z") == 1800003600.0
