"""Checks a reward model: determinism, exact scores, a round trip through files, and refusals."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.errors import InvalidScores, ModelError, NotEnoughData, PipelineError
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.reward_model.base import RewardModel, find_warm_start_obstacle
from rlhf_pipeline.reward_model.model_files import read_config

WORDS = ["kind", "curt", "sourced", "vague", "right", "wrong", "long", "short", "warm", "cold"]


def check_reward_model(make: Callable[[], RewardModel]) -> None:
    """Check the reward models that `make` builds, unfitted and identical, against the protocol.

        def test_my_reward_model():
            check_reward_model(lambda: MyRewardModel(MyParams(steps=3)))

    Each is fitted three times on 120 short pairs. Raises AssertionError with the promise and the
    actual result.
    """
    pairs, model = draw_pairs(), make()
    _check_names(model)
    _check_unfitted(model)
    _check_refusals(make, pairs)
    fitted = model.fit(pairs)
    name = model.name
    assert fitted is model, f"{name}: fit must return the model itself."
    other = make().fit(pairs.sample(frac=1, random_state=1))
    assert other.weights_hash == model.weights_hash, (
        f"{name}: the same pairs in another order give another weights_hash. Sort them by "
        "comparison_id; rlhf_pipeline.reward_model.base.sort_weighted_pairs does that."
    )
    _check_scores(model, pairs)
    _check_facts(model, len(pairs))
    _check_files(model, pairs)
    assert find_warm_start_obstacle(model, make()) is None, (
        f"{name}: a model cannot start from another with the same parameters."
    )
    make().fit(pairs, warm_start=model)


def draw_pairs(n: int = 120, seed: int = 0) -> pd.DataFrame:
    """PREFERENCE_PAIRS of three-word texts: annotators like `kind` and dislike `wrong`."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        texts = [" ".join(rng.choice(WORDS, 3, replace=False)) + f" {i % 7}" for _ in "ab"]
        utility = [2.0 * ("kind" in text) - ("wrong" in text) for text in texts]
        n_a = int(rng.binomial(3, 1 / (1 + np.exp(utility[1] - utility[0]))))
        chosen, rejected = texts if n_a > 1 else texts[::-1]
        rows.append(
            {
                "day": "2026-01-01",
                "comparison_id": f"c{i:04d}",
                "prompt_id": f"p{i // 2}",
                "prompt": f"ask {i // 2 % 50}",
                "chosen": chosen,
                "rejected": rejected,
                "margin": 0.5,
                "agreement": max(n_a, 3 - n_a) / 3,
                "n_votes": 3,
                "chosen_side": "a" if n_a > 1 else "b",
                "annotator_kind": "human",
                "category": "factual",
                "split": "train",
                "max_seq": 3 * i + 3,
            }
        )
    return check_frame(pd.DataFrame(rows), PREFERENCE_PAIRS)


def _check_names(model: RewardModel) -> None:
    kind = type(model)
    assert isinstance(kind.name, str), f"{kind.__name__}.name must be the name it is registered by."
    assert issubclass(kind.Params, BaseModel), f"{kind.name}: Params must be a pydantic class."
    kind.Params()  # every parameter has a valid default
    silent = [name for name, field in kind.Params.model_fields.items() if not field.description]
    assert not silent, (
        f"{kind.name}: {silent} of Params have no description; the launchpad shows nothing else."
    )
    assert kind().name == kind.name, f"{kind.name}: it must be made without arguments."


def _check_unfitted(model: RewardModel) -> None:
    _expect(ModelError, lambda: model.score(["ask"], ["kind"]), f"{model.name}: score before fit")
    assert model.facts.loss, f"{model.name}: facts must be there before fit."


def _check_refusals(make: Callable[[], RewardModel], pairs: pd.DataFrame) -> None:
    name = make().name
    for weights in (np.full(len(pairs), -1.0), np.full(len(pairs), np.nan), np.ones(3)):
        _expect(
            InvalidScores,
            lambda weights=weights: make().fit(pairs, weights=weights),  # type: ignore[misc]
            f"{name}: fit with weights such as {weights[:3]}",
        )
    _expect(NotEnoughData, lambda: make().fit(pairs.head(1)), f"{name}: fit on one pair")
    with tempfile.TemporaryDirectory() as folder:
        _expect(
            PipelineError, lambda: type(make()).load(Path(folder)), f"{name}: load without files"
        )


def _check_scores(model: RewardModel, pairs: pd.DataFrame) -> None:
    prompts = [*pairs["prompt"], *pairs["prompt"]]
    texts = [*pairs["chosen"], *pairs["rejected"]]
    scores, turned = model.score(prompts, texts), model.score(prompts[::-1], texts[::-1])
    name = model.name
    assert scores.shape == (len(texts),), f"{name}: score gives {scores.shape}, not one per text."
    assert np.isfinite(scores).all(), f"{name}: a score is NaN or infinite."
    assert np.array_equal(scores, turned[::-1]), (
        f"{name}: the same texts in another order have other scores. Score distinct texts in one "
        "order; rlhf_pipeline.reward_model.base.distinct_texts does that."
    )
    members = model.member_scores(prompts, texts)
    assert np.allclose(members.mean(axis=0), scores), (
        f"{name}: the mean of member_scores {members.shape} over its rows is not the score."
    )
    features = model.features(prompts, texts)
    assert features.ndim == 2, f"{name}: features has shape {features.shape}, not (n, d)."
    assert len(features) == len(texts), f"{name}: features has {len(features)} rows, not one each."
    assert abs(model.standardise(scores).std() - 1) < 0.1, (
        f"{name}: the standardised scores of the training texts have standard deviation "
        f"{model.standardise(scores).std():.3f}, not 1."
    )


def _check_facts(model: RewardModel, n: int) -> None:
    facts = model.facts
    assert type(facts).from_json(facts.model_dump_json()) == facts
    assert facts.n_learnt in (None, n), f"{model.name}: n_learnt is {facts.n_learnt} of {n} pairs."
    assert all(count >= 0 for count in model.cut_texts().values())


def _check_files(model: RewardModel, pairs: pd.DataFrame) -> None:
    texts = pairs["prompt"].tolist(), pairs["chosen"].tolist()
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        kind = read_config(Path(folder) / "model")["kind"]
        assert kind == model.name, f"{model.name}: config.json says kind {kind!r}."
        again = type(model).load(Path(folder) / "model", encoder=model.encoder)
    assert again.weights_hash == model.weights_hash, (
        f"{model.name}: the loaded model has another weights_hash than the saved one."
    )
    assert np.allclose(again.score(*texts), model.score(*texts), atol=1e-5), (
        f"{model.name}: the loaded model gives other scores than the saved one."
    )


def _expect(error: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"{what} must raise {error.__name__}.")
