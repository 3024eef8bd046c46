"""Completes the same prompts with candidate and champion, and compares both by a reward model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import CompletionError, InvalidScores, NotEnoughData
from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.core.intervals import Floats, mean_over_prompts
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.protocols import Progress, WorkLedger, ignore_progress
from rlhf_pipeline.core.records import (
    DimensionComparison,
    DimensionHead,
    Evaluation,
    Record,
    SafetyComparison,
    content_hash,
)
from rlhf_pipeline.generate.completions.base import CompletionRequest
from rlhf_pipeline.generate.completions.local import LocalBackend
from rlhf_pipeline.generate.completions.results import complete_requests
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.evaluation.divergence import kl_per_token
from rlhf_pipeline.improve.evaluation.diversity import answer_diversity, copied_share
from rlhf_pipeline.improve.evaluation.prompt_set import prompts_hash
from rlhf_pipeline.improve.evaluation.safety import SafetyPrompt, compare_safety, to_prompts
from rlhf_pipeline.improve.evaluation.win_rate import (
    compare_by_category,
    compare_by_dimension,
    compare_checkable_answers,
    grade_answers,
    length_controlled_win_rate,
    score_wins,
    win_rate,
)
from rlhf_pipeline.learn.calibration.base import Calibrator
from rlhf_pipeline.learn.reward_model.base import RewardModel


class JudgedSample(Record):
    """Completions of one prompt by two policies. Scores are logits of the reward model."""

    prompt_id: str
    prompt: str
    category: str
    sample_index: int
    completion_candidate: str
    completion_champion: str
    score_candidate: float
    score_champion: float
    p_win: float | None = Field(description="calibrated P(candidate preferred) by a person")
    right_candidate: bool | None = Field(description="None if the prompt has no checkable answer")
    right_champion: bool | None


class EvaluationSamples(Record):
    """The completions that an evaluation judged."""

    evaluation: Evaluation
    rows: tuple[JudgedSample, ...]


MIN_PROMPTS_OF_CATEGORY = 10
# Answers to a prompt that has a checkable one. By one each on 183 prompts, chance alone refused
# every fourth candidate that is as right as the champion: sampling is most of the noise.
CHECKABLE_SAMPLES = 4
ASSET = "evaluation"  # asset name of the completions in the ledger


class EvaluationParams(Parameters):
    """Parameters of the comparison of two policies."""

    temperature: float = Field(
        0.8, description="Sampling temperature of both policies; 0 is greedy", ge=0, le=5
    )
    top_p: float = Field(1.0, description="Nucleus mass of both policies", gt=0, le=1)
    max_new_tokens: int = Field(48, description="Maximum tokens per completion", ge=1, le=8192)
    samples_per_prompt: int = Field(
        1, description="Completions per prompt and policy, averaged within the prompt", ge=1, le=64
    )
    min_prompts: int = Field(
        30,
        description="Minimum number of prompts; with fewer, the intervals are too wide",
        ge=2,
    )
    seed: int = Field(
        0, description="Seed of the samples (the same for both policies) and of the bootstrap", ge=0
    )
    n_resamples: int = Field(
        2000, description="Bootstrap resamples of the prompts", ge=100, le=100_000
    )
    safety_prompts: str | None = Field(
        None,
        description="JSONL file on the run's machine, below the home if relative, of prompts with "
        "phrases that an answer must_say or must_not_say: the gate refuses a candidate that "
        "violates them more often than the champion, or at all where a row is marked never",
    )


@dataclass(frozen=True)
class JudgedPolicy:
    """A policy and the label of its version."""

    policy: Policy
    label: str


@dataclass(frozen=True)
class CompletionJudge:
    """The reward model that compares completions, its label, a calibrator for P(preferred), and its
    heads of the rubric's dimensions as measured on held-out votes; unmeasured ones do not judge.
    """

    reward_model: RewardModel
    label: str
    calibrator: Calibrator | None = None
    heads: tuple[DimensionHead, ...] = ()


def evaluate(
    candidate: JudgedPolicy,
    champion: JudgedPolicy,
    prompts: pd.DataFrame,
    judge: CompletionJudge,
    params: EvaluationParams,
    *,
    ledger: WorkLedger,
    labelled_by: CompletionJudge | None = None,
    progress: Progress = ignore_progress,
) -> tuple[Evaluation, pd.DataFrame]:
    """Evaluate the candidate against the champion on `prompts` (PROMPTS). Also returns the judged
    completions, one row per prompt and sample. Prompts with a checkable answer are completed
    CHECKABLE_SAMPLES times; the further completions are graded alone.

    Both policies sample with the same seeds, so equal policies have a win rate of exactly 0.5. Each
    completion is an item of `ledger` under the label of its policy, so existing completions are
    reused. Rewards are in logits of the reward model, lengths
    in characters, KL in nats per token. With a calibrator, `expected_win_rate` is the expected
    share of people who prefer the candidate. `labelled_by` labelled the candidate's retraining set;
    its win rate is reported beside that of `judge`. The row order of `prompts` is irrelevant.

    Raises NotEnoughData below min_prompts, CompletionError if a policy fails on a prompt or writes
    only empty texts, InvalidScores for rewards that are not finite.
    """
    prompt_rows = _sample_prompts(prompts, params)
    texts = [
        _complete(
            LocalBackend(side.policy, side.label),
            prompt_rows,
            params,
            ledger,
            (f"{role} completes", progress),
        )
        for role, side in (("candidate", candidate), ("champion", champion))
    ]
    for side, completions in zip((candidate, champion), texts, strict=True):
        _refuse_empty_texts(side.label, completions)
    graded = prompt_rows.assign(
        completion_candidate=texts[0],
        completion_champion=texts[1],
        right_candidate=grade_answers(prompt_rows["reference"], texts[0]),
        right_champion=grade_answers(prompt_rows["reference"], texts[1]),
    )
    is_judged = graded["sample_index"] < params.samples_per_prompt
    samples = graded[is_judged].reset_index(drop=True)
    samples, member_wins = _judge_samples(samples, judge.reward_model, judge.calibrator, progress)
    samples["kl"] = kl_per_token(
        candidate.policy,
        champion.policy,
        samples["prompt"].tolist(),
        samples["completion_candidate"].tolist(),
    )
    evaluation = _summarise(samples, graded, member_wins, params)
    evaluation["prompts_hash"] = prompts_hash(prompts)
    evaluation["by_dimension"] = _judge_dimensions(samples, judge, params, progress)
    if labelled_by is not None:
        relabelled = _judge_samples(samples, labelled_by.reward_model, None, progress)
        evaluation["win_rate_by_labels"] = win_rate(
            *relabelled, seed=params.seed, n_resamples=params.n_resamples
        )
    labels = {
        "candidate": candidate.label,
        "champion": champion.label,
        "reward_model": judge.label,
    }
    return Evaluation(**labels, **evaluation), samples


def answer_safety_prompts(
    candidate: JudgedPolicy,
    champion: JudgedPolicy,
    rows: Sequence[SafetyPrompt],
    params: EvaluationParams,
    *,
    ledger: WorkLedger,
    progress: Progress = ignore_progress,
) -> SafetyComparison:
    """Both policies answer each of `rows` once, by the same seeds, as items of `ledger`. Raises
    CompletionError if a policy fails on a prompt.
    """
    prompt_rows = _add_seeds(to_prompts(rows).assign(sample_index=0), params)
    answers = (
        _complete(
            LocalBackend(side.policy, side.label),
            prompt_rows,
            params,
            ledger,
            (f"{role} answers safety prompts", progress),
        )
        for role, side in (("candidate", candidate), ("champion", champion))
    )
    return compare_safety(rows, *answers)


def keep_samples(evaluation: Evaluation, samples: pd.DataFrame) -> EvaluationSamples:
    """The judged completions that `evaluate` returns, as a record."""
    frame = samples[list(JudgedSample.model_fields)].astype(object)
    rows = frame.where(frame.notna(), None).to_dict("records")
    return EvaluationSamples(
        evaluation=evaluation, rows=tuple(JudgedSample.model_validate(row) for row in rows)
    )


def _sample_prompts(prompts: pd.DataFrame, params: EvaluationParams) -> pd.DataFrame:
    """One row per prompt and sample with its seed, by prompt_id; more of checkable prompts."""
    checked = check_frame(prompts, PROMPTS).drop_duplicates("prompt_id").sort_values("prompt_id")
    if len(checked) < params.min_prompts:
        raise NotEnoughData(
            f"{len(checked)} prompts to evaluate on; at least {params.min_prompts} are needed. "
            "Add prompts to the evaluation set, or lower min_prompts."
        )
    prompt_rows = checked[["prompt_id", "text", "category", "reference"]].rename(
        columns={"text": "prompt"}
    )
    n_graded = max(params.samples_per_prompt, CHECKABLE_SAMPLES)
    counts = np.where(prompt_rows["reference"].isna(), params.samples_per_prompt, n_graded)
    repeated = prompt_rows.loc[prompt_rows.index.repeat(counts)].reset_index(drop=True)
    repeated["sample_index"] = repeated.groupby("prompt_id").cumcount()
    return _add_seeds(repeated, params)


def _add_seeds(prompt_rows: pd.DataFrame, params: EvaluationParams) -> pd.DataFrame:
    keys = zip(prompt_rows["prompt_id"], prompt_rows["sample_index"], strict=True)
    return prompt_rows.assign(
        seed=[int(content_hash("evaluation", params.seed, *key)[:12], 16) for key in keys]
    )


def _complete(
    backend: LocalBackend,
    prompt_rows: pd.DataFrame,
    params: EvaluationParams,
    ledger: WorkLedger,
    report: tuple[str, Progress],
) -> list[str]:
    note, progress = report
    requests = [
        CompletionRequest(
            prompt_id=row.prompt_id,
            prompt=row.prompt,
            temperature=params.temperature,
            top_p=params.top_p,
            sample_index=row.sample_index,
            seed=row.seed,
            max_tokens=params.max_new_tokens,
        )
        for row in prompt_rows.itertuples()
    ]
    results = complete_requests(
        backend, requests, ledger=ledger, asset=ASSET, progress=progress, note=note
    )
    # An empty completion is judged as such; a failed one must not be judged as if it were empty.
    for settled, result in results:
        if result.error is not None and settled.kind != "empty":
            raise CompletionError(
                f"{backend.model_version} could not complete prompt "
                f"{prompt_rows['prompt_id'][settled.item_no]}: {settled.error}"
            )
    return [result.text or "" for _, result in results]


def _refuse_empty_texts(label: str, texts: Sequence[str]) -> None:
    if not any(text.strip() for text in texts):
        raise CompletionError(
            f"Policy {label} wrote nothing in all {len(texts)} answers: there is nothing to "
            "judge. Its training collapsed, or its chat template and end token do not fit its "
            "weights. Train another candidate with a lower learning rate."
        )


def _judge_samples(
    samples: pd.DataFrame,
    reward_model: RewardModel,
    calibrator: Calibrator | None,
    progress: Progress,
) -> tuple[pd.DataFrame, Floats]:
    """`samples` with scores of both completions, the winner, and the calibrated probability that
    the candidate wins; and the wins by each member of the reward model, (M, n).
    """
    texts = [*samples["completion_candidate"], *samples["completion_champion"]]
    of_members = reward_model.member_scores([*samples["prompt"]] * 2, texts, progress=progress)
    candidate, champion = np.split(_require_finite(of_members.mean(axis=0)), 2)
    member_wins = score_wins(*np.split(of_members, 2, axis=1))
    p = (
        np.full(len(samples), np.nan)
        if calibrator is None
        else np.asarray(calibrator.transform(candidate - champion), dtype=np.float64)
    )
    verdicts = samples.assign(
        score_candidate=candidate,
        score_champion=champion,
        win=score_wins(candidate, champion),
        p_win=p,
    )
    return verdicts, member_wins


def _judge_dimensions(
    samples: pd.DataFrame, judge: CompletionJudge, params: EvaluationParams, progress: Progress
) -> tuple[DimensionComparison, ...]:
    if not judge.heads:
        return ()
    texts = [*samples["completion_candidate"], *samples["completion_champion"]]
    scores = judge.reward_model.dimension_scores([*samples["prompt"]] * 2, texts, progress=progress)
    return compare_by_dimension(
        samples, judge.heads, scores, seed=params.seed, n_resamples=params.n_resamples
    )


def _require_finite(scores: Floats) -> Floats:
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise InvalidScores(
            f"The reward model gave {len(bad)} of {len(scores)} completions a score that is not "
            f"finite, first in row {bad[0]}. Fit it again."
        )
    return scores


def _summarise(
    samples: pd.DataFrame, graded: pd.DataFrame, member_wins: Floats, params: EvaluationParams
) -> dict[str, Any]:
    drawn = {"seed": params.seed, "n_resamples": params.n_resamples}
    right = compare_checkable_answers(graded, **drawn)
    return {
        "n_prompts": int(samples["prompt_id"].nunique()),
        "win_rate": win_rate(samples, member_wins, **drawn),
        "expected_win_rate": None
        if samples["p_win"].isna().all()
        else mean_over_prompts(samples, "p_win", **drawn),
        "mean_reward_candidate": mean_over_prompts(samples, "score_candidate", **drawn),
        "mean_reward_champion": mean_over_prompts(samples, "score_champion", **drawn),
        "kl": mean_over_prompts(samples, "kl", **drawn),
        "checkable_candidate": right.candidate if right else None,
        "checkable_champion": right.champion if right else None,
        "checkable_difference": right.difference if right else None,
        **{
            f"length_{side}": mean_over_prompts(
                samples.assign(length=samples[f"completion_{side}"].str.len()), "length", **drawn
            )
            for side in ("candidate", "champion")
        },
        "length_controlled_win_rate": length_controlled_win_rate(samples, member_wins, **drawn),
        **{
            f"{name}_{side}": measure(samples[f"completion_{side}"].tolist())
            for name, measure in (
                ("diversity", answer_diversity),
                ("copied", partial(copied_share, samples["prompt"].tolist())),
            )
            for side in ("candidate", "champion")
        },
        "by_category": compare_by_category(samples, min_prompts=MIN_PROMPTS_OF_CATEGORY, **drawn),
        "samples_hash": content_hash(
            samples["completion_candidate"].tolist(), samples["completion_champion"].tolist()
        ),
    }
