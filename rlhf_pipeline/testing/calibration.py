"""Checks a calibrator: symmetry, order, an exact round trip through JSON, and rejected inputs."""

import json
from functools import partial

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.calibration.base import Calibrator
from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.testing.members import check_member, expect_error

Floats = npt.NDArray[np.float64]
GRID = np.linspace(-8, 8, 41)
EDGES = np.array([0.0, -0.0, 1e-300, 1e-9, 0.3, 5.0, 37.0, 710.0, 1e6])


def check_calibrator(kind: type[Calibrator]) -> None:
    """Check a calibrator class against its protocol, with its default parameters.

    Raises AssertionError with the promise and the actual result.
    """
    check_member(kind)
    _check_symmetry(kind)
    _check_order(kind)
    _check_weights(kind)
    _check_json(kind)
    _check_refusals(kind)


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
    one, two = kind().fit(margins, outcomes), kind().fit(*swapped)
    assert np.allclose(one.transform(GRID), two.transform(GRID), atol=1e-6), (
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
    again = kind.from_json(state)
    assert np.array_equal(again.transform(GRID), fitted.transform(GRID)), (
        f"{kind.name}: from_json(to_json()) gives other probabilities."
    )


def _check_refusals(kind: type[Calibrator]) -> None:
    expect_error(
        NotEnoughData,
        lambda: kind().fit(np.linspace(-1, 1, 50), np.ones(50)),
        f"{kind.name}: fits 50 votes for one side; it must raise NotEnoughData. "
        "rlhf_pipeline.calibration.base.check_rows does that.",
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
