"""Figures of models in production, as applications send them."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rlhf_pipeline.core.api_types.base import Answer, Name, RequestBody
from rlhf_pipeline.core.records import LARGEST

MOST_FIGURES = 500  # in a request: as many as one transaction of the store
ProductionMetric = Literal[
    "quality",
    "satisfaction",
    "rating",
    "latency",
    "errors",
    "deflected",
    "resolve_time",
    "adoption",
    "cost",
    "tokens",
]
SHARES = frozenset(("quality", "satisfaction", "errors", "deflected", "adoption"))  # 0 to 1 each
Sum = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
ROUNDING = 1e-6  # relative error of a sum of many floats


class ProductionFigure(RequestBody):
    """One metric of one model on one day: `n` measurements and their sum."""

    day: date
    metric: ProductionMetric
    model: Name = Field(description="Model version, such as `demo.policy@3`.")
    n: int = Field(ge=1, le=LARGEST, description="Measurements, such as interactions or users.")
    total: Sum = Field(description="Their sum; of a share, how many count.")
    total_squares: Sum | None = Field(
        default=None, description="Sum of their squares, for the interval of a mean."
    )

    @property
    def name(self) -> str:
        return f"production.{self.metric}"

    @property
    def is_share(self) -> bool:
        return self.metric in SHARES

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        if self.is_share and self.total > self.n * (1 + ROUNDING):
            raise ValueError(
                f"total is {self.total:g} of {self.n}, but {self.metric} is from 0 to 1 each"
            )
        squares = self.total_squares
        if squares is None:
            return self
        least = self.total**2 / self.n
        if squares < least * (1 - ROUNDING):
            raise ValueError(
                f"total_squares is {squares:g}; with this n and total it is at least {least:g}"
            )
        if self.is_share and squares > self.total * (1 + ROUNDING):
            raise ValueError(
                f"total_squares is {squares:g}, above total, but {self.metric} is from 0 to 1 each"
            )
        return self


class NewProductionFigures(RequestBody):
    """Up to 500 figures; each replaces that of the same day, metric and model."""

    figures: list[ProductionFigure] = Field(min_length=1, max_length=MOST_FIGURES)


class StoredFigures(Answer):
    """Number of figures that are stored now."""

    n: int
