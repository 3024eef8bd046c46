"""Runs scenarios over many seeds: one row each, with its interval, its bar and the CUSUM beside."""

from collections.abc import Iterator, Sequence

from rlhf_pipeline.intervals import interval_of_share
from rlhf_pipeline.laboratory import LAB_SCENARIOS, LabScenario
from rlhf_pipeline.laboratory.base import LabBar, Observation, measure_share
from rlhf_pipeline.laboratory.independent import INDEPENDENT
from rlhf_pipeline.laboratory.known_rates import tune_threshold
from rlhf_pipeline.laboratory.named_causes import SINGLE_CAUSES
from rlhf_pipeline.laboratory.steady import NOTHING_HAPPENS, measure_rate
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval, Record
from rlhf_pipeline.workers import Workers

ALL_STEADY_BAR = LabBar(limit=0.03, is_upper=True)
# False fires per 1,000 independent votes in docs/laboratory.md: the rate of the CUSUM beside where
# that row is not run.
USUAL_RATE = 0.02


class SuiteRow(Record):
    """One scenario over all seeds; `beside` is the figure of the CUSUM that knows both rates."""

    name: str
    group: str
    title: str
    unit: str
    figure: Interval
    bar: LabBar
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


def _false_rate(observed: dict[str, list[Observation]]) -> float:
    """False fires per 1,000 independent votes; half a fire is assumed where none came."""
    of_row = observed.get(INDEPENDENT.name)
    if not of_row:
        return USUAL_RATE
    n_fires = sum(one.n_counts for one in of_row)
    return max(n_fires, 0.5) / sum(one.n_counted for one in of_row) * 1000


def _build_row(scenario: LabScenario, observed: Sequence[Observation], rate: float) -> SuiteRow:
    return SuiteRow(
        name=scenario.name,
        group=scenario.group,
        title=scenario.title,
        unit=scenario.unit,
        figure=scenario.measure(observed),
        bar=scenario.bar,
        beside=_measure_beside(scenario, observed, rate),
    )


def _measure_beside(
    scenario: LabScenario, observed: Sequence[Observation], rate: float
) -> Interval | None:
    if scenario.known_rates is None:
        return None
    threshold = tune_threshold(scenario.known_rates, rate)
    n_noticed = sum(one.peak is not None and one.peak >= threshold for one in observed)
    return interval_of_share(n_noticed / len(observed), len(observed))


def _build_totals(observed: dict[str, list[Observation]]) -> Iterator[SuiteRow]:
    """One row over all steady worlds and one over all single causes, where there are several."""
    for name, title, bar, measure, rows in (
        (
            "all_steady",
            "all rows in which nothing happens",
            ALL_STEADY_BAR,
            measure_rate,
            [name for name in observed if LAB_SCENARIOS[name].group == NOTHING_HAPPENS],
        ),
        (
            "all_causes",
            "all rows of one cause",
            SINGLE_CAUSES[0].bar,
            measure_share,
            [one.name for one in SINGLE_CAUSES if one.name in observed],
        ),
    ):
        if len(rows) > 1:
            yield SuiteRow(
                name=name,
                group=LAB_SCENARIOS[rows[0]].group,
                title=title,
                unit=LAB_SCENARIOS[rows[0]].unit,
                figure=measure([one for row in rows for one in observed[row]]),
                bar=bar,
            )
