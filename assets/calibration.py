"""Calibration: how far the reward model's confidence can be trusted, measured and mended on votes
it was never fitted to.
"""

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    deliver,
    make_rule,
    open_tracked_run,
    unpartitioned_asset,
)
from rlhf_pipeline.application.assets.votes import LearningRange
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.protocols import Progress
from rlhf_pipeline.core.records import CalibrationReport, ModelVersion, utc_now
from rlhf_pipeline.feedback.votes import judged_comparison_ids, select_test_pairs
from rlhf_pipeline.improve.reward_training import CalibrateParams, calibrate_model
from rlhf_pipeline.learn.calibration import (
    all_ceilings,
    calibration_figures,
    calibration_log,
    evidently_calibration_report,
    group_comparisons,
    voted_rows,
)
from rlhf_pipeline.learn.champions import CalibratedModel, Champions
from rlhf_pipeline.learn.champions.version_comparison import measure_versions
from rlhf_pipeline.reports.calibration import draw_calibration
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.metrics.stages import version_points

SHOWN = (
    "is_champion",
    "ece_calibrated",
    "slope_calibrated",
    "accuracy",
    "noise_ceiling",
    "log_loss_calibrated",
)


class CalibratedVersion(Enum):
    """Which reward model is calibrated."""

    latest = "latest"
    champion = "champion"


class CalibrationConfig(LearningRange, CalibrateParams, dg.Config):
    """Which methods are tried, how they are compared, which votes count less, and when a reward
    model is refused.
    """

    version: CalibratedVersion = Field(
        default=CalibratedVersion.latest,
        description="Which reward model: the latest that was fitted, or the champion, which it is "
        "not where its fit was refused",
    )


@unpartitioned_asset(
    "calibration",
    "learn",
    "evidently",
    "mlflow",
    checks={
        "log_loss_not_raised": "Calibration does not raise the log loss on unseen votes.",
        "may_become_champion": "The calibrated model may become champion.",
    },
)
def calibration(
    context: dg.AssetExecutionContext,
    config: CalibrationConfig,
    reward_model: ModelVersion,
    preference_pairs: pd.DataFrame,
    votes: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """The best of temperature and isotonic, or none. The version becomes champion if
    it is not refused and predicts no worse.
    """
    registry = champions.registry
    report_progress = progress("calibration")
    if config.version == CalibratedVersion.champion and (champion := champions.judge()):
        reward_model = champion.version
    data = config.select(store, preference_pairs, votes)
    comparisons = store.comparisons.with_ids(judged_comparison_ids(data.votes))
    outcome = calibrate_model(
        champions, reward_model, data, comparisons, config, progress=report_progress
    )
    report, judge = outcome.report, outcome.judge
    assert judge.calibrator is not None
    with open_tracked_run(context, registry) as run:
        if champions.reference_folder(reward_model).exists():
            run.log_folder(champions.reference_folder(reward_model), "reference_window")
        run.log_file(json.dumps(judge.calibrator.to_json()).encode(), "calibrator.json")
        test = select_test_pairs(data.pairs)
        texts = _evidently_files(judge, test, report, report_progress)
        current = test[data.taste_changes.is_current(test)].reset_index(drop=True)
        versions = measure_versions(champions, judge, current, config, progress=report_progress)
        bounds = all_ceilings(data.votes, group_comparisons(comparisons))
        yield from deliver(
            context,
            registry,
            report,
            StageReport(
                headline=f"{report.method}: ECE {report.raw.ece} → "
                f"{report.calibrated.ece}, slope {report.raw.slope or 'unknown'} → "
                f"{report.calibrated.slope or 'unknown'}; {outcome.summary}",
                metrics=calibration_figures(report)
                | {"is_champion": float(outcome.was_champion or outcome.takes_over)},
                shown=SHOWN,
                rows=bounds.round(3),
                figures=draw_calibration(report),
                points=version_points(versions, report.noise_ceiling, utc_now()),
                texts=texts
                | {
                    "ceilings.csv": bounds.to_csv(index=False),
                    "calibration_log.json": json.dumps(
                        calibration_log(store.calibrations.whole_log()), indent=1
                    ),
                },
            ),
            run=run,
            checks=[
                make_rule(
                    "log_loss_not_raised",
                    report.calibrated.log_loss.value <= report.raw.log_loss.value + 0.01,
                    f"{report.method} raises the log loss on unseen votes from "
                    f"{report.raw.log_loss.value:.3f} to {report.calibrated.log_loss.value:.3f}: "
                    "the calibration split is small or unlike the test split.",
                ),
                make_rule("may_become_champion", report.refusal is None, outcome.summary),
            ],
        )
    if outcome.takes_over:
        champions.promote(
            "reward_model", reward_model, reason=outcome.reason, actor=f"run {context.run_id}"
        )


def _evidently_files(
    judge: CalibratedModel, pairs: pd.DataFrame, report: CalibrationReport, progress: Progress
) -> dict[str, str]:
    """Evidently's report with our ECE, Brier and slope, as JSON and as a page; nothing
    where there are too few rows to test.
    """
    try:
        result = evidently_calibration_report(
            voted_rows(pairs, judge.p_chosen(pairs, progress=progress)),
            noise_ceiling=report.noise_ceiling,
        )
    except NotEnoughData:
        return {}
    return {"evidently.json": json.dumps(result.json), "evidently.html": result.html().decode()}
