"""The evaluation of the candidate against the champion on frozen prompts."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    deliver,
    make_rule,
    unpartitioned_asset,
    value_hash,
)
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import CalibrationReport, Evaluation, ModelVersion
from rlhf_pipeline.improve.canaries import draw_canaries, measure_exposure
from rlhf_pipeline.improve.evaluation import (
    CompletionJudge,
    EvaluationParams,
    JudgedPolicy,
    answer_safety_prompts,
    evaluate,
    keep_samples,
)
from rlhf_pipeline.improve.evaluation.prompt_set import count_leaked
from rlhf_pipeline.improve.evaluation.safety import read_safety_prompts
from rlhf_pipeline.improve.evaluation_sets import require
from rlhf_pipeline.improve.retraining.vote_halves import VoteHalves, measure_heads
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.evaluation_page import (
    EvaluationEvidence,
    chart_evaluation,
    render_evaluation_page,
)
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.metrics.stages import evaluation_points

KL_WARNING = 0.5  # nats per token; above this the policy has changed substantially


class EvaluationConfig(EvaluationParams, dg.Config):
    """Sampling of both policies."""


@unpartitioned_asset(
    "evaluation",
    "improve",
    "mlflow",
    checks={
        "close_to_champion": "The candidate is close to the champion (KL per token).",
        "judge_is_separate": "The judge never saw the votes that the candidate was trained on.",
    },
)
def evaluation(
    context: dg.AssetExecutionContext,
    config: EvaluationConfig,
    candidate_model: ModelVersion,
    retraining_set: pd.DataFrame,
    preference_pairs: pd.DataFrame,
    reward_model: ModelVersion,
    calibration: CalibrationReport,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    settings: dg.ResourceParam[Settings],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """Win rates, also at equal length and by category, mean reward, KL, checkable answers,
    diversity and length, on prompts that are never used for training. The judging half of the votes
    judges, the labelling half beside it.
    """
    champion, judge = champions.policy(), champions.judge(reward_model)
    assert judge is not None  # a version was given
    by_all = CompletionJudge(
        judge.reward_model, f"{judge.label}, {calibration.method}", judge.calibrator
    )
    halves, obstacle = None, ""
    try:
        halves = VoteHalves.behind(
            retraining_set, by_all, reward_model, preference_pairs, cache=champions.vote_halves
        )
    except NotEnoughData as cause:
        obstacle = str(cause)
        by_all = measure_heads(by_all, reward_model, preference_pairs)
    path = config.safety_prompts
    safety_prompts = read_safety_prompts(settings.home / path) if path else []
    candidate = JudgedPolicy(champions.load_policy(candidate_model), candidate_model.label)
    held_out, prompts = require(settings, store)

    def evaluate_against(other: ModelVersion) -> tuple[Evaluation, pd.DataFrame]:
        return evaluate(
            candidate,
            JudgedPolicy(champions.load_policy(other), other.label),
            prompts,
            halves.judging if halves else by_all,
            config,
            ledger=store.generation,
            labelled_by=halves.labelling if halves else None,
            progress=progress("evaluation"),
        )

    result, samples = evaluate_against(champion)
    # Many small steps can add up, so the candidate is also compared with the policy that the first
    # of them started from.
    base = champions.base_policy(champion)
    first = (result, samples) if base.label == champion.label else evaluate_against(base)
    from_base = first[0].win_rate
    result = result.model_copy(
        update={
            "base": base.label,
            "win_rate_against_base": from_base,
            "evaluation_set": held_out.version,
            "shares_votes": halves is None,
            "judge_agreement": calibration.calibrated.accuracy,
            "n_leaked": count_leaked(retraining_set, prompts),
        }
    )
    if safety_prompts:
        safety = answer_safety_prompts(
            candidate,
            JudgedPolicy(champions.load_policy(champion), champion.label),
            safety_prompts,
            config,
            ledger=store.generation,
            progress=progress("evaluation"),
        )
        result = result.model_copy(update={"safety": safety})
    if n_canaries := int(candidate_model.params.get("canaries", 0)):
        data_hash = value_hash(retraining_set)
        canaries = draw_canaries(n_canaries, data_hash)
        exposure = measure_exposure(candidate.policy, canaries, data_hash)
        result = result.model_copy(update={"canaries": exposure})
    by_labels = result.win_rate_by_labels
    by_champion = {base.label: first, champion.label: (result, samples)}
    files = Artefacts(settings.frames)
    page = render_evaluation_page(
        EvaluationEvidence(settings.project, result, samples, candidate_model)
    )
    yield from deliver(
        context,
        registry,
        result,
        StageReport(
            headline=f"win rate {result.win_rate} on {held_out.label} "
            f"({format_count(result.n_prompts, 'prompt')}), "
            f"{_describe_labels(result)}{from_base.value:.3f} against {base.label}, "
            f"KL {result.kl.value:.3f}, length × {result.length_ratio:.2f}",
            metrics={
                "win_rate": result.win_rate.value,
                "win_rate_low": result.win_rate.low,
                "win_rate_by_labels": by_labels.value if by_labels else None,
                "win_rate_against_base": from_base.value,
                "mean_reward_candidate": result.mean_reward_candidate.value,
                "mean_reward_champion": result.mean_reward_champion.value,
                "length_controlled_win_rate": result.length_controlled_win_rate.value
                if result.length_controlled_win_rate
                else None,
                "diversity_candidate": result.diversity_candidate,
                "diversity_champion": result.diversity_champion,
                "kl": result.kl.value,
                "checkable_candidate": result.checkable_candidate.value
                if result.checkable_candidate
                else None,
                "checkable_champion": result.checkable_champion.value
                if result.checkable_champion
                else None,
                "length_ratio": result.length_ratio,
            }
            | {
                f"win_rate_in_{comparison.head.dimension}": comparison.win_rate.value
                if comparison.win_rate
                else None
                for comparison in result.by_dimension
            },
            rows=samples[["prompt", "completion_candidate", "completion_champion"]],
            figures={"win_rates": draw_png(chart_evaluation(result))},
            texts={
                "samples.jsonl": samples.to_json(orient="records", lines=True, force_ascii=False),
                "evaluation.html": page,
            },
            pages={
                **{
                    files.report_path("samples", f"{result.candidate}_{other}"): keep_samples(
                        *entry
                    ).model_dump_json()
                    for other, entry in by_champion.items()
                },
                files.report_path("evaluation", result.candidate): page,
            },
            points=evaluation_points(result),
        ),
        checks=[
            make_rule(
                "close_to_champion",
                result.kl.value < KL_WARNING,
                f"{result.kl.value:.2f} nats per token from the champion.",
            ),
            make_rule(
                "judge_is_separate",
                halves is not None,
                f"The candidate was trained on votes that the judge knows. {obstacle}",
            ),
        ],
        write=files.write,
    )


def _describe_labels(evaluation: Evaluation) -> str:
    by_labels = evaluation.win_rate_by_labels
    return f"{by_labels.value:.3f} by the labelling half, " if by_labels else ""
