"""One cell at a time: what it means, and why it is refused."""

import math
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.datasets.cells import (
    MomentParser,
    RowRejected,
    parse_choice,
    parse_identifier,
    parse_integer,
    parse_number,
    parse_optional_flag,
    parse_optional_identifier,
    parse_text,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MOMENT = datetime(2016, 1, 31, 13, 23, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        "2016-01-31T13:23:06Z",
        "2016-01-31 13:23:06",
        "2016-01-31T13:23:06+00:00",
        "2016-01-31T14:23:06+01:00",
        " 2016-01-31T13:23:06 ",
        "20160131T132306",
        1454246586,
        "1454246586",
        1454246586.0,
        1454246586000,
        "1454246586000",
        MOMENT,
        MOMENT.replace(tzinfo=None),
        MOMENT.astimezone(timezone(timedelta(hours=5))),
    ],
)
def test_all_notations_of_a_moment_are_equal(value):
    assert MomentParser(now=NOW).parse(value, "voted_at") == MOMENT


def test_moment_without_zone_uses_the_given_zone():
    clock = MomentParser("Europe/Berlin", now=NOW)
    assert clock.parse("2016-01-31 14:23:06", "voted_at") == MOMENT
    assert clock.parse("2016-07-31 14:23:06", "voted_at") == datetime(
        2016, 7, 31, 12, 23, 6, tzinfo=UTC
    )
    assert clock.parse("2016-01-31T13:23:06Z", "voted_at") == MOMENT
    assert (clock.n_without_zone, clock.n_with_zone) == (2, 1)


def test_a_day_is_its_midnight():
    assert MomentParser(now=NOW).parse(date(2016, 1, 31), "voted_at") == datetime(
        2016, 1, 31, tzinfo=UTC
    )
    assert MomentParser(now=NOW).parse("2016-01-31", "voted_at") == datetime(
        2016, 1, 31, tzinfo=UTC
    )


@pytest.mark.parametrize("value", [None, "", math.nan])
def test_empty_moment_is_none(value):
    assert MomentParser(now=NOW).parse(value, "voted_at") is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("31.01.2016", "not a valid time. Write ISO 8601"),
        ("yesterday", "not a valid time"),
        ("1970-01-01T00:00:00Z", "Check the clock"),
        (0, "Check the clock"),
        ("0001-01-01T00:00:00+05:00", "not a valid time|Check the clock"),
        ("2026-03-03T00:00:00Z", "in the future"),
        (True, "not a valid time"),
        ([], "not a valid time"),
        (1e300, "not a valid time"),
    ],
)
def test_an_invalid_vote_time_is_refused(value, why):
    with pytest.raises(RowRejected, match=why):
        MomentParser(now=NOW).parse(value, "voted_at")


def test_an_unknown_zone_is_named():
    for zone in ("Mars/Olympus", "../etc", ""):
        with pytest.raises(DatasetError, match="Unknown time zone"):
            MomentParser(zone, now=NOW)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "is missing"),
        (math.nan, "is missing"),
        ("", "is empty"),
        (" \n", "is empty"),
        (math.inf, "is inf, not a text"),
        (["x"], "is a list, not a text"),
        (True, "is a bool"),
        ("x" * 1_000_001, "has 1,000,001 bytes, the limit is 1,000,000"),
        ("a\0b", "NUL"),
        ("caf\udce9", r"not UTF-8 \(byte 0xE9 after 3 characters"),
        ("\ud83d", "a lone surrogate"),
    ],
)
def test_unstorable_text_is_refused(value, why):
    with pytest.raises(RowRejected, match=why):
        parse_text(value, "prompt")


def test_numbers_become_texts_in_text_columns():
    assert parse_text(42, "prompt") == "42"
    assert [parse_identifier(value, "pair_id") for value in (7, 7.0, " 7 ", "7")] == ["7"] * 4
    assert parse_text("", "completion_a", may_be_empty=True) == ""
    assert parse_optional_identifier("", "x") is None
    with pytest.raises(RowRejected, match="201 characters"):
        parse_identifier("x" * 201, "pair_id")


@pytest.mark.parametrize("value", ["x", math.inf, "nan", "1e400", 10**400, True, [], -1])
def test_a_number_out_of_bounds_is_refused(value):
    with pytest.raises(RowRejected, match="duration_s is"):
        parse_number(value, "duration_s", low=0)


def test_integers_must_be_whole():
    assert [
        parse_integer(value, "strength", low=0, high=4)
        for value in (2, 2.0, "2", " 2 ", "2.0", None, math.nan, "")
    ] == [2] * 5 + [None] * 3
    assert parse_integer(str(2**60 + 1), "seed", low=0, high=2**62) == 2**60 + 1
    with pytest.raises(RowRejected, match="not a whole number"):
        parse_integer(1.5, "strength", low=0, high=4)
    with pytest.raises(RowRejected, match="expected 0 to 4"):
        parse_integer(5, "strength", low=0, high=4)


def test_flags_are_true_false_or_unknown():
    for value in (True, "true", " TRUE ", 1, 1.0, "1"):
        assert parse_optional_flag(value, "is_blind") is True
    for value in (False, "False", 0, "0"):
        assert parse_optional_flag(value, "is_blind") is False
    assert parse_optional_flag("", "is_blind") is parse_optional_flag(None, "is_blind") is None
    for value in ("yes", 2, []):
        with pytest.raises(RowRejected, match=r"is_blind is .*; allowed: true, false, 1, 0"):
            parse_optional_flag(value, "is_blind")


def test_choices_ignore_case_and_follow_the_mapping():
    words = {"left": Choice.A, "1": Choice.B}
    assert [
        parse_choice(value, words) for value in ("a", " B ", "TIE", "both_bad", "left", 1, 1.0)
    ] == [
        "a",
        "b",
        "tie",
        "both_bad",
        "a",
        "b",
        "b",
    ]
    for value in ("right", None, "", 3):
        with pytest.raises(
            RowRejected, match=r"allowed: a, b, tie, both_bad, skip\. Name other words"
        ):
            parse_choice(value, words)
