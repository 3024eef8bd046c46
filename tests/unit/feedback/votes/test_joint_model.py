"""The joint model finds what the simulation put in, and says how sure it is."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import NotEnoughVotes, UnknownComparison
from rlhf_pipeline.feedback.votes.joint_model import JointModel, joint_model
from tests.unit.feedback.votes.simulated import Simulated, comparisons_of, simulate, votes_of


def majority(truth) -> np.ndarray:
    signs = truth.votes["choice"].map({"a": 1, "b": -1, "tie": 0})
    return signs.groupby(truth.votes["comparison_id"]).sum().to_numpy()


def accuracy(score: np.ndarray, d: np.ndarray) -> float:
    """Chance to name the better side; undecided ones are half right."""
    return float(np.where(score == 0, 0.5, (score > 0) == (d > 0)).mean())


def oracle(truth) -> np.ndarray:
    """Votes weighted by how well each annotator really discriminates."""
    of = dict(zip(sorted(truth.votes["annotator_id"].unique()), truth.discrimination, strict=True))
    signs = truth.votes["choice"].map({"a": 1, "b": -1, "tie": 0}) * truth.votes[
        "annotator_id"
    ].map(of)
    return signs.groupby(truth.votes["comparison_id"]).sum().to_numpy()


def test_closes_half_the_gap_between_majority_and_known_annotators():
    gained, possible = 0.0, 0.0
    for seed in range(3):
        truth = simulate(600, spammers=0.3, seed=seed)
        model = joint_model(truth.votes)
        assert model.is_converged
        base = accuracy(majority(truth), truth.d)
        gained += accuracy(model.labels["utility"].to_numpy(), truth.d) - base
        possible += accuracy(oracle(truth), truth.d) - base
    assert possible > 0.03
    assert gained > 0.5 * possible


def test_shared_completions_share_information():
    truth = simulate(40, completions=6, votes_each=3)
    separately = accuracy(joint_model(truth.votes).labels["utility"].to_numpy(), truth.d)
    together = accuracy(
        joint_model(truth.votes, truth.comparisons).labels["utility"].to_numpy(), truth.d
    )
    assert together > separately + 0.02


def test_spammers_have_the_lowest_reliability():
    truth = simulate(100, n_annotators=25, spammers=0.2)  # 20 votes each
    ranked = joint_model(truth.votes).annotators.sort_values("reliability")["annotator_id"].tolist()
    places = [ranked.index(f"ann{i:04d}") for i in np.flatnonzero(truth.is_spammer)]
    n, m = len(places), len(ranked) - len(places)
    auroc = 1 - (sum(places) - n * (n - 1) / 2) / (n * m)
    assert auroc >= 0.9


def test_injected_position_bias_is_covered():
    truth = simulate(400, n_annotators=10, bias=0.5)
    annotators = joint_model(truth.votes).annotators
    injected = 1 / (1 + np.exp(-0.5)) - 0.5
    inside = (annotators["position_bias_low"] <= injected) & (
        injected <= annotators["position_bias_high"]
    )
    assert inside.mean() >= 0.8
    # Nobody saw the sides swapped: that a happens to be a little better on average cannot be told
    # from a leaning to a.
    felt = 0.5 + truth.discrimination.mean() * truth.d.mean()
    assert annotators["position_bias"].mean() == pytest.approx(
        1 / (1 + np.exp(-felt)) - 0.5, abs=0.02
    )


def test_differences_have_their_nominal_coverage():
    truth = simulate(600)
    labels = joint_model(truth.votes).labels
    covered = np.abs(labels["utility"] - truth.d) <= 1.96 * labels["sd"]
    assert 0.9 <= covered.mean() <= 0.98


def test_strength_is_more_informative_than_the_side():
    truth = simulate(400, strengths=True, ties=False, votes_each=3)
    with_strength = joint_model(truth.votes).labels["utility"].to_numpy()
    without = (
        joint_model(truth.votes.assign(strength=pd.array([None] * len(truth.votes), dtype="Int64")))
        .labels["utility"]
        .to_numpy()
    )
    assert np.corrcoef(with_strength, truth.d)[0, 1] > np.corrcoef(without, truth.d)[0, 1] + 0.02


def test_one_annotator_gives_labels_that_are_not_certain():
    labels = joint_model(votes_of([0, 1, 2], 0, ["a", "b", "a"])).labels
    assert (labels["p_a"] > 0.5).tolist() == [True, False, True]
    assert labels["p_a"].between(0.1, 0.9).all()


def test_repeat_counts_as_a_vote_on_the_original_with_swapped_sides():
    first = votes_of([0, 0], [0, 1], ["a", "a"])
    again = votes_of([7], [0], ["b"]).assign(repeat_of="c00000", vote_id="again", seq=3)
    labels = joint_model(pd.concat([first, again], ignore_index=True)).labels
    assert labels["comparison_id"].tolist() == ["c00000"]
    assert labels["n_votes"].tolist() == [3]
    assert labels["p_a"].iloc[0] > joint_model(first).labels["p_a"].iloc[0]


def test_machine_votes_and_skips_are_left_out():
    votes = votes_of([0, 0, 1], [0, 1, 0], ["a", "skip", "b"])
    machine = votes_of([0], [5], ["b"]).assign(annotator_kind="machine", vote_id="m", seq=9)
    labels = joint_model(pd.concat([votes, machine], ignore_index=True)).labels
    assert labels["n_votes"].tolist() == [1, 1]
    with pytest.raises(NotEnoughVotes, match="No usable votes"):
        joint_model(machine)


def test_missing_comparison_is_named():
    with pytest.raises(UnknownComparison, match="first c00009"):
        joint_model(
            votes_of([0, 9], 0, ["a", "a"]),
            comparisons_of(np.zeros(1, dtype=np.int64), np.array([0]), np.array([1])),
        )


def shown_swapped(truth, rng: np.random.Generator, lean: float) -> pd.DataFrame:
    """The same votes on cards whose sides were drawn, as the web deals them, by people who lean to
    the left.
    """
    is_swapped = rng.random(len(truth.votes)) < 0.5
    j = truth.votes["annotator_id"].str[3:].astype(int).to_numpy()
    c = truth.votes["comparison_id"].str[1:].astype(int).to_numpy()
    felt = (
        truth.discrimination[j] * truth.d[c]
        + np.where(is_swapped, -lean, lean)
        + rng.logistic(size=len(c))
    )
    return truth.votes.assign(choice=np.where(felt > 0, "a", "b"), is_swapped=is_swapped)


def test_left_bias_is_found_if_displayed_sides_are_known():
    injected = 1 / (1 + np.exp(-0.6)) - 0.5
    tables = []
    for seed in range(4):
        truth = simulate(400, n_annotators=10, ties=False, seed=seed)
        tables.append(
            joint_model(shown_swapped(truth, np.random.default_rng(seed), 0.6)).annotators
        )
    annotators = pd.concat(tables)
    inside = (annotators["position_bias_low"] <= injected) & (
        injected <= annotators["position_bias_high"]
    )
    assert inside.mean() >= 0.9
    assert annotators["position_bias"].mean() == pytest.approx(injected, abs=0.02)


BIAS = ["position_bias", "position_bias_low", "position_bias_high"]


def test_without_known_sides_no_position_bias_is_reported():
    truth = simulate(60, bias=0.8)
    unknown = truth.votes.assign(is_swapped=None)
    annotators = joint_model(unknown).annotators
    assert annotators[BIAS].isna().all(axis=None)
    old = joint_model(truth.votes.drop(columns="is_swapped"))  # a frame of before cards had sides
    pd.testing.assert_frame_equal(old.annotators, annotators, check_exact=True)
    # What all say of a is then a's: nobody can tell that they would have said it of the other one
    # there, too.
    assert (
        joint_model(unknown).labels["utility"].mean()
        > joint_model(truth.votes).labels["utility"].mean() + 0.05
    )


def test_votes_on_flagged_comparisons_are_ignored():
    truth = simulate(40, completions=3)
    ids = truth.comparisons["comparison_id"]
    flagged = truth.comparisons.assign(
        flag=["repeated" if i % 4 == 0 else None for i in range(len(ids))]
    )
    rest = truth.votes[truth.votes["comparison_id"].isin(ids[flagged["flag"].isna()])]
    model, without = joint_model(truth.votes, flagged), joint_model(rest, truth.comparisons)
    pd.testing.assert_frame_equal(
        model.labels.drop(columns="max_seq"),
        without.labels.drop(columns="max_seq"),
        check_exact=True,
    )
    pd.testing.assert_frame_equal(model.annotators, without.annotators, check_exact=True)
    with pytest.raises(NotEnoughVotes, match="flagged"):
        joint_model(truth.votes, truth.comparisons.assign(flag="identical"))


@pytest.mark.parametrize("is_shared", [True, False])
def test_reliability_is_covered_when_most_people_cast_few_votes(
    is_shared: bool,
) -> None:
    """Known utilities would tell more of an annotator than the votes do: 0.85 of the intervals held
    it when these were taken for known.
    """
    inside, n_inside = 0, 0
    for seed in range(3):
        truth, model = sparse_fit(seed, is_shared)
        annotators = model.annotators
        named = annotators["annotator_id"].str.removeprefix("ann").astype(int)
        sizes = np.abs(truth.d)[:, None]
        reliability = (1 / (1 + np.exp(-sizes * truth.discrimination[named]))).mean(axis=0)
        holds = annotators["reliability_low"].le(reliability) & annotators["reliability_high"].ge(
            reliability
        )
        inside += int(holds.sum())
        n_inside += len(holds)
    assert 0.92 <= inside / n_inside <= 0.99, "0.98 and the noise of three worlds"


@pytest.mark.parametrize("is_shared", [True, False])
def test_scale_is_right_when_most_people_cast_few_votes(is_shared: bool) -> None:
    """Without the correction the typical discrimination is 1.3 to 1.4 here."""
    fitted, slopes = [], []
    for seed in range(4):
        truth, model = sparse_fit(seed, is_shared)
        fitted.append(model.discrimination)
        slopes.append(np.polyfit(model.labels["utility"], truth.d, 1)[0])
    assert np.mean(fitted) == pytest.approx(1.5, rel=0.07)
    assert np.mean(slopes) == pytest.approx(1.0, abs=0.04)


@cache
def sparse_fit(seed: int, is_shared: bool) -> tuple[Simulated, JointModel]:
    """A sparse world and the model of its votes, whose completions share comparisons or not."""
    truth = sparse(seed, completions=4 if is_shared else 2)
    return truth, joint_model(truth.votes, truth.comparisons if is_shared else None)


def sparse(seed: int, *, completions: int):
    """Two to five votes on each of about 1,000 comparisons by 800 annotators, half of whom cast
    two votes or fewer.
    """
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(completions, 1)
    n_prompts = 1000 // len(first)
    utilities = rng.normal(0, np.sqrt(0.5), (n_prompts, completions))
    d = (utilities[:, first] - utilities[:, second]).ravel()
    prompt = np.repeat(np.arange(n_prompts), len(first))
    times = rng.integers(2, 6, len(d))
    activity = rng.pareto(1.0, 800) + 0.3
    activity /= activity.sum()
    c = np.repeat(np.arange(len(d)), times)
    j = np.concatenate([rng.choice(800, n, replace=False, p=activity) for n in times])
    discrimination = rng.normal(1.5, 0.4, 800)
    felt = discrimination[j] * d[c] + rng.logistic(size=len(c))
    choice = np.where(np.abs(felt) < 0.3, "tie", np.where(felt > 0, "a", "b"))
    votes = votes_of(c, j, choice, prompt=prompt[c])
    return Simulated(
        votes.assign(is_swapped=pd.array(rng.random(len(c)) < 0.5, dtype="boolean")),
        comparisons_of(prompt, np.tile(first, n_prompts), np.tile(second, n_prompts)),
        d,
        discrimination,
        np.zeros(800),
        np.zeros(800, dtype=bool),
    )
