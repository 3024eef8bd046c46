"""Windows by group: the same votes as the window, of the group alone; small groups are left out."""

import pandas as pd
import pytest

from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.learn.calibration import OverTimeParams
from rlhf_pipeline.learn.calibration.window_groups import MAX_GROUPS, group_votes, windows_by_group
from tests.unit.learn.calibration.test_over_time import DAYS, predicted, reflect_by_vote_day, voted

ORIGIN = "page"
PEOPLE = ("x", "y", "z")


def votes_of(
    n: int, choices: dict[str, str] | None = None, *, p: float = 0.8, by: tuple[str, ...] = PEOPLE
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Served predictions of P(a) = `p` and the votes of everybody in `by` on `n` comparisons of one
    day, for a unless `choices` has another choice of the comparison.
    """
    predictions = predicted(n).assign(
        p_raw=p, p_calibrated=p, score_a=1.0 if p > 0.5 else -1.0, score_b=0.0
    )
    day_of = dict.fromkeys(predictions["comparison_id"], DAYS[0])
    votes = voted(predictions, day_of, by=by).assign(origin=ORIGIN)
    votes["choice"] = votes["comparison_id"].map(choices or {}).fillna("a")
    return reflect_by_vote_day(predictions, votes), votes


def measure(
    predictions: pd.DataFrame, votes: pd.DataFrame, categories: dict[str, str], **groups: str
):
    group_of = group_votes(votes, {"category": categories}, groups)
    measured = windows_by_group(
        predictions, votes, group_of, DAYS[:1], OverTimeParams(window_days=1)
    )
    return {(group.by, group.group): group for group in measured[DAYS[0]]}


def test_accuracy_of_a_group_is_that_of_its_own_votes():
    wrong = {f"c{i:03d}": "b" for i in (0, 1, 2, 12)}  # three of coding's 12, one of 24 others
    predictions, votes = votes_of(36, wrong)
    categories = {f"c{i:03d}": "coding" if i < 12 else "facts" for i in range(36)}
    figures = measure(predictions, votes, categories)
    coding, facts = figures["category", "coding"], figures["category", "facts"]
    assert coding.calibrated is not None
    assert facts.calibrated is not None
    assert (coding.n, coding.calibrated.n) == (12, 36)
    assert coding.calibrated.accuracy.value == pytest.approx(27 / 36)
    assert facts.calibrated.accuracy.value == pytest.approx(69 / 72)
    of_coding = votes[votes["comparison_id"].map(categories) == "coding"]
    assert coding.noise_ceiling == noise_ceiling_or_repeats(of_coding)
    assert list(figures) == [
        ("category", "facts"),
        ("category", "coding"),
        ("annotator_group", ORIGIN),
    ]


def test_annotator_group_is_the_tag_or_the_origin():
    predictions, votes = votes_of(12, by=(*PEOPLE, "tess", "theo", "tina"))
    is_late = votes["annotator_id"].isin(["theo"]) & (votes["comparison_id"] == "c000")
    votes = votes.assign(choice=votes["choice"].mask(is_late, "b"))
    is_late = predictions["seq"].isin(votes.loc[is_late, "seq"])
    predictions = predictions.assign(
        outcome=predictions["outcome"].mask(is_late, 0.0),
        error=predictions["error"].mask(is_late, 1.0),
    )
    figures = measure(predictions, votes, {}, tess="experts", theo="experts", tina="experts")
    experts, others = (figures["annotator_group", name].calibrated for name in ("experts", ORIGIN))
    assert experts is not None
    assert others is not None
    assert experts.accuracy.value == pytest.approx(35 / 36)
    assert others.accuracy.value == 1.0


def test_small_groups_have_no_figures():
    predictions, votes = votes_of(9 + 10)
    categories = {f"c{i:03d}": "few" if i < 9 else "enough" for i in range(19)}
    figures = measure(predictions, votes, categories, x="pair", y="pair")
    assert list(figures) == [("category", "enough")], "9 comparisons, 2 people, 1 person"

    predictions, votes = votes_of(10 * MAX_GROUPS + 21)
    categories = {f"c{i:03d}": f"k{max(0, i - 11) // 10:02d}" for i in range(10 * MAX_GROUPS + 21)}
    largest = [group for by, group in measure(predictions, votes, categories) if by == "category"]
    assert len(largest) == MAX_GROUPS
    assert largest[0] == "k00"


def test_votes_predicted_by_an_earlier_model_are_in_no_group():
    predictions, votes = votes_of(24)
    predictions["reward_model"] = predictions["reward_model"].mask(
        predictions["group"] < "c010", "demo.reward_model@0"
    )
    figures = measure(predictions, votes, {f"c{i:03d}": "all" for i in range(24)})
    assert figures["category", "all"].n == 14
