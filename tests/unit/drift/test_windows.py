"""Verdicts between two windows: known error rate, least effect, insufficient data."""

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.drift.windows import WindowParams, compare_windows
from rlhf_pipeline.records import Verdict

PARAMS = WindowParams()


def made(
    seed: int,
    n: int,
    *,
    length: float = 200,
    error: float = 0.25,
    topic: float = 0.0,
    per_prompt: int = 2,
) -> Window:
    rng = np.random.default_rng([seed, n])
    prompts = np.repeat(np.arange(n), per_prompt)
    count = len(prompts)
    points = rng.normal(size=(n, 64))
    points[:, 0] += topic
    rows = pd.DataFrame(
        {
            "comparison_id": [f"c{i:06d}" for i in range(count)],
            "prompt_id": [f"p{i}" for i in prompts],
            "prompt_length": rng.poisson(40, size=n)[prompts],
            "completion_length": rng.poisson(length, size=count),
            "p": rng.beta(3, 3, size=count),
            "error": (rng.random(count) < error).astype(float),
            "n_votes": 1,
            "embedding_row": -1,
        }
    )
    return Window(
        "m@1", rows, (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    )


def verdicts(reference, current, params=PARAMS) -> dict[str, Verdict]:
    return {
        f"{v.space}/{v.detector}": v.verdict for v in compare_windows(reference, current, params)
    }


def test_one_shifted_space_flags_alone():
    for change, shifted in (
        ({"length": 260}, {"completion_length/ks", "completion_length/psi"}),
        ({"error": 0.5}, {"errors/error_rate"}),
        ({"topic": 6.0}, {"embeddings/mmd"}),
    ):
        found = verdicts(made(1, 100), made(2, 120, **change))
        assert {name for name, verdict in found.items() if verdict != Verdict.STABLE} == shifted
        assert {found[name] for name in shifted} == {Verdict.DRIFT}


def test_equal_windows_are_stable_at_the_stated_rate():
    params = WindowParams(n_permutations=799)
    alarms = [
        any(
            v != Verdict.STABLE for v in verdicts(made(s, 80), made(1000 + s, 100), params).values()
        )
        for s in range(40)
    ]
    assert sum(alarms) <= 2  # alpha is 0.01 a day


def test_many_rows_alone_do_not_make_a_small_shift_drift():
    found = verdicts(_large(1, 200), _large(2, 202))
    assert found["completion_length/ks"] == Verdict.STABLE
    row = next(
        v
        for v in compare_windows(_large(1, 200), _large(2, 202), PARAMS)
        if (v.space, v.detector) == ("completion_length", "ks")
    )
    assert row.p_value < 1e-6
    assert row.evidence["p_adjusted"] < PARAMS.alpha


def _large(seed: int, length: float) -> Window:
    window = made(seed, 20_000, length=length, per_prompt=1)
    return Window(window.model_version, window.rows, window.embeddings[:0].reshape(0, 64))


def test_below_the_least_number_of_rows_there_is_no_verdict():
    assert set(verdicts(made(1, 100), made(2, 10)).values()) == {Verdict.INSUFFICIENT}
    assert set(verdicts(None, made(2, 100)).values()) == {Verdict.INSUFFICIENT}
    assert set(verdicts(made(1, 100), None).values()) == {Verdict.INSUFFICIENT}
    reasons = [v.evidence["reason"] for v in compare_windows(None, None, PARAMS)]
    assert len(reasons) == 8
    assert all("needed" in r for r in reasons)


def test_missing_embeddings_leave_the_other_spaces_their_verdicts():
    reference = made(1, 100)
    found = verdicts(
        Window("m@1", reference.rows, np.zeros((0, 0), dtype=np.float32)), made(2, 100)
    )
    assert found.pop("embeddings/mmd") == Verdict.INSUFFICIENT
    assert set(found.values()) == {Verdict.STABLE}


def test_completions_of_one_prompt_count_once():
    rows = compare_windows(made(1, 60, per_prompt=5), made(2, 70, per_prompt=5), PARAMS)
    sizes = {v.space: (v.n_reference, v.n_current) for v in rows}
    assert sizes["completion_length"] == sizes["embeddings"] == (60, 70)
    assert sizes["errors"] == (300, 350)


def test_too_few_permutations_for_alpha_are_refused():
    with pytest.raises(ValidationError, match="use at least 800"):
        WindowParams(n_permutations=199)
