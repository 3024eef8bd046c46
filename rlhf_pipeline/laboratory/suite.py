"""Runs scenarios over many seeds: one row each, with its interval, its bar and the CUSUM beside."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_pipeline.laboratory import LAB_SCENARIOS, LabScenario
from rlhf_pipeline.laboratory.base import LabBar, Observation, measure_share, share_of
from rlhf_pipeline.laboratory.independent import INDEPENDENT
from rlhf_pipeline.laboratory.known_rates import tune_threshold
from rlhf_pipeline.laboratory.named_causes import CAUSES, SINGLE_CAUSES
from rlhf_pipeline.laboratory.steady import NOTHING_HAPPENS, measure_others, measure_rate
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval, Record
from rlhf_pipeline.workers import Workers

RETRAINING_BARS = {
    "carelessness": LabBar(limit=0.02, is_upper=True),
    "taste": LabBar(limit=0.95, is_upper=False),
}
# False retrainings per 1,000 independent votes in docs/laboratory.md: the rate of the CUSUM beside
# where that row is not run.
USUAL_RATE = 0.025


class SuiteRow(Record):
    """One scenario, or several, over all seeds.

    Where nothing happens, `others` are responses per 1,000 votes that retrain nothing. Else
    `confirmed` is the share of changes that detectors confirm in time, `waited` the median and the
    90 % quantile of the votes from there to the decision, and `beside` the figure of the CUSUM that
    knows both rates.
    """

    name: str
    group: str
    title: str
    unit: str
    figure: Interval
    bar: LabBar
    others: Interval | None = None
    confirmed: Interval | None = None
    waited: tuple[float, float] | None = None
    beside: Interval | None = None

    @property
    def is_met(self) -> bool:
        return self.bar.is_met(self.figure.value)


class SuiteReport(Record):
    """The rows in the order of the scenarios, after them those over several."""

    n_streams: int
    false_rate: float  # of the CUSUM beside, per 1,000 votes
    rows: tuple[SuiteRow, ...]

    @property
    def n_missed(self) -> int:
        return sum(not row.is_met for row in self.rows)


def run_suite(
    names: Sequence[str],
    n_streams: int,
    workers: Workers,
    progress: Progress = ignore_progress,
) -> SuiteReport:
    """Observe seeds 0 to n_streams - 1 of each scenario; the same ones whatever the workers."""
    jobs = [(name, seed) for name in names for seed in range(n_streams)]
    observed: dict[str, list[Observation]] = {name: [] for name in names}
    for done, ((name, _), observation) in enumerate(
        zip(jobs, workers.map(observe, jobs), strict=True), start=1
    ):
        observed[name].append(observation)
        progress(done, len(jobs), name)
    rate = _false_rate(observed)
    rows = [_build_row(LAB_SCENARIOS[name], observed[name], rate) for name in names]
    return SuiteReport(n_streams=n_streams, false_rate=rate, rows=(*rows, *_build_totals(observed)))


def observe(job: tuple[str, int]) -> Observation:
    """One seed of the scenario of that name; workers call it."""
    name, seed = job
    return LAB_SCENARIOS[name].observe(seed)


def _false_rate(observed: Mapping[str, Sequence[Observation]]) -> float:
    """False retrainings per 1,000 independent votes; half of one is assumed where none came."""
    of_row = observed.get(INDEPENDENT.name)
    if not of_row:
        return USUAL_RATE
    n_retrainings = sum(one.n_counts for one in of_row)
    return max(n_retrainings, 0.5) / sum(one.n_counted for one in of_row) * 1000


def _build_row(scenario: LabScenario, observed: Sequence[Observation], rate: float) -> SuiteRow:
    return SuiteRow(
        name=scenario.name,
        group=scenario.group,
        title=scenario.title,
        unit=scenario.unit,
        figure=scenario.measure(observed),
        bar=scenario.bar,
        beside=_measure_beside(scenario, observed, rate),
        **_measure_more(observed),
    )


def _measure_more(observed: Sequence[Observation]) -> dict[str, Any]:
    """The figures of a row that has them, by their field."""
    more: dict[str, Any] = {}
    if all(one.n_others is not None for one in observed):
        more["others"] = measure_others(observed)
    if all(one.is_confirmed is not None for one in observed):
        n_confirmed = sum(bool(one.is_confirmed) for one in observed)
        more["confirmed"] = share_of(n_confirmed, len(observed))
    if waited := [one.n_waited for one in observed if one.n_waited is not None]:
        more["waited"] = tuple(float(each) for each in np.quantile(waited, [0.5, 0.9]))
    return more


def _measure_beside(
    scenario: LabScenario, observed: Sequence[Observation], rate: float
) -> Interval | None:
    if scenario.known_rates is None:
        return None
    threshold = tune_threshold(scenario.known_rates, rate)
    n_noticed = sum(one.peak is not None and one.peak >= threshold for one in observed)
    return share_of(n_noticed, len(observed))


def _build_totals(observed: Mapping[str, Sequence[Observation]]) -> Iterator[SuiteRow]:
    """The rows that sum up or reread observations of others, where those were run."""
    steady = [name for name in observed if LAB_SCENARIOS[name].group == NOTHING_HAPPENS]
    single = [one.name for one in SINGLE_CAUSES if one.name in observed]
    if len(steady) > 1:
        found = [one for name in steady for one in observed[name]]
        yield SuiteRow(
            name="all_steady",
            group=NOTHING_HAPPENS,
            title="all rows in which nothing happens",
            unit=INDEPENDENT.unit,
            figure=measure_rate(found),
            bar=LabBar(limit=0.03, is_upper=True),
            others=measure_others(found),
        )
    if len(single) > 1:
        yield SuiteRow(
            name="all_causes",
            group=CAUSES,
            title="all rows of one cause",
            unit=SINGLE_CAUSES[0].unit,
            figure=measure_share([one for name in single for one in observed[name]]),
            bar=SINGLE_CAUSES[0].bar,
        )
    for name, bar in RETRAINING_BARS.items():
        if found := list(observed.get(f"cause_{name}", ())):
            yield SuiteRow(
                name=f"{name}_retrained",
                group=CAUSES,
                title=f"worlds of cause_{name}",
                unit="retrains",
                figure=share_of(sum(bool(one.retrains) for one in found), len(found)),
                bar=bar,
            )
    if named := [one for one in observed.get("cause_carelessness", ()) if one.n_named]:
        yield SuiteRow(
            name="careless_named",
            group=CAUSES,
            title="quarantines in the worlds of cause_carelessness",
            unit="named annotators who are careless",
            figure=share_of(
                sum(one.n_careless_named for one in named), sum(one.n_named for one in named)
            ),
            bar=LabBar(limit=0.85, is_upper=False),
        )
