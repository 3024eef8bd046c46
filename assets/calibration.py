"""Calibration: how far the reward model's confidence can be trusted, measured and mended on votes it was never fitted to."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from assets.delivery import deliver, rule, standing, tracked, with_bounds
from rlhf_pipeline.calibration import CalibrationParams, calibrate, evidently_calibration_report, reliability_diagram
from rlhf_pipeline.champions import Champions, Judge, not_worse
from rlhf_pipeline.drift.reference import reference_window
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import ModelVersion
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import latest_pairs, noise_ceiling


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
    """The best of temperature, Platt and isotonic, or none. The version becomes champion if it predicts no worse than the last one."""
    pairs, judge = latest_pairs(preference_pairs, votes, up_to_seq=config.up_to_seq), champions.judge(reward_model)
    assert judge is not None  # a version was given
    # What votes before the change are worth was found when the reward model was fitted; here it only has to be the same.
    weight = reward_model.params.get("weight_before_change")
    config = config if weight is None else config.model_copy(update={"weight_before_change": float(weight)})
    calibrator, report = calibrate(
        pairs,
        judge.reward_model,
        config,
        reward_model_label=reward_model.label,
        data_hash=reward_model.data_hash or "",
        noise_ceiling=noise_ceiling(votes if config.up_to_seq is None else votes[votes["seq"] <= config.up_to_seq]),
        change_seq=config.change_seq,
    )
    number = store.calibrations.add(report, calibrator.to_json())
    report = report.model_copy(update={"calibrator_version": number})
    fitted = Judge(reward_model, judge.reward_model, calibrator, f"{report.method}@{number}")
    calib, test = (pairs[pairs["split"] == split] for split in ("calib", "test"))
    # What was not calibrated for want of pairs has no out-of-sample predictions that drift could be measured from.
    if (
        report.candidates and champions.reference_window(reward_model.label) is None
    ):  # frozen with the model: drift is measured from one place
        p_chosen = fitted.p_chosen(calib)
        window = reference_window(calib, p_chosen, model_version=reward_model.label, embed=fitted.embed, since_seq=config.change_seq)
        window.save(champions.reference_folder(reward_model))
    promoted, reason = not_worse(fitted, champions.judge(), test, since_seq=config.change_seq)
    with tracked(context, registry) as run:
        if report.candidates:
            run.log_folder(champions.reference_folder(reward_model), "reference_window")
        run.log_text(json.dumps(calibrator.to_json()), "calibrator.json")
        texts = _evidently(fitted, test)
        yield from deliver(
            context,
            registry,
            report,
            run=run,
            metrics={
                "accuracy": report.raw.accuracy.value,
                "noise_ceiling": report.noise_ceiling.value if report.noise_ceiling else None,
                "ece_raw": report.raw.ece_equal_mass.value,
                "ece_calibrated": report.calibrated.ece_equal_mass.value,
                "brier_calibrated": report.calibrated.brier.value,
                "log_loss_raw": report.raw.log_loss.value,
                "log_loss_calibrated": report.calibrated.log_loss.value,
                "is_champion": float(promoted),
            },
            checks=[
                rule(
                    "calibration does not raise the log loss",
                    report.calibrated.log_loss.value <= report.raw.log_loss.value + 0.01,
                    f"{report.method} raises the log loss on unseen votes from {report.raw.log_loss.value:.3f} to "
                    f"{report.calibrated.log_loss.value:.3f}: the calibration split is small or unlike the test split.",
                )
            ],
            headline=f"{report.method}: ECE {report.raw.ece_equal_mass} → {report.calibrated.ece_equal_mass}; {reason}",
            figures={"reliability_diagram": reliability_diagram(report)},
            texts=texts,
        )
    if promoted:
        champions.promote("reward_model", reward_model, reason=reason, actor=f"run {context.run_id}")


def _evidently(judge: Judge, pairs: pd.DataFrame) -> dict[str, str]:
    """Evidently's report with our ECE and Brier, as JSON and as a page; nothing where there are too few rows to test."""
    rows = pd.DataFrame({"p": judge.p_chosen(pairs), "outcome": 1.0, "group": pairs["prompt_id"].to_numpy()})
    # Chosen is always first in a pair: half the rows are turned, so that the outcome is not a constant.
    turned = (pairs["chosen_side"] == "b").to_numpy()
    rows.loc[turned, ["p", "outcome"]] = 1 - rows.loc[turned, ["p", "outcome"]]
    try:
        result = evidently_calibration_report(rows)
    except NotEnoughData:
        return {}
    return {"evidently.json": json.dumps(result.json), "evidently.html": result.html().decode()}
