"""Pairs that annotators judge by dimension of the rubric, in a world whose truth is known."""

import json

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.feedback.votes.splits import split_of
from tests.unit.learn.reward_model.word_pairs import WORDS

# What each word is worth in each dimension.
TRUTH = {
    "correct": {"right": 2.0, "wrong": -2.0},
    "helpful": {"kind": 2.0, "curt": -2.0},
    "style": {"short": 2.0, "long": -2.0},
}
HALO = 0.3  # what a completion that is better in all is worth in each, per logit


def true_scores(texts: list[str], dimension: str) -> np.ndarray:
    worth = TRUTH[dimension]
    return np.array([sum(worth.get(word, 0.0) for word in text.split()) for text in texts])


def judged_pairs(n: int = 600, n_votes: int = 3, seed: int = 0) -> pd.DataFrame:
    """Pairs that `n_votes` annotators judge overall, by the sum of the dimensions, and in each
    dimension with noise and a halo.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        texts = [" ".join(rng.choice(WORDS, 3, replace=False)) + f" {i} {side}" for side in "ab"]
        gaps = {name: float(np.subtract(*true_scores(texts, name))) for name in TRUTH}
        overall = sum(gaps.values())
        n_a = int((overall + rng.logistic(size=n_votes) > 0).sum())
        in_each = {
            name: int((gap + HALO * overall + rng.logistic(size=n_votes) > 0).sum())
            for name, gap in gaps.items()
        }
        chose_a = 2 * n_a > n_votes
        counts = {
            name: [k, n_votes - k] if chose_a else [n_votes - k, k] for name, k in in_each.items()
        }
        rows.append(
            {
                "day": "2026-01-01",
                "comparison_id": f"c{i:05d}",
                "prompt_id": f"p{i // 2}",
                "prompt": f"ask {i // 2}",
                "chosen": texts[not chose_a],
                "rejected": texts[chose_a],
                "margin": 0.5,
                "agreement": max(n_a, n_votes - n_a) / n_votes,
                "n_votes": n_votes,
                "chosen_side": "a" if chose_a else "b",
                "annotator_kind": "simulated",
                "category": "factual",
                "split": split_of(f"p{i // 2}"),
                "max_seq": 3 * i + 3,
                "dimension_votes": json.dumps(counts),
            }
        )
    return check_frame(pd.DataFrame(rows), PREFERENCE_PAIRS)
