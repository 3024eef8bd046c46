"""Tests the error rate of every category for a rise, and limits false alarms over all."""

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from rlhf_pipeline.drift.base import Signal
from rlhf_pipeline.drift.rise_test import RiseTest, RiseTestParams
from rlhf_pipeline.parameters import Parameters

NAME = "category_rises"  # of the saved state; its events are events of the rise test
STREAM = "category:"  # and the category: the stream of such an event


class CategoryParams(Parameters):
    """When the error rate of one category has risen."""

    category_threshold: float = Field(
        default=5.2,
        gt=0,
        le=50,
        description="Log likelihood ratio at which a category's error rate has risen, if there is "
        "one category; more categories need more evidence",
    )
    category_step: float = Field(
        default=0.1,
        gt=0,
        lt=0.5,
        description="Rise of a category's error rate that its test is fastest for",
    )
    category_guard: float = Field(
        default=2.25,
        ge=0,
        description="Standard errors of a category's learnt error rate that are added to it; more "
        "than for all votes, because most false alarms of a category follow a lucky start",
    )
    category_min_votes: int = Field(
        default=60, ge=30, description="Votes that a category's level is learnt from at least"
    )


class CategoryRises:
    """A rise test for each category.

    The exponential of each statistic is treated as an e-value, and e-BH decides which are large
    enough together: one category in C needs log(C) more than the threshold, r of them log(C / r)
    more (Wang, Ramdas 2022, False Discovery Rate Control with E-values).
    """

    def __init__(self, params: CategoryParams) -> None:
        self.params = params
        self._test_params = RiseTestParams(
            rise_test_threshold=params.category_threshold,
            rise_test_step=params.category_step,
            rise_test_guard=params.category_guard,
            rise_test_min_votes=params.category_min_votes,
        )
        self._tests: dict[str, RiseTest] = {}

    def update(self, category: str, error: float, seq: int) -> Signal | None:
        """Read one error of `category`; a signal where its rate has risen."""
        test = self._tests.setdefault(category, RiseTest(self._test_params))
        statistic = test.accumulate(error, seq)
        if statistic < self.params.category_threshold:
            return None
        ranked = sorted((one.statistic for one in self._tests.values()), reverse=True)
        for rank, other in enumerate(ranked, start=1):
            needed = self.params.category_threshold + math.log(len(ranked) / rank)
            if statistic >= other >= needed:
                return test.fire(seq, needed)
        return None

    def state(self) -> dict[str, Any]:
        return {category: test.state() for category, test in sorted(self._tests.items())}

    @classmethod
    def from_state(cls, params: CategoryParams, state: Mapping[str, dict[str, Any]]) -> Self:
        rises = cls(params)
        rises._tests = {
            category: RiseTest.from_state(rises._test_params, one)
            for category, one in state.items()
        }
        return rises
