"""Runs detection over a stream as the retraining trigger does: each fire starts a new champion."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhf_pipeline.drift.confirmation import (
    ConfirmationParams,
    estimate_change_seq,
    find_confirming_events,
)
from rlhf_pipeline.drift.report import DriftParams
from rlhf_pipeline.drift.stream import Level, scan
from rlhf_pipeline.plugins import select_params
from rlhf_pipeline.records import DriftEvent

CURRENT, EARLIER = "lab.reward_model@2", "lab.reward_model@1"


class Fire(NamedTuple):
    """The vote at which the trigger would retrain, and the vote at which it dates the change."""

    seq: int
    change_seq: int | None


def find_fires(
    votes: pd.DataFrame,
    params: DriftParams | None = None,
    *,
    reference: Level | None = None,
    until: int | None = None,
) -> list[Fire]:
    """All fires in vote order, at the project's defaults; with `until`, up to the first fire after
    that vote.

    The votes up to a fire are those of an earlier model from then on, so the detectors start anew
    and only learn rhythm and pace from them. `reference` belongs to the first model.
    """
    params = params or DriftParams()
    fires: list[Fire] = []
    start = 0
    while True:
        model = np.where(votes["seq"] > start, CURRENT, EARLIER)
        found = scan(
            votes.assign(reward_model=model),
            model_version=CURRENT,
            params=params,
            reference=None if fires else reference,
        )
        fire = _first_fire(found.events, select_params(ConfirmationParams, params))
        if fire is None:
            return fires
        fires.append(fire)
        start = fire.seq
        if until is not None and start > until:
            return fires


def _first_fire(events: Sequence[DriftEvent], params: ConfirmationParams) -> Fire | None:
    """Events arrive one by one, so the first vote at which they confirm a change is the fire."""
    for i, last in enumerate(events):
        if confirming := find_confirming_events(events[: i + 1], params):
            return Fire(last.seq, estimate_change_seq(confirming))
    return None
