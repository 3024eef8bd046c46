"""Ceilings against simulations whose ceiling is known."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.votes.ceilings import ceiling_of_agreement, ceilings
from tests.unit.votes.simulated import votes_of


def flipped(n: int, each: int, share: float, seed: int = 0) -> pd.DataFrame:
    """Votes of annotators who see the better side and vote for the other by mistake in `share` of the cases."""
    rng = np.random.default_rng(seed)
    is_a = np.repeat(rng.random(n) < 0.5, each) ^ (rng.random(n * each) < share)
    return votes_of(
        np.repeat(np.arange(n), each), np.tile(np.arange(each), n), np.where(is_a, "a", "b"), prompt=np.repeat(np.arange(n), each)
    )


def repeated(votes: pd.DataFrame, share: float, seed: int = 1) -> pd.DataFrame:
    """The same people judge the same again with sides swapped; `share` of the new votes are mistakes."""
    rng = np.random.default_rng(seed)
    # What the first vote meant is unknown to them too: they judge by the better side, which flips of the first vote do not change.
    is_mistake = rng.random(len(votes)) < share
    swapped = votes["choice"].map({"a": "b", "b": "a"}).where(~is_mistake, votes["choice"])
    again = votes.assign(
        repeat_of=votes["comparison_id"], comparison_id="r" + votes["comparison_id"], vote_id="r" + votes["vote_id"], choice=swapped
    ).assign(seq=np.arange(len(votes) + 1, 2 * len(votes) + 1))
    return pd.concat([votes, again], ignore_index=True)


def test_the_formula_undoes_what_independent_mistakes_do():
    for wrong in (0.0, 0.1, 0.15, 0.3, 0.5):
        assert ceiling_of_agreement((1 - wrong) ** 2 + wrong**2) == pytest.approx(1 - wrong)
    assert ceiling_of_agreement(0.2) == 0.5


def test_at_fifteen_percent_mistakes_the_ceiling_is_eighty_five():
    everything = ceilings(flipped(1500, 3, 0.15)).iloc[0]
    assert everything["at_most"] == pytest.approx(0.85, abs=0.02)
    assert everything["at_least"] < 0.85 < everything["at_most_high"]
    assert everything["at_most_low"] < everything["at_most"] < everything["at_most_high"]
    assert pd.isna(everything["from_repeats"])


@pytest.mark.parametrize("seed", range(3))
def test_450_repeats_find_the_ceiling_within_three_points(seed: int):
    """Both the first and the second vote are right in 85 %: made so that the second agrees with the first as two such votes do."""
    first = flipped(450, 1, 0.15, seed)
    everything = ceilings(repeated(first, 1 - (0.85**2 + 0.15**2), seed + 10)).iloc[0]
    assert everything["from_repeats"] == pytest.approx(0.85, abs=0.03)
    assert everything["from_repeats_low"] <= 0.85 <= everything["from_repeats_high"]


def test_the_truth_lies_between_where_comparisons_differ():
    rng = np.random.default_rng(3)
    p = rng.beta(2, 2, 3000)
    is_a = rng.random((3000, 5)) < p[:, None]
    votes = votes_of(
        np.repeat(np.arange(3000), 5), np.tile(np.arange(5), 3000), np.where(is_a.ravel(), "a", "b"), prompt=np.repeat(np.arange(3000), 5)
    )
    everything = ceilings(votes).iloc[0]
    assert everything["at_least"] < np.maximum(p, 1 - p).mean() < everything["at_most"]


def test_groups_have_their_own():
    clear, unclear = flipped(300, 3, 0.05), flipped(300, 3, 0.4, seed=4)
    unclear = unclear.assign(comparison_id="u" + unclear["comparison_id"], vote_id="u" + unclear["vote_id"], seq=unclear["seq"] + 10_000)
    votes = pd.concat([clear, unclear], ignore_index=True)
    groups = {c: "unclear" if c.startswith("u") else "clear" for c in votes["comparison_id"].unique()}
    by_group = ceilings(votes, groups).set_index("group")
    assert by_group.index.tolist() == ["all", "clear", "unclear"]
    assert by_group.loc["clear", "at_most_low"] > by_group.loc["unclear", "at_most_high"]
    assert by_group.loc["all", "n_votes"] == 1800


def test_without_overlap_nothing_is_claimed():
    alone = ceilings(votes_of([0, 1], [0, 1], ["a", "b"])).iloc[0]
    assert alone[["at_least", "at_most", "from_repeats"]].isna().all()
    nobody = ceilings(votes_of([0], [0], ["tie"])).iloc[0]
    assert nobody["n_votes"] == 0
    assert pd.isna(nobody["at_least"])
