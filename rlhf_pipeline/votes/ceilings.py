"""How good a perfect model could be against votes, per group of comparisons. Knows frames of votes;
knows no model.

Where a share p of all annotators prefers a, nobody's prediction agrees with more than max(p, 1 - p)
of their votes. The mean of that over comparisons is the noise ceiling. It lies between two figures
that votes give:

- `at_least`: one vote against the majority of the others on its comparison, half right where these
  are split. Few others are a worse judge than all.
- `at_most`: from how often two annotators take the same side. That is E[p² + (1 - p)²], and
  E[max(p, 1 - p)] is at most (1 + sqrt(2 agreement - 1)) / 2, with equality where all comparisons
  are equally hard.

`estimate` lies between them, from the distribution of p over comparisons, see `mixture`. Few votes
on each tell little of where, so its interval spans those of both (Manski 2003: what the data do not
identify is told as such).

`from_repeats` puts how often annotators repeat themselves into the formula of `at_most`: what is
lost to carelessness alone, not to differing tastes. Its difference to the others is what annotators
really disagree on. Ties take no side and are left out throughout.

`noise_ceiling_or_repeats` is the one figure that stands beside an accuracy, wherever one is shown.
"""

import math
from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd

from rlhf_pipeline.frames import FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.intervals import interval_of_mean
from rlhf_pipeline.records import Choice, Interval
from rlhf_pipeline.votes.agreement import SIDED, AgreementParams, self_consistency
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.mixture import mean_decidedness

ALL = "all"
MEASURES = ("estimate", "at_least", "at_most", "from_repeats")
UNIT = {"low": 0.0, "high": 1.0}

CEILINGS = FrameSchema(
    "ceilings",
    {
        "group": text("of the comparisons; 'all' is every one"),
        "n_votes": integer("votes for a or b by people", low=0),
        **{
            f"{measure}{end}": number(f"{what}; missing where nothing {why}", nullable=True, **UNIT)
            for measure, what, why in (
                ("estimate", "between at_least and at_most", "overlaps"),
                ("at_least", "one vote against the majority of the others", "overlaps"),
                ("at_most", "from the agreement of two annotators", "overlaps"),
                ("from_repeats", "from annotators' agreement with themselves", "was repeated"),
            )
            for end in ("", "_low", "_high")
        },
    },
    key=("group",),
)


def ceiling_of_agreement(agreement: float) -> float:
    """(1 + sqrt(2 agreement - 1)) / 2: how often a vote is the better side's, where two votes agree
    that often; 1/2 below chance.
    """
    return (1 + math.sqrt(max(0.0, 2 * agreement - 1))) / 2


def noise_ceiling_or_repeats(
    votes: pd.DataFrame, params: AgreementParams | None = None
) -> Interval | None:
    """The noise ceiling beside an accuracy against these VOTES: from overlaps (`estimate`), else
    from repeats, and then it says so.

    From repeats alone it is a ceiling for who learns one annotator's taste: that tastes differ is
    not in it. None where nothing overlaps and nobody judged anything again. Intervals are
    bootstraps over prompts. Raises FrameError.
    """
    params = params or AgreementParams()
    overlapping = _estimate_ceiling(_votes_for_a_side(votes), params)
    if overlapping is not None:
        return overlapping
    repeated = _ceiling_from_repeats(votes, params)
    return None if repeated is None else repeated.model_copy(update={"basis": "repeats"})


def ceilings(
    votes: pd.DataFrame,
    groups: Mapping[str, Hashable] | None = None,
    params: AgreementParams | None = None,
) -> pd.DataFrame:
    """CEILINGS of a VOTES frame: of all, then of each group, by name. `groups` maps comparison ids,
    those without stay in 'all' alone.

    Intervals are bootstraps over prompts. Raises FrameError.
    """
    params = params or AgreementParams()
    rows = [_row(ALL, votes, params)]
    if groups is not None:
        names = {comparison: str(group) for comparison, group in groups.items()}
        named = group_names(votes, names)
        shown = group_names(_votes_for_a_side(votes), names).dropna().unique()
        rows += [_row(str(name), votes[named == name], params) for name in sorted(shown)]
    return check_frame(pd.DataFrame(rows, columns=list(CEILINGS.columns)), CEILINGS)


def group_names(judged: pd.DataFrame, names: Mapping[str, str]) -> "pd.Series[str]":
    """The group of the comparison each vote is about: of a repeat, of the one it repeats; missing
    where that has none.
    """
    return judged["repeat_of"].fillna(judged["comparison_id"]).map(dict(names))


def _votes_for_a_side(votes: pd.DataFrame) -> pd.DataFrame:
    counted = drop_machine_votes(counting(votes))
    return counted[counted["choice"].isin(SIDED)]


def _ceiling_from_repeats(votes: pd.DataFrame, params: AgreementParams) -> Interval | None:
    return _ceiling_interval(self_consistency(votes, params, SIDED))


def _row(name: str, votes: pd.DataFrame, params: AgreementParams) -> dict[str, object]:
    sided = _votes_for_a_side(votes)
    counted = _count_sides(sided)
    found = {
        "estimate": _estimate_ceiling(sided, params),
        "at_least": _agreement_with_others(counted, params),
        "at_most": _ceiling_interval(_pairwise_agreement(counted, params)),
        "from_repeats": _ceiling_from_repeats(votes, params),
    }
    row: dict[str, object] = {"group": name, "n_votes": len(sided)}
    for measure, interval in found.items():
        ends = (
            (None, None, None)
            if interval is None
            else (interval.value, interval.low, interval.high)
        )
        row |= {
            f"{measure}{end}": value for end, value in zip(("", "_low", "_high"), ends, strict=True)
        }
    return row


def _estimate_ceiling(sided: pd.DataFrame, params: AgreementParams) -> Interval | None:
    counted = _count_sides(sided)
    least, most = (
        _agreement_with_others(counted, params),
        _ceiling_interval(_pairwise_agreement(counted, params)),
    )
    if least is None or most is None:
        return None
    value = float(np.clip(_mean_majority_share(counted), least.value, max(least.value, most.value)))
    return least.model_copy(
        update={"value": value, "low": min(least.low, most.low), "high": max(least.high, most.high)}
    )


def _mean_majority_share(counted: pd.DataFrame) -> float:
    """The mean of max(p, 1 - p) over votes. Apart for each number of votes: what is asked more
    often may be what is harder to say.
    """
    n, k = counted["n"].to_numpy(), counted["n_a"].to_numpy()
    (of, fewer), times = np.unique(np.stack([n, np.minimum(k, n - k)]), axis=1, return_counts=True)
    each = np.unique(of)
    return float(
        np.average(
            [mean_decidedness(of[of == m], fewer[of == m], times[of == m]) for m in each],
            weights=[m * times[of == m].sum() for m in each],
        )
    )


def _agreement_with_others(counted: pd.DataFrame, params: AgreementParams) -> Interval | None:
    """Each vote weighs the same. Leaving out votes whose others are split, as `noise_ceiling` does,
    would leave out what is hard to say.
    """
    if counted.empty:
        return None
    n, n_a = counted["n"].to_numpy(dtype=np.float64), counted["n_a"].to_numpy(dtype=np.float64)
    right = [of * (0.5 + 0.5 * np.sign(of - 1 - (n - of))) for of in (n_a, n - n_a)]
    of_votes = interval_of_mean(
        (right[0] + right[1]) / n, groups=counted["prompt_id"].to_numpy(), weights=n, params=params
    )
    return of_votes.model_copy(update={"n": int(n.sum())})


def _count_sides(sided: pd.DataFrame) -> pd.DataFrame:
    """prompt_id, votes and those for a of each comparison that several annotators took sides on,
    first passes.
    """
    first = sided[sided["repeat_of"].isna()]
    of = first.assign(is_a=(first["choice"] == Choice.A).astype("int64")).groupby("comparison_id")
    counted = of.agg(prompt_id=("prompt_id", "first"), n=("is_a", "size"), n_a=("is_a", "sum"))
    return counted[counted["n"] >= 2]


def _pairwise_agreement(counted: pd.DataFrame, params: AgreementParams) -> Interval | None:
    """How often a vote and another on its comparison take the same side, each vote weighing the
    same.
    """
    if counted.empty:
        return None
    n, n_a = counted["n"].to_numpy(dtype=np.float64), counted["n_a"].to_numpy(dtype=np.float64)
    pairs = n * (n - 1) / 2
    same = (n_a * (n_a - 1) + (n - n_a) * (n - n_a - 1)) / 2
    return interval_of_mean(
        same / pairs, groups=counted["prompt_id"].to_numpy(), weights=n, params=params
    )


def _ceiling_interval(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    ends = {
        name: ceiling_of_agreement(getattr(interval, name)) for name in ("value", "low", "high")
    }
    return interval.model_copy(update=ends)
