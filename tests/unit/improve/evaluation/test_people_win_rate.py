"""People's win rate: its interval holds the truth whatever the judge, whenever it is read."""

import numpy as np
import pytest

from rlhf_pipeline.core.intervals import Floats
from rlhf_pipeline.improve.evaluation.people_win_rate import (
    adjust_votes,
    estimate_people_win_rate,
    log_wealth,
    tune_powers,
)


def draw_release(
    rng: np.random.Generator, judge_error: float, n_votes: int = 400
) -> tuple[Floats, Floats, Floats, float]:
    """Votes, the judge's probabilities of their prompts and of all, and the true win rate."""
    people = rng.beta(0.6, 0.5, 500)
    scores = np.clip(people + rng.normal(0.2, judge_error, 500), 0.01, 0.99)
    dealt = rng.integers(500, size=n_votes)
    votes = (rng.random(n_votes) < people[dealt]).astype(float)
    return votes, scores[dealt], scores, float(people.mean())


@pytest.mark.parametrize("judge_error", [0.05, 0.3, 3.0])
def test_biased_judge_keeps_the_truth_in_the_interval_at_every_look(judge_error: float) -> None:
    n_misses = 0
    for seed in range(200):
        votes, scores, frozen, truth = draw_release(np.random.default_rng(seed), judge_error)
        adjusted = adjust_votes(votes, scores, frozen, tune_powers(votes, scores, 20))
        n_misses += max(map(np.max, log_wealth(*adjusted, truth))) >= np.log(40)
    assert n_misses <= 10  # 5 %; the judge alone would miss in each, being .2 too high


def test_good_judge_narrows_the_interval_and_a_wrong_one_does_not_widen_it() -> None:
    votes, scores, frozen, _ = draw_release(np.random.default_rng(1), 0.05)
    alone = estimate_people_win_rate(votes, np.full(400, 0.5), np.full(500, 0.5))
    good = estimate_people_win_rate(votes, scores, frozen)
    wrong = estimate_people_win_rate(votes, 1 - scores, 1 - frozen)
    assert good.power > 0.5
    assert good.half_width < 0.9 * alone.half_width
    assert wrong.power < 0.05
    assert wrong.half_width == pytest.approx(alone.half_width, abs=0.005)


def test_votes_of_a_batch_do_not_change_its_own_weight() -> None:
    votes, scores, _, _ = draw_release(np.random.default_rng(2), 0.1)
    changed = votes.copy()
    changed[40:60] = 1 - changed[40:60]
    before, after = tune_powers(votes, scores, 20), tune_powers(changed, scores, 20)
    assert (before[:60] == after[:60]).all()
    assert (before[60:] != after[60:]).all()


def test_swapping_candidate_and_champion_mirrors_the_estimate() -> None:
    votes, scores, frozen, _ = draw_release(np.random.default_rng(3), 0.2)
    one_way = estimate_people_win_rate(votes, scores, frozen)
    other_way = estimate_people_win_rate(1 - votes, 1 - scores, 1 - frozen)
    assert one_way.win_rate.low == pytest.approx(1 - other_way.win_rate.high, abs=0.003)
    assert one_way.win_rate.high == pytest.approx(1 - other_way.win_rate.low, abs=0.003)


def test_decision_stays_open_until_votes_decide() -> None:
    frozen = np.full(50, 0.5)

    def decide(votes: Floats) -> str:
        return estimate_people_win_rate(votes, np.full(len(votes), 0.5), frozen).decision

    assert decide(np.array([])) == "open"
    assert decide(np.array([1.0, 0.0, 1.0])) == "open"
    assert decide(np.ones(40)) == "better"
    assert decide(np.zeros(40)) == "worse"
    assert decide(np.full(200, 0.5)) == "too_close"


def test_without_votes_the_interval_excludes_nothing() -> None:
    estimate = estimate_people_win_rate(np.array([]), np.array([]), np.array([0.4, 0.9]))
    assert (estimate.win_rate.low, estimate.win_rate.high) == (0, 1)
