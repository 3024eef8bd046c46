"""The drift report of a day for the champion reward model."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.assets.day_series import (
    ClusterSeries,
    PolicySeries,
    WindowSeries,
    cluster_window,
    drop_gate_votes,
    find_embedding,
    load_policy_days,
    load_windows,
    measure_single_days,
    read_policy_reference,
)
from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    as_config,
    daily_asset,
    deliver,
    make_rule,
)
from rlhf_pipeline.application.assets.votes import load_earlier_votes
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.frames import DRIFT_REPORTS, concat
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import DriftEvent, Interval, Verdict
from rlhf_pipeline.feedback.votes import Quarantines
from rlhf_pipeline.improve.loop_settings import DriftReportParams
from rlhf_pipeline.learn.calibration import (
    CalibrationContext,
    PredictedVotes,
    calibration_by_group,
    evidently_calibration_report,
    over_time_frame,
)
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.drift_page import DayEvidence, render_drift_page
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.drift.calibration_events import calibration_events, next_test_state
from rlhf_pipeline.watch.drift.causes import examine
from rlhf_pipeline.watch.drift.policy import PolicyDay
from rlhf_pipeline.watch.drift.reference import Window, current_window
from rlhf_pipeline.watch.drift.report import DriftSignals, data_drift_report, overall_verdict
from rlhf_pipeline.watch.drift.report import drift_report as report_of
from rlhf_pipeline.watch.drift.slices import error_slices
from rlhf_pipeline.watch.drift.stream import SCAN, scan
from rlhf_pipeline.watch.metrics.stages import (
    day_points,
    group_points,
    policy_points,
    verdict_points,
    window_points,
)
from rlhf_pipeline.watch.reflection import judged_predictions

CALIBRATION = "calibration"  # the stream of the calibration tests, and the name of their state


class DriftConfig(as_config(DriftReportParams)):  # type: ignore[misc]
    """Parameters of the drift report, and the votes that it reads."""

    up_to_seq: int | None = Field(
        default=None,
        ge=0,
        description="Highest vote seq that the detectors read, as in a replay of imported days; "
        "empty = all readable votes",
    )


@daily_asset(
    "drift_report",
    "watch",
    "frouros",
    "evidently",
    checks={
        "champion_fits_the_day": "The reward model predicts the day as well as before: no drift."
    },
)
def drift_report(
    context: dg.AssetExecutionContext,
    config: DriftConfig,
    reflection_log: pd.DataFrame,
    votes: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    settings: dg.ResourceParam[Settings],
) -> Iterator[Any]:
    """Runs the chosen detectors over the errors in vote order, compares texts, scores, votes and
    prompts with the reference, tests calibration, and watches the deployed policy.

    Detections are stored as events for the retraining sensor. Votes of quarantined annotators are
    left out, and votes for the gate count for calibration alone.
    """
    days = list(context.partition_keys)
    quarantines = Quarantines.from_decisions(store.decisions.fires())
    reflection_log, votes = (quarantines.drop(frame) for frame in (reflection_log, votes))
    watched = drop_gate_votes(reflection_log, store)
    limit = _last_readable_seq(store) if config.up_to_seq is None else config.up_to_seq
    streams = {
        label: _read_stream(champions, label, config, limit, quarantines)
        for label in sorted(watched["reward_model"].unique())
    }
    reports = []
    pages = {}
    files = Artefacts(settings.frames)
    texts: dict[str, str] = {}
    series = load_windows(days, files, config, quarantines, store)
    clusters = ClusterSeries.load(days[0], files)
    policy = load_policy_days(days, files, store)
    evaluations = {gate.candidate: gate.evaluation for gate in store.gates.all() if gate.evaluation}
    for day in days:
        rows, cast = (frame[frame["day"] == day] for frame in (watched, votes))
        deployed = policy.until(day)
        evidence, evidently = _collect_evidence(
            day, rows, cast, deployed, streams, champions, files, config
        )
        window = cluster_window(evidence, files, champions, config, quarantines)
        evidence = replace(
            evidence,
            clusters=clusters.add_day(replace(evidence, current=window), config),
            over_time=series.windows_of(day),
            policy_days=policy.left_out or deployed,
            evaluations=evaluations,
        )
        page = render_drift_page(evidence, config)
        reports.append(evidence.report)
        pages[files.report_path("drift", day)] = page
        texts |= {name: json.dumps(content) for name, content in evidently.items()} | {
            f"drift_report_{day}.html": page
        }
    frame = concat(reports, DRIFT_REPORTS)
    last = overall_verdict(reports[-1])
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{last}: {_describe_reasons(reports[-1])}",
            metrics={
                "n_drift": int((frame["verdict"] == "drift").sum()),
                "n_warning": int((frame["verdict"] == "warning").sum()),
                "n_quarantined_votes": sum(s.n_quarantined for s in streams.values()),
            },
            rows=reports[-1].iloc[::-1][
                [
                    "space",
                    "detector",
                    "verdict",
                    "statistic",
                    "threshold",
                    "p_value",
                    "n_reference",
                    "n_current",
                ]
            ],
            texts=texts | _calibration_tables(days, series),
            pages={
                files.report_path("calibration", window.day): window.model_dump_json()
                for window in series.new
            }
            | {files.report_path("clusters", c.day): c.model_dump_json() for c in clusters.new}
            | {files.report_path("policy", p.day): p.model_dump_json() for p in policy.new}
            | pages,
            points=_measure_days(days, frame, series, policy, store)
            + [
                point
                for window in measure_single_days(days, reflection_log, votes)
                for point in day_points(window, store.database.clock.now())
            ],
        ),
        checks=[
            make_rule(
                "champion_fits_the_day",
                last != Verdict.DRIFT,
                f"Drift: {_describe_reasons(reports[-1])}.",
            )
        ],
        write=files.write,
    )


def _measure_days(
    days: Sequence[str],
    report: pd.DataFrame,
    series: WindowSeries,
    policy: PolicySeries,
    store: Store,
) -> list[MetricPoint]:
    """Metric points of each day's verdicts, calibration window with its groups, and policy."""
    now = store.database.clock.now()
    windows = [series.windows[day] for day in days if day in series.windows]
    return [
        *verdict_points(report, now),
        *(point for window in windows for point in window_points(window, now)),
        *(
            point
            for window in windows
            for point in group_points(window, series.groups[window.day], now)
        ),
        *policy_points([policy.days[day] for day in days if day in policy.days], now),
    ]


@dataclass(frozen=True)
class Stream:
    """The readable errors of one reward model, without those of quarantined votes, and the events:
    those that detectors find in these votes, and failed calibration tests.
    """

    errors: pd.DataFrame
    n_quarantined: int
    found: frozenset[str]

    def list_events(self, store: Store, label: str) -> list[DriftEvent]:
        """What only quarantined votes showed stays stored, and is no part of a report."""
        events = store.events.for_model(label)
        return [e for e in events if e.kind != "drift" or e.event_id in self.found]


def _last_readable_seq(store: Store) -> int | None:
    """The seq before the first imported vote whose day is not yet replayed: events are found in seq
    order. None = no limit.
    """
    first = store.votes.first_imported_seq(store.replays.pending_days())
    return None if first is None else first - 1


def _read_stream(
    champions: Champions,
    label: str,
    config: DriftConfig,
    limit: int | None,
    quarantines: Quarantines,
) -> Stream:
    """Run the chosen detectors, and examine the causes of what they find; store events and what was
    read in one transaction.
    """
    store = champions.store
    read = store.detectors.errors_of(label, up_to_seq=limit)
    window = Window.find(champions.reference_folder_of(label))
    reference = None if window is None else window.votes
    scanned = scan(
        read,
        store.detectors.states(label).get(SCAN),
        model_version=label,
        reference=reference,
        params=config,
        quarantines=quarantines,
    )
    errors = quarantines.drop(read)
    earlier_annotators = (
        store.detectors.list_annotators(int(read["seq"].min())) if len(read) else frozenset()
    )
    stored = {event.event_id for event in store.events.for_model(label)}
    new = [event for event in scanned.events if event.event_id not in stored]
    store.detectors.record_scan(
        [examine(event, errors, reference, earlier_annotators) for event in new],
        label,
        {SCAN: scanned.state},
    )
    # further votes make the causes of earlier events clearer
    for event in store.events.for_model(label):
        if (examined := examine(event, errors, reference, earlier_annotators)) != event:
            store.events.update(examined)
    ids = frozenset(event.event_id for event in scanned.events)
    return Stream(errors, scanned.n_quarantined, ids)


def _collect_evidence(
    day: str,
    rows: pd.DataFrame,
    votes: pd.DataFrame,
    deployed: Sequence[PolicyDay],
    streams: dict[str, Stream],
    champions: Champions,
    files: Artefacts,
    config: DriftConfig,
) -> tuple[DayEvidence, dict[str, Any]]:
    """Evidence of the day for the model that predicted most of its rows, and Evidently's results by
    file name.
    """
    project, store = champions.registry.project, champions.store
    predictions = rows[rows["is_error"].notna()]
    label = str(predictions["reward_model"].mode().iloc[0]) if len(predictions) else None
    if label is None:
        return DayEvidence(
            project,
            day,
            report_of(day, params=config),
        ), {}
    mine = rows[rows["reward_model"] == label]
    embed, not_embedded = find_embedding(champions, label)
    reference = Window.find(champions.reference_folder_of(label))
    of_day = store.comparisons.with_ids(rows["comparison_id"].unique().tolist())
    comparisons = of_day[of_day["comparison_id"].isin(mine["comparison_id"])]
    current = current_window(
        mine, comparisons, model_version=label, embed=embed, not_embedded=not_embedded
    )
    judgements = judged_predictions(mine)
    context = CalibrationContext.of(load_earlier_votes(votes, store), comparisons)
    ceiling = context.noise_ceiling
    by_group = calibration_by_group(
        PredictedVotes.of_day(judgements), context.groups, ceilings=context.group_ceilings
    )
    stream = streams[label]
    tests, calibration_json = _run_calibration_tests(judgements, ceiling, config)
    state = next_test_state(
        store.detectors.states(label, stream=CALIBRATION).get(CALIBRATION),
        config.calibration,
        int(predictions["seq"].max()),
    )
    failed = calibration_events(mine, tests, model_version=label, read_before=state["read_before"])
    store.detectors.record_scan(
        failed,
        label,
        {CALIBRATION: state},
        stream=CALIBRATION,
    )
    events = stream.list_events(store, label)
    last_seq = int(predictions["seq"].max())
    data_drift = _measure_data_drift(reference, current, config)
    evidently = {f"calibration_{day}.json": calibration_json, f"data_drift_{day}.json": data_drift}
    evidence = DayEvidence(
        project=project,
        day=day,
        report=report_of(
            day,
            model_version=label,
            reference=reference,
            of_policy=read_policy_reference(deployed, label, files, champions),
            current=current,
            signals=DriftSignals(events, tests, last_seq),
            params=config,
        ),
        reference=reference,
        current=current,
        predictions=judgements,
        errors=stream.errors[stream.errors["seq"] <= last_seq],
        events=[e for e in events if e.seq <= last_seq],
        noise_ceiling=ceiling,
        by_group=by_group,
        slices=error_slices(rows, of_day, config),
        texts=lambda ids: {
            row.comparison_id: (row.prompt, row.completion_a)
            for row in store.comparisons.with_ids(ids).itertuples()
        },
        data_drift=data_drift,
        files=[name for name, content in evidently.items() if "insufficient" not in content],
    )
    return evidence, evidently


def _run_calibration_tests(
    judgements: pd.DataFrame,
    ceiling: Interval | None,
    config: DriftConfig,
) -> tuple[list[Any], dict[str, Any]]:
    try:
        result = evidently_calibration_report(
            judgements,
            thresholds=config.calibration,
            noise_ceiling=ceiling,
        )
    except NotEnoughData as few:
        return [], {"insufficient": str(few)}
    return list(result.tests), result.json


def _measure_data_drift(
    reference: Window | None, current: Window, config: DriftConfig
) -> dict[str, Any]:
    if reference is None:
        return {"insufficient": "the model has no reference window"}
    try:
        return data_drift_report(reference, current, config).json
    except NotEnoughData as few:
        return {"insufficient": str(few)}


def _calibration_tables(days: Sequence[str], series: WindowSeries) -> dict[str, str]:
    windows = {day: series.windows_of(day) for day in days}
    return {
        f"calibration_over_time_{day}.csv": over_time_frame(w).to_csv(index=False)
        for day, w in windows.items()
        if not isinstance(w, str)
    }


def _describe_reasons(report: pd.DataFrame) -> str:
    overall = report[report["space"] == "overall"].iloc[0]
    evidence = json.loads(overall["evidence"])
    causes = evidence.get("says_drift", []) or evidence.get("suspects", [])
    counted = f"{overall['n_current']} predicted votes, {overall['n_reference']} in the reference"
    return f"{counted}; {', '.join(causes)}" if causes else counted
