"""The candidate model: the champion policy trained on the retraining set."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.assets.delivery import (
    LossLogger,
    StageReport,
    deliver,
    log_frame,
    make_rule,
    open_tracked_run,
    unpartitioned_asset,
    value_hash,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughData, StoppedBySentinel
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.improve.canaries import draw_canaries, plant
from rlhf_pipeline.improve.evaluation import CompletionJudge
from rlhf_pipeline.improve.loop_settings import CandidateParams
from rlhf_pipeline.improve.retraining.rewards import CalibratedReward
from rlhf_pipeline.improve.retraining.sentinels import SentinelParams
from rlhf_pipeline.improve.retraining.strategies import train_candidate
from rlhf_pipeline.improve.retraining.vote_halves import VoteHalves
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import CANDIDATE, Registry, is_accuracy
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.training import chart_loss
from rlhf_pipeline.reports.words import format_count


class SentinelConfig(SentinelParams, dg.Config):
    """What is measured while training, and the limits that stop it."""


class CandidateConfig(CandidateParams, dg.Config):
    """Training strategy and its parameters."""

    sentinels: SentinelConfig = Field(
        default_factory=SentinelConfig,
        description=CandidateParams.model_fields["sentinels"].description,
    )


@unpartitioned_asset(
    "candidate_model",
    "improve",
    "torch",
    "trl",
    "mlflow",
    pool="training",
    checks={"training_is_healthy": "Training gave no warning."},
)
def candidate_model(
    context: dg.AssetExecutionContext,
    config: CandidateConfig,
    retraining_set: pd.DataFrame,
    preference_pairs: pd.DataFrame,
    reward_model: ModelVersion,
    settings: dg.ResourceParam[Settings],
    champions: dg.ResourceParam[Champions],
    registry: dg.ResourceParam[Registry],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """Trains a candidate from the champion, by the chosen strategy. The labelling half of the votes
    is the reward. A killed training resumes from its checkpoint and ends with the same weights.
    """
    parent = champions.policy()
    params = config.training_params()
    # The folder is named by content, so that any run with the same data and parent resumes the
    # training.
    out = (
        settings.models
        / "candidates"
        / f"{value_hash(retraining_set)[:12]}-{parent.content_hash[:12]}"
    )
    labeller = _find_labeller(champions, reward_model, retraining_set, preference_pairs)
    reward = CalibratedReward(labeller.reward_model, labeller.calibrator)
    with open_tracked_run(context, registry) as run:
        log_frame(run, "retraining_set", retraining_set, context)
        run.log_params(params.model_dump(mode="json"))  # before the first loss: they cannot change
        try:
            report = train_candidate(
                config.strategy,
                champions.policy_folder(parent),
                plant(retraining_set, draw_canaries(config.canaries, value_hash(retraining_set))),
                out,
                params,
                reward=reward,
                progress=LossLogger(run, progress("candidate_model")),
            )
        except StoppedBySentinel as stopped:  # the curves behind the diagnosis
            for name, curve in stopped.curves.items():
                for step, value in curve:
                    run.log_metrics({name.replace(": ", "_").replace(" ", "_"): value}, step)
            raise

        metrics = {
            "n_pairs": len(retraining_set),
            "n_steps": report.n_steps,
            "seconds": report.seconds,
            **report.metrics,
        }
        if config.usd_per_hour is not None:
            metrics["training_cost_usd"] = report.seconds / 3600 * config.usd_per_hour
        ceiling = champions.noise_ceiling()
        if ceiling is not None and any(is_accuracy(name) for name in metrics):
            metrics |= {
                "noise_ceiling": ceiling.value,
                "noise_ceiling_low": ceiling.low,
                "noise_ceiling_high": ceiling.high,
            }
        used = {
            "strategy": config.strategy,
            "reward_model": reward_model.label,
            "canaries": config.canaries,
            **report.params,
        }
        if labels := sorted(retraining_set["dataset"].dropna().unique()):
            used["dataset"] = labels[0]  # a set is of one
        run.log_params(used)
        version = registry.register(
            "policy",
            out / "model",
            run=run,
            metrics=metrics,
            params=used,
            parent=parent.label,
            data_hash=value_hash(retraining_set),  # the version that is kept
            data_seq=int(preference_pairs["max_seq"].max()),
        )
        registry.set_alias("policy", CANDIDATE, version.version)
        resumed = f", resumed from step {report.resumed_from}" if report.resumed_from else ""
        yield from deliver(
            context,
            registry,
            version,
            StageReport(
                headline=f"{version.label} from {parent.label} by {config.strategy}: "
                f"{format_count(len(retraining_set), 'pair')}, "
                f"{format_count(report.n_steps, 'step')}{resumed}",
                metrics=metrics,
                figures={
                    "loss_curve": draw_png(
                        chart_loss(
                            report.loss_curve,
                            title=f"Loss of {version.label}",
                            others=report.curves,
                        )
                    )
                },
                texts={"report.json": report.model_dump_json(indent=1)},
            ),
            run=run,
            checks=[
                make_rule("training_is_healthy", not report.warnings, " ".join(report.warnings))
            ],
        )


def _find_labeller(
    champions: Champions,
    version: ModelVersion,
    retraining_set: pd.DataFrame,
    pairs: pd.DataFrame,
) -> CompletionJudge:
    """The members that labelled the retraining set; all of them where all votes did."""
    judge = champions.judge(version)
    assert judge is not None  # a version was given
    by_all = CompletionJudge(judge.reward_model, judge.label, judge.calibrator)
    try:
        return VoteHalves.behind(
            retraining_set, by_all, version, pairs, cache=champions.vote_halves
        ).labelling
    except NotEnoughData:
        return by_all
