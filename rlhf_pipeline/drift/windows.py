"""Compares two windows space by space, with a known error rate and a minimum effect size."""

from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.drift.reference import LEFT_OUT, Window
from rlhf_pipeline.drift.two_sample import (
    TestResult,
    adjust_p_values,
    error_rate_rise,
    kolmogorov_smirnov,
    maximum_mean_discrepancy,
    population_stability,
)
from rlhf_pipeline.records import Record, Verdict

N_TESTS = 8  # two for each of three distributions, embeddings, error rate


class WindowParams(BaseModel):
    """When two windows differ. A difference counts if it is both unlikely by chance and large
    enough to matter.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    alpha: float = Field(
        default=0.01,
        gt=0,
        lt=0.5,
        description="False discovery rate over all tests of a day (Benjamini-Hochberg)",
    )
    min_prompts: int = Field(
        default=30,
        ge=10,
        description="Prompts a day needs for a verdict on lengths, confidence and embeddings",
    )
    min_votes: int = Field(
        default=50, ge=10, description="Judged comparisons a day needs for a verdict on errors"
    )
    min_reference: int = Field(
        default=15,
        ge=10,
        description="Rows that the reference needs; few make weak tests, and after a change of "
        "taste there are few",
    )
    ks_effect: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Largest distance of two distributions that counts as drift",
    )
    psi_effect: float = Field(
        default=0.2,
        gt=0,
        description="Population stability index, less its expectation by chance, that counts as "
        "drift",
    )
    mmd_effect: float = Field(
        default=0.02, gt=0, description="Squared maximum mean discrepancy that counts as drift"
    )
    error_effect: float = Field(
        default=0.08,
        gt=0,
        le=1,
        description="Rise of the error rate over the reference that counts as drift",
    )
    n_bins: int = Field(
        default=10, ge=3, le=50, description="Quantile bins of the population stability index"
    )
    n_permutations: int = Field(
        default=999, ge=199, le=20_000, description="Permutations of the embeddings test"
    )
    permutation_seed: int = Field(default=0, ge=0, description="Seed of the permutations")

    @model_validator(mode="after")
    def _permutations_can_reach_alpha(self) -> Self:
        if (self.n_permutations + 1) * self.alpha < N_TESTS:
            raise ValueError(
                f"{self.n_permutations} permutations cannot give a p-value below "
                f"alpha={self.alpha} after correction for {N_TESTS} tests; use at least "
                f"{int(N_TESTS / self.alpha)}"
            )
        return self


class SpaceVerdict(Record):
    """One test in one space. `threshold` is the effect that counts as drift; half of it, if
    significant, is a warning.
    """

    space: str
    detector: str
    verdict: Verdict
    statistic: float | None
    threshold: float | None
    p_value: float | None
    n_reference: int
    n_current: int
    evidence: dict[str, Any]


def compare_windows(
    reference: Window | None, current: Window | None, params: WindowParams
) -> list[SpaceVerdict]:
    """One verdict per test, always the same eight. `insufficient` if a window is too small or
    missing.
    """
    tests = [_run_test(name, reference, current, params) for name in _THRESHOLDS]
    done = [i for i, (result, _, _) in enumerate(tests) if result is not None]
    p_adjusted: dict[int, float] = dict(
        zip(done, adjust_p_values([r.p_value for r, _, _ in tests if r is not None]), strict=True)
    )
    verdicts = [
        _make_verdict(name, *test, p_adjusted.get(i), params)
        for i, (name, test) in enumerate(zip(_THRESHOLDS, tests, strict=True))
    ]
    lost = next(
        (w.not_embedded for w in (reference, current) if w is not None and w.not_embedded), None
    )
    return (
        verdicts
        if lost is None
        else [_add_reason(v, lost) if v.space == "embeddings" else v for v in verdicts]
    )


def _add_reason(verdict: SpaceVerdict, why: str) -> SpaceVerdict:
    return verdict.model_copy(
        update={"evidence": verdict.evidence | {"reason": f"{LEFT_OUT}{why}"}}
    )


# (space, test) -> parameter of its least effect, in the order of the report
_THRESHOLDS = {
    ("errors", "error_rate"): "error_effect",
    ("prompt_length", "ks"): "ks_effect",
    ("prompt_length", "psi"): "psi_effect",
    ("completion_length", "ks"): "ks_effect",
    ("completion_length", "psi"): "psi_effect",
    ("confidence", "ks"): "ks_effect",
    ("confidence", "psi"): "psi_effect",
    ("embeddings", "mmd"): "mmd_effect",
}


def _run_test(
    name: tuple[str, str], reference: Window | None, current: Window | None, params: WindowParams
) -> tuple[TestResult | None, Floats, Floats]:
    """The test's result, None for too little data, and the two samples."""
    space, test = name
    before, now = _space_values(space, reference), _space_values(space, current)
    needed = params.min_votes if space == "errors" else params.min_prompts
    if len(before) < params.min_reference or len(now) < needed:
        return None, before, now
    if test == "error_rate":
        return error_rate_rise(before, now), before, now
    if test == "ks":
        return kolmogorov_smirnov(before, now), before, now
    if test == "psi":
        return population_stability(before, now, n_bins=params.n_bins), before, now
    return (
        maximum_mean_discrepancy(
            before, now, n_permutations=params.n_permutations, seed=params.permutation_seed
        ),
        before,
        now,
    )


def _space_values(space: str, window: Window | None) -> Floats:
    if window is None:
        return np.zeros(0)
    if space == "embeddings":
        return window.embeddings
    if space == "errors":
        return np.asarray(window.rows["error"], dtype=float)
    rows = window.one_row_per_prompt()
    if space == "confidence":
        p = rows["p"].to_numpy(dtype=float)
        confidence: Floats = np.maximum(p, 1 - p)
        return confidence
    return np.asarray(rows[space], dtype=float)


def _make_verdict(
    name: tuple[str, str],
    result: TestResult | None,
    before: Floats,
    now: Floats,
    p_adjusted: float | None,
    params: WindowParams,
) -> SpaceVerdict:
    space, detector = name
    threshold = float(getattr(params, _THRESHOLDS[name]))
    evidence: dict[str, Any] = {"alpha": params.alpha}
    if result is None or p_adjusted is None:
        needed = params.min_votes if space == "errors" else params.min_prompts
        evidence["reason"] = (
            f"{len(before)} reference and {len(now)} current rows; {params.min_reference} and "
            f"{needed} are needed"
        )
        verdict = Verdict.INSUFFICIENT
    else:
        evidence |= {"effect": result.effect, "p_adjusted": p_adjusted}
        if space != "embeddings":
            evidence |= {"mean_reference": float(before.mean()), "mean_current": float(now.mean())}
        verdict = _classify_effect(result.effect, threshold, p_adjusted <= params.alpha)
    return SpaceVerdict(
        space=space,
        detector=detector,
        verdict=verdict,
        statistic=None if result is None else result.statistic,
        threshold=threshold,
        p_value=None if result is None else result.p_value,
        n_reference=len(before),
        n_current=len(now),
        evidence=evidence,
    )


def _classify_effect(effect: float, threshold: float, is_significant: bool) -> Verdict:
    """Both are needed: more rows alone make any difference significant, fewer make any difference
    large.
    """
    if not is_significant or effect < threshold / 2:
        return Verdict.STABLE
    return Verdict.DRIFT if effect >= threshold else Verdict.WARNING
