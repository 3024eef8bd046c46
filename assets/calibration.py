"""Calibration: how far the reward model's confidence can be trusted, measured and mended on votes it was never fitted to."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from assets.delivery import deliver, rule, standing, tracked, with_bounds
from rlhf_pipeline.calibration import (
    CalibrationParams,
    calibrate,
    calibration_log,
    ceilings_by_group,
    evidently_calibration_report,
    groups_of,
    reliability_by_group,
    reliability_diagram,
    voted_rows,
)
from rlhf_pipeline.champions import Champions, Judge, not_worse
from rlhf_pipeline.drift.reference import reference_window
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import CalibrationReport, ModelVersion
from rlhf_pipeline.registry import Registry, opening_recorder
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import last_words, latest_pairs, noise_ceiling, open_test_split


@with_bounds
class CalibrationConfig(CalibrationParams, dg.Config):
    """Which methods are tried, how they are compared, and which votes count less."""

    change_seq: int | None = Field(default=None, ge=1, description="Vote seq at which taste changed; votes before it are down-weighted")
    up_to_seq: int | None = Field(
        default=None, ge=0, description="Highest vote seq to learn from, as in a replay of imported days; empty = all pairs there are"
    )


@dg.asset(**standing("calibration", "learn", "evidently", "mlflow"))
def calibration(
    context: dg.AssetExecutionContext,
    config: CalibrationConfig,
    reward_model: ModelVersion,
    preference_pairs: pd.DataFrame,
    votes: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """The best of temperature, Platt, beta and isotonic, or none. The version becomes champion if it predicts no worse than the last one."""
    pairs, judge = latest_pairs(preference_pairs, votes, up_to_seq=config.up_to_seq), champions.judge(reward_model)
    assert judge is not None  # a version was given
    # What votes before the change are worth was found when the reward model was fitted; here it only has to be the same.
    weight = reward_model.params.get("weight_before_change")
    config = config if weight is None else config.model_copy(update={"weight_before_change": float(weight)})
    said, groups = last_words(votes, up_to_seq=config.up_to_seq), groups_of(store.comparisons.with_ids(pairs["comparison_id"].tolist()))
    calibrator, report = calibrate(
        pairs,
        judge.reward_model,
        config,
        reward_model_label=reward_model.label,
        data_hash=reward_model.data_hash or "",
        noise_ceiling=noise_ceiling(said),
        groups=groups,
        group_ceilings=ceilings_by_group(said, groups),
        change_seq=config.change_seq,
        record=opening_recorder(registry),
    )
    number = store.calibrations.add(report, calibrator.to_json())
    report = report.model_copy(update={"calibrator_version": number})
    fitted = Judge(reward_model, judge.reward_model, calibrator, f"{report.method}@{number}")
    calib = pairs[pairs["split"] == "calib"]
    # What was not calibrated for want of pairs has no out-of-sample predictions that drift could be measured from.
    if (
        report.candidates and champions.reference_window(reward_model.label) is None
    ):  # frozen with the model: drift is measured from one place
        p_chosen = fitted.p_chosen(calib)
        window = reference_window(calib, p_chosen, model_version=reward_model.label, embed=fitted.embed, since_seq=config.change_seq)
        window.save(champions.reference_folder(reward_model))
    promoted, reason = not_worse(fitted, champions.judge(), calib, since_seq=config.change_seq)
    with tracked(context, registry) as run:
        if report.candidates:
            run.log_folder(champions.reference_folder(reward_model), "reference_window")
        run.log_text(json.dumps(calibrator.to_json()), "calibrator.json")
        test = open_test_split(pairs, model=reward_model.label, purpose="Evidently's calibration report", record=opening_recorder(registry))
        texts, by_group = _evidently(fitted, test, report), reliability_by_group(report)
        yield from deliver(
            context,
            registry,
            report,
            run=run,
            metrics=_metrics(report) | {"is_champion": float(promoted)},
            checks=[
                rule(
                    "calibration does not raise the log loss",
                    report.calibrated.log_loss.value <= report.raw.log_loss.value + 0.01,
                    f"{report.method} raises the log loss on unseen votes from {report.raw.log_loss.value:.3f} to "
                    f"{report.calibrated.log_loss.value:.3f}: the calibration split is small or unlike the test split.",
                )
            ],
            headline=(
                f"{report.method}: ECE without its noise {report.raw.ece_debiased} → {report.calibrated.ece_debiased}, "
                f"slope {report.raw.slope or 'unknown'} → {report.calibrated.slope or 'unknown'}; {reason}"
            ),
            figures={"reliability_diagram": reliability_diagram(report)} | ({} if by_group is None else {"reliability_by_group": by_group}),
            texts=texts | {"calibration_log.json": json.dumps(calibration_log(store.calibrations.log()), indent=1)},
        )
    if promoted:
        champions.promote("reward_model", reward_model, reason=reason, actor=f"run {context.run_id}")


def _metrics(report: CalibrationReport) -> dict[str, float | None]:
    """Estimates with the ends of their intervals, so that no chart of MLflow's shows one without how sure it is."""
    raw, calibrated, parts = report.raw, report.calibrated, report.calibrated.brier_parts
    found = {
        "accuracy": raw.accuracy,
        "noise_ceiling": report.noise_ceiling,
        "ece_raw": raw.ece_equal_mass,
        "ece_calibrated": calibrated.ece_equal_mass,
        "ece_debiased_raw": raw.ece_debiased,
        "ece_debiased_calibrated": calibrated.ece_debiased,
        "slope_raw": raw.slope,
        "slope_calibrated": calibrated.slope,
        "brier_calibrated": calibrated.brier,
        "brier_reliability": parts and parts.reliability,
        "brier_resolution": parts and parts.resolution,
        "log_loss_raw": raw.log_loss,
        "log_loss_calibrated": calibrated.log_loss,
    }
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {f"{name}{end}": interval and getattr(interval, of) for name, interval in found.items() for end, of in ends.items()}


def _evidently(judge: Judge, pairs: pd.DataFrame, report: CalibrationReport) -> dict[str, str]:
    """Evidently's report with our ECE, Brier, slope and groups, as JSON and as a page; nothing where there are too few rows to test."""
    try:
        result = evidently_calibration_report(
            voted_rows(pairs, judge.p_chosen(pairs)), noise_ceiling=report.noise_ceiling, by_group=report.by_group
        )
    except NotEnoughData:
        return {}
    return {"evidently.json": json.dumps(result.json), "evidently.html": result.html().decode()}
