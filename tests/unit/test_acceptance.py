"""When a fitted reward model is too weak to serve, and when it is less accurate than the champion
on the latest votes.
"""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.learn.champions import AcceptanceParams, compare_with_chance
from rlhf_pipeline.learn.champions.assessment import accuracy_difference, find_weakness

PARAMS = AcceptanceParams(n_resamples=400)


def pairs(n, *, longer_wins=0.5, agreement=1.0):
    """In order of votes, each of a prompt of its own; the longer completion is chosen in the first
    pairs of every ten.
    """
    is_longer = np.arange(n) % 10 < 10 * longer_wins
    texts = [("long text", "text") if longer else ("text", "long text") for longer in is_longer]
    return pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(n)],
            "chosen": [c for c, _ in texts],
            "rejected": [r for _, r in texts],
            "agreement": agreement,
            "max_seq": np.arange(n) + 1,
            "category": "factual",
        }
    )


def margins(n, accuracy, seed=0):
    """Right on a share `accuracy` of the pairs, drawn by lot."""
    return np.where(np.random.default_rng(seed).permutation(n) < round(accuracy * n), 1.0, -1.0)


def ceiling(low):
    return Interval(value=low + 0.05, low=low, high=low + 0.1, n=100)


def test_model_below_preferring_the_longer_completion_is_refused():
    """The first model that became champion at 0.558 where the longer completion wins 0.913."""
    cause = find_weakness(pairs(120, longer_wins=0.9), margins(120, 0.56), None, PARAMS)
    assert cause.startswith("accuracy 0.558")
    assert "below 0.900 of preferring the longer completion" in cause


def test_model_as_good_as_preferring_the_longer_completion_passes():
    assert find_weakness(pairs(120, longer_wins=0.6), margins(120, 0.55), None, PARAMS) is None


@pytest.mark.parametrize(("accuracy", "refused"), [(0.52, True), (0.68, False)])
def test_model_near_a_coin_is_refused_where_the_ceiling_is_high(accuracy, refused):
    cause = find_weakness(pairs(400), margins(400, accuracy), ceiling(0.86), PARAMS)
    assert (cause is not None) is refused
    assert (
        cause is None
        or "below 0.680, half-way between a coin and the noise ceiling 0.910 [0.860, 0.960]"
        in cause
    )


def test_low_or_unknown_ceiling_refuses_no_model():
    inputs = pairs(400), margins(400, 0.52)
    assert find_weakness(*inputs, ceiling(0.55), PARAMS) is None
    assert find_weakness(*inputs, None, PARAMS) is None


def test_model_worse_on_the_latest_window_is_refused():
    """Better on all pairs, worse on the latest: taste changed and only the champion has learnt
    it.
    """
    old, new = margins(600, 0.6), margins(600, 0.9)
    old[-100:], new[-100:] = margins(100, 0.87), margins(100, 0.45)
    params = PARAMS.model_copy(update={"window_pairs": 100})
    on_all = accuracy_difference(
        pairs(600), new, old, PARAMS.model_copy(update={"window_pairs": 600})
    )
    assert on_all.high >= 0
    latest = accuracy_difference(pairs(600), new, old, params)
    assert latest.high < 0
    assert (latest.n, round(latest.value, 3)) == (100, -0.42)


def test_a_model_clearly_better_than_the_champion_is_an_improvement():
    better = accuracy_difference(pairs(30), margins(30, 0.4), margins(30, 0.03), PARAMS)
    assert better.low > 0
    equal = accuracy_difference(pairs(200), margins(200, 0.75, 1), margins(200, 0.75, 2), PARAMS)
    assert equal.low <= 0
    assert accuracy_difference(pairs(19), margins(19, 1.0), margins(19, 0.0), PARAMS) is None


@pytest.mark.parametrize("seed", range(20))
def test_model_as_good_as_the_champion_is_not_refused(seed):
    old = margins(200, 0.75, 100 + seed)
    assert accuracy_difference(pairs(200), margins(200, 0.75, seed), old, PARAMS).high >= 0


def test_with_too_few_pairs_no_model_is_refused():
    few = pairs(19, longer_wins=1.0), margins(19, 0.0)
    assert find_weakness(*few, ceiling(0.9), PARAMS) is None
    assert accuracy_difference(*few, margins(19, 1.0), PARAMS) is None
    enough = pairs(20, longer_wins=1.0), margins(20, 0.0)
    assert find_weakness(*enough, ceiling(0.9), PARAMS) is not None
    assert accuracy_difference(*enough, margins(20, 1.0), PARAMS).high < 0


@pytest.mark.parametrize(
    ("n", "accuracy", "least", "most"), [(60, 0.75, 0, 0), (12, 0.7, 10, 40), (200, 0.5, 10, 10)]
)
def test_model_beats_chance_by_its_lower_bound(n, accuracy, least, most):
    error = (margins(n, accuracy) < 0).astype(float)
    votes = pd.DataFrame({"comparison_id": [f"c{i}" for i in range(n)], "error": error})
    tested = compare_with_chance(votes, PARAMS)
    assert least <= tested.n_missing <= most
    assert (tested.accuracy.low > 0.5) == (tested.n_missing == 0)


def test_a_model_without_votes_since_the_change_does_not_beat_chance():
    tested = compare_with_chance(pd.DataFrame())
    assert tested.accuracy is None
    assert f"about {tested.n_missing} more votes" in tested.message
