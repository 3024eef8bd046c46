"""Detects changes in the votes on one model's predictions, and finds the causes of each."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.drift.causes import CauseParams, examine
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.drift.stream import Level, ScanResult, level_of, scan, votes_for
from rlhf_pipeline.plugins import NoParams, select_params
from rlhf_pipeline.records import DriftEvent
from rlhf_pipeline.votes import NO_QUARANTINES, Quarantines

# Votes before the model's first one, on other models' predictions: they teach the rhythm and the
# annotators' usual times.
EARLIER_VOTES = 100_000


class ErrorStream(NamedTuple):
    """What is read of one model: its errors, with earlier votes of others, the level of its
    reference, and which votes are left out.
    """

    errors: pd.DataFrame
    level: Level | None = None
    quarantines: Quarantines = NO_QUARANTINES

    @classmethod
    def of(
        cls,
        errors: pd.DataFrame,
        model_version: str,
        reference: Window | None,
        quarantines: Quarantines,
    ) -> Self:
        """`errors` is the stream of all models."""
        level = None if reference is None else level_of(reference)
        return cls(votes_for(errors, model_version), level, quarantines)


def detect(
    stream: ErrorStream,
    states: Mapping[str, dict[str, Any]] | None = None,
    *,
    model_version: str,
    params: BaseModel | None = None,
) -> ScanResult:
    """`scan` with the causes of every event that may start a retraining. `params` also holds the
    fields of CauseParams.
    """
    found = scan(
        stream.errors,
        states,
        model_version=model_version,
        params=params,
        reference=stream.level,
        quarantines=stream.quarantines,
    )
    events = tuple(add_causes(event, stream, params or NoParams()) for event in found.events)
    return found.model_copy(update={"events": events})


def add_causes(event: DriftEvent, stream: ErrorStream, params: BaseModel) -> DriftEvent:
    """The event with the causes of its change, found in all votes of the stream that `examine`
    reads.
    """
    errors = stream.quarantines.drop(stream.errors)
    return examine(event, errors, stream.level, select_params(CauseParams, params))
