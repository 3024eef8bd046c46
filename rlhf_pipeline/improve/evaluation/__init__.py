"""Compares a candidate policy with the champion on frozen prompts, and decides on its promotion."""

from rlhf_pipeline.improve.evaluation.gate import GateParams, decide_promotion
from rlhf_pipeline.improve.evaluation.judge import (
    CompletionJudge,
    EvaluationParams,
    JudgedPolicy,
    answer_safety_prompts,
    evaluate,
    keep_samples,
)
from rlhf_pipeline.improve.evaluation.prompt_set import (
    frozen_prompt_ids,
    frozen_prompts,
    hold_out,
    prompts_hash,
)

__all__ = [
    "CompletionJudge",
    "EvaluationParams",
    "GateParams",
    "JudgedPolicy",
    "answer_safety_prompts",
    "decide_promotion",
    "evaluate",
    "frozen_prompt_ids",
    "frozen_prompts",
    "hold_out",
    "keep_samples",
    "prompts_hash",
]
