"""The frozen prompts on which policies are compared."""

import pandas as pd

from rlhf_pipeline.core.conversations import normalise_prompt
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.generate.prompts import PromptParams, generate, quotas

DAY = "frozen"  # used in place of a day, because the set belongs to none
SIZE = 300  # prompts: enough to detect a win rate of 0.58 in 8 of 10 cases
SHARE = 0.3  # of a finite source; the rest is left to be voted on


def frozen_prompts(n: int = 300, *, seed: int = 0) -> pd.DataFrame:
    """`n` PROMPTS of the shipped templates; the same for the same n and seed on every day and
    machine.
    """
    return generate(PromptParams(n=n, seed=seed), day=DAY)


def hold_out(prompts: pd.DataFrame, *, of: int) -> pd.DataFrame:
    """At most SIZE of PROMPTS, and at most SHARE of the `of` that their source has, in the
    proportions of their categories.

    The choice within a category is by content, so that it does not depend on the order of rows.
    """
    n = min(SIZE, int(SHARE * of), len(prompts))
    order = prompts["prompt_id"].map(lambda name: content_hash("hold out", name))
    by_category = prompts.iloc[order.argsort()].groupby("category", sort=True)
    counts = quotas(n, by_category.size().astype(float).to_dict()) if n else {}
    parts = [rows.head(counts.get(name, 0)) for name, rows in by_category]
    return pd.concat(parts, ignore_index=True) if parts else prompts.head(0)


def frozen_prompt_ids(prompts: pd.DataFrame) -> frozenset[str]:
    """Prompt ids that daily prompts and retraining sets must exclude."""
    return frozenset(prompts["prompt_id"])


def count_leaked(retraining_set: pd.DataFrame, prompts: pd.DataFrame) -> int:
    """Number of evaluation `prompts` (PROMPTS) that are in a retraining set, by id or by text in
    any letter case.
    """
    trained, held_out = (
        texts.map(lambda text: normalise_prompt(text).casefold())
        for texts in (retraining_set["prompt"], prompts["text"])
    )
    is_leaked = held_out.isin(set(trained)) | prompts["prompt_id"].isin(retraining_set["prompt_id"])
    return int(is_leaked.sum())


def prompts_hash(prompts: pd.DataFrame) -> str:
    """Content hash of the prompts' ids, texts and references; independent of row order."""
    references = prompts["reference"].astype(object).where(prompts["reference"].notna(), None)
    return content_hash(
        sorted(
            zip(prompts["prompt_id"], prompts["text"], references, strict=True),
            key=lambda row: row[0],
        )
    )
