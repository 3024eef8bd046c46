"""Checks reward models and calibrators: exact numbers, a round trip through files, and refusals."""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.errors import InvalidScores, ModelError, NotEnoughData, PipelineError
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.learn.calibration.base import Calibrator
from rlhf_pipeline.learn.reward_model.base import RewardModel, find_warm_start_obstacle
from rlhf_pipeline.learn.reward_model.model_files import read_config
from rlhf_pipeline.simulation.testing.members import check_member, expect_error

Floats = npt.NDArray[np.float64]
GRID = np.linspace(-8, 8, 41)
EDGES = np.array([0.0, -0.0, 1e-300, 1e-9, 0.3, 5.0, 37.0, 710.0, 1e6])
WORDS = ["kind", "curt", "sourced", "vague", "right", "wrong", "long", "short", "warm", "cold"]


def check_reward_model(make: Callable[[], RewardModel]) -> None:
    """Check the reward models that `make` builds, unfitted and identical, against the protocol.

        def test_my_reward_model():
            check_reward_model(lambda: MyRewardModel(MyParams(steps=3)))

    Each is fitted three times on 120 short pairs. Raises AssertionError with the promise and the
    actual result.
    """
    pairs, model = draw_pairs(), make()
    kind = type(model)
    check_member(kind)
    assert kind().name == kind.name, f"{kind.name}: it must be made without arguments."
    _check_unfitted(model)
    _check_refusals(make, pairs)
    fitted = model.fit(pairs)
    name = model.name
    assert fitted is model, f"{name}: fit must return the model itself."
    other = make().fit(pairs.sample(frac=1, random_state=1))
    assert other.weights_hash == model.weights_hash, (
        f"{name}: the same pairs in another order give another weights_hash. Sort them by "
        "comparison_id; rlhf_pipeline.learn.reward_model.base.sort_weighted_pairs does that."
    )
    _check_scores(model, pairs)
    _check_summary(model)
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


def _check_unfitted(model: RewardModel) -> None:
    expect_error(
        ModelError,
        lambda: model.score(["ask"], ["kind"]),
        f"{model.name}: score before fit must raise ModelError.",
    )
    assert model.summary.label, f"{model.name}: the summary must be there before fit."


def _check_refusals(make: Callable[[], RewardModel], pairs: pd.DataFrame) -> None:
    name = make().name
    for weights in (np.full(len(pairs), -1.0), np.full(len(pairs), np.nan), np.ones(3)):
        expect_error(
            InvalidScores,
            partial(make().fit, pairs, weights=weights),
            f"{name}: fit with weights such as {weights[:3]} must raise InvalidScores.",
        )
    expect_error(
        NotEnoughData,
        lambda: make().fit(pairs.head(1)),
        f"{name}: fit on one pair must raise NotEnoughData.",
    )
    with tempfile.TemporaryDirectory() as folder:
        expect_error(
            PipelineError,
            lambda: type(make()).load(Path(folder)),
            f"{name}: load without files must raise PipelineError.",
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
        "order; rlhf_pipeline.learn.reward_model.base.distinct_texts does that."
    )
    members = model.member_scores(prompts, texts)
    assert np.allclose(members.mean(axis=0), scores), (
        f"{name}: the mean of member_scores {members.shape} over its rows is not the score."
    )
    for dimension, by_text in model.dimension_scores(prompts, texts).items():
        assert by_text.shape == (len(texts),), (
            f"{name}: the scores in {dimension} have shape {by_text.shape}, not one a text."
        )
    features = model.features(prompts, texts)
    assert features.ndim == 2, f"{name}: features has shape {features.shape}, not (n, d)."
    assert len(features) == len(texts), f"{name}: features has {len(features)} rows, not one each."
    assert abs(model.standardise(scores).std() - 1) < 0.1, (
        f"{name}: the standardised scores of the training texts have standard deviation "
        f"{model.standardise(scores).std():.3f}, not 1."
    )


def _check_summary(model: RewardModel) -> None:
    summary = model.summary
    assert type(summary).from_json(summary.model_dump_json()) == summary


def _check_files(model: RewardModel, pairs: pd.DataFrame) -> None:
    texts = pairs["prompt"].tolist(), pairs["chosen"].tolist()
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        kind = read_config(Path(folder) / "model")["kind"]
        assert kind == model.name, f"{model.name}: config.json says kind {kind!r}."
        reloaded = type(model).load(Path(folder) / "model", encoder=model.encoder)
    assert reloaded.weights_hash == model.weights_hash, (
        f"{model.name}: the loaded model has another weights_hash than the saved one."
    )
    assert np.allclose(reloaded.score(*texts), model.score(*texts), atol=1e-5), (
        f"{model.name}: the loaded model gives other scores than the saved one."
    )


def check_calibrator(kind: type[Calibrator]) -> None:
    """Check a calibrator class against its protocol, with its default parameters.

    Raises AssertionError with the promise and the actual result.
    """
    check_member(kind)
    _check_symmetry(kind)
    _check_order(kind)
    _check_weights(kind)
    _check_json(kind)
    _check_refused_votes(kind)


def draw_votes(seed: int = 0, n: int = 2000, sharpen: float = 3.0) -> tuple[Floats, Floats]:
    """Return margins of an overconfident model (true logits times `sharpen`), and the votes for
    a.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.2, n)
    return sharpen * logits, (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(float)


def _check_symmetry(kind: type[Calibrator]) -> None:
    margins = np.concatenate([np.random.default_rng(1).normal(0, 4, 5000), EDGES])
    fitted = kind().fit(*draw_votes())
    sums = fitted.transform(margins) + fitted.transform(-margins)
    worst = int(np.argmax(np.abs(sums - 1)))
    assert (sums == 1.0).all(), (
        f"{kind.name}: p(m) + p(-m) is {sums[worst]!r}, not exactly 1, for m = {margins[worst]!r}."
    )
    margins, outcomes = draw_votes(n=300)
    flip = np.random.default_rng(2).random(300) < 0.5
    swapped = np.where(flip, -margins, margins), np.where(flip, 1 - outcomes, outcomes)
    original, mirrored = kind().fit(margins, outcomes), kind().fit(*swapped)
    assert np.allclose(original.transform(GRID), mirrored.transform(GRID), atol=1e-6), (
        f"{kind.name}: fitted on rows with sides a and b swapped, it gives other probabilities."
    )


def _check_order(kind: type[Calibrator]) -> None:
    p = kind().fit(*draw_votes(n=200)).transform(np.linspace(-30, 30, 2001))
    assert (np.diff(p) >= 0).all(), f"{kind.name}: a larger margin gives a smaller probability."


def _check_weights(kind: type[Calibrator]) -> None:
    margins, outcomes = draw_votes(n=100)
    weights = np.random.default_rng(3).integers(1, 4, 100)
    weighted = kind().fit(margins, outcomes, weights.astype(float))
    repeated = kind().fit(np.repeat(margins, weights), np.repeat(outcomes, weights))
    assert np.allclose(weighted.transform(GRID), repeated.transform(GRID), atol=0.02), (
        f"{kind.name}: a row of weight 2 does not count like two rows."
    )


def _check_json(kind: type[Calibrator]) -> None:
    fitted = kind().fit(*draw_votes())
    state = json.loads(json.dumps(fitted.to_json(), allow_nan=False))
    assert state.get("method") == kind.name, (
        f"{kind.name}: to_json()['method'] is {state.get('method')!r}; it must be the name."
    )
    reloaded = kind.from_json(state)
    assert np.array_equal(reloaded.transform(GRID), fitted.transform(GRID)), (
        f"{kind.name}: from_json(to_json()) gives other probabilities."
    )


def _check_refused_votes(kind: type[Calibrator]) -> None:
    expect_error(
        NotEnoughData,
        lambda: kind().fit(np.linspace(-1, 1, 50), np.ones(50)),
        f"{kind.name}: fits 50 votes for one side; it must raise NotEnoughData. "
        "rlhf_pipeline.learn.calibration.base.check_rows does that.",
    )
    expect_error(
        NotEnoughData,
        lambda: kind().fit(np.linspace(-1, 1, 9), np.arange(9) % 2.0),
        f"{kind.name}: fits 9 votes; it must raise NotEnoughData.",
    )
    for bad in (float("nan"), float("inf")):
        margins, outcomes = draw_votes(n=50)
        margins[7] = bad
        for call in (partial(kind().fit, margins, outcomes), partial(kind().transform, margins)):
            message = expect_error(
                InvalidScores,
                call,
                f"{kind.name}.{call.func.__name__} accepts the margin {bad}; it must raise "
                "InvalidScores.",
            )
            assert "row 7" in message, (
                f"{kind.name}: the refusal of the margin {bad} does not name its row: {message}"
            )
