"""The annotator model: soft labels of comparisons and figures of annotators."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    deliver,
    expect_usually,
    make_rule,
    unpartitioned_asset,
)
from rlhf_pipeline.application.assets.votes import votes_to_learn, votes_up_to
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughVotes
from rlhf_pipeline.core.frames import SOFT_LABELS
from rlhf_pipeline.feedback.votes import (
    AnnotatorModel,
    TasteChanges,
    fit_annotator_model,
    judged_comparison_ids,
    separate_old_completions,
)
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.feedback.votes.model_consensus import store_labels
from rlhf_pipeline.improve.loop_settings import AnnotatorModelParams
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.annotators import chart_annotators
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store

PREVIEW_COLUMNS = [
    "annotator_id",
    "n_votes",
    *(f"{name}{end}" for name in ("reliability", "position_bias") for end in ("", "_low", "_high")),
]


class AnnotatorModelConfig(AnnotatorModelParams, dg.Config):
    """Parameters of the annotator model, and its votes."""

    up_to_seq: int | None = Field(
        default=None,
        ge=0,
        description="Highest vote seq to use, as in a replay of imported days; empty = all votes",
    )


@unpartitioned_asset(
    "annotator_model",
    "learn",
    "parquet",
    "mlflow",
    checks={
        "has_converged": "The fit converged.",
        "annotators_beat_chance": "Most annotators do better than a coin.",
        "median_probability": "The median probability that a is better is 0.2 to 0.8.",
    },
)
def annotator_model(
    context: dg.AssetExecutionContext,
    config: AnnotatorModelConfig,
    votes: pd.DataFrame,
    settings: dg.ResourceParam[Settings],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """Soft labels of all judged comparisons outside the test split, from a joint model of
    annotators and utilities.

    Labels are used for training, so they exclude votes of the test split and of quarantined
    annotators. Figures of annotators use all votes outside quarantines. The labels of all
    comparisons, for the consensus page, are stored beside the frame, unless the stored ones use
    later votes. Without usable votes the frame is empty.
    """
    up_to_seq = config.up_to_seq
    votes_until = votes_up_to(votes, up_to_seq)
    shown_pairs = store.comparisons.with_ids(judged_comparison_ids(votes_until))
    learnable = votes_to_learn(votes, store, up_to_seq)
    try:
        learnt = fit_annotator_model(
            learnable,
            separate_old_completions(
                shown_pairs,
                counting_votes(learnable),
                TasteChanges.from_log(store.taste_changes.all(), up_to_seq=up_to_seq),
            ),
            blind_only=config.blind_only,
        )
    except NotEnoughVotes as none:
        yield from deliver(
            context,
            registry,
            SOFT_LABELS.empty_frame(),
            StageReport(headline=str(none), metrics={"n_annotators": 0}),
        )
        _store_labels(context, settings, store, SOFT_LABELS.empty_frame())
        return
    model = learnt.model
    figures = learnt.figures
    labels = learnt.labels
    has_converged = model.is_converged and (learnt.teacher is None or learnt.teacher.is_converged)
    yield from deliver(
        context,
        registry,
        labels,
        StageReport(
            headline=f"{len(labels)} soft labels outside the test split; "
            f"{format_count(len(figures), 'annotator')}, alpha "
            f"{learnt.alpha or 'unknown (no overlapping votes)'}",
            metrics=_collect_metrics(learnt),
            rows=figures[PREVIEW_COLUMNS],
            figures={"annotators": draw_png(chart_annotators(figures))},
            texts={
                "annotators.csv": figures.to_csv(index=False),
                "annotator_model.json": learnt.report().model_dump_json(indent=1),
            },
        ),
        checks=[
            make_rule(
                "has_converged",
                has_converged,
                f"Not converged after {model.n_iterations} iterations: its labels are rough.",
            ),
            make_rule(
                "annotators_beat_chance",
                (figures["reliability"] > 0.5).mean() > 0.5,
                f"{(figures['reliability'] <= 0.5).sum()} of {len(figures)} annotators are no "
                "better than chance. Check the least reliable ones.",
            ),
        ],
        usual=[
            expect_usually(
                "median_probability",
                "expect_column_median_to_be_between",
                column="p_a",
                min_value=0.2,
                max_value=0.8,
            )
        ],
    )
    _store_labels(context, settings, store, model.labels)


def _store_labels(
    context: dg.AssetExecutionContext, settings: Settings, store: Store, labels: pd.DataFrame
) -> None:
    kept_seq = store_labels(Artefacts(settings.frames), labels, newest_seq=store.votes.max_seq())
    if kept_seq is not None:
        context.log.info(
            f"The consensus page keeps its labels from votes up to seq {kept_seq}: this fit uses "
            "fewer votes."
        )


def _collect_metrics(learnt: AnnotatorModel) -> dict[str, float | int | None]:
    model = learnt.model
    figures = learnt.figures
    labels = learnt.labels
    return {
        "n_labels": len(labels),
        "n_votes": int(figures["n_votes"].sum()),
        "n_annotators": len(figures),
        "n_doubtful": int((figures["reliability_low"] <= 0.5).sum()),
        "median_reliability": float(figures["reliability"].median()),
        "krippendorff_alpha": learnt.alpha.value if learnt.alpha else None,
        "n_comparisons": len(model.labels),
        "least_reliability": float(figures["reliability"].min()),
        "discrimination": model.discrimination,
        "mean_certainty": float((labels["p_a"] - 0.5).abs().mean() + 0.5) if len(labels) else None,
        "is_converged": float(model.is_converged),
        "n_iterations": model.n_iterations,
    }
