"""Runs scenarios over many seeds: one row each, with its interval, and its bar."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Interval, Record
from rlhf_pipeline.simulation.laboratory import LAB_SCENARIOS, LabScenario
from rlhf_pipeline.simulation.laboratory.base import LabBar, Observation, measure_share, share_of
from rlhf_pipeline.simulation.laboratory.named_causes import CAUSES, SINGLE_CAUSES
from rlhf_pipeline.simulation.laboratory.steady import (
    NOTHING_HAPPENS,
    STEADY,
    measure_others,
    measure_rate,
)

RETRAINED_BAR = LabBar(limit=0.95, is_upper=False)  # of worlds of cause_taste


class SuiteRow(Record):
    """One scenario, or several, over all seeds.

    Where nothing happens, `others` are responses per 1,000 votes that retrain nothing. Else
    `confirmed` is the share of changes that detectors confirm in time, and `waited` the median and
    the 90 % quantile of the votes from there to the decision.
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

    @property
    def is_met(self) -> bool:
        return self.bar.is_met(self.figure.value)


class SuiteReport(Record):
    """The rows in the order of the scenarios, after them those over several."""

    n_streams: int
    rows: tuple[SuiteRow, ...]


def run_suite(
    names: Sequence[str],
    n_streams: int,
    apply: Callable[..., Iterable[Observation]],
    progress: Progress = ignore_progress,
) -> SuiteReport:
    """Observe seeds 0 to n_streams - 1 of each scenario.

    `apply` is `map`, or that of a pool of processes, which gives the same.
    """
    jobs = [(name, seed) for name in names for seed in range(n_streams)]
    observed: dict[str, list[Observation]] = {name: [] for name in names}
    for done, ((name, _), observation) in enumerate(
        zip(jobs, apply(observe, jobs), strict=True), start=1
    ):
        observed[name].append(observation)
        progress(done, len(jobs), name)
    rows = [_build_row(LAB_SCENARIOS[name], observed[name]) for name in names]
    return SuiteReport(n_streams=n_streams, rows=(*rows, *_build_totals(observed)))


def observe(job: tuple[str, int]) -> Observation:
    """One seed of the scenario of that name."""
    name, seed = job
    return LAB_SCENARIOS[name].observe(seed)


def _build_row(scenario: LabScenario, observed: Sequence[Observation]) -> SuiteRow:
    return SuiteRow(
        name=scenario.name,
        group=scenario.group,
        title=scenario.title,
        unit=scenario.unit,
        figure=scenario.measure(observed),
        bar=scenario.bar,
        **_measure_more(observed),
    )


def _measure_more(observed: Sequence[Observation]) -> dict[str, Any]:
    """The figures of a row that has them, by their field."""
    more: dict[str, Any] = {}
    if all(world.n_others is not None for world in observed):
        more["others"] = measure_others(observed)
    if all(world.is_confirmed is not None for world in observed):
        n_confirmed = sum(bool(world.is_confirmed) for world in observed)
        more["confirmed"] = share_of(n_confirmed, len(observed))
    if waited := [world.n_waited for world in observed if world.n_waited is not None]:
        more["waited"] = tuple(float(quantile) for quantile in np.quantile(waited, [0.5, 0.9]))
    return more


def _build_totals(observed: Mapping[str, Sequence[Observation]]) -> Iterator[SuiteRow]:
    """The rows that sum up or reread observations of others, where those were run."""
    steady = [name for name in observed if LAB_SCENARIOS[name].group == NOTHING_HAPPENS]
    single = [cause.name for cause in SINGLE_CAUSES if cause.name in observed]
    if len(steady) > 1:
        rows = [world for name in steady for world in observed[name]]
        yield SuiteRow(
            name="all_steady",
            group=NOTHING_HAPPENS,
            title="all rows in which nothing happens",
            unit=STEADY[0].unit,
            figure=measure_rate(rows),
            bar=LabBar(limit=0.03, is_upper=True),
            others=measure_others(rows),
        )
    if len(single) > 1:
        yield SuiteRow(
            name="all_causes",
            group=CAUSES,
            title="all rows of one cause",
            unit=SINGLE_CAUSES[0].unit,
            figure=measure_share([world for name in single for world in observed[name]]),
            bar=SINGLE_CAUSES[0].bar,
        )
    if rows := list(observed.get("cause_taste", ())):
        yield SuiteRow(
            name="taste_retrained",
            group=CAUSES,
            title="worlds of cause_taste",
            unit="retrains",
            figure=share_of(sum(bool(row.retrains) for row in rows), len(rows)),
            bar=RETRAINED_BAR,
        )
