"""Votes that teach little or nothing: what becomes of them on the way to a reward model."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.feedback.votes import PairParams, joint_model, make_pairs
from rlhf_pipeline.learn.reward_model import LearningData, fit_reward_model, reward_model_params
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from tests.unit.learn.reward_model.word_pairs import WordEncoder

FEW = {"l2_grid": [0.03], "context_penalty_grid": [3.0]}
TEXTS = ["kind right", "curt right", "kind vague", "curt vague"]


def comparisons(n: int, texts: list[tuple[str, str]] | None = None) -> pd.DataFrame:
    """Each of a prompt of its own; a likes to be kind as often as b does."""
    rng = np.random.default_rng(0)
    pairs = texts or [
        tuple(f"{text} {i}" for text in rng.choice(TEXTS, 2, replace=False)) for i in range(n)
    ]
    rows = [
        {
            "day": "2026-01-01",
            "comparison_id": f"c{i:04d}",
            "prompt_id": f"p{i}",
            "prompt": f"ask {i}",
            "completion_a_id": f"{i}a",
            "completion_b_id": f"{i}b",
            "completion_a": a,
            "completion_b": b,
            "model_version_a": "m@1",
            "model_version_b": "m@1",
            "category": "factual",
            "repeat_of": None,
            "position": i,
            "seed": 0,
        }
        for i, (a, b) in enumerate(pairs)
    ]
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def votes(of: pd.DataFrame, cast: dict[str, list[str]]) -> pd.DataFrame:
    """Annotator -> the choice on each comparison."""
    rows = [
        {
            "day": "2026-01-01",
            "seq": 0,
            "vote_id": f"{who}-{c}",
            "comparison_id": c,
            "prompt_id": p,
            "annotator_id": who,
            "annotator_kind": "human",
            "choice": choice,
            "strength": None,
            "repeat_of": None,
            "voted_at": pd.Timestamp("2026-01-01T10:00Z"),
            "received_at": pd.Timestamp("2026-01-01T10:00Z"),
        }
        for who, choices in cast.items()
        for c, p, choice in zip(of["comparison_id"], of["prompt_id"], choices, strict=True)
    ]
    return check_frame(pd.DataFrame(rows).assign(seq=range(1, len(rows) + 1)), VOTES)


def kind_side(of: pd.DataFrame) -> list[str]:
    """What somebody says who only wants kindness."""
    return [
        "tie" if ("kind" in a) == ("kind" in b) else "a" if "kind" in a else "b"
        for a, b in zip(of["completion_a"], of["completion_b"], strict=True)
    ]


def other(choices: list[str]) -> list[str]:
    return [{"a": "b", "b": "a"}.get(choice, choice) for choice in choices]


def test_training_on_ties_alone_is_refused():
    frame = comparisons(60)
    cast = votes(frame, {"x": ["tie"] * 60, "y": ["both_bad"] * 60})
    with pytest.raises(NotEnoughData, match="train split"):
        fit_reward_model(LearningData(make_pairs(cast, frame)[0]), encoder=WordEncoder())
    ties = make_pairs(cast, frame, PairParams(keep_only_ties=True))[0]
    assert (ties["n_votes"].tolist(), ties["n_ties"].tolist()) == ([0] * 60, [2] * 60)
    with pytest.raises(NotEnoughData, match="label annotators"):
        EmbeddingRewardModel(EmbeddingParams(**FEW), WordEncoder()).fit(ties)


def test_the_annotator_model_corrects_an_inverted_annotator():
    """Two of three know what they want; one always says the opposite, and alone on half the
    comparisons.
    """
    frame = comparisons(400)
    right = kind_side(frame)
    rng = np.random.default_rng(2)
    alone = rng.random(400) < 0.5
    cast = votes(frame, {"x": right, "y": right, "contrary": other(right)})
    cast = cast[
        (cast["annotator_id"] == "contrary")
        | ~cast["comparison_id"].isin(frame["comparison_id"][alone])
    ]
    annotators = joint_model(cast, frame)
    reliability = annotators.annotators.set_index("annotator_id")["reliability"]
    assert reliability["contrary"] < 0.2
    assert reliability["x"] > 0.8
    pairs = make_pairs(cast, frame)[0]
    by_majority, by_annotators = (
        fit_reward_model(
            LearningData(pairs, soft_labels=annotators.labels),
            reward_model_params(label=label, **FEW),
            encoder=WordEncoder(),
        ).model
        for label in ("majority", "annotators")
    )
    kind, curt = by_annotators.score(["q"] * 2, ["kind right", "curt right"])
    assert kind > curt + 1
    less = by_majority.score(["q"] * 2, ["kind right", "curt right"])
    assert kind - curt > less[0] - less[1]


def test_opposite_votes_give_no_majority_and_cancel_out():
    frame = comparisons(60, [("kind 1", "curt 1")] * 60)
    split = votes(frame, {"x": ["a"] * 60, "y": ["b"] * 60})
    assert make_pairs(split, frame)[0].empty
    splits = make_pairs(split, frame, PairParams(keep_even_splits=True))[0]
    assert (splits["agreement"] == 0.5).all()
    # The same two completions in two comparisons, preferred once this way and once that.
    opposite = make_pairs(votes(frame, {"x": ["a", "b"] * 30}), frame)[0].assign(prompt="ask")
    for pairs in (splits.assign(prompt="ask"), opposite):
        model = EmbeddingRewardModel(EmbeddingParams(**FEW), WordEncoder()).fit(pairs)
        assert np.ptp(model.score(["ask"] * 2, ["kind 1", "curt 1"])) < 1e-3
