"""The reward model, learnt from votes or the annotator model, warm-started from the champion."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.delivery import (
    LossLogger,
    StageReport,
    as_config,
    deliver,
    log_frame,
    make_rule,
    open_tracked_run,
    unpartitioned_asset,
)
from rlhf_pipeline.application.assets.preference_pairs import find_last_decision
from rlhf_pipeline.application.assets.votes import LearningRange
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.improve.evaluation.error_memory import ErrorMemory
from rlhf_pipeline.improve.reward_training import WarmStart, register_fit
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.learn.reward_model import build_reward_model, fit_reward_model, launchpad_class
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.training import chart_loss


class RewardModelConfig(LearningRange, as_config(launchpad_class())):  # type: ignore[misc]
    """How the reward model is fitted, and which votes count less."""


@unpartitioned_asset(
    "reward_model",
    "learn",
    "torch",
    "mlflow",
    checks={
        "beats_longer_completion": "Accuracy is higher than by preferring the longer completion."
    },
)
def reward_model(
    context: dg.AssetExecutionContext,
    config: RewardModelConfig,
    preference_pairs: pd.DataFrame,
    annotator_model: pd.DataFrame,
    votes: pd.DataFrame,
    settings: dg.ResourceParam[Settings],
    champions: dg.ResourceParam[Champions],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """Fitted on the training split of all days, registered as candidate; calibration decides
    whether it becomes champion.
    """
    registry, champion = champions.registry, champions.judge()
    last_decision = find_last_decision(context.instance)
    data = config.select(champions.store, preference_pairs, votes, annotator_model)
    model = build_reward_model(config, champions.encoder())
    start = WarmStart.from_champion(champion, model)
    with open_tracked_run(context, registry) as run, tempfile.TemporaryDirectory() as folder:
        losses = LossLogger(run, progress("reward_model"))
        fitted = fit_reward_model(
            data,
            config,
            model=model,
            warm_start=start.model,
            progress=losses,
        )
        report = fitted.report
        version = register_fit(
            champions,
            data,
            config,
            fitted,
            start.label,
            run=run,
            folder=Path(folder) / "reward_model",
            last_decision=last_decision,
        )
        log_frame(run, "preference_pairs", preference_pairs, context)
        log_frame(run, "votes", votes, context)
        if not losses.last_step:  # a head is fitted at once and reports its losses afterwards
            for step, loss in enumerate(report.loss_curve, start=1):
                run.log_metrics({"training_loss": loss}, step)
        test = report.test_since_change or report.test
        since = "_since_change" if report.test_since_change else ""
        where = "left-out prompts" + (" since the change" if report.test_since_change else "")
        described = test.describe(where) if test else "no test pairs yet"
        memory = ErrorMemory.from_metrics(version.metrics)
        remembered = memory.describe() if memory else ""
        possible = (report.weight_note, start.obstacle, remembered, report.dimension_note)
        notes = [note for note in possible if note]
        curve = list(enumerate(report.loss_curve))
        yield from deliver(
            context,
            registry,
            version,
            StageReport(
                headline="; ".join([f"{version.label} on {report.summary}: {described}", *notes]),
                metrics=version.metrics | report.metrics(),
                shown=[
                    *(f"test_accuracy{since}", f"noise_ceiling{since}", f"longer_wins{since}"),
                    *(f"test_log_loss{since}", "n_train"),
                ],
                figures={
                    "loss_curve": draw_png(chart_loss(curve, title=f"Loss of {version.label}"))
                }
                if curve
                else {},
                texts={"report.json": report.model_dump_json(indent=1)},
            ),
            run=run,
            checks=[
                make_rule(
                    "beats_longer_completion",
                    test is None or test.accuracy.value > test.longer_wins.value,
                    f"{version.label} is no better than a ruler on {where}.",
                )
            ],
        )
