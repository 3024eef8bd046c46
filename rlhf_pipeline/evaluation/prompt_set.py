"""The frozen prompts on which policies are compared."""

import pandas as pd

from rlhf_pipeline.prompts import PromptParams, generate
from rlhf_pipeline.records import content_hash

DAY = "frozen"  # used in place of a day, because the set belongs to none


def frozen_prompts(n: int = 300, *, seed: int = 0) -> pd.DataFrame:
    """`n` PROMPTS of the shipped templates; the same for the same n and seed on every day and
    machine.
    """
    return generate(PromptParams(n=n, seed=seed), day=DAY)


def frozen_prompt_ids(prompts: pd.DataFrame) -> frozenset[str]:
    """Prompt ids that daily prompts and retraining sets must exclude."""
    return frozenset(prompts["prompt_id"])


def prompts_hash(prompts: pd.DataFrame) -> str:
    """Content hash of the prompts' ids, texts and references; independent of row order."""
    references = prompts["reference"].astype(object).where(prompts["reference"].notna(), None)
    return content_hash(
        sorted(
            zip(prompts["prompt_id"], prompts["text"], references, strict=True),
            key=lambda row: row[0],
        )
    )
