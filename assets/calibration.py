"""Calibration: how far the reward model's confidence can be trusted, measured and mended on votes
it was never fitted to.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from assets.delivery import (
    deliver,
    describe_bounds,
    make_rule,
    open_tracked_run,
    unpartitioned_asset,
)
from assets.votes import CHANGE_SEQ_DESCRIPTION, pairs_up_to, votes_up_to
from rlhf_pipeline.calibration import (
    CALIBRATORS,
    CalibrationParams,
    all_ceilings,
    calibrate_version,
    calibration_figures,
    calibration_log,
    evidently_calibration_report,
    group_comparisons,
    voted_rows,
)
from rlhf_pipeline.champions import Champions, Judge
from rlhf_pipeline.drift.reference import reference_window
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.protocols import Progress
from rlhf_pipeline.records import CalibrationReport, ModelVersion
from rlhf_pipeline.registry import Registry, opening_recorder
from rlhf_pipeline.reports.calibration import draw_calibration
from rlhf_pipeline.reward_model import AcceptanceParams
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import TasteChanges, judged_comparison_ids, open_test_split


@describe_bounds
class CalibrationConfig(*CALIBRATORS.params(CalibrationParams, AcceptanceParams), dg.Config):
    """Which methods are tried, how they are compared, which votes count less, and when a reward
    model is refused.
    """

    change_seq: int | None = Field(default=None, ge=1, description=CHANGE_SEQ_DESCRIPTION)
    up_to_seq: int | None = Field(
        default=None,
        ge=0,
        description="Highest vote seq to learn from, as in a replay of imported days; empty = all "
        "pairs there are",
    )


@dg.asset(**unpartitioned_asset("calibration", "learn", "evidently", "mlflow"))
def calibration(
    context: dg.AssetExecutionContext,
    config: CalibrationConfig,
    reward_model: ModelVersion,
    preference_pairs: pd.DataFrame,
    votes: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """The best of temperature, Platt, beta and isotonic, or none. The version becomes champion if
    it is not refused and predicts no worse.
    """
    pairs, judge = (
        pairs_up_to(preference_pairs, config.up_to_seq),
        champions.judge(reward_model),
    )
    assert judge is not None  # a version was given
    told = progress("calibration")
    said = votes_up_to(votes, config.up_to_seq)
    changes = TasteChanges.from_log(
        store.taste_changes.all(), up_to_seq=config.up_to_seq, change_seq=config.change_seq
    )
    comparisons = store.comparisons.with_ids(judged_comparison_ids(said))
    calibrator, report = calibrate_version(
        reward_model,
        judge.reward_model,
        pairs,
        said,
        comparisons,
        config,
        taste_changes=changes,
        record=opening_recorder(registry),
        progress=told,
    )
    calib = pairs[pairs["split"] == "calib"]
    settled = champions.record_calibration(
        reward_model,
        judge.reward_model,
        calibrator,
        report,
        calib,
        taste_changes=changes,
        acceptance=config,
        progress=told,
    )
    report, fitted = settled.report, settled.judge
    # What was not calibrated for want of pairs has no out-of-sample predictions that drift could be
    # measured from. Frozen with the model: drift is measured from one place.
    if (
        report.candidates
        and report.may_serve
        and champions.reference_window(reward_model.label) is None
    ):
        p_chosen, embed = (
            fitted.p_chosen(calib, progress=told),
            partial(fitted.embed, progress=told),
        )
        window = reference_window(
            calib, p_chosen, model_version=reward_model.label, embed=embed, taste_changes=changes
        )
        champions.save_reference_window(reward_model, window)
    with open_tracked_run(context, registry) as run:
        if champions.reference_folder(reward_model).exists():
            run.log_folder(champions.reference_folder(reward_model), "reference_window")
        run.log_text(json.dumps(calibrator.to_json()), "calibrator.json")
        test = open_test_split(
            pairs,
            model=reward_model.label,
            purpose="Evidently's calibration report",
            record=opening_recorder(registry),
        )
        texts, bounds = (
            _evidently_files(fitted, test, report, told),
            all_ceilings(said, group_comparisons(comparisons)),
        )
        yield from deliver(
            context,
            registry,
            report,
            run=run,
            metrics=calibration_figures(report)
            | {"is_champion": float(settled.was_champion or settled.takes_over)},
            checks=[
                make_rule(
                    "calibration does not raise the log loss",
                    report.calibrated.log_loss.value <= report.raw.log_loss.value + 0.01,
                    f"{report.method} raises the log loss on unseen votes from "
                    f"{report.raw.log_loss.value:.3f} to {report.calibrated.log_loss.value:.3f}: "
                    "the calibration split is small or unlike the test split.",
                ),
                make_rule("may become champion", report.refusal is None, settled.summary),
            ],
            headline=(
                f"{report.method}: ECE without its noise {report.raw.ece_debiased} → "
                f"{report.calibrated.ece_debiased}, slope {report.raw.slope or 'unknown'} → "
                f"{report.calibrated.slope or 'unknown'}; {settled.summary}"
            ),
            rows=bounds.round(3),
            figures=draw_calibration(report),
            texts=texts
            | {
                "ceilings.csv": bounds.to_csv(index=False),
                "calibration_log.json": json.dumps(
                    calibration_log(store.calibrations.whole_log()), indent=1
                ),
            },
        )
    if settled.takes_over:
        champions.promote(
            "reward_model", reward_model, reason=settled.reason, actor=f"run {context.run_id}"
        )


def _evidently_files(
    judge: Judge, pairs: pd.DataFrame, report: CalibrationReport, progress: Progress
) -> dict[str, str]:
    """Evidently's report with our ECE, Brier, slope and groups, as JSON and as a page; nothing
    where there are too few rows to test.
    """
    try:
        result = evidently_calibration_report(
            voted_rows(pairs, judge.p_chosen(pairs, progress=progress)),
            noise_ceiling=report.noise_ceiling,
            by_group=report.by_group,
        )
    except NotEnoughData:
        return {}
    return {"evidently.json": json.dumps(result.json), "evidently.html": result.html().decode()}
