"""Control charts of the error rate: p-chart, EWMA and the Western Electric rules.

Consecutive votes form subgroups. The first subgroups of a model set centre line and limits; later
ones are judged against them. Charts inform: they give no events.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, field_validator

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.watch.drift.base import Floats

Flags = npt.NDArray[np.bool_]

RULES = {
    "we_1": "one point beyond 3σ",
    "we_2": "2 of 3 points beyond 2σ on one side",
    "we_3": "4 of 5 points beyond 1σ on one side",
    "we_4": "8 points on one side",
    "ewma": "the moving average beyond its limit",
}
# chart -> the rules that it reads
CHARTS = {
    "p_chart": ("we_1",),
    "ewma": ("ewma",),
    "western_electric": ("we_1", "we_2", "we_3", "we_4"),
}
# rule -> (points beyond, among how many, σ)
_RUNS = {"we_1": (1, 1, 3.0), "we_2": (2, 3, 2.0), "we_3": (4, 5, 1.0), "we_4": (8, 8, 0.0)}
MIN_VOTES = 20  # in a subgroup: with fewer, limits by the normal distribution mean little


class ControlChartParams(Parameters):
    """Subgroups, baseline and limits of the control charts."""

    spc_votes: int = Field(
        default=100,
        ge=0,
        description=f"Control charts: votes in a subgroup, at least {MIN_VOTES}; 0 = the votes of "
        "one day",
    )
    spc_baseline: int = Field(
        default=8,
        ge=5,
        le=100,
        description="Control charts: first subgroups of a model, which set centre line and limits",
    )
    spc_ewma_weight: float = Field(
        default=0.2, gt=0, le=1, description="Control charts: weight of the latest subgroup (λ)"
    )
    spc_ewma_limit: float = Field(
        default=2.9,
        gt=0,
        description="Control charts: standard deviations of the moving average at its limit (L)",
    )

    @field_validator("spc_votes")
    @classmethod
    def _check_spc_votes(cls, value: int) -> int:
        if 0 < value < MIN_VOTES:
            raise ValueError(f"must be 0 or at least {MIN_VOTES}")
        return value


@dataclass(frozen=True)
class Baseline:
    """Error rate of the first subgroups; `dispersion` is how many times more they vary than
    independent votes would, at least 1.
    """

    centre: float
    dispersion: float
    n_subgroups: int
    n_votes: int


@dataclass(frozen=True)
class ControlCharts:
    """The charts of one model. `points` has one row per subgroup; see `judge_subgroups`."""

    baseline: Baseline
    points: pd.DataFrame

    def find_marked(self, chart: str) -> pd.DataFrame:
        """The judged subgroups that a chart marks."""
        broken = [bool({*CHARTS[chart]} & {*rules}) for rules in self.points["rules"]]
        return self.points[broken]


def control_charts(errors: pd.DataFrame, params: ControlChartParams) -> ControlCharts:
    """Chart a model's error stream of seq, day and error, in any row order.

    Raises NotEnoughData for fewer subgroups than the baseline and one more need, and for a baseline
    without errors or with errors only.
    """
    subgroups = split_into_subgroups(errors, params.spc_votes)
    needed = params.spc_baseline + 1
    if len(subgroups) < needed:
        size = f"{params.spc_votes} votes" if params.spc_votes else f"a day with {MIN_VOTES} votes"
        raise NotEnoughData(
            f"The model has {len(subgroups)} subgroups of {size}; control charts need {needed}: "
            f"{params.spc_baseline} as a baseline and one to judge."
        )
    baseline = fit_baseline(subgroups.iloc[: params.spc_baseline])
    return ControlCharts(baseline, judge_subgroups(subgroups, baseline, params))


def split_into_subgroups(errors: pd.DataFrame, n_votes: int) -> pd.DataFrame:
    """Columns first_seq, last_seq, day (of the last vote), n and n_errors: each `n_votes` votes in
    seq order, the incomplete rest left out; for 0 each day with MIN_VOTES votes.
    """
    rows = errors.sort_values("seq", ignore_index=True)
    group = rows["day"].astype(str) if n_votes == 0 else pd.Series(rows.index // n_votes)
    subgroups = rows.groupby(group.to_numpy(), sort=True).agg(
        first_seq=("seq", "min"),
        last_seq=("seq", "max"),
        day=("day", "last"),
        n=("error", "size"),
        n_errors=("error", "sum"),
    )
    return subgroups[subgroups["n"] >= (n_votes or MIN_VOTES)].reset_index(drop=True)


def fit_baseline(subgroups: pd.DataFrame) -> Baseline:
    """Centre line and dispersion of subgroups in control.

    Laney 2002, Improved Control Charts for Attributes: the dispersion is the mean moving range of
    the standardised rates over 1.128. Below 1 it counts as 1: subgroups of votes do not vary less
    than independent ones, and a few of them seem to by chance.
    """
    n, n_errors = subgroups["n"].to_numpy(float), subgroups["n_errors"].to_numpy(float)
    centre, dispersion = _fit(n, n_errors)
    if not 0 < centre < 1:
        raise NotEnoughData(
            f"All {int(n.sum()):,} votes of the baseline are {'errors' if centre else 'correct'}, "
            "so control charts have no limits. Give them a longer baseline."
        )
    return Baseline(float(centre), float(dispersion), len(n), int(n.sum()))


def judge_subgroups(
    subgroups: pd.DataFrame, baseline: Baseline, params: ControlChartParams
) -> pd.DataFrame:
    """The subgroups with rate, low and high (3σ), average and average_limit (in σ), is_baseline,
    and `rules`, the names in RULES that they break.

    Only subgroups after the baseline are judged; the moving average begins with them.
    """
    n, first = subgroups["n"].to_numpy(float), baseline.n_subgroups
    rate = subgroups["n_errors"].to_numpy(float) / n
    sigma = baseline.dispersion * np.sqrt(baseline.centre * (1 - baseline.centre) / n)
    z = (rate - baseline.centre) / sigma
    broken = break_rules(z[first:], params)
    average, limit = _moving_average(z[first:], params)
    unjudged = np.full(min(first, len(n)), np.nan)
    return subgroups.assign(
        rate=rate,
        low=np.clip(baseline.centre - 3 * sigma, 0, 1),
        high=np.clip(baseline.centre + 3 * sigma, 0, 1),
        average=np.concatenate([unjudged, average]),
        average_limit=np.concatenate([unjudged, limit]),
        is_baseline=np.arange(len(n)) < first,
        rules=[
            () if i < first else tuple(name for name in RULES if broken[name][i - first])
            for i in range(len(n))
        ],
    )


def break_rules(z: Floats, params: ControlChartParams) -> dict[str, Flags]:
    """Which points break each rule; `z` are standardised rates, in order along the last axis."""
    average, limit = _moving_average(z, params)
    broken = {"ewma": np.abs(average) > limit}
    for name, (needed, among, sigmas) in _RUNS.items():
        sides = (side > sigmas for side in (z, -z))
        broken[name] = np.logical_or(
            *(beyond & (_count_latest(beyond, among) >= needed) for beyond in sides)
        )
    return broken


def _fit(n: Floats, n_errors: Floats) -> tuple[Floats, Floats]:
    """Error rate and dispersion of subgroups along the last axis."""
    centre = n_errors.sum(axis=-1) / n.sum()
    mean = np.clip(centre, 1e-9, 1 - 1e-9)[..., None]
    z = (n_errors / n - mean) / np.sqrt(mean * (1 - mean) / n)
    moving_range = np.abs(np.diff(z, axis=-1)).mean(axis=-1)
    return centre, np.maximum(1.0, moving_range / 1.128)


def _moving_average(z: Floats, params: ControlChartParams) -> tuple[Floats, Floats]:
    """Exponentially weighted from 0 on, and the limit of each point."""
    weight, average = params.spc_ewma_weight, np.zeros_like(z)
    latest = np.zeros(z.shape[:-1])
    for i in range(z.shape[-1]):
        latest = weight * z[..., i] + (1 - weight) * latest
        average[..., i] = latest
    steps = np.arange(1, z.shape[-1] + 1)
    spread = np.sqrt(weight / (2 - weight) * (1 - (1 - weight) ** (2 * steps)))
    return average, params.spc_ewma_limit * spread


def _count_latest(flags: Flags, among: int) -> npt.NDArray[np.int_]:
    """How many of the latest `among` points are true, at each point."""
    total = np.cumsum(flags, axis=-1)
    before = np.zeros_like(total)
    before[..., among:] = total[..., :-among]
    return total - before
