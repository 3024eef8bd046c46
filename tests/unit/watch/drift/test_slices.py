"""Slices with more errors are found with lift and interval; small and equal ones say nothing."""

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, REFLECTIONS, check_frame
from rlhf_pipeline.watch.drift.clusters import ClusterParams
from rlhf_pipeline.watch.drift.slices import ErrorSlice, error_slices

N = 400
CATEGORIES = np.array(["coding", "factual", "safety", "poetry"])


def comparisons(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = [
        {
            "day": "2026-01-05",
            "comparison_id": f"c{i:04d}",
            "prompt_id": f"p{i}",
            "prompt": "ask",
            "completion_a_id": f"c{i}a",
            "completion_b_id": f"c{i}b",
            "completion_a": "x" * int(rng.integers(10, 100)),
            "completion_b": "x" * int(rng.integers(10, 100)),
            "model_version_a": "demo.policy@1",
            "model_version_b": "demo.policy@1",
            # 8 of poetry, the others alike
            "category": CATEGORIES[3 if i < 8 else i % 3],
            "repeat_of": None,
            "position": i,
            "seed": 0,
        }
        for i in range(n)
    ]
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def reflections(seed: int, failing: str | None = None, *, n_votes: int = 1) -> pd.DataFrame:
    """Votes of ten annotators, a fifth against the model; three fifths in the failing category."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, comparison in enumerate(comparisons().itertuples()):
        wrong = rng.random() < (0.6 if comparison.category == failing else 0.2)
        for v in range(n_votes):
            rows.append(
                {
                    "day": "2026-01-05",
                    "comparison_id": comparison.comparison_id,
                    "reward_model": "demo.reward_model@1",
                    "calibrator": "none",
                    "data_hash": "d",
                    "features_hash": "f",
                    "score_a": 1.0,
                    "score_b": 0.0,
                    "p_raw": 0.7,
                    "p_calibrated": 0.7,
                    "predicted_at": pd.Timestamp("2026-01-05T01:00Z"),
                    "seq": i * n_votes + v + 1,
                    "vote_id": f"v{i}-{v}",
                    "annotator_id": f"ann-{(i + v) % 10}",
                    "annotator_kind": "human",
                    "choice": "b" if wrong else "a",
                    "strength": 1,
                    "voted_at": pd.Timestamp("2026-01-05T10:00Z"),
                    "is_error": wrong,
                }
            )
    return check_frame(pd.DataFrame(rows), REFLECTIONS)


def find(slices: tuple[ErrorSlice, ...], by: str, name: str) -> ErrorSlice:
    return next(
        error_slice for error_slice in slices if (error_slice.by, error_slice.name) == (by, name)
    )


def test_failing_category_is_first_with_its_lift() -> None:
    top = error_slices(reflections(0, "safety"), comparisons())[0]
    assert (top.by, top.name, top.is_failing) == ("category", "safety", True)
    assert top.lift is not None
    assert top.lift.low < 3 < top.lift.high
    assert top.lift.low > 1.5
    assert top.p_value is not None
    assert top.p_value < 0.001


def test_alike_slices_do_not_fail() -> None:
    slices = [
        error_slice
        for seed in range(15)
        for error_slice in error_slices(reflections(seed), comparisons())
    ]
    assert {error_slice.by for error_slice in slices} == {"category", "length gap", "annotator"}
    assert sum(error_slice.is_failing for error_slice in slices) <= 2


def test_small_slices_are_withheld_and_last() -> None:
    slices = error_slices(reflections(0), comparisons())
    poetry = slices[-1]
    assert (poetry.name, poetry.n, poetry.error_rate, poetry.lift) == ("poetry", 8, None, None)
    params = ClusterParams(min_in_slice=5)
    again = error_slices(reflections(0), comparisons(), params)
    assert find(again, "category", "poetry").error_rate is not None


def test_the_length_gap_is_that_of_the_preferred_completion() -> None:
    """The model prefers a; b is preferred wherever it is longer, so that longer ones are errors."""
    log, texts = reflections(0), comparisons()
    a, b = texts["completion_a"].str.len(), texts["completion_b"].str.len()
    is_error = (b > a).to_numpy()
    log = log.assign(is_error=is_error, choice=np.where(is_error, "b", "a"))
    slices = error_slices(check_frame(log, REFLECTIONS), texts)
    names = {error_slice.name for error_slice in slices if error_slice.by == "length gap"}
    assert names == {"alike", "longer", "much longer"}
