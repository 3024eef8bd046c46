"""Estimates noise ceilings: the accuracy of a perfect model against votes, per group of
comparisons.

If a share p of all annotators prefers a, no prediction agrees with more than max(p, 1 - p) of their
votes. The noise ceiling is the mean of this over comparisons. It lies between two figures that can
be estimated from votes:

- `at_least`: one vote against the majority of the others on its comparison, half right where these
  are split. Few others are a worse judge than all.
- `at_most`: from how often two annotators take the same side. That is E[p² + (1 - p)²], and
  E[max(p, 1 - p)] is at most (1 + sqrt(2 agreement - 1)) / 2, with equality where all comparisons
  are equally hard.

`estimate` lies between them; it uses the distribution of p over comparisons (`mean_decidedness`).
With few votes per comparison its position is hardly identified, so its interval spans both
intervals (Manski 2003).

`from_repeats` applies the formula of `at_most` to self-consistency: the loss by inconsistent
annotators alone. Its difference to the others is real disagreement between annotators. Ties are
left out throughout.

`noise_ceiling_or_repeats` is the figure shown beside every accuracy.
"""

import math
from collections.abc import Hashable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.frames import FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.core.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.core.records import Choice, Interval
from rlhf_pipeline.feedback.votes.agreement import SIDED, self_consistency
from rlhf_pipeline.feedback.votes.counting import counting_votes, drop_machine_votes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# The EM of `mean_decidedness`.
GRID = np.linspace(0.5, 1 - 1e-9, 26)  # values of max(p, 1 - p)
PRIOR = 1.0  # weight of the uniform prior, in comparisons
STEPS, LEAST_CHANGE = 400, 1e-7

ALL = "all"
MEASURES = ("estimate", "at_least", "at_most", "from_repeats")
UNIT = {"low": 0.0, "high": 1.0}

CEILINGS = FrameSchema(
    "ceilings",
    {
        "group": text("group of comparisons; 'all' contains every comparison"),
        "n_votes": integer("votes for a or b, without machine votes", low=0),
        **{
            f"{measure}{end}": number(f"{what}; missing without {why}", nullable=True, **UNIT)
            for measure, what, why in (
                ("estimate", "between at_least and at_most", "overlapping votes"),
                ("at_least", "one vote against the majority of the others", "overlapping votes"),
                ("at_most", "from the agreement of pairs of annotators", "overlapping votes"),
                ("from_repeats", "from annotators' self-consistency", "repeats"),
            )
            for end in ("", "_low", "_high")
        },
    },
    key=("group",),
)


def ceiling_of_agreement(agreement: float) -> float:
    """(1 + sqrt(2 agreement - 1)) / 2: share of votes for the better side if two votes agree with
    probability `agreement`; 1/2 below chance.
    """
    return (1 + math.sqrt(max(0.0, 2 * agreement - 1))) / 2


def noise_ceiling_or_repeats(votes: pd.DataFrame) -> Interval | None:
    """The noise ceiling to show beside an accuracy against these VOTES: `estimate`, or without
    overlapping votes `from_repeats`, marked by `basis`.

    A ceiling from repeats ignores disagreement between annotators. None without overlapping votes
    and repeats. Intervals are bootstraps over prompts. Raises FrameError.
    """
    overlapping = ceiling_of_counts(_count_sides(_votes_for_a_side(votes)))
    if overlapping is not None:
        return overlapping
    repeated = _ceiling_from_repeats(votes)
    return None if repeated is None else repeated.model_copy(update={"basis": "repeats"})


def ceilings(
    votes: pd.DataFrame,
    groups: Mapping[str, Hashable] | None = None,
) -> pd.DataFrame:
    """CEILINGS of a VOTES frame: of all votes, then of each group by name. `groups` maps comparison
    ids to groups; other comparisons count only in 'all'.

    Intervals are bootstraps over prompts. Raises FrameError.
    """
    rows = [_row(ALL, votes)]
    if groups is not None:
        names = {comparison: str(group) for comparison, group in groups.items()}
        group_of_vote = group_names(votes, names)
        shown_groups = group_names(_votes_for_a_side(votes), names).dropna().unique()
        rows += [_row(str(name), votes[group_of_vote == name]) for name in sorted(shown_groups)]
    return check_frame(pd.DataFrame(rows, columns=list(CEILINGS.columns)), CEILINGS)


def group_names(votes: pd.DataFrame, names: Mapping[str, str]) -> "pd.Series[str]":
    """The group of each vote's comparison (for a repeat, of its original); missing if it has
    none.
    """
    return votes["repeat_of"].fillna(votes["comparison_id"]).map(dict(names))


def _votes_for_a_side(votes: pd.DataFrame) -> pd.DataFrame:
    latest_votes = drop_machine_votes(counting_votes(votes))
    return latest_votes[latest_votes["choice"].isin(SIDED)]


def _ceiling_from_repeats(votes: pd.DataFrame) -> Interval | None:
    return _ceiling_interval(self_consistency(votes, SIDED))


def _row(name: str, votes: pd.DataFrame) -> dict[str, object]:
    side_votes, params = _votes_for_a_side(votes), BootstrapParams()
    counts = _count_sides(side_votes)
    intervals = {
        "estimate": ceiling_of_counts(counts, params),
        "at_least": _agreement_with_others(counts, params),
        "at_most": _ceiling_interval(_pairwise_agreement(counts, params)),
        "from_repeats": _ceiling_from_repeats(votes),
    }
    row: dict[str, object] = {"group": name, "n_votes": len(side_votes)}
    for measure, interval in intervals.items():
        ends = (
            (None, None, None)
            if interval is None
            else (interval.value, interval.low, interval.high)
        )
        row |= {
            f"{measure}{end}": value for end, value in zip(("", "_low", "_high"), ends, strict=True)
        }
    return row


def ceiling_of_counts(
    counts: pd.DataFrame, params: BootstrapParams | None = None
) -> Interval | None:
    """`estimate` from prompt_id, the votes `n` and those for one side `n_a` of each comparison with
    two votes or more. None without such comparisons.
    """
    params = params or BootstrapParams()
    least = _agreement_with_others(counts, params)
    most = _ceiling_interval(_pairwise_agreement(counts, params))
    if least is None or most is None:
        return None
    value = float(np.clip(_mean_majority_share(counts), least.value, max(least.value, most.value)))
    return least.model_copy(
        update={"value": value, "low": min(least.low, most.low), "high": max(least.high, most.high)}
    )


def _mean_majority_share(counts: pd.DataFrame) -> float:
    """The mean of max(p, 1 - p) over votes. Estimated separately per number of votes, because
    comparisons with more votes may be harder.
    """
    n, k = counts["n"].to_numpy(), counts["n_a"].to_numpy()
    (n_votes, fewer), times = np.unique(
        np.stack([n, np.minimum(k, n - k)]), axis=1, return_counts=True
    )
    sizes = np.unique(n_votes)
    return float(
        np.average(
            [
                mean_decidedness(n_votes[n_votes == m], fewer[n_votes == m], times[n_votes == m])
                for m in sizes
            ],
            weights=[m * times[n_votes == m].sum() for m in sizes],
        )
    )


def _agreement_with_others(counts: pd.DataFrame, params: BootstrapParams) -> Interval | None:
    """`at_least`, each vote weighted equally. Unlike `noise_ceiling` it keeps votes whose others
    are split: dropping them would drop hard comparisons.
    """
    if counts.empty:
        return None
    n, n_a = counts["n"].to_numpy(dtype=np.float64), counts["n_a"].to_numpy(dtype=np.float64)
    right = [n_side * (0.5 + 0.5 * np.sign(n_side - 1 - (n - n_side))) for n_side in (n_a, n - n_a)]
    of_votes = interval_of_mean(
        (right[0] + right[1]) / n, groups=counts["prompt_id"].to_numpy(), weights=n, params=params
    )
    return of_votes.model_copy(update={"n": int(n.sum())})


def _count_sides(side_votes: pd.DataFrame) -> pd.DataFrame:
    """prompt_id, votes `n` and votes for a `n_a` of each comparison with several votes for a side,
    without repeats.
    """
    first = side_votes[side_votes["repeat_of"].isna()]
    groups = first.assign(is_a=(first["choice"] == Choice.A).astype("int64")).groupby(
        "comparison_id"
    )
    counts = groups.agg(prompt_id=("prompt_id", "first"), n=("is_a", "size"), n_a=("is_a", "sum"))
    return counts[counts["n"] >= 2]


def _pairwise_agreement(counts: pd.DataFrame, params: BootstrapParams) -> Interval | None:
    """Share of pairs of votes on one comparison for the same side, each vote weighted equally."""
    if counts.empty:
        return None
    n, n_a = counts["n"].to_numpy(dtype=np.float64), counts["n_a"].to_numpy(dtype=np.float64)
    pairs = n * (n - 1) / 2
    same = (n_a * (n_a - 1) + (n - n_a) * (n - n_a - 1)) / 2
    return interval_of_mean(
        same / pairs, groups=counts["prompt_id"].to_numpy(), weights=n, params=params
    )


def _ceiling_interval(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    ends = {
        name: ceiling_of_agreement(getattr(interval, name)) for name in ("value", "low", "high")
    }
    return interval.model_copy(update=ends)


def mean_decidedness(n: Ints, k: Ints, times: Ints) -> float:
    """The mean of max(p, 1 - p) over comparisons: `times` (P,) comparisons have `n` (P,) votes, `k`
    (P,) of them for one side.

    One comparison's votes k : n - k determine its p poorly, but a thousand comparisons determine
    the distribution of p: the nonparametric maximum-likelihood mixture of binomials (Laird 1978;
    Lindsay 1983), fitted by EM on a grid. The labels a and b are arbitrary, so the mixture is
    symmetric. With n votes per comparison only n/2 moments are identified, with two votes just one;
    a weak uniform prior fills in the rest.
    """
    chances = _chances(n, np.minimum(k, n - k))
    weights = np.full(len(GRID), 1 / len(GRID))
    for _ in range(STEPS):
        new = weights * ((times / (chances @ weights)) @ chances) + PRIOR / len(GRID)
        new /= new.sum()
        is_over = np.abs(new - weights).max() < LEAST_CHANGE
        weights = new
        if is_over:
            break
    return float(weights @ GRID)


def _chances(n: Ints, k: Ints) -> Floats:
    """Likelihood of each vote pattern at each grid point (P, G), up to a factor per pattern."""
    sides = [
        k[:, None] * np.log(chance) + (n - k)[:, None] * np.log(other)
        for chance, other in ((GRID, 1 - GRID), (1 - GRID, GRID))
    ]
    both = np.logaddexp(*sides)
    return np.asarray(np.exp(both - both.max(axis=1, keepdims=True)))
