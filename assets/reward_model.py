"""The reward model: heads on a frozen sentence encoder, learnt from votes or the annotator model, warm-started from the champion."""

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
from rlhf_pipeline.registry import CANDIDATE, Registry, opening_recorder
from rlhf_pipeline.reward_model import RewardModelParams, RewardModelReport, TestAccuracy, fit_reward_model
from rlhf_pipeline.votes import last_words, latest_pairs, noise_ceiling


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
    annotator_model: pd.DataFrame,
    votes: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    registry: dg.ResourceParam[Registry],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """Fitted on the training split of all days, registered as candidate; calibration decides whether it becomes champion."""
    champion = champions.judge()
    start = champion.reward_model if champion and champion.reward_model.name == config.kind else None  # another kind has other weights
    fitted = fit_reward_model(
        latest_pairs(preference_pairs, votes, up_to_seq=config.up_to_seq),
        config,
        encoder=champions.encoder(),
        soft_labels=annotator_model,
        ceiling=noise_ceiling(last_words(votes, up_to_seq=config.up_to_seq)),
        warm_start=start,
        change_seq=config.change_seq,
        record=opening_recorder(registry),
        progress=progress("reward_model"),
    )
    report, test = fitted.report, fitted.report.test
    metrics = _metrics(report)
    with tracked(context, registry) as run, tempfile.TemporaryDirectory() as folder:
        fitted.model.save(Path(folder) / "reward_model")
        version = registry.register(
            "reward_model",
            Path(folder) / "reward_model",
            run=run,
            metrics=metrics,
            params=config.model_dump(mode="json") | {"weight_before_change": report.weight_before_change},
            parent=champion.label if champion and start else None,
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
            headline=f"{version.label}: {_said(shown, where)}" if shown else f"{version.label}: no test pairs yet",
            figures={"loss_curve": loss_curve(list(enumerate(report.loss_curve)), title=f"Loss of {version.label}")},
            texts={"report.json": report.model_dump_json(indent=1)},
        )


def _metrics(report: RewardModelReport) -> dict[str, float | int | None]:
    test, since, length = report.test, report.test_since_change, report.length
    metrics: dict[str, float | int | None] = {
        "n_train": report.n_train,
        "n_before_change": report.n_before_change,
        "weight_before_change": report.weight_before_change,
    }
    if test is not None:
        metrics |= {
            "test_accuracy": test.accuracy.value,
            "test_vote_accuracy": test.vote_accuracy.value,
            "noise_ceiling": test.ceiling.value if test.ceiling else None,
            "longer_wins": test.longer_wins.value,
            "test_log_loss": test.log_loss.value,
        }
    if since is not None:
        metrics |= {"test_accuracy_since_change": since.accuracy.value, "test_vote_accuracy_since_change": since.vote_accuracy.value}
    if length is not None:
        metrics |= {"length_correlation": length.correlation_after if length.is_debiased else length.correlation_before}
    return {name: value for name, value in metrics.items() if value is not None}


def _said(shown: TestAccuracy, where: str) -> str:
    """Of single votes beside their ceiling, and of majorities, which have none: they are surer than a vote."""
    ceiling = "unknown, no votes overlap" if shown.ceiling is None else str(shown.ceiling)
    return (
        f"{shown.vote_accuracy} of votes predicted, noise ceiling {ceiling}; accuracy {shown.accuracy} on the majorities of {shown.n} {where}, "
        f"longer wins {shown.longer_wins.value:.3f}"
    )
