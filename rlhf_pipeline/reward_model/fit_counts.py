"""What a fit learnt from and what it left unread, counted. Knows pairs and models; knows no
registry.
"""

from typing import Any

import pandas as pd

from rlhf_pipeline.reward_model.base import Floats, RewardModel
from rlhf_pipeline.reward_model.transformer import TransformerRewardModel

WINDOW = "window"  # of the encoder; the other rules are parameters of the model, by their names


def count_learnt_pairs(
    train: pd.DataFrame, weights: Floats, model: RewardModel, warm_start: RewardModel | None
) -> dict[str, int]:
    """Of a fitted `model`: n_learnt, the pairs of `train` that moved it, which are n_new and
    n_replayed, those its start had seen before.

    Only a transformer passes over what its start has seen, but for some that it replays (a frozen
    head of it learns all); all pairs of other fits are new. `weights` (n,) are what `fit` was
    given.
    """
    if not isinstance(model, TransformerRewardModel):
        n = int((weights > 0).sum())
        return {"n_learnt": n, "n_new": n, "n_replayed": 0}
    used = train[weights * model.vote_weights_of(train) > 0]
    if not isinstance(warm_start, TransformerRewardModel):
        return {"n_learnt": len(used), "n_new": len(used), "n_replayed": 0}
    n_new = int((used["max_seq"] > warm_start.max_seq_).sum())
    # where none is new, all are learnt again
    n_replayed = model.n_replayed_ if n_new else len(used)
    return {"n_learnt": n_new + n_replayed, "n_new": n_new, "n_replayed": n_replayed}


def count_cut_texts(model: RewardModel) -> dict[str, int]:
    """By rule, the texts so far of which the model left something unread: cut to the encoder's
    window, or by the model itself.
    """
    own: Any = getattr(model, "n_cut", {})
    return {WINDOW: int(getattr(getattr(model, "encoder", model), "n_truncated", 0)), **own}


def count_cut_since(before: dict[str, int], model: RewardModel) -> dict[str, int]:
    """The same since `before`."""
    return {rule: n - before.get(rule, 0) for rule, n in count_cut_texts(model).items()}


def describe_cut_texts(truncated: dict[str, int]) -> str:
    """For people: `12 texts cut (prompt_chars 10, max_sentences 2)`, or that none was."""
    by_rule = ", ".join(f"{rule} {n:,}" for rule, n in truncated.items() if n)
    n = sum(truncated.values())
    return f"{n:,} text{'s' if n > 1 else ''} cut ({by_rule})" if n else "no text cut"


def describe_learnt_pairs(
    n_train: int, n_learnt: int | None, n_new: int | None, n_replayed: int | None
) -> str:
    """For people: `400 pairs`, or `60 of 400 pairs (40 new, 20 replayed)`."""
    if n_learnt is None or (n_learnt == n_train and not n_replayed):
        return f"{n_train:,} pairs"
    beside = f" ({n_new:,} new, {n_replayed:,} replayed)" if n_replayed else ""
    return f"{n_learnt:,} of {n_train:,} pairs{beside}"
