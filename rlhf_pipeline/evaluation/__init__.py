"""A candidate policy against the champion on frozen prompts, and whether it may take its place.
Knows policies and a reward model; knows nothing of how the candidate was trained, of the registry
or of the simulator's truth.
"""

from rlhf_pipeline.evaluation.gate import GateParams, decide_promotion
from rlhf_pipeline.evaluation.judge import EvaluationParams, evaluate
from rlhf_pipeline.evaluation.prompt_set import frozen_prompt_ids, frozen_prompts, prompts_hash

__all__ = [
    "EvaluationParams",
    "GateParams",
    "decide_promotion",
    "evaluate",
    "frozen_prompt_ids",
    "frozen_prompts",
    "prompts_hash",
]
