"""The causes of a change: each in a clear world, two at once, and bad input."""

from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.drift.causes import (
    CAUSE_VOTES,
    CauseParams,
    _learn_rhythm,
    examine,
    find_causes,
    list_causes,
)
from rlhf_pipeline.drift.stream import Level, measure_level
from rlhf_pipeline.drift.vote_stream import mark_hasty_votes
from rlhf_pipeline.errors import FrameError, InvalidScores, NotEnoughData
from rlhf_pipeline.records import Cause, ChangeCauses, DriftEvent
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_reference, draw_votes

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


def test_a_taste_turned_round_is_not_carelessness() -> None:
    changes = (Change(cause="taste", at=AT, size=0.55),)
    votes = draw_votes(VoteWorld(n_votes=AT + 100, error_rate=0.22, changes=changes), 1)
    top = find_causes(votes, AT + 1).causes[0]
    assert top.name == "taste"
    assert (top.share > 0.9, top.probability > 0.9) == (True, True)


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


def test_the_rhythm_is_known_however_many_votes_a_day_brings() -> None:
    votes = draw_votes(VoteWorld(n_votes=41_400, votes_per_day=1000, weekend_rise=0.15), 1)
    risen = DriftEvent(
        kind="drift",
        model_version="world.reward_model@1",
        detector="rise_test",
        params_hash="p",
        stream="errors",
        seq=41_001,
        day=date(2026, 2, 14),
        change_seq=40_001,  # the sixth Saturday
        evidence={},
    )
    (found,) = list_causes(examine(risen, votes))
    assert (found.rise.low < 0, of(found, "taste").probability < 0.5) == (True, True)


def test_a_weekend_before_a_change_hides_none_of_its_rise() -> None:
    """The model's votes before the change are those of one usual weekend."""
    changes = (Change(cause="taste", at=6000, size=0.1),)
    world = VoteWorld(n_votes=6600, votes_per_day=150, weekend_rise=0.1, changes=changes)
    rises = []
    for seed in range(6):
        votes = draw_votes(world, seed)
        second = votes["seq"] > 5700
        votes["reward_model"] = np.where(second, "world.reward_model@2", "world.reward_model@1")
        rises.append(find_causes(votes, 6001).rise.value)
    assert np.mean(rises) == pytest.approx(0.1, abs=0.02)


def test_hasty_votes_and_repeats_teach_no_rhythm() -> None:
    world = VoteWorld(n_votes=5000, n_bursts=10, votes_per_burst=150)
    votes = mark_hasty_votes(draw_votes(world, 2))
    kept, all_votes = (
        np.abs(_learn_rhythm(rows, CauseParams())).mean()
        for rows in (votes, votes.assign(is_left_out=False))
    )
    assert kept < all_votes


def test_a_burst_of_a_few_annotators_tells_how_much_they_voted_before_it() -> None:
    votes = draw_votes(VoteWorld(n_votes=650, n_bursts=1, annotators_per_burst=5), 4)
    is_hasty = votes["duration_s"] < 6
    start = int(votes["seq"][is_hasty.rolling(20).mean() > 0.8].min()) - 20
    found = of(find_causes(votes[votes["seq"] < start + 150], start), "carelessness").evidence
    assert (found["n_annotators"], found["n_active"]) == (6, 29)
    n_before = sum(one["n_votes_before"] for one in found["each"])
    assert 0 < n_before < found["n_votes_of_all_before"] / 3 < start / 3


def test_a_wrongly_dated_change_has_the_same_cause() -> None:
    for name in ("category", "newcomers"):
        for off in (-600, 150):
            assert find_causes(draw(name), AT + 1 + off).causes[0].name == name


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


def test_summary_is_one_sentence_with_both_causes() -> None:
    found = find_causes(draw("taste", "mix"), AT + 1)
    assert {cause.name for cause in found.causes[:2]} == {"taste", "mix"}
    assert found.summary.count(".\n") == 0
    assert "everybody" in found.summary
    assert "category hard" in found.summary


def test_of_two_causes_the_larger_is_on_top() -> None:
    found = find_causes(draw("newcomers", "carelessness"), AT + 1)
    assert [cause.name for cause in found.causes[:2]] == ["newcomers", "carelessness"]
    assert "newcomers" in found.summary
    assert "careless" in found.summary


def test_a_new_policy_beyond_its_stated_errors_is_a_mix() -> None:
    votes = draw("taste")
    votes["policy_version"] = np.where(votes["seq"] > AT, "policy@2", "policy@1")
    found = find_causes(votes, AT + 1)
    assert found.causes[0].name == "mix"
    assert found.causes[0].evidence["name"] == "policy@2"


def test_a_steady_world_explains_nothing() -> None:
    found = find_causes(draw("taste").query("seq <= @AT"), 800)
    assert max(cause.share for cause in found.causes if cause.name != "mix") < 0.7
    assert found.rise.low < 0 < found.rise.high


def test_votes_without_times_or_statements_are_enough() -> None:
    votes = draw("carelessness").assign(duration_s=np.nan)
    assert set(of(find_causes(votes, AT + 1), "carelessness").evidence) >= {"time_over_usual"}
    bare = draw("category")[["seq", "error", "category"]]
    found = find_causes(bare, AT + 1)
    assert found.causes[0].name == "category"
    assert of(found, "calibration").share == 0
    assert of(found, "carelessness").share == 0
    least = find_causes(draw("taste")[["seq", "error"]], AT + 1)
    assert least.causes[0].name == "taste"
    missing = draw("taste").assign(category=None, annotator_id=None, expected_error=np.nan)
    assert find_causes(missing, AT + 1).causes[0].name == "taste"


def test_a_model_without_earlier_votes_is_compared_with_its_reference() -> None:
    votes = draw("taste").query("seq > @AT")
    found = find_causes(votes, AT + 1, reference=Level(500, 0.25))
    assert found.n_before == 0
    assert found.rise.low > 0
    assert "too few" in of(found, "newcomers").evidence["unknown"]
    alone = find_causes(votes, AT + 1)
    assert alone.rise.value == pytest.approx(0.25, abs=0.1)


def test_a_change_of_a_young_model_is_not_blamed_on_its_unchanged_confidence() -> None:
    votes = draw_votes(
        VoteWorld(n_votes=300, changes=(Change(cause="taste", at=0, size=0.15),)), 5033
    )
    reference = draw_reference(VoteWorld(n_votes=1), 5033)
    known = measure_level(reference["error"], reference["p"])
    found = find_causes(votes, 12, reference=known)
    assert of(found, "calibration").probability < 0.1
    assert found.causes[0].name == "taste"


def test_the_reference_tells_the_level_where_a_change_is_dated_after_a_models_first_votes() -> None:
    votes = draw_votes(
        VoteWorld(n_votes=800, changes=(Change(cause="taste", at=0, size=0.15),)), 6014
    )
    level = Level(375, 0.26)
    known = find_causes(votes, 410, reference=level)
    assert known.rise.low > 0
    assert (known.causes[0].name, known.causes[0].probability > 0.5) == ("taste", True)
    alone = find_causes(votes, 410)
    assert alone.rise.low < 0
    assert sum(cause.probability for cause in alone.causes) < 0.5


@pytest.mark.parametrize("stated", [0.18, 0.32])
def test_a_reference_that_states_another_confidence_than_it_errs_is_no_change(stated) -> None:
    for seed in range(3):
        votes = draw_votes(VoteWorld(n_votes=400), seed)
        odds = np.log(stated / (1 - stated))
        votes["expected_error"] = 1 / (
            1 + np.exp(-np.random.default_rng(seed).normal(odds, 0.3, 400))
        )
        found = find_causes(votes, 61, reference=Level(500, 0.25, (odds, 0.3)))
        assert sum(cause.probability for cause in found.causes) < 0.5
    unknown = find_causes(votes.drop(columns="expected_error"), 61, reference=Level(500, 0.25))
    assert sum(cause.probability for cause in unknown.causes) < 0.5


def test_a_rare_category_may_change_though_few_votes_show_it() -> None:
    votes = draw("category", n_after=1000, first_category_share=0.03)
    found = find_causes(votes, AT + 1)
    assert of(found, "category").evidence["category"] == "category 0"
    assert sum(cause.probability for cause in found.causes) > 0.5


def test_other_models_tell_who_is_new() -> None:
    votes = draw("newcomers")
    votes["reward_model"] = np.where(votes["seq"] > AT, "reward@2", "reward@1")
    found = find_causes(votes, AT + 1, reference=Level(500, 0.25))
    assert found.n_before == 0
    assert found.causes[0].name == "newcomers"


def test_few_or_equal_votes_give_a_result() -> None:
    three = find_causes(draw("taste", n_after=3).tail(3), AT + 2)
    assert (three.n_before, three.n_after) == (1, 2)
    for error in (0.0, 1.0):
        same = find_causes(draw("taste").assign(error=error), AT + 1)
        assert same.rise.value == 0


def test_order_of_rows_does_not_matter() -> None:
    votes = draw("mix")
    assert find_causes(votes.sample(frac=1, random_state=1), AT + 1) == find_causes(votes, AT + 1)


def test_only_the_first_votes_after_the_change_are_read() -> None:
    found = find_causes(draw("taste"), AT + 1, CauseParams(cause_max_after=100))
    assert (found.n_after, found.until_seq) == (100, AT + 100)


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
