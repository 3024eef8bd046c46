"""Ceilings against simulations whose ceiling is known."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.feedback.votes.ceilings import (
    ceiling_of_agreement,
    ceilings,
    noise_ceiling_or_repeats,
)
from tests.unit.feedback.votes.simulated import votes_of


def flipped(n: int, each: int, share: float, seed: int = 0) -> pd.DataFrame:
    """Votes of annotators who see the better side and vote for the other by mistake in `share` of
    the cases.
    """
    rng = np.random.default_rng(seed)
    is_a = np.repeat(rng.random(n) < 0.5, each) ^ (rng.random(n * each) < share)
    return votes_of(
        np.repeat(np.arange(n), each),
        np.tile(np.arange(each), n),
        np.where(is_a, "a", "b"),
        prompt=np.repeat(np.arange(n), each),
    )


def repeated(votes: pd.DataFrame, share: float, seed: int = 1) -> pd.DataFrame:
    """The same people judge the same again with sides swapped; `share` of the new votes are
    mistakes.
    """
    rng = np.random.default_rng(seed)
    # What the first vote meant is unknown to them too: they judge by the better side, which flips
    # of the first vote do not change.
    is_mistake = rng.random(len(votes)) < share
    swapped = votes["choice"].map({"a": "b", "b": "a"}).where(~is_mistake, votes["choice"])
    again = votes.assign(
        repeat_of=votes["comparison_id"],
        comparison_id="r" + votes["comparison_id"],
        vote_id="r" + votes["vote_id"],
        choice=swapped,
    ).assign(seq=np.arange(len(votes) + 1, 2 * len(votes) + 1))
    return pd.concat([votes, again], ignore_index=True)


def test_formula_inverts_independent_mistakes():
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
    """Both the first and the second vote are right in 85 %: made so that the second agrees with the
    first as two such votes do.
    """
    first = flipped(450, 1, 0.15, seed)
    everything = ceilings(repeated(first, 1 - (0.85**2 + 0.15**2), seed + 10)).iloc[0]
    assert everything["from_repeats"] == pytest.approx(0.85, abs=0.03)
    assert everything["from_repeats_low"] <= 0.85 <= everything["from_repeats_high"]


@pytest.mark.parametrize("each", [2, 3, 5, 9])
@pytest.mark.parametrize("n", [150, 2000])
def test_interval_covers_the_truth_with_few_overlaps(n: int, each: int):
    """15 % mistakes on every comparison, the case in which agreement tells least: two votes agree
    in 74.5 %.
    """
    ceiling = noise_ceiling_or_repeats(flipped(n, each, 0.15))
    assert ceiling is not None
    assert ceiling.low <= 0.85 <= ceiling.high
    assert ceiling.value == pytest.approx(0.85, abs=0.05 if each < 4 else 0.03)
    assert each < 9 or ceiling.high - ceiling.low < 0.12


def test_the_estimate_is_between_the_bounds_if_comparisons_differ():
    rng = np.random.default_rng(5)
    p = np.where(np.arange(1500) % 2 == 0, 0.98, 0.6)
    is_a = rng.random((1500, 5)) < p[:, None]
    which = np.repeat(np.arange(1500), 5)
    everything = ceilings(
        votes_of(which, np.tile(np.arange(5), 1500), np.where(is_a.ravel(), "a", "b"), prompt=which)
    ).iloc[0]
    assert everything["at_least"] <= everything["estimate"] <= everything["at_most"]
    assert everything["estimate"] == pytest.approx(0.79, abs=0.02)
    assert everything["estimate_low"] <= 0.79 <= everything["estimate_high"]


@pytest.mark.parametrize(
    ("easy", "hard"),
    [((0.95, 2), (0.55, 10)), ((0.95, 10), (0.55, 2)), ((0.9, 3), (0.6, 5)), ((0.95, 2), (0.6, 3))],
)
def test_comparisons_with_more_votes_count_more(easy: tuple[float, int], hard: tuple[float, int]):
    """Half of the comparisons are easy, half hard, and how many people judge one depends on which
    it is.
    """
    rng, n = np.random.default_rng(1), 3000
    (p, each), is_easy = np.array([hard, easy]).T, np.arange(n) % 2
    which = np.repeat(np.arange(n), each[is_easy].astype(int))
    is_a = (rng.random(len(which)) < p[is_easy][which]) ^ (rng.random(n) < 0.5)[which]
    nth = np.arange(len(which)) - np.searchsorted(which, which)
    votes = votes_of(which, nth, np.where(is_a, "a", "b"), prompt=which)
    truth = p[is_easy][which].mean()
    row = ceilings(votes).iloc[0]
    assert row["at_least"] <= truth <= row["at_most"]
    assert row["estimate_low"] <= truth <= row["estimate_high"]
    assert row["estimate"] == pytest.approx(truth, abs=0.04)


def test_unanimity_is_not_certainty():
    ceiling = noise_ceiling_or_repeats(flipped(10, 5, 0.0))
    assert ceiling is not None
    assert ceiling.low < 0.9
    assert ceiling.high == pytest.approx(1.0)


def test_the_truth_lies_between_the_bounds_if_comparisons_differ():
    rng = np.random.default_rng(3)
    p = rng.beta(2, 2, 3000)
    is_a = rng.random((3000, 5)) < p[:, None]
    votes = votes_of(
        np.repeat(np.arange(3000), 5),
        np.tile(np.arange(5), 3000),
        np.where(is_a.ravel(), "a", "b"),
        prompt=np.repeat(np.arange(3000), 5),
    )
    everything = ceilings(votes).iloc[0]
    assert everything["at_least"] < np.maximum(p, 1 - p).mean() < everything["at_most"]


def test_each_group_has_its_own_ceiling():
    clear, unclear = flipped(300, 3, 0.05), flipped(300, 3, 0.4, seed=4)
    unclear = unclear.assign(
        comparison_id="u" + unclear["comparison_id"],
        vote_id="u" + unclear["vote_id"],
        seq=unclear["seq"] + 10_000,
    )
    votes = pd.concat([clear, unclear], ignore_index=True)
    groups = {
        c: "unclear" if c.startswith("u") else "clear" for c in votes["comparison_id"].unique()
    }
    by_group = ceilings(votes, groups).set_index("group")
    assert by_group.index.tolist() == ["all", "clear", "unclear"]
    assert by_group.loc["clear", "at_most_low"] > by_group.loc["unclear", "at_most_high"]
    assert by_group.loc["all", "n_votes"] == 1800


def test_without_overlap_there_is_no_ceiling():
    alone = ceilings(votes_of([0, 1], [0, 1], ["a", "b"])).iloc[0]
    assert alone[["at_least", "at_most", "from_repeats"]].isna().all()
    nobody = ceilings(votes_of([0], [0], ["tie"])).iloc[0]
    assert nobody["n_votes"] == 0
    assert pd.isna(nobody["at_least"])


def test_displayed_ceiling_prefers_overlaps_to_repeats():
    votes = repeated(flipped(200, 3, 0.15), 0.3)
    ceiling = noise_ceiling_or_repeats(votes)
    assert ceiling is not None
    row = ceilings(votes).iloc[0]
    assert (ceiling.value, ceiling.low, ceiling.high) == (
        row["estimate"],
        row["estimate_low"],
        row["estimate_high"],
    )
    assert ceiling.basis is None
    assert "repeats" not in str(ceiling)


def test_ceiling_from_repeats_alone_names_its_basis():
    votes = repeated(flipped(450, 1, 0.15), 1 - (0.85**2 + 0.15**2), 10)
    ceiling = noise_ceiling_or_repeats(votes)
    assert ceiling is not None
    row = ceilings(votes).iloc[0]
    assert (ceiling.value, ceiling.low, ceiling.high) == (
        row["from_repeats"],
        row["from_repeats_low"],
        row["from_repeats_high"],
    )
    assert ceiling.value == pytest.approx(0.85, abs=0.03)
    assert str(ceiling).endswith("] from repeats")


def test_later_passes_are_repeats_in_their_group():
    votes = votes_of(
        [0, 1, 2, 3, 0, 1, 3],
        [0, 0, 1, 0, 0, 0, 0],
        ["a", "a", "b", "tie", "a", "a", "a"],
        prompt=[0, 1, 2, 3, 0, 1, 3],
    ).assign(pass_no=[1, 1, 1, 1, 2, 2, 2])
    ceiling = noise_ceiling_or_repeats(votes)
    assert ceiling is not None
    assert (ceiling.value, ceiling.n, ceiling.basis) == (1.0, 2, "repeats")  # the tie took no side
    rows = ceilings(votes, {"c00000": "x", "c00002": "y"}).set_index("group")
    assert rows["n_votes"].to_dict() == {"all": 4, "x": 1, "y": 1}
    assert rows.loc["x", "from_repeats"] == 1.0
    assert pd.isna(rows.loc["y", "from_repeats"])


def test_repeated_judgements_of_an_annotator_do_not_overlap():
    votes = votes_of([0, 0], 0, ["a", "b"]).assign(pass_no=[1, 2])
    row = ceilings(votes).iloc[0]
    assert row["n_votes"] == 1
    assert row[["estimate", "at_least", "at_most"]].isna().all()
    assert row["from_repeats"] == 0.5


def test_without_overlap_and_repeat_no_ceiling_is_shown():
    assert noise_ceiling_or_repeats(votes_of([0, 1], [0, 1], ["a", "b"])) is None
    assert noise_ceiling_or_repeats(votes_of([], 0, [])) is None
