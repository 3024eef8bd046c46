"""The retraining set: the pairs to train a candidate on, each with the reason for its selection."""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    deliver,
    expect_usually,
    make_rule,
    unpartitioned_asset,
)
from rlhf_pipeline.application.assets.retraining_decision import (
    ATTEMPT_TAG,
    DECISION_TAG,
    record_launch,
    retraining_decision,
)
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.expectations import DataExpectation, ExpectationOutcome
from rlhf_pipeline.core.records import CalibrationReport, ModelVersion
from rlhf_pipeline.feedback.votes import Quarantines, TasteChanges
from rlhf_pipeline.improve.curated_sets import take_training_pairs
from rlhf_pipeline.improve.evaluation import CompletionJudge, frozen_prompt_ids
from rlhf_pipeline.improve.evaluation_sets import require
from rlhf_pipeline.improve.loop_settings import CompletionsParams, LoopSettings
from rlhf_pipeline.improve.retraining.hard_negatives import add_hard_negatives
from rlhf_pipeline.improve.retraining.selection import (
    SelectionParams,
    drop_reasoning,
    find_set_problems,
    select_pairs,
    take_dataset,
)
from rlhf_pipeline.improve.retraining.vote_halves import VoteHalves, label_reserved, score_pairs
from rlhf_pipeline.learn.champions import CalibratedModel, Champions, compare_with_chance
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.drift.cluster_history import DayClusters, find_failing_ids
from rlhf_pipeline.watch.drift.reference import Window

FIRST = -1  # priority of offers; 0 is usual


class RetrainingSetConfig(SelectionParams, dg.Config):
    """Number, ranking and weights of pairs."""


@unpartitioned_asset(
    "retraining_set",
    "improve",
    "parquet",
    deps=[retraining_decision],
    checks={
        "mean_weight": "The mean weight of a pair is 0.3 or more.",
        "votes_are_separate": "No vote that judges the candidate labels a row.",
    },
)
def retraining_set(
    context: dg.AssetExecutionContext,
    config: RetrainingSetConfig,
    preference_pairs: pd.DataFrame,
    reflection_log: pd.DataFrame,
    prompts: pd.DataFrame,
    reward_model: ModelVersion,
    calibration: CalibrationReport,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    settings: dg.ResourceParam[Settings],
) -> Iterator[Any]:
    """Selects pairs by information: where the reward model is uncertain or disagreed with
    annotators outside quarantines. Pairs from before a change of taste get the refitted model's
    choice where it is sure. Excludes evaluation splits, frozen prompts and wrong answers preferred
    to right ones. A curated data set is taken whole.
    """
    record_launch(context, store)
    pairs, judge = preference_pairs, champions.judge(reward_model)
    _, held_out = require(settings, store, pairs)
    frozen = frozen_prompt_ids(held_out)
    assert judge is not None  # a version was given
    changes = TasteChanges.from_log(store.taste_changes.all())
    _require_more_than_chance(context, champions, judge, pairs, changes)
    by_all = CompletionJudge(judge.reward_model, judge.label, judge.calibrator)
    answerable = prompts.dropna(subset=["reference"])
    references = answerable.set_index("prompt_id")["reference"].to_dict()
    select = partial(
        select_pairs,
        pairs,
        reflections=Quarantines.from_decisions(store.decisions.fires()).drop(reflection_log),
        params=config,
        taste_changes=changes,
        frozen_prompt_ids=frozen,
        failing_ids=_find_failing_ids(config, settings, store),
        references=references,
    )
    frame, halves, obstacle = None, None, "separate_votes is off."
    if config.dataset:
        curated, label = take_training_pairs(store, config.dataset)
        scores = score_pairs(curated, by_all)
        frame = take_dataset(curated, scores, label, config, frozen_prompt_ids=frozen)
        obstacle = f"A person chose the rows of data set {label}."
    elif config.separate_votes:
        try:
            halves = VoteHalves.fit(by_all, reward_model, pairs, cache=champions.vote_halves)
            frame, obstacle = select(label_reserved(pairs, halves.labelling)), ""
        except NotEnoughData as cause:
            obstacle = str(cause)
    if frame is None:
        frame, halves = select(score_pairs(pairs, by_all)), None
    frame = add_hard_negatives(
        frame,
        pairs[(pairs["split"] == "train") & ~pairs["comparison_id"].isin(config.leave_out)],
        halves.labelling if halves else by_all,
        0 if config.dataset else config.hard_negatives,
        confidence=config.relabel_confidence,
        references=references,
    )
    generation = LoopSettings.read(settings, only="completions").params("completions")
    if cast(CompletionsParams, generation).reasoning == "show":
        frame = drop_reasoning(frame)
    version = Artefacts(settings.frames).keep_version("retraining_set", frame)
    rule = DataExpectation(
        type="enough pairs, none of an evaluation split or on a frozen prompt", blocking=True
    )
    n_relabelled = int((frame["origin"] == "relabelled").sum())
    problems = find_set_problems(frame, frozen, config.min_pairs)
    checks = [
        ExpectationOutcome(
            expectation=rule, passed=not problems, message=" ".join(problems) or rule.type
        )
    ]
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{len(frame)} of {len(pairs)} pairs, "
            f"{n_relabelled} of them relabelled, "
            f"{(frame['weight'] >= 1).mean():.0%} at full weight, "
            f"calibrated by {calibration.method}, version {version[:12]}",
            metrics={
                "n_pairs": len(frame),
                "n_candidates": len(pairs),
                "n_relabelled": n_relabelled,
                "share_since_change": (frame["weight"] >= 1).mean() if len(frame) else None,
                "mean_information": frame["information"].mean() if len(frame) else None,
            },
            rows=frame[["prompt", "chosen", "rejected", "information", "origin", "reason"]],
        ),
        checks=[
            *checks,
            make_rule(
                "votes_are_separate",
                not obstacle,
                f"The same votes label the set and judge the candidate. {obstacle}",
            ),
        ],
        usual=[
            expect_usually(
                "mean_weight", "expect_column_mean_to_be_between", column="weight", min_value=0.3
            )
        ],
    )


def _require_more_than_chance(
    context: dg.AssetExecutionContext,
    champions: Champions,
    judge: CalibratedModel,
    pairs: pd.DataFrame,
    changes: TasteChanges,
) -> None:
    """A reward model that cannot be told from a coin would label pairs and judge candidates by
    chance: the decision waits for votes on held-out comparisons, which are offered first. Raises
    NotEnoughData.
    """
    window, store = Window.find(champions.reference_folder_of(judge.label)), champions.store
    tested = compare_with_chance(window.votes if window else pd.DataFrame())
    if not tested.n_missing:
        return
    held_out = pairs[(pairs["split"] == "calib") & ~changes.is_current(pairs)]
    latest = held_out.sort_values("max_seq").tail(tested.n_missing)
    for n_votes, group in latest.groupby("n_votes"):
        ids = group["comparison_id"].tolist()
        store.cards.offer(ids, overlap=int(n_votes) + 1, priority=FIRST)
    tags = context.run.tags
    if ATTEMPT_TAG in tags:
        store.training_jobs.postpone(
            int(tags[DECISION_TAG]),
            attempt=int(tags[ATTEMPT_TAG]),
            until_seq=store.votes.max_seq() + tested.n_missing,
            reason=tested.message,
        )
    raise NotEnoughData(
        f"{judge.label} neither labels nor judges: {tested.message}. Cards of {len(latest)} are "
        "offered first; the retraining begins again once they are answered."
    )


def _find_failing_ids(config: RetrainingSetConfig, settings: Settings, store: Store) -> set[str]:
    """Comparisons in failing clusters, read only where their weight differs."""
    if config.failing_cluster_weight == 1:
        return set()
    files = Artefacts(settings.frames)
    days = files.report_days("clusters")
    return find_failing_ids(list(files.read_reports("clusters", days, DayClusters).values()))
