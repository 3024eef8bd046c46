"""Chooses the calibrator of some votes by its loss on prompts it was not fitted to."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, field_validator

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.intervals import BootstrapParams, group_index
from rlhf_pipeline.core.parameters import suggest
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.learn.calibration.base import Calibrator, Floats, check_rows
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.calibration.isotonic import IsotonicCalibration
from rlhf_pipeline.learn.calibration.methods import CALIBRATORS
from rlhf_pipeline.learn.calibration.metrics import log_loss, share_right
from rlhf_pipeline.learn.calibration.temperature import TemperatureScaling

# Platt's scaling without an intercept, which would favour a side, is a temperature.
PLATT = {"platt": TemperatureScaling.name}
# With fewer votes a step function fits their noise.
MIN_ISOTONIC_VOTES = 1000


class CalibrationParams(BootstrapParams):
    """How a calibrator is chosen; a subclass may have the calibrators' own parameters too."""

    methods: list[str] = Field(
        default=list(CALIBRATORS),
        min_length=1,
        description="Methods compared; `none` always is, isotonic from 1,000 votes on. platt is "
        "another name of temperature",
    )
    folds: int = Field(
        default=5, ge=2, le=50, description="Folds over prompts by which methods are compared"
    )
    min_pairs: int = Field(default=20, ge=10, description="Fewest pairs in the calib split")
    allow_uncalibrated: bool = Field(
        default=False,
        description="With fewer pairs, use the raw probabilities (method none) instead of failing",
    )
    weight_before_change: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Weight of pairs voted before a detected change of taste",
    )

    @field_validator("methods")
    @classmethod
    def _check_methods(cls, methods: list[str]) -> list[str]:
        names = [PLATT.get(name, name) for name in methods]
        for name in names:
            if name not in CALIBRATORS:
                raise ValueError(f"unknown calibrator {name!r}. {suggest(name, CALIBRATORS)}")
        return names


@dataclass(frozen=True)
class VoteRows:
    """Margins a - b (n,), outcomes 1 for a, weights, number of the prompt, comparison; they come
    from n_pairs comparisons.
    """

    margins: Floats
    outcomes: Floats
    weights: Floats
    groups: npt.NDArray[np.int64]
    comparison_ids: npt.NDArray[np.object_]
    n_pairs: int

    @property
    def right(self) -> Floats:
        """Share of each row's votes for the side with the higher score, (n,)."""
        return share_right(self.margins, self.outcomes)

    @classmethod
    def of_pairs(
        cls, pairs: pd.DataFrame, margins: Floats, n_chosen: Floats, n_rejected: Floats
    ) -> Self:
        """Up to two rows for each of `pairs`, weighted by its column `weight` and its votes for
        each side; `margins` (n,) are those of the chosen completion.
        """
        is_a = (pairs["chosen_side"] == "a").to_numpy()
        pair_weights = pairs["weight"].to_numpy(dtype=np.float64)
        weights = np.concatenate([pair_weights * n_chosen, pair_weights * n_rejected])
        has_weight = weights > 0
        prompts = group_index(pairs["prompt_id"].to_numpy(), len(pairs))
        ids = pairs["comparison_id"].to_numpy(dtype=object)
        return cls(
            np.tile(np.where(is_a, margins, -margins), 2)[has_weight],
            np.concatenate([is_a, ~is_a]).astype(np.float64)[has_weight],
            weights[has_weight],
            np.tile(prompts, 2)[has_weight],
            np.tile(ids, 2)[has_weight],
            int((pair_weights > 0).sum()),
        )

    def with_swapped_sides(self, mask: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """Rows of `mask` and the same rows with sides swapped, so that no fold lacks a class."""
        m = self.margins[mask]
        y = self.outcomes[mask]
        w = self.weights[mask]
        return np.concatenate([m, -m]), np.concatenate([y, 1 - y]), np.concatenate([w, w])


def choose_calibrator(
    calib: VoteRows, params: CalibrationParams
) -> tuple[Calibrator, dict[str, float]]:
    """The best calibrator, fitted, and the loss of every method on held-out prompts."""
    check_rows(calib.margins, calib.outcomes, calib.weights)
    candidates = {
        method: held_out_loss(method, calib, params) for method in usable_methods(calib, params)
    }
    method = min(candidates, key=lambda name: (candidates[name], list(CALIBRATORS).index(name)))
    return _make(method, params).fit(calib.margins, calib.outcomes, calib.weights), candidates


def _make(method: str, params: CalibrationParams) -> Calibrator:
    kind = CALIBRATORS[method]
    return kind(select_params(kind.Params, params))


def usable_methods(rows: VoteRows, params: CalibrationParams) -> list[str]:
    """The methods to compare on these votes, `none` among them."""
    methods = [name for name in CALIBRATORS if name == NoCalibration.name or name in params.methods]
    if rows.weights.sum() < MIN_ISOTONIC_VOTES:
        return [name for name in methods if name != IsotonicCalibration.name]
    return methods


def held_out_loss(method: str, rows: VoteRows, params: CalibrationParams) -> float:
    """Log loss of the cross-fitted probabilities, in nats per vote."""
    p = cross_fit(method, rows, params)
    return log_loss(p, rows.outcomes, weights=rows.weights)


def cross_fit(method: str, rows: VoteRows, params: CalibrationParams) -> Floats:
    """P(a preferred) of each row, (n,), by a calibrator that was not fitted on its prompt."""
    n_folds = min(params.folds, len(np.unique(rows.groups)))
    if n_folds < 2:
        raise NotEnoughData(
            "All pairs of the calib split are of one prompt. Collect votes on more prompts."
        )
    # Numbers of groups can have gaps where weights are 0, so they are ranked before they are dealt
    # to folds.
    fold = np.unique(rows.groups, return_inverse=True)[1] % n_folds
    p = np.full(len(rows.margins), np.nan)
    for k in range(n_folds):
        calibrator = _make(method, params).fit(*rows.with_swapped_sides(fold != k))
        p[fold == k] = calibrator.transform(rows.margins[fold == k])
    return p
