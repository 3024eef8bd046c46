"""Compares two windows space by space, with a known error rate and a minimum effect size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from pydantic import Field

from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import Record, Verdict
from rlhf_pipeline.watch.drift.reference import Window
from rlhf_pipeline.watch.drift.spaces import (
    Sample,
    count_rows,
    describe_change,
    explain_missing,
    take_sample,
)
from rlhf_pipeline.watch.drift.two_sample import (
    TestResult,
    adjust_p_values,
    error_rate_rise,
    kolmogorov_smirnov,
    maximum_mean_discrepancy,
    population_stability,
    share_difference,
)
from rlhf_pipeline.watch.drift.words import word_difference

# of a drift report: a policy's texts, and all that is computed from them
SPACES_OF_POLICY = ("completion_text", "completion_length", "embeddings", "scores", "confidence")


class WindowParams(Parameters):
    """When two windows differ. A difference counts if it is both unlikely by chance and large
    enough to matter.
    """

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
    text_effect: float = Field(
        default=0.1,
        gt=0,
        le=0.5,
        description="How far above 0.5 the AUC of a classifier of words counts as drift; about "
        "half of the share of texts that are of another kind",
    )
    mix_effect: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Share of the votes or prompts with another choice, strength or category that "
        "counts as drift",
    )
    annotator_effect: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of the votes by other annotators than in the reference that counts as "
        "drift; rosters change from day to day",
    )
    n_permutations: int = Field(
        default=1999,
        ge=199,
        le=20_000,
        description="Permutations of the tests of embeddings and texts; more are made where "
        "`alpha` needs them",
    )
    permutation_seed: int = Field(default=0, ge=0, description="Seed of the permutations")

    @property
    def n_permuted(self) -> int:
        """Permutations made: fewer could not give a p-value that is significant after the
        correction for all tests.
        """
        return max(self.n_permutations, math.ceil(N_TESTS / self.alpha))


@dataclass(frozen=True)
class SpaceTest:
    """One test in one space before its verdict. Without a result, `evidence` has the reason."""

    space: str
    detector: str
    threshold: float
    result: TestResult | None
    n_reference: int
    n_current: int
    evidence: Mapping[str, Any] = field(default_factory=dict)


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


# (space, test) -> parameter of its least effect, in the order of the report
THRESHOLDS = {
    ("errors", "error_rate"): "error_effect",
    ("prompt_text", "word_classifier"): "text_effect",
    ("completion_text", "word_classifier"): "text_effect",
    ("prompt_length", "ks"): "ks_effect",
    ("prompt_length", "psi"): "psi_effect",
    ("completion_length", "ks"): "ks_effect",
    ("completion_length", "psi"): "psi_effect",
    ("embeddings", "mmd"): "mmd_effect",
    ("scores", "ks"): "ks_effect",
    ("scores", "psi"): "psi_effect",
    ("confidence", "ks"): "ks_effect",
    ("confidence", "psi"): "psi_effect",
    ("choices", "chi_squared"): "mix_effect",
    ("strengths", "chi_squared"): "mix_effect",
    ("annotators", "chi_squared"): "annotator_effect",
    ("prompt_mix", "chi_squared"): "mix_effect",
}
N_TESTS = len(THRESHOLDS)


def run_tests(
    reference: Window | None,
    current: Window | None,
    params: WindowParams,
    of_policy: Window | None = None,
) -> list[SpaceTest]:
    """Every test of two windows, before the correction for their number. `of_policy`, where it is
    given, is the reference of what a policy changes by itself.
    """
    return [
        _run_test(
            space,
            detector,
            of_policy if of_policy is not None and space in SPACES_OF_POLICY else reference,
            current,
            params,
        )
        for space, detector in THRESHOLDS
    ]


def judge_tests(tests: Sequence[SpaceTest], params: WindowParams) -> list[SpaceVerdict]:
    """Verdicts of all tests of a day, at one false discovery rate."""
    results = [test.result for test in tests if test.result is not None]
    adjusted = iter(adjust_p_values([result.p_value for result in results]))
    return [
        _make_verdict(test, None if test.result is None else next(adjusted), params)
        for test in tests
    ]


def _run_test(
    space: str,
    detector: str,
    reference: Window | None,
    current: Window | None,
    params: WindowParams,
) -> SpaceTest:
    before, now = take_sample(space, reference), take_sample(space, current)
    needed = params.min_votes if space == "errors" else params.min_prompts
    n_before, n_now = count_rows(before), count_rows(now)
    result, evidence = None, {}
    if reference is not None and reference.source:
        evidence["reference"] = reference.source
    if n_before < params.min_reference or n_now < needed:
        few = (
            f"{n_before} reference and {n_now} current rows; {params.min_reference} and {needed} "
            "are needed"
        )
        evidence["reason"] = explain_missing(space, reference, current) or few
    else:
        result = _compare_samples(detector, before, now, params)
        evidence |= describe_change(space, before, now, current)
    threshold = float(getattr(params, THRESHOLDS[space, detector]))
    return SpaceTest(space, detector, threshold, result, n_before, n_now, evidence)


def _compare_samples(
    detector: str, before: Sample, now: Sample, params: WindowParams
) -> TestResult:
    permutations = {"n_permutations": params.n_permuted, "seed": params.permutation_seed}
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return share_difference(before, now)
    if detector == "word_classifier":
        return word_difference(
            cast(Sequence[str], before), cast(Sequence[str], now), **permutations
        )
    first, second = np.asarray(before), np.asarray(now)
    if detector == "error_rate":
        return error_rate_rise(first, second)
    if detector == "ks":
        return kolmogorov_smirnov(first, second)
    if detector == "psi":
        return population_stability(first, second, n_bins=params.n_bins)
    return maximum_mean_discrepancy(first, second, **permutations)


def _make_verdict(test: SpaceTest, p_adjusted: float | None, params: WindowParams) -> SpaceVerdict:
    result, evidence = test.result, {"alpha": params.alpha} | dict(test.evidence)
    verdict = Verdict.INSUFFICIENT
    if result is not None and p_adjusted is not None:
        evidence |= {"effect": result.effect, "p_adjusted": p_adjusted}
        is_significant = p_adjusted <= params.alpha
        verdict = _classify_effect(result.effect, test.threshold, is_significant)
    return SpaceVerdict(
        space=test.space,
        detector=test.detector,
        verdict=verdict,
        statistic=None if result is None else result.statistic,
        threshold=test.threshold,
        p_value=None if result is None else result.p_value,
        n_reference=test.n_reference,
        n_current=test.n_current,
        evidence=evidence,
    )


def _classify_effect(effect: float, threshold: float, is_significant: bool) -> Verdict:
    """Both are needed: more rows alone make any difference significant, fewer make any difference
    large.
    """
    if not is_significant or effect < threshold / 2:
        return Verdict.STABLE
    return Verdict.DRIFT if effect >= threshold else Verdict.WARNING
