"""The reward model: heads on a frozen encoder or a fine-tuned one, learnt from votes or the
annotator model, warm-started from the champion.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from assets.delivery import (
    as_config,
    deliver,
    describe_bounds,
    make_rule,
    open_tracked_run,
    unpartitioned_asset,
    value_hash,
)
from assets.votes import CHANGE_SEQ_DESCRIPTION, pairs_up_to, votes_up_to
from rlhf_pipeline.champions import Champions, Judge
from rlhf_pipeline.config import Settings
from rlhf_pipeline.registry import CANDIDATE, Registry, opening_recorder
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.training import loss_chart
from rlhf_pipeline.reward_model import (
    RewardModel,
    TestAccuracy,
    build_reward_model,
    encoder_params,
    find_warm_start_obstacle,
    fit_reward_model,
    launchpad_class,
)
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import TasteChanges, noise_ceiling_or_repeats


@describe_bounds
class RewardModelConfig(as_config(launchpad_class())):  # type: ignore[misc]
    """How the reward model is fitted, and which votes count less."""

    change_seq: int | None = Field(default=None, ge=1, description=CHANGE_SEQ_DESCRIPTION)
    up_to_seq: int | None = Field(
        default=None,
        ge=0,
        description="Highest vote seq to learn from, as in a replay of imported days; empty = all "
        "pairs there are",
    )


@dg.asset(**unpartitioned_asset("reward_model", "learn", "torch", "mlflow"))
def reward_model(
    context: dg.AssetExecutionContext,
    config: RewardModelConfig,
    preference_pairs: pd.DataFrame,
    annotator_model: pd.DataFrame,
    votes: pd.DataFrame,
    settings: dg.ResourceParam[Settings],
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """Fitted on the training split of all days, registered as candidate; calibration decides
    whether it becomes champion.

    A killed training of kind transformer goes on where it was, whichever run does it again.
    """
    pairs, said = (
        pairs_up_to(preference_pairs, config.up_to_seq),
        votes_up_to(votes, config.up_to_seq),
    )
    champion = champions.judge()
    # Named by content, as a candidate's: the same pairs and parent resume the same training.
    parent = "anew" if champion is None else champion.version.content_hash[:12]
    unfinished = settings.models / "reward_models" / f"{value_hash(pairs)[:12]}-{parent}"
    model = build_reward_model(config, champions.encoder(), checkpoints=unfinished)
    start, instead = _choose_warm_start(champion, model)
    changes = TasteChanges.from_log(
        store.taste_changes.all(), up_to_seq=config.up_to_seq, change_seq=config.change_seq
    )
    since = said[said["seq"] >= changes.latest_seq] if changes else None
    fitted = fit_reward_model(
        pairs,
        config,
        model=model,
        soft_labels=annotator_model,
        ceiling=noise_ceiling_or_repeats(said),
        ceiling_since_change=None if since is None else noise_ceiling_or_repeats(since),
        warm_start=start,
        taste_changes=changes,
        up_to_seq=config.up_to_seq,
        record=opening_recorder(registry),
        progress=progress("reward_model"),
    )
    report, test = fitted.report, fitted.report.test
    metrics = report.metrics()
    with open_tracked_run(context, registry) as run, tempfile.TemporaryDirectory() as folder:
        fitted.model.save(Path(folder) / "reward_model")
        version = registry.register(
            "reward_model",
            Path(folder) / "reward_model",
            run=run,
            metrics=metrics,
            params=config.to_report()
            | encoder_params(fitted.model)
            | {"weight_before_change": report.weight_before_change}
            | ({"taste_changes": changes.to_json()} if changes else {}),
            parent=champion.label if champion and start else None,
            data_hash=report.data_hash,
            data_seq=report.max_seq,
        )
        registry.set_alias("reward_model", CANDIDATE, version.version)
        shown = report.test_since_change or test
        where = "pairs since the change" if report.test_since_change else "unseen pairs"
        told = (
            f"{version.label} on {report.summary}: "
            f"{_describe_accuracy(shown, where) if shown else 'no test pairs yet'}"
        )
        if report.weight_reason:
            told += (
                f"; pairs from before the change count {report.weight_before_change:g} "
                f"({report.weight_reason})"
            )
        beats_length = shown is None or shown.accuracy.value > shown.longer_wins.value
        yield from deliver(
            context,
            registry,
            version,
            run=run,
            metrics=metrics,
            checks=[
                make_rule(
                    "better than preferring the longer completion",
                    beats_length,
                    f"{version.label} is no better than a ruler on {where}.",
                )
            ],
            headline=f"{told}; {instead}" if instead else told,
            figures={
                "loss_curve": draw_png(
                    loss_chart(list(enumerate(report.loss_curve)), title=f"Loss of {version.label}")
                )
            }
            if report.loss_curve
            else {},
            texts={"report.json": report.model_dump_json(indent=1)},
        )


def _choose_warm_start(
    champion: Judge | None, model: RewardModel
) -> tuple[RewardModel | None, str]:
    """The champion's model to start from, or None and why, where there is a champion."""
    if champion is None:
        return None, ""
    why = (
        f"it cannot be loaded ({champion.load_error})"
        if champion.load_error
        else find_warm_start_obstacle(champion.reward_model, model)
    )
    return (
        (None, f"fitted anew, not from {champion.label}: {why}")
        if why
        else (champion.reward_model, "")
    )


def _describe_accuracy(shown: TestAccuracy, where: str) -> str:
    """Of single votes beside their ceiling, and of majorities, which have none: they are surer than
    a vote.
    """
    ceiling = (
        "unknown, nothing overlaps or was judged again"
        if shown.ceiling is None
        else str(shown.ceiling)
    )
    return (
        f"{shown.vote_accuracy} of votes predicted, noise ceiling {ceiling}; accuracy "
        f"{shown.accuracy} on the majorities of {shown.n} {where}, longer wins "
        f"{shown.longer_wins.value:.3f}"
    )
