import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.records import (
    AnnotatorKind,
    Choice,
    DriftEvent,
    NewVote,
    Verdict,
    canonical_json,
    content_hash,
    content_id,
    folder_hash,
)  # fmt: skip

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def vote(**more):
    fields = {
        "comparison_id": "c",
        "annotator_id": "ann",
        "annotator_kind": "human",
        "choice": "a",
        "strength": 2,
        "voted_at": NOW,
        "origin": "page",
        "idempotency_key": "k",
    }
    return NewVote(**(fields | more))


def event(**more):
    fields = {
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
    return DriftEvent(**(fields | more))


def test_ids_are_stable_between_versions():
    """Ids are in people's stores: a change here would make every prompt and comparison a new
    one.
    """
    assert content_id("prompt", "Why is the sky blue?", "") == "01a0ecf394e453fb0c4e"


def test_folder_hash_covers_names_and_contents(tmp_path):
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


def test_event_id_ignores_time_and_evidence():
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


def test_wordings_equal_the_recorded_ones():
    assert [*Choice] == ["a", "b", "tie", "both_bad", "skip"]
    assert [*Verdict] == ["insufficient", "stable", "warning", "drift"]
    assert f"{AnnotatorKind.HUMAN}" == "human"


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("",),
        ('a "quoted" \\ path\nand a line', None, "ü 語 😀 \u2028\x7f"),
        *((f"x{chr(code)}y", "z") for code in range(32)),
        ("a", 1, True, 0.5, NOW, {"b": ["c"]}),
    ],
)
def test_hashes_are_those_of_the_canonical_json(parts):
    expected = hashlib.sha256(canonical_json(parts).encode()).hexdigest()
    assert content_hash(*parts) == expected
