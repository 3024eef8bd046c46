"""Compares any two policy versions by the champion reward model, on the evaluation set."""

from typing import cast

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ModelNotFound, NotEnoughData
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Evaluation, ModelVersion
from rlhf_pipeline.improve.evaluation.judge import (
    CompletionJudge,
    EvaluationParams,
    JudgedPolicy,
    evaluate,
    keep_samples,
)
from rlhf_pipeline.improve.evaluation_sets import require
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.improve.retraining.vote_halves import measure_heads
from rlhf_pipeline.learn.champions import Champions


def compare_versions(
    champions: Champions,
    settings: Settings,
    first: ModelVersion,
    second: ModelVersion,
    *,
    progress: Progress = ignore_progress,
) -> Evaluation:
    """The second version against the first, with intervals overall, by category and by dimension of
    the rubric. Completions are kept, and made only where they are missing.

    The page *Compare* shows the same from then on. The judge may know votes that a version was
    trained on. Raises ModelNotFound for reward models and without a champion one, NotEnoughData for
    one version twice and without an evaluation set.
    """
    for version in (first, second):
        if version.kind != "policy":
            raise ModelNotFound(f"{version.label} is a reward model. Compare two policies.")
    if first.label == second.label:
        raise NotEnoughData(f"Both versions are {first.label}. Name two versions of a policy.")
    judge = champions.judge()
    if judge is None:
        raise ModelNotFound(
            "No reward model judges yet. Collect votes, then fit one by `rlhf run learning`."
        )
    files = Artefacts(settings.frames)
    held_out, prompts = require(settings, champions.store)
    judging = CompletionJudge(
        judge.reward_model, f"{judge.label}, {judge.calibrator_version}", judge.calibrator
    )
    evaluation, samples = evaluate(
        JudgedPolicy(champions.load_policy(second), second.label),
        JudgedPolicy(champions.load_policy(first), first.label),
        prompts,
        measure_heads(judging, judge.version, files.read_frame("preference_pairs")),
        cast(EvaluationParams, LoopSettings.read(settings, only="evaluation").params("evaluation")),
        ledger=champions.store.generation,
        progress=progress,
    )
    evaluation = evaluation.model_copy(
        update={"evaluation_set": held_out.version, "shares_votes": True}
    )
    path = files.report_path("samples", f"{second.label}_{first.label}")
    files.write({path: keep_samples(evaluation, samples).model_dump_json().encode()})
    return evaluation
