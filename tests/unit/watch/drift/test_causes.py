"""The causes of a change: each in a clear world, what it names, and its limits."""

import time
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.vote_worlds import Change, VoteWorld, draw_reference, draw_votes
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import Cause, ChangeCauses, DriftEvent
from rlhf_pipeline.watch.drift.causes import CAUSE_VOTES, examine, find_causes, read_causes

AT = 1200
SIZES: dict[str, dict[str, Any]] = {
    "taste": {"size": 0.2},
    "category": {"size": 1},
    "newcomers": {"size": 0.4},
    "carelessness": {"size": 0.4},
    "calibration": {"size": 2.5},
    "nothing": {},
}


def draw(name: str, *, n_after: int = 500, seed: int = 1, **more: Any) -> pd.DataFrame:
    change = Change.model_validate({"cause": name, "at": AT} | SIZES[name] | more)
    return draw_votes(VoteWorld(n_votes=AT + n_after, changes=(change,)), seed)


def find(name: str, **more: Any) -> ChangeCauses:
    return find_causes(draw(name, **more), AT + 1, draw_reference(VoteWorld(), 1))


def cause_of(causes: ChangeCauses, name: str) -> Cause:
    return next(cause for cause in causes.causes if cause.name == name)


@pytest.mark.parametrize("name", SIZES)
def test_clear_cause_is_first(name: str) -> None:
    causes = find(name)
    top = causes.causes[0]
    assert (top.name, top.probability > 0.3) == (name, True)
    assert len(causes.causes) == 7
    assert sum(cause.probability for cause in causes.causes) == pytest.approx(1)
    assert (causes.n_after, causes.until_seq) == (500, AT + 500)
    assert ChangeCauses.from_json(causes.model_dump_json()) == causes


def test_the_effect_of_a_cause_is_its_rise_with_an_interval() -> None:
    effect = cause_of(find("taste"), "taste").effect
    assert effect.low < 0.2 < effect.high
    assert effect.high - effect.low < 0.15
    assert find("taste").rise.value == pytest.approx(0.2, abs=0.06)


@pytest.mark.parametrize("one_sided", [0.5, 0.9])
def test_careless_annotators_are_named_by_their_votes_alone(one_sided: float) -> None:
    """They answer by a coin, or mostly one displayed side."""
    causes = find("carelessness", one_sided=one_sided, n_after=900)
    assert causes.causes[0].name == "carelessness"
    named = {each["annotator_id"] for each in causes.causes[0].evidence["people"]}
    assert named == set(causes.causes[0].evidence["annotator_ids"])
    careless = {f"annotator {i}" for i in range(12)}
    assert len(named & careless) > 6
    assert len(named - careless) <= 1


def test_evidence_and_summary_name_what_changed() -> None:
    causes = find("category")
    category = causes.causes[0].evidence
    assert category["category"] == "category 0"
    assert category["error_after"] > category["error_expected"] + 0.3
    assert "the taste in category category 0 changed (errors 0." in causes.summary
    newcomers = find("newcomers").causes[0].evidence
    assert newcomers["n_annotators"] == len(newcomers["annotator_ids"]) > 20
    assert newcomers["error_after"] > 0.6 > newcomers["error_of_others"]


def test_careless_annotators_with_one_vote_are_not_named() -> None:
    votes = draw("nothing", n_after=300).assign(expected_error=0.12)
    is_after = votes["seq"] > AT
    votes["error"] = np.where(is_after, votes["seq"] % 4 == 0, votes["seq"] % 8 == 0) * 1.0
    votes["annotator_id"] = votes["annotator_id"].where(~is_after, votes["seq"].astype(str))
    causes = find_causes(votes, AT + 1, draw_reference(VoteWorld(), 1).assign(expected_error=0.12))
    assert cause_of(causes, "carelessness").evidence["n_annotators"] == 0
    assert "some annotators are careless, none of them surely (" in causes.summary


def test_voters_on_an_earlier_model_are_not_newcomers() -> None:
    votes = draw("newcomers")
    known = frozenset(votes["annotator_id"])
    causes = find_causes(votes, AT + 1, draw_reference(VoteWorld(), 1), known)
    assert cause_of(causes, "newcomers").probability == 0


def test_event_keeps_causes_of_the_votes_known_then() -> None:
    votes = draw("category", n_after=1700)
    risen = DriftEvent(
        kind="drift",
        model_version="world.reward_model@1",
        detector="sequential_test",
        params_hash="p",
        stream="errors",
        seq=AT + 150,
        day=date(2026, 1, 6),
        change_seq=AT + 1,
        evidence={"statistic": 7.0},
    )
    first = examine(risen, votes[votes["seq"] <= AT + 200])
    assert read_causes(first).until_seq == AT + 200
    assert examine(first, votes[votes["seq"] <= AT + 200]) == first
    later = examine(first, votes)
    assert read_causes(later).until_seq == risen.seq + CAUSE_VOTES
    assert examine(later, votes) == later
    for left in (votes[votes["seq"] <= AT], votes.iloc[:0]):  # a quarantine leaves out the others
        assert examine(later, left) == later
        assert examine(risen, left) == risen
    for other in ({"is_replayed": True}, {"kind": "calibration"}):
        unexamined = risen.model_copy(update=other)
        assert examine(unexamined, votes) == unexamined


def test_a_change_after_the_last_vote_is_refused() -> None:
    with pytest.raises(NotEnoughData, match=f"before the change at vote {AT + 501}"):
        find_causes(draw("taste"), AT + 501)


def test_400_annotators_and_60_categories_take_less_than_two_seconds() -> None:
    rng = np.random.default_rng(1)
    votes = draw_votes(VoteWorld(n_votes=6000, n_annotators=400), 1)
    votes["category"] = [f"category {i}" for i in rng.integers(0, 60, len(votes))]
    began = time.process_time()
    find_causes(votes, 4001)
    assert time.process_time() - began < 2
