"""The joint model finds what the simulation put in, and says how sure it is."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.errors import NotEnoughVotes, UnknownComparison
from rlhf_pipeline.votes.joint_model import JointParams, joint_model
from tests.unit.votes.simulated import Simulated, comparisons_of, simulate, votes_of

UNCORRECTED = JointParams(n_simulated_votes=0)


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


def test_shared_completions_inform_each_other():
    truth = simulate(40, completions=6, votes_each=3)
    apart = accuracy(joint_model(truth.votes).labels["utility"].to_numpy(), truth.d)
    together = accuracy(
        joint_model(truth.votes, truth.comparisons).labels["utility"].to_numpy(), truth.d
    )
    assert together > apart + 0.02


def test_spammers_stand_at_the_end_of_the_reliabilities():
    truth = simulate(100, n_annotators=25, spammers=0.2)  # 20 votes each
    ranked = joint_model(truth.votes).annotators.sort_values("reliability")["annotator_id"].tolist()
    places = [ranked.index(f"ann{i:04d}") for i in np.flatnonzero(truth.is_spammer)]
    n, m = len(places), len(ranked) - len(places)
    auroc = 1 - (sum(places) - n * (n - 1) / 2) / (n * m)
    assert auroc >= 0.9


def test_an_injected_position_bias_lies_in_its_interval():
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


def test_strength_informs_more_than_the_side():
    truth = simulate(400, strengths=True, ties=False, votes_each=3)
    with_strength = joint_model(truth.votes).labels["utility"].to_numpy()
    without = (
        joint_model(truth.votes.assign(strength=pd.array([None] * len(truth.votes), dtype="Int64")))
        .labels["utility"]
        .to_numpy()
    )
    assert np.corrcoef(with_strength, truth.d)[0, 1] > np.corrcoef(without, truth.d)[0, 1] + 0.02


def test_a_known_world_ends_where_it_did_before():
    """What is estimated may not move with how it is computed."""
    truth = simulate(
        20, completions=4, n_annotators=12, spammers=0.2, bias=0.3, strengths=True, seed=3
    )
    model = joint_model(truth.votes, truth.comparisons, UNCORRECTED)
    assert model.n_iterations == 41
    assert model.log_likelihoods[-1] == pytest.approx(-1081.5243137, abs=1e-6)
    assert model.discrimination == pytest.approx(1.5854617, abs=1e-6)
    of_labels = [
        [3.1199193, 0.4194382, 0.9912526],
        [-0.1750926, 0.2752802, 0.4339983],
        [0.8245785, 0.3217328, 0.7753313],
    ]
    np.testing.assert_allclose(
        model.labels[["utility", "sd", "p_a"]].iloc[[0, 50, 119]], of_labels, atol=1e-6
    )
    of_people = [
        [-0.0818796, 0.1121313, 0.2806494, 1.1231231],
        [2.2762249, 0.1100171, 0.4844681, 1.2131534],
        [1.8743485, 0.0962199, 0.3807867, 0.8470119],
    ]
    named = ["discrimination", "position_bias", "tie_width", "strength_scale"]
    np.testing.assert_allclose(model.annotators[named].iloc[[0, 5, 11]], of_people, atol=1e-6)


def test_the_order_of_votes_is_irrelevant():
    truth = simulate(60, completions=3, strengths=True)
    model, again = (
        joint_model(votes, truth.comparisons)
        for votes in (truth.votes, truth.votes.sample(frac=1.0, random_state=1))
    )
    pd.testing.assert_frame_equal(model.labels, again.labels, check_exact=True)
    pd.testing.assert_frame_equal(model.annotators, again.annotators, check_exact=True)


def test_changing_sides_changes_the_sign_alone():
    truth = simulate(80, bias=0.0)
    mirrored = truth.votes.assign(
        choice=truth.votes["choice"].map({"a": "b", "b": "a", "tie": "tie"})
    )
    labels, other = (
        joint_model(votes, params=UNCORRECTED).labels for votes in (truth.votes, mirrored)
    )
    assert other["utility"].to_numpy() == pytest.approx(-labels["utility"].to_numpy(), abs=1e-6)
    assert other["p_a"].to_numpy() == pytest.approx(1 - labels["p_a"].to_numpy(), abs=1e-6)


def test_few_votes_are_shrunk_to_the_pool():
    truth = simulate(300)
    one = votes_of([0], [9999], ["b" if truth.d[0] > 0 else "a"])  # wrong, once
    both = pd.concat(
        [truth.votes, one.assign(vote_id="one more", seq=len(truth.votes) + 1)], ignore_index=True
    )
    annotators = joint_model(both).annotators.set_index("annotator_id")
    newcomer, others = annotators.loc["ann9999"], annotators.drop("ann9999")
    assert newcomer["reliability"] > others["reliability"].min() - 0.05
    assert (
        newcomer["reliability_high"] - newcomer["reliability_low"]
        > (others["reliability_high"] - others["reliability_low"]).median()
    )


def test_an_inverted_annotator_has_a_negative_discrimination():
    truth = simulate(200, n_annotators=8)
    is_liar = truth.votes["annotator_id"] == "ann0003"
    lied = truth.votes.assign(
        choice=truth.votes["choice"].where(
            ~is_liar, truth.votes["choice"].map({"a": "b", "b": "a", "tie": "tie"})
        )
    )
    annotators = joint_model(lied).annotators.set_index("annotator_id")
    assert (
        annotators.loc["ann0003", "discrimination"]
        < 0
        < annotators.drop("ann0003")["discrimination"].min()
    )
    assert annotators.loc["ann0003", "reliability_high"] < 0.5


def test_one_annotator_gives_labels_that_are_not_certain():
    labels = joint_model(votes_of([0, 1, 2], 0, ["a", "b", "a"])).labels
    assert (labels["p_a"] > 0.5).tolist() == [True, False, True]
    assert labels["p_a"].between(0.1, 0.9).all()


def test_ties_alone_give_no_preference():
    labels = joint_model(votes_of([0, 0, 1, 1], [0, 1, 0, 1], ["tie"] * 4)).labels
    assert labels["p_a"].to_numpy() == pytest.approx(0.5, abs=1e-6)


def test_a_cycle_is_undecided_where_completions_are_shared():
    """A over B, B over C, C over A, by everybody: each comparison alone is clear, together they
    contradict each other.
    """
    comparisons = comparisons_of(
        np.zeros(3, dtype=np.int64), np.array([0, 1, 2]), np.array([1, 2, 0])
    )
    votes = votes_of(np.repeat(range(3), 4), np.tile(range(4), 3), ["a"] * 12)
    together = joint_model(votes, comparisons).labels
    assert together["utility"].to_numpy() == pytest.approx(0.0, abs=1e-3)
    assert (joint_model(votes).labels["p_a"] > 0.6).all()


def test_opposite_votes_on_one_comparison_cancel():
    labels = joint_model(votes_of([0, 0], [0, 1], ["a", "b"])).labels
    assert labels["p_a"].iloc[0] == pytest.approx(0.5, abs=1e-6)


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


def test_a_comparison_that_is_not_given_is_named():
    with pytest.raises(UnknownComparison, match="first c00009"):
        joint_model(
            votes_of([0, 9], 0, ["a", "a"]),
            comparisons_of(np.zeros(1, dtype=np.int64), np.array([0]), np.array([1])),
        )


def test_a_fit_that_is_cut_short_is_marked():
    assert not joint_model(simulate(50).votes, params=JointParams(max_iterations=2)).is_converged


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
    found = []
    for seed in range(4):
        truth = simulate(400, n_annotators=10, ties=False, seed=seed)
        found.append(joint_model(shown_swapped(truth, np.random.default_rng(seed), 0.6)).annotators)
    annotators = pd.concat(found)
    inside = (annotators["position_bias_low"] <= injected) & (
        injected <= annotators["position_bias_high"]
    )
    assert inside.mean() >= 0.9
    assert annotators["position_bias"].mean() == pytest.approx(injected, abs=0.02)


def test_swapped_cards_of_a_repeat_stand_as_the_original_did():
    votes = votes_of([0, 0, 7], [0, 1, 0], ["a", "a", "b"]).assign(repeat_of=[None, None, "c00000"])
    plain, turned = (
        joint_model(votes.assign(is_swapped=sides)) for sides in ([False] * 3, [False, False, True])
    )
    # On all three they prefer a of the original; the card of the repeat showed it right, or swapped
    # once more: left.
    leaning = [model.annotators["position_bias"].iloc[0] for model in (plain, turned)]
    assert leaning[1] > leaning[0] + 0.01
    # of who always takes the left one, less is learnt
    assert turned.labels["p_a"].iloc[0] < plain.labels["p_a"].iloc[0]


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


def test_votes_whose_sides_are_unknown_pull_on_no_leaning():
    truth = simulate(300, n_annotators=10, ties=False, seed=1)
    swapped = shown_swapped(truth, np.random.default_rng(1), 0.6)
    known = swapped["is_swapped"].astype("boolean").where(np.arange(len(swapped)) % 2 == 0)
    annotators = joint_model(swapped.assign(is_swapped=known)).annotators
    injected = 1 / (1 + np.exp(-0.6)) - 0.5
    # taken as unswapped they would halve it
    assert annotators["position_bias"].mean() == pytest.approx(injected, abs=0.04)
    assert (annotators["position_bias_low"] > 0).mean() > 0.5


def test_a_repeat_of_unknown_sides_informs_utility_but_not_bias():
    """Its sides are the original's the other way round; which of the two had a left is as unknown
    as before.
    """
    first = votes_of([0], [0], ["a"])
    again = votes_of([7], [0], ["b"]).assign(repeat_of="c00000", vote_id="again", seq=2)
    model = joint_model(pd.concat([first, again], ignore_index=True))
    assert model.annotators[BIAS].isna().all(axis=None)
    assert model.labels["p_a"].iloc[0] > joint_model(first).labels["p_a"].iloc[0]


def test_votes_on_flagged_comparisons_teach_nothing_as_of_pairs():
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


def test_labels_say_up_to_which_vote_they_know():
    # the skip may stand where a vote stood
    votes = votes_of([0, 0, 1], [0, 1, 0], ["a", "b", "skip"])
    assert joint_model(votes).labels["max_seq"].tolist() == [3]
    machine = votes_of([0], [5], ["b"]).assign(annotator_kind="machine", vote_id="m", seq=9)
    assert joint_model(pd.concat([votes, machine], ignore_index=True)).labels[
        "max_seq"
    ].tolist() == [3]


@pytest.mark.parametrize("is_shared", [True, False])
def test_intervals_of_reliability_hold_the_truth_where_most_people_cast_few_votes(
    is_shared: bool,
) -> None:
    """Known utilities would tell more of an annotator than the votes do: 0.85 of the intervals held
    it when these were taken for known.
    """
    inside, n_inside = 0, 0
    for seed in range(3):
        truth = sparse(seed, completions=4 if is_shared else 2)
        model = joint_model(truth.votes, truth.comparisons if is_shared else None)
        annotators = model.annotators
        named = annotators["annotator_id"].str.removeprefix("ann").astype(int)
        nodes, weights = np.polynomial.hermite_e.hermegauss(61)
        chances = 1 / (1 + np.exp(-np.abs(nodes)[:, None] * truth.discrimination[named]))
        reliability = (weights / weights.sum()) @ chances
        holds = annotators["reliability_low"].le(reliability) & annotators["reliability_high"].ge(
            reliability
        )
        inside += int(holds.sum())
        n_inside += len(holds)
    assert 0.92 <= inside / n_inside <= 0.985, "0.98 and the noise of three worlds"


@pytest.mark.parametrize("is_shared", [True, False])
def test_scale_is_right_where_most_people_cast_few_votes(is_shared: bool) -> None:
    """Without the correction the typical discrimination is 1.3 to 1.4 here."""
    fitted, slopes = [], []
    for seed in range(4):
        truth = sparse(seed, completions=4 if is_shared else 2)
        model = joint_model(truth.votes, truth.comparisons if is_shared else None)
        fitted.append(model.discrimination)
        slopes.append(np.polyfit(model.labels["utility"], truth.d, 1)[0])
    assert np.mean(fitted) == pytest.approx(1.5, rel=0.07)
    assert np.mean(slopes) == pytest.approx(1.0, abs=0.04)


def test_many_votes_are_corrected_by_a_part_of_them() -> None:
    truth = sparse(0, completions=4)
    whole = joint_model(truth.votes, truth.comparisons)
    params = JointParams(n_simulated_votes=1200)
    part = joint_model(truth.votes, truth.comparisons, params)
    assert part.discrimination == pytest.approx(whole.discrimination, rel=0.15)
    votes = whole.fit.votes
    some = votes.select_comparisons(np.arange(0, len(votes.ids), 3), share=1 / 3)
    assert len(some.names) == pytest.approx(len(votes.names) / 3, rel=0.2)
    assert np.bincount(some.annotator).mean() == pytest.approx(
        np.bincount(votes.annotator).mean(), rel=0.2
    )
    assert some.comparison.max() == len(some.ids) - 1


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
