"""The causes of a change: each in a clear world, two at once, and bad input."""

from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.drift.causes import (
    CAUSE_VOTES,
    examine,
    find_causes,
    list_causes,
)
from rlhf_pipeline.errors import FrameError, InvalidScores, NotEnoughData
from rlhf_pipeline.records import Cause, ChangeCauses, DriftEvent
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes

AT = 1200
SIZES: dict[str, dict[str, Any]] = {
    "taste": {"size": 0.25},
    "category": {"size": 1},
    "newcomers": {"size": 0.4},
    "carelessness": {"size": 0.4},
    "mix": {"size": 0.7},
    "calibration": {"size": 2.5},
}


def draw(*causes: str, n_after: int = 400, seed: int = 1, **world: Any) -> pd.DataFrame:
    changes = tuple(
        Change.model_validate({"cause": cause, "at": AT} | SIZES[cause]) for cause in causes
    )
    return draw_votes(VoteWorld(n_votes=AT + n_after, changes=changes, **world), seed)


def of(found: ChangeCauses, name: str) -> Cause:
    return next(cause for cause in found.causes if cause.name == name)


@pytest.mark.parametrize("name", SIZES)
def test_a_clear_cause_is_on_top(name: str) -> None:
    found = find_causes(draw(name), AT + 1)
    assert found.causes[0].name == name
    assert found.causes[0].share > 0.5
    assert {cause.name for cause in found.causes} == set(SIZES)
    assert sum(cause.share for cause in found.causes) <= 1 + 1e-9
    assert (found.n_before, found.n_after, found.until_seq) == (AT, 400, AT + 400)
    assert ChangeCauses.from_json(found.model_dump_json()) == found


def test_probabilities_say_how_clear_a_cause_is() -> None:
    # usual times: only that they err in half of their votes tells careless annotators
    votes = draw("carelessness").assign(duration_s=np.nan)
    few, many = (
        of(find_causes(votes[votes["seq"] <= AT + n], AT + 1), "carelessness") for n in (40, 400)
    )
    assert (few.probability < 0.8, many.probability > 0.9) == (True, True)
    found = find_causes(votes, AT + 1)
    assert 0.99 < sum(cause.probability for cause in found.causes) <= 1 + 1e-9


def test_an_event_keeps_all_causes_found_with_ever_more_votes() -> None:
    votes = draw("category", n_after=1200)
    risen = DriftEvent(
        kind="drift",
        model_version="world.reward_model@1",
        detector="rise_test",
        params_hash="p",
        stream="errors",
        seq=AT + 150,
        day=date(2026, 1, 6),
        change_seq=AT + 1,
        evidence={"statistic": 7.0},
    )
    first = examine(risen, votes[votes["seq"] <= AT + 200])
    assert first.evidence["causes"]["until_seq"] == AT + 200
    assert examine(first, votes[votes["seq"] <= AT + 200]) == first
    later = examine(first, votes)
    assert later.evidence["causes"] == first.evidence["causes"]
    assert [c.until_seq for c in list_causes(later)] == [AT + 200, risen.seq + CAUSE_VOTES]
    assert examine(later, votes) == later
    replayed = risen.model_copy(update={"is_replayed": True})
    assert examine(replayed, votes) == replayed


def test_errors_of_a_usual_weekend_are_no_rise() -> None:
    votes = draw_votes(VoteWorld(n_votes=3400, weekend_rise=0.15), 1)
    saturday = 3301  # of the fifth week
    assert set(votes["day"][saturday - 1 :].tolist()) == {"2026-02-07"}
    known, unknown = (
        find_causes(rows, saturday).rise for rows in (votes, votes.drop(columns="day"))
    )
    assert unknown.low > 0 > known.low


def test_evidence_names_what_changed() -> None:
    category = of(find_causes(draw("category"), AT + 1), "category").evidence
    assert category["category"] == "category 0"
    assert category["error_after"] > category["error_before"] + 0.3
    careless = of(find_causes(draw("carelessness"), AT + 1), "carelessness").evidence
    assert set(careless["annotator_ids"]) == {f"annotator {i}" for i in range(12)}
    assert careless["time_over_usual"] == pytest.approx(1 / 3, rel=0.2)
    newcomers = of(find_causes(draw("newcomers"), AT + 1), "newcomers").evidence
    assert newcomers["n_annotators"] == len(newcomers["annotator_ids"]) > 20
    assert newcomers["error"] > 0.6 > newcomers["error_of_others"]
    mix = of(find_causes(draw("mix"), AT + 1), "mix").evidence
    assert (mix["grouping"], mix["name"]) == ("category", "hard")
    assert mix["share_after"] > 0.6 > mix["share_before"]


def test_of_two_causes_the_larger_is_on_top() -> None:
    found = find_causes(draw("newcomers", "carelessness"), AT + 1)
    assert [cause.name for cause in found.causes[:2]] == ["newcomers", "carelessness"]
    assert "newcomers" in found.summary
    assert "careless" in found.summary


def test_a_steady_world_explains_nothing() -> None:
    found = find_causes(draw("taste").query("seq <= @AT"), 800)
    assert max(cause.share for cause in found.causes if cause.name != "mix") < 0.7
    assert found.rise.low < 0 < found.rise.high


def test_few_or_equal_votes_give_a_result() -> None:
    three = find_causes(draw("taste", n_after=3).tail(3), AT + 2)
    assert (three.n_before, three.n_after) == (1, 2)
    for error in (0.0, 1.0):
        same = find_causes(draw("taste").assign(error=error), AT + 1)
        assert same.rise.value == 0


def test_bad_input_is_refused_with_its_cure() -> None:
    votes = draw("taste")
    with pytest.raises(NotEnoughData, match="end at seq 1600, before the change at 1601"):
        find_causes(votes, AT + 401)
    with pytest.raises(NotEnoughData, match="no votes"):
        find_causes(votes.head(0), AT)
    with pytest.raises(FrameError, match="missing columns"):
        find_causes(votes.drop(columns="error"), AT)
    with pytest.raises(FrameError, match="seq 1 occurs twice"):
        find_causes(pd.concat([votes, votes.head(1)]), AT)
    with pytest.raises(InvalidScores):
        find_causes(votes.assign(error=np.nan), AT)
