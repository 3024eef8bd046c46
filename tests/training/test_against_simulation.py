"""The reward model against annotators whose taste is known: how much of what can be known does it
find?
"""

from datetime import UTC, datetime

import numpy as np
import pandas as pd

from examples.embedded_policy import style_sentences
from rlhf_pipeline.core.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.core.records import content_id
from rlhf_pipeline.feedback.votes import make_pairs
from rlhf_pipeline.generate.prompts import PromptParams, generate
from rlhf_pipeline.learn.reward_model import (
    EmbeddingCache,
    Encoder,
    LearningData,
    fit_reward_model,
    reward_model_params,
)
from rlhf_pipeline.simulation import (
    WARM_TASTE,
    AnnotatorPool,
    simulate_votes,
)

DAY = "2026-01-01"
START = datetime(2026, 1, 1, 8, tzinfo=UTC)


def make_comparisons(n_prompts: int) -> tuple[pd.DataFrame, dict[str, str | None]]:
    """One comparison per prompt of two completions in random style, right or wrong."""
    rng = np.random.default_rng(0)
    prompts = generate(PromptParams(n=n_prompts), day=DAY)
    styles = [*(list(sentences) for sentences in style_sentences().values()), [""], [""]]

    def completion(reference: str | None) -> str:
        body = (
            f"It is {reference}."
            if reference and rng.random() < 0.7
            else f"It is {rng.integers(100)}."
        )
        before, after = (str(rng.choice(styles[rng.integers(len(styles))])) for _ in range(2))
        return " ".join(part for part in (before, body, after) if part)

    references = {
        p: None if pd.isna(r) else r
        for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)
    }
    rows = [
        {
            "day": DAY,
            "comparison_id": content_id("c", p.prompt_id),
            "prompt_id": p.prompt_id,
            "prompt": p.text,
            "completion_a_id": f"{i}a",
            "completion_b_id": f"{i}b",
            "completion_a": completion(references[p.prompt_id]),
            "completion_b": completion(references[p.prompt_id]),
            "model_version_a": "demo.policy@1",
            "model_version_b": "demo.policy@1",
            "category": p.category,
            "repeat_of": None,
            "position": i,
            "seed": 0,
        }
        for i, p in enumerate(prompts.itertuples())
    ]
    return check_frame(pd.DataFrame(rows), COMPARISONS), references


def vote_frame(
    comparisons: pd.DataFrame,
    references: dict[str, str | None],
    taste,
    pool: AnnotatorPool | None = None,
    n: int = 3,
) -> pd.DataFrame:
    prompt_of = dict(zip(comparisons["comparison_id"], comparisons["prompt_id"], strict=True))
    pool = pool or AnnotatorPool()
    cast = simulate_votes(
        comparisons,
        references,
        taste,
        pool,
        day=DAY,
        votes_per_comparison=n,
        start=START,
    )
    rows = [
        vote.model_dump(
            include={
                "comparison_id",
                "annotator_id",
                "annotator_kind",
                "choice",
                "strength",
                "voted_at",
            }
        )
        | {
            "day": DAY,
            "seq": i + 1,
            "vote_id": f"v{i}",
            "prompt_id": prompt_of[vote.comparison_id],
            "repeat_of": None,
        }
        | {"received_at": vote.voted_at}
        for i, vote in enumerate(cast)
    ]
    return check_frame(pd.DataFrame(rows), VOTES)


def test_accuracy_exceeds_80_percent_at_a_ceiling_of_90(tmp_path):
    comparisons, references = make_comparisons(900)
    pool = AnnotatorPool(noise=0.38, fatigue=0.0)  # who knows all utilities predicts 90 %
    pairs = make_pairs(vote_frame(comparisons, references, WARM_TASTE, pool, n=1), comparisons)[0]
    test = fit_reward_model(
        LearningData(pairs), reward_model_params(), encoder=Encoder(cache=EmbeddingCache(tmp_path))
    ).report.test
    assert test.vote_accuracy.value > 0.80
