"""The reward model: a Bradley–Terry head on a frozen sentence encoder, warm-started from the champion."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from assets.delivery import deliver, rule, standing, tracked, with_bounds
from rlhf_pipeline.champions import Champions
from rlhf_pipeline.evaluation.plots import loss_curve
from rlhf_pipeline.registry import CANDIDATE, Registry
from rlhf_pipeline.reward_model import RewardModelParams, fit_reward_model
from rlhf_pipeline.votes import latest_pairs


@with_bounds
class RewardModelConfig(RewardModelParams, dg.Config):
    """How the head is fitted, and which votes count less."""

    change_seq: int | None = Field(default=None, ge=1, description="Vote seq at which taste changed; votes before it are down-weighted")
    up_to_seq: int | None = Field(
        default=None, ge=0, description="Highest vote seq to learn from, as in a replay of imported days; empty = all pairs there are"
    )


@dg.asset(**standing("reward_model", "learn", "torch", "mlflow"))
def reward_model(
    context: dg.AssetExecutionContext,
    config: RewardModelConfig,
    preference_pairs: pd.DataFrame,
    votes: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    registry: dg.ResourceParam[Registry],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """Fitted on the training split of all days, registered as candidate; calibration decides whether it becomes champion."""
    champion = champions.judge()
    fitted = fit_reward_model(
        latest_pairs(preference_pairs, votes, up_to_seq=config.up_to_seq),
        config,
        encoder=champions.encoder(),
        warm_start=champion.reward_model if champion else None,
        change_seq=config.change_seq,
        progress=progress("reward_model"),
    )
    report, test = fitted.report, fitted.report.test
    metrics = {"n_train": report.n_train, "n_before_change": report.n_before_change, "weight_before_change": report.weight_before_change}
    if test is not None:
        metrics |= {"test_accuracy": test.accuracy.value, "longer_wins": test.longer_wins.value, "test_log_loss": test.log_loss.value}
    if report.test_since_change is not None:
        metrics["test_accuracy_since_change"] = report.test_since_change.accuracy.value
    with tracked(context, registry) as run, tempfile.TemporaryDirectory() as folder:
        fitted.model.save(Path(folder) / "reward_model")
        version = registry.register(
            "reward_model",
            Path(folder) / "reward_model",
            run=run,
            metrics=metrics,
            params=config.model_dump(mode="json") | {"weight_before_change": report.weight_before_change},
            parent=champion.label if champion else None,
            data_hash=report.data_hash,
            data_seq=report.max_seq,
        )
        registry.set_alias("reward_model", CANDIDATE, version.version)
        shown = report.test_since_change or test
        where = "pairs since the change" if report.test_since_change else "unseen pairs"
        beats_length = shown is None or shown.accuracy.value > shown.longer_wins.value
        yield from deliver(
            context,
            registry,
            version,
            run=run,
            metrics=metrics,
            checks=[
                rule("better than preferring the longer completion", beats_length, f"{version.label} is no better than a ruler on {where}.")
            ],
            headline=f"{version.label}: accuracy {shown.accuracy} on {shown.n} {where}, longer wins {shown.longer_wins.value:.3f}"
            if shown
            else f"{version.label}: no test pairs yet",
            figures={"loss_curve": loss_curve(list(enumerate(report.loss_curve)), title=f"Loss of {version.label}")},
            texts={"report.json": report.model_dump_json(indent=1)},
        )
