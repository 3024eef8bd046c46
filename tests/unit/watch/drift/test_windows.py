"""Verdicts between two windows: known error rate, least effect, insufficient data."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.core.records import Verdict
from rlhf_pipeline.watch.drift.reference import Window
from rlhf_pipeline.watch.drift.windows import (
    THRESHOLDS,
    WindowParams,
    judge_tests,
    run_tests,
)
from rlhf_pipeline.watch.drift.words import hash_words

PARAMS = WindowParams()
EVENLY = {
    "choices": {"a": 0.44, "b": 0.42, "tie": 0.1, "both_bad": 0.04},
    "strengths": {"1": 0.2, "2": 0.4, "3": 0.3, "4": 0.1},
    "annotators": {f"n{i}": 0.1 for i in range(10)},
    "prompt_mix": {"factual": 0.5, "creative": 0.3, "code": 0.2},
}


def made(
    seed: int,
    n: int,
    *,
    length: float = 200,
    error: float = 0.25,
    topic: float = 0.0,
    per_prompt: int = 2,
    score: float = 0.0,
    prompts: float = 0.0,
    completions: float = 0.0,
    **shares: dict[str, float],
) -> Window:
    """`prompts`, `completions`: share of the texts that are of another kind."""
    rng = np.random.default_rng([seed, n])
    prompt = np.repeat(np.arange(n), per_prompt)
    count = len(prompt)
    points = rng.normal(size=(n, 64))
    points[:, 0] += topic
    rows = pd.DataFrame(
        {
            "comparison_id": [f"c{i:06d}" for i in range(count)],
            "prompt_id": [f"p{i}" for i in prompt],
            "prompt_length": rng.poisson(40, size=n)[prompt],
            "completion_length": rng.poisson(length, size=count),
            "p": rng.beta(3, 3, size=count),
            "error": (rng.random(count) < error).astype(float),
            "n_votes": 1,
            "embedding_row": -1,
            "score": rng.normal(score, 1.5, size=count),
            "prompt_words": write_texts(rng, n, prompts)[prompt],
            "completion_words": write_texts(rng, n, completions)[prompt],
        }
    )
    mixes = {
        space: dict(zip(share, rng.multinomial(n, list(share.values())).tolist(), strict=True))
        for space, share in (EVENLY | shares).items()
    }
    embeddings = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    return Window("m@1", rows, embeddings, mixes=mixes)


def write_texts(rng: np.random.Generator, n: int, other: float) -> np.ndarray:
    """Texts of twelve words each, a share of them about something else in the same language."""
    frequency = 1 / np.arange(1, 501)
    drawn = rng.choice(500, size=(n, 12), p=frequency / frequency.sum())
    drawn[(rng.random(n) < other)[:, None] & (drawn >= 20)] += 1000
    return np.array([hash_words(" ".join(f"w{i}" for i in row)) for row in drawn], dtype=object)


def _compare(reference, current, params):
    return judge_tests(run_tests(reference, current, params), params)


def verdicts(reference, current, params=PARAMS) -> dict[str, Verdict]:
    return {f"{v.space}/{v.detector}": v.verdict for v in _compare(reference, current, params)}


SHIFTS = {
    "errors": {"error": 0.5},
    "prompt_text": {"prompts": 0.6},
    "completion_text": {"completions": 0.6},
    "completion_length": {"length": 260},
    "embeddings": {"topic": 6.0},
    "scores": {"score": 1.5},
    "choices": {"choices": {"a": 0.2, "b": 0.2, "tie": 0.55, "both_bad": 0.05}},
    "strengths": {"strengths": {"1": 0.7, "2": 0.2, "3": 0.1}},
    "annotators": {"annotators": {"n0": 0.1, "new1": 0.5, "new2": 0.4}},
    "prompt_mix": {"prompt_mix": {"factual": 0.1, "creative": 0.1, "code": 0.2, "poetry": 0.6}},
}


def test_one_shifted_space_flags_alone():
    others = []
    for i, (space, change) in enumerate(SHIFTS.items()):
        for seed in (10 * i, 10 * i + 5):
            verdict_of = verdicts(made(seed, 150), made(seed + 1, 140, **change))
            flagged = {name: v for name, v in verdict_of.items() if v != Verdict.STABLE}
            own = {name for name in flagged if name.partition("/")[0] == space}
            assert {flagged[name] for name in own} == {Verdict.DRIFT}
            others += flagged.keys() - own
    assert len(others) <= 1  # of 20 days at a false discovery rate of 0.01


def test_equal_windows_differ_at_the_stated_rate():
    """Of the tests alone: with the least effects there are fewer false alarms still."""
    params = WindowParams(alpha=0.05, n_permutations=399)
    alarms = [
        any(
            v.evidence["p_adjusted"] <= params.alpha
            for v in _compare(made(s, 80), made(1000 + s, 100), params)
        )
        for s in range(50)
    ]
    assert sum(alarms) <= 6  # 2.5 are expected; seven or more come once in 80


def test_each_space_says_what_changed():
    current = replace(
        made(2, 140, prompts=0.6, choices={"a": 0.3, "b": 0.3, "tie": 0.4}),
        words={int(hash_words(f"w{i}")): f"w{i}" for i in range(1000, 1500)},
    )
    evidence = {v.space: v.evidence for v in _compare(made(1, 150), current, PARAMS)}
    assert evidence["prompt_text"]["risen_words"]
    assert all(
        word["now"] - word["before"] > 0.04 for word in evidence["prompt_text"]["risen_words"]
    )
    change = evidence["choices"]["changes"][0]
    assert change["label"] == "tie"
    assert change["now"] - change["before"] == pytest.approx(0.3, abs=0.1)
    assert evidence["scores"]["mean_reference"] == pytest.approx(0, abs=0.5)


def test_too_few_rows_have_no_verdict():
    assert set(verdicts(made(1, 100), made(2, 10)).values()) == {Verdict.INSUFFICIENT}
    assert set(verdicts(None, made(2, 100)).values()) == {Verdict.INSUFFICIENT}
    assert set(verdicts(made(1, 100), None).values()) == {Verdict.INSUFFICIENT}
    reasons = [v.evidence["reason"] for v in _compare(None, None, PARAMS)]
    assert len(reasons) == len(THRESHOLDS)
    assert all("needed" in r for r in reasons)


@pytest.mark.parametrize("column", ["error", "p", "score"])
def test_a_missing_number_is_an_error_not_a_verdict(column):
    window = made(2, 100)
    window.rows.loc[6, column] = np.nan
    with pytest.raises(InvalidScores, match="current sample is not finite at row"):
        _compare(made(1, 100), window, PARAMS)


def test_texts_of_a_promoted_policy_are_compared_with_its_own_days():
    reference, current = made(1, 150), made(2, 100, length=260, score=2.0, prompts=0.6)
    own = replace(made(3, 60, length=260, score=2.0), source="days of demo.policy@2 since then")
    result_of = {
        (test.space, test.detector): test
        for test in judge_tests(run_tests(reference, current, PARAMS, own), PARAMS)
    }
    assert result_of["completion_length", "ks"].verdict == Verdict.STABLE
    assert result_of["scores", "ks"].evidence["reference"] == "days of demo.policy@2 since then"
    assert result_of["prompt_text", "word_classifier"].verdict == Verdict.DRIFT
    alone = verdicts(reference, current)
    assert alone["completion_length/ks"] == alone["scores/ks"] == Verdict.DRIFT
