"""Pairs of texts of ten words, of which people like one and dislike another, and an encoder that
sees just these words.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.feedback.votes.splits import split_of
from rlhf_pipeline.learn.reward_model import LearningData


@dataclass(frozen=True)
class WithCeilings(LearningData):
    """Pairs whose noise ceilings are known without votes."""

    ceiling: Interval | None = None
    ceiling_since_change: Interval | None = None


WORDS = ["kind", "curt", "sourced", "vague", "right", "wrong", "long", "short", "warm", "cold"]


class WordEncoder:
    """Embeds a text as which of ten words it holds, plus a little of its hash: fast and free of any
    model.
    """

    max_tokens = 256
    folder = "nowhere"
    choice = None

    def __init__(self, hash_: str = "word-encoder") -> None:
        self.hash = hash_

    def encode(self, texts, *, progress=None):
        return np.array([self._vector(text) for text in texts], dtype=np.float32)

    def _vector(self, text):
        noise = (
            np.frombuffer(hashlib.sha256(text.encode()).digest()[:6], dtype=np.uint8) / 255 - 0.5
        )
        return [float(word in text.split()) for word in WORDS] + list(0.1 * noise)


def make_pairs(
    n: int = 400, seed: int = 0, kind: str = "human", liked: str = "kind", n_votes: int = 3
) -> pd.DataFrame:
    """People like one word by 2 logits and dislike `wrong` by 1; three noisy votes a pair, majority
    of them.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        texts = [
            " ".join(rng.choice(WORDS, 3, replace=False)) + f" {seed} {i} {side}" for side in "ab"
        ]
        utility = [2.0 * (liked in t.split()) - ("wrong" in t.split()) for t in texts]
        n_a = int(rng.binomial(n_votes, 1 / (1 + np.exp(utility[1] - utility[0]))))
        side = "a" if 2 * n_a > n_votes else "b"
        chosen, rejected = texts if side == "a" else texts[::-1]
        prompt_id = f"p{seed}-{i // 2}"
        rows.append(
            {
                "day": "2026-01-01",
                "comparison_id": f"c{seed}-{i:05d}",
                "prompt_id": prompt_id,
                "prompt": f"ask {i // 2}",
                "chosen": chosen,
                "rejected": rejected,
                "margin": 0.5,
                "agreement": max(n_a, n_votes - n_a) / n_votes,
                "n_votes": n_votes,
                "chosen_side": side,
                "annotator_kind": kind,
                "category": "factual",
                "split": split_of(prompt_id),
                "max_seq": 3 * i + 3,
            }
        )
    return check_frame(pd.DataFrame(rows), PREFERENCE_PAIRS)
