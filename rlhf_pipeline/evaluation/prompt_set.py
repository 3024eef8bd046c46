"""The frozen prompts on which policies are compared. Knows prompts; knows no policy."""

import pandas as pd

from rlhf_pipeline.prompts import PromptParams, generate
from rlhf_pipeline.records import content_hash

DAY = "frozen"  # a label instead of a day: the set belongs to none


def frozen_prompts(n: int = 300, *, seed: int = 0) -> pd.DataFrame:
    """`n` PROMPTS of the shipped templates, the same for the same n and seed on every day and
    machine.
    """
    return generate(PromptParams(n=n, seed=seed), day=DAY)


def frozen_prompt_ids(prompts: pd.DataFrame) -> frozenset[str]:
    """Ids that daily prompts and retraining sets must leave out."""
    return frozenset(prompts["prompt_id"])


def prompts_hash(prompts: pd.DataFrame) -> str:
    """Content hash of what the policies are asked: ids, texts and references, in whatever order
    they stand.
    """
    references = prompts["reference"].astype(object).where(prompts["reference"].notna(), None)
    return content_hash(
        sorted(
            zip(prompts["prompt_id"], prompts["text"], references, strict=True),
            key=lambda row: row[0],
        )
    )
