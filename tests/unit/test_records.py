from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from rlhf_pipeline.records import (
    AnnotatorKind,
    Choice,
    DriftEvent,
    Interval,
    ModelVersion,
    NewVote,
    Verdict,
    content_hash,
    content_id,
    folder_hash,
    lineage_tags,
)  # fmt: skip

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def vote(**more):
    given = {
        "comparison_id": "c",
        "annotator_id": "ann",
        "annotator_kind": "human",
        "choice": "a",
        "strength": 2,
        "voted_at": NOW,
        "origin": "page",
        "idempotency_key": "k",
    }
    return NewVote(**(given | more))


def event(**more):
    given = {
        "kind": "drift",
        "model_version": "demo.reward_model@1",
        "detector": "ddm",
        "params_hash": "p",
        "stream": "errors",
        "seq": 7,
        "day": "2026-01-02",
        "evidence": {"p": 0.5},
        "detected_at": NOW,
    }
    return DriftEvent(**(given | more))


def test_an_id_is_the_beginning_of_the_hash_of_the_same_parts():
    assert content_id("prompt", "Why?", "") == content_hash("prompt", "Why?", "")[:20]


def test_parts_do_not_run_into_each_other():
    assert content_hash("ab", "c") != content_hash("a", "bc")
    assert content_hash(["a"], "b") != content_hash(["a", "b"])
    assert content_hash("1") != content_hash(1)
    assert content_hash("") != content_hash()


def test_the_order_of_keys_does_not_matter_and_letters_beyond_ascii_do():
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash("naïve") != content_hash("naive")


def test_ids_are_stable_between_versions():
    """Ids are in people's stores: a change here would make every prompt and comparison a new
    one.
    """
    assert content_id("prompt", "Why is the sky blue?", "") == "01a0ecf394e453fb0c4e"


def test_a_folder_is_its_names_and_contents(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "sub" / "b").write_bytes(b"2")
    before = folder_hash(tmp_path)
    (tmp_path / "empty").mkdir()
    assert folder_hash(tmp_path) == before
    (tmp_path / "a").rename(tmp_path / "c")
    renamed = folder_hash(tmp_path)
    (tmp_path / "c").write_bytes(b"3")
    assert len({before, renamed, folder_hash(tmp_path)}) == 3


def test_a_record_is_frozen_and_refuses_unknown_fields():
    with pytest.raises(ValidationError, match="mood"):
        vote(mood="good")
    with pytest.raises(ValidationError, match="frozen"):
        vote().choice = Choice.B


def test_a_record_round_trips_through_json():
    for record in (vote(), event(), Interval(value=0.1 + 0.2, low=0, high=1, n=3)):
        assert type(record).from_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    "broken",
    [
        {"strength": 0},
        {"strength": 5},
        {"choice": "c"},
        {"stated_confidence": 1.1},
        {"idempotency_key": ""},
    ],
)
def test_a_vote_out_of_range_is_refused(broken):
    with pytest.raises(ValidationError):
        vote(**broken)


def test_an_events_identity_ignores_its_time_and_evidence():
    again = event(detected_at=NOW + timedelta(days=1), evidence={"p": 0.6}, change_seq=3)
    assert again.event_id == event().event_id
    others = [
        event(**{name: value})
        for name, value in {
            "seq": 8,
            "detector": "adwin",
            "stream": "x",
            "params_hash": "q",
        }.items()
    ]
    assert len({e.event_id for e in [event(), *others]}) == 5


def test_words_equal_the_recorded_golden_ones():
    assert [*Choice] == ["a", "b", "tie", "both_bad", "skip"]
    assert [*Verdict] == ["insufficient", "stable", "warning", "drift"]
    assert f"{AnnotatorKind.HUMAN}" == "human"


def test_a_version_is_named_by_name_and_number():
    version = ModelVersion(
        name="demo.policy", version=3, kind="policy", uri="runs:/x/model", content_hash="h"
    )
    assert version.label == "demo.policy@3"


def test_an_interval_reads_as_a_number_with_its_bounds():
    assert str(Interval(value=0.5, low=0.41, high=0.587, n=9)) == "0.500 [0.410, 0.587]"


def test_a_missing_value_has_no_tag():
    assert lineage_tags({"a": 1, "b": None, "c": ""}) == {"a": "1", "c": ""}
