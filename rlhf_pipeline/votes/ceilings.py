"""How good a perfect model could be against votes, per group of comparisons. Knows frames of votes; knows no model.

Where a share p of all annotators prefers a, nobody's prediction agrees with more than max(p, 1 - p) of their votes. The mean of that over
comparisons is the noise ceiling. It lies between two figures that votes give:

- `at_least`: one vote against the majority of the others on its comparison. Few others are a worse judge than all.
- `at_most`: from how often two annotators take the same side. That is E[p² + (1 - p)²], and E[max(p, 1 - p)] is at most
  (1 + sqrt(2 agreement - 1)) / 2, with equality where all comparisons are equally hard.

`from_repeats` puts how often annotators repeat themselves into the same formula: what is lost to carelessness alone, not to differing tastes.
Its difference to the others is what annotators really disagree on. Ties take no side and are left out throughout.
"""

import math
from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd

from rlhf_pipeline.frames import VOTES, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.records import Choice, Interval
from rlhf_pipeline.votes.agreement import AgreementParams, agreement, noise_ceiling
from rlhf_pipeline.votes.intervals import interval_of_mean
from rlhf_pipeline.votes.people import by_people

ALL = "all"
MEASURES = ("at_least", "at_most", "from_repeats")
UNIT = {"low": 0.0, "high": 1.0}

CEILINGS = FrameSchema(
    "ceilings",
    {
        "group": text("of the comparisons; 'all' is every one"),
        "n_votes": integer("votes for a or b by people", low=0),
        **{
            f"{measure}{end}": number(f"{what}; missing where nothing {why}", nullable=True, **UNIT)
            for measure, what, why in (
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
    """(1 + sqrt(2 agreement - 1)) / 2: how often a vote is the better side's, where two votes agree that often; 1/2 below chance."""
    return (1 + math.sqrt(max(0.0, 2 * agreement - 1))) / 2


def ceilings(
    votes: pd.DataFrame,
    groups: Mapping[str, Hashable] | None = None,
    params: AgreementParams | None = None,
    *,
    passes: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """CEILINGS of a VOTES frame: of all, then of each group, by name. `groups` maps comparison ids, those without stay in 'all' alone.

    Intervals are bootstraps over prompts. `passes` as in `agreement`; they have no group of their own and count in 'all'.
    """
    params = params or AgreementParams()
    checked = by_people(check_frame(votes, VOTES))
    sided = checked[checked["choice"].isin([Choice.A, Choice.B])]
    rows = [_row(ALL, sided, passes, params)]
    if groups is not None:
        about = sided["repeat_of"].fillna(sided["comparison_id"])
        named = about.map({comparison: str(group) for comparison, group in groups.items()})
        rows += [_row(str(name), sided[named == name], None, params) for name in sorted(named.dropna().unique())]
    return check_frame(pd.DataFrame(rows, columns=list(CEILINGS.columns)), CEILINGS)


def _row(name: str, sided: pd.DataFrame, passes: pd.DataFrame | None, params: AgreementParams) -> dict[str, object]:
    if passes is not None:
        passes = passes[passes["choice"].isin([Choice.A, Choice.B]) & passes["choice_first"].isin([Choice.A, Choice.B])]
    themselves = agreement(sided, params, passes=passes).self_consistency if len(sided) else None
    found = {"at_least": noise_ceiling(sided, params), "at_most": _mapped(_pairs(sided, params)), "from_repeats": _mapped(themselves)}
    row: dict[str, object] = {"group": name, "n_votes": len(sided)}
    for measure, interval in found.items():
        ends = (None, None, None) if interval is None else (interval.value, interval.low, interval.high)
        row |= {f"{measure}{end}": value for end, value in zip(("", "_low", "_high"), ends, strict=True)}
    return row


def _pairs(sided: pd.DataFrame, params: AgreementParams) -> Interval | None:
    """How often two annotators of one comparison take the same side, each pair of votes weighing the same."""
    first = sided[sided["repeat_of"].isna()]
    if first.empty:
        return None
    of = (first["choice"] == Choice.A).groupby(first["comparison_id"])
    n, n_a = of.size().to_numpy(dtype=np.float64), of.sum().to_numpy(dtype=np.float64)
    pairs = n * (n - 1) / 2
    same = (n_a * (n_a - 1) + (n - n_a) * (n - n_a - 1)) / 2
    some = pairs > 0
    if not some.any():
        return None
    prompts = first.groupby("comparison_id")["prompt_id"].first().to_numpy()
    return interval_of_mean(same[some] / pairs[some], groups=prompts[some], weights=pairs[some], params=params)


def _mapped(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    ends = {name: ceiling_of_agreement(getattr(interval, name)) for name in ("value", "low", "high")}
    return interval.model_copy(update=ends)
