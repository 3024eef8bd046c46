from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.records import (
    AnnotatorKind,
    Choice,
    DriftEvent,
    NewVote,
    Verdict,
    canonical_cells,
    content_hash,
    content_id,
    content_ids,
    folder_hash,
    row_hashes,
)  # fmt: skip

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CELLS = [
    None,
    True,
    0,
    -(2**70),
    -0.0,
    0.1,
    1e16,
    1e-7,
    float("inf"),
    float("nan"),
    'tab\t "quoted" \\ ü\u2028',
    Choice.A,
    NOW,
    NOW.date(),
    [1, {"b": None, "a": NOW}],
]


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


@pytest.mark.parametrize("first", CELLS)
def test_hashes_of_columns_are_those_of_their_rows(first):
    columns = {"b": [first] * len(CELLS), "a": CELLS, "none": [None] * len(CELLS)}
    rows = [{"a": a, "b": b, "none": None} for a, b in zip(CELLS, columns["b"], strict=True)]
    assert row_hashes(columns) == [content_hash(row) for row in rows]
    ids = [content_id(*row) for row in zip(*columns.values(), strict=True)]
    assert content_ids(*columns.values()) == ids
    assert canonical_cells([]) == []
