"""Which columns and fields a digest covers is written out: a new one is put on a list by somebody,
or a test here fails.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from pydantic import BaseModel

from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.base import FIRST_PARAMS, params_hash
from rlhf_pipeline.frames import LATER_COLUMNS, PREFERENCE_PAIRS, SCHEMAS, frame_hash
from rlhf_pipeline.records import NewVote, TasteChange, TriggerDecision
from rlhf_pipeline.retraining.candidates import FIRST_PARAMS as FIRST_STRATEGY_PARAMS
from rlhf_pipeline.retraining.candidates import UNHASHED_PARAMS, build_lineage
from rlhf_pipeline.retraining.parameters import StrategyParams
from rlhf_pipeline.store import decisions
from rlhf_pipeline.store.audit import (
    AUDITED_TABLES,
    DIGESTED,
    NOT_DIGESTED,
    row_digest,
    rows_digest,
    taste_change_digest,
)
from rlhf_pipeline.store.audit import LATER_COLUMNS as LATER_VOTE_COLUMNS
from rlhf_pipeline.store.casting import BODY_FIELDS, prepare_row
from rlhf_pipeline.store.schema import comparisons, predictions, taste_changes
from rlhf_pipeline.votes.preference_pairs import training_data_hash

FRAMES = json.loads(Path(__file__).with_name("frames.json").read_text(encoding="utf-8"))
NEWER = (
    "Rows and records of existing homes lack {new}: put it on a list of what is left out, or "
    "of what is digested where it is filled."
)


@pytest.mark.parametrize("table", DIGESTED, ids=[table.name for table in DIGESTED])
def test_every_column_is_digested_or_left_out(table) -> None:
    digested, left_out = set(DIGESTED[table]), set(NOT_DIGESTED[table])
    assert not digested & left_out
    assert {column.name for column in table.c} == digested | left_out, NEWER.format(
        new="the new column"
    )


def test_every_kept_row_has_its_columns_written_out() -> None:
    assert {kept.table for kept in AUDITED_TABLES.values()} <= set(DIGESTED)
    assert set(LATER_VOTE_COLUMNS) <= set(DIGESTED[AUDITED_TABLES["vote.cast"].table])


@pytest.mark.parametrize("action", AUDITED_TABLES)
def test_an_additional_column_does_not_change_a_digest(action: str) -> None:
    table = AUDITED_TABLES[action].table
    row = {column.name: None for column in table.c} | {
        "created_at": datetime(2026, 1, 1, tzinfo=UTC)
    }
    assert row_digest(table, row | {"added": "later"}) == row_digest(table, row)


@pytest.mark.parametrize("table", [comparisons, predictions], ids=["comparisons", "predictions"])
def test_a_column_added_to_rows_of_one_act_changes_no_digest(table) -> None:
    row = dict.fromkeys(DIGESTED[table])
    assert rows_digest(table, [row | {"added": "later"}]) == rows_digest(table, [row])


class LaterChange(TasteChange):
    mood: str = "calm"


def test_a_field_added_to_taste_changes_changes_no_digest() -> None:
    values = {
        "change_id": 1,
        "change_seq": 1,
        "cause": "c",
        "actor": "ann",
        "recorded_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    assert set(DIGESTED[taste_changes]) == set(TasteChange.model_fields), NEWER.format(
        new="the new field"
    )
    assert taste_change_digest(LaterChange(**values)) == taste_change_digest(TasteChange(**values))


def test_every_field_of_a_vote_is_in_its_body() -> None:
    assert set(BODY_FIELDS) == set(NewVote.model_fields), NEWER.format(new="the new field")


class LaterVote(NewVote):
    mood: str = "calm"


def test_a_field_added_to_votes_changes_no_body(make_vote_values) -> None:
    before = prepare_row(NewVote(**make_vote_values))
    after = prepare_row(LaterVote(**make_vote_values, mood="merry"))
    assert after == before


@pytest.fixture
def make_vote_values() -> dict[str, object]:
    return {
        "comparison_id": "c",
        "annotator_id": "ann",
        "annotator_kind": "human",
        "choice": "a",
        "origin": "page",
        "idempotency_key": "k",
        "voted_at": datetime(2026, 1, 1, tzinfo=UTC),
    }


class LaterDecision(TriggerDecision):
    mood: str = "calm"


def test_a_field_added_to_decisions_changes_no_digest() -> None:
    values = {
        "action": "hold",
        "reasons": ("r",),
        "event_ids": (),
        "decided_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    known = {*decisions.DIGESTED, *decisions.DIGESTED_IF_FILLED}
    assert known == set(TriggerDecision.model_fields), NEWER.format(new="the new field")
    by_hand = TriggerDecision(**values, actor="ann")
    assert decisions.decision_digest(by_hand) != decisions.decision_digest(
        TriggerDecision(**values)
    )
    assert decisions.decision_digest(LaterDecision(**values)) == decisions.decision_digest(
        TriggerDecision(**values)
    )


class Knob(BaseModel):
    added_knob: float = 1.0


@pytest.mark.parametrize("name", FIRST_PARAMS)
def test_a_later_parameter_of_a_detector_counts_where_it_is_changed(name: str) -> None:
    detector = DETECTORS[name](DETECTORS[name].Params())
    kind = type("Later", (type(detector.params), Knob), {})
    before = params_hash(detector)
    detector.params = kind()  # type: ignore[misc]
    assert params_hash(detector) == before
    detector.params = kind(added_knob=2.0)  # type: ignore[misc]
    assert params_hash(detector) != before


def test_first_parameters_are_named_for_every_detector_of_ours() -> None:
    ours = {
        name for name, kind in DETECTORS.items() if kind.__module__.startswith("rlhf_pipeline.")
    }
    assert set(FIRST_PARAMS) == ours


class LaterStrategy(StrategyParams):
    added_knob: float = 1.0


def test_a_later_parameter_of_a_training_counts_where_it_is_changed() -> None:
    before = build_lineage("dpo", StrategyParams(), "p", "d")
    assert build_lineage("dpo", LaterStrategy(), "p", "d") == before
    assert build_lineage("dpo", LaterStrategy(added_knob=2.0), "p", "d") != before
    assert set(FIRST_STRATEGY_PARAMS) <= set(StrategyParams.model_fields)
    assert not set(FIRST_STRATEGY_PARAMS) & set(UNHASHED_PARAMS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_column_added_to_a_frame_is_a_later_one(name: str) -> None:
    (known,) = [
        set(case["input"]["rows"][0]) for case in FRAMES["frame"] if case["input"]["schema"] == name
    ]
    assert set(SCHEMAS[name].columns) - set(LATER_COLUMNS) <= known, NEWER.format(
        new="the new column"
    )
    assert known <= set(SCHEMAS[name].columns), (
        "A column is gone: frames of existing homes are refused."
    )


def test_a_later_column_is_hashed_where_it_is_filled() -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    assert frame_hash(frame.assign(b=None), later=("b",)) == frame_hash(frame)
    assert frame_hash(frame.assign(b=[None, "x"]), later=("b",)) != frame_hash(frame)
    assert frame_hash(frame.assign(b=None)) != frame_hash(frame)


def test_a_later_column_of_training_data_is_optional() -> None:
    pairs = pd.DataFrame(FRAMES["training data"][0]["input"])
    optional = [name for name, column in PREFERENCE_PAIRS.columns.items() if column.optional]
    assert set(PREFERENCE_PAIRS.columns) - set(optional) <= set(pairs.columns), NEWER.format(
        new="the new column"
    )
    unfilled = pairs.assign(**dict.fromkeys(optional))
    assert training_data_hash(unfilled) == training_data_hash(
        pairs.drop(columns=optional, errors="ignore")
    )
