"""Prepares the votes on one model's predictions, so that detectors may treat them as independent.

Three things make errors of a steady world depend on each other, and detectors fire on each of them:
several votes on one comparison, the rhythm of the week, and hasty sessions of a few annotators.
"""

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.drift.haste import HastyVotes, find_hasty_votes
from rlhf_pipeline.drift.rhythm import RhythmParams, expected_excess, remove_rhythm
from rlhf_pipeline.votes import NO_QUARANTINES, Quarantines

READ, REPEATED, HASTY, QUARANTINED = "", "repeated", "hasty", "quarantined"
TIMED = {"annotator_id", "duration_s"}  # columns from which haste is known


class StreamParams(RhythmParams):
    """Which votes the detectors read, and how their rhythm is learnt."""

    first_votes_only: bool = Field(
        default=True,
        description="Detectors read the first vote on a comparison, because later ones repeat its "
        "error; repeats of a comparison count as the same one",
    )
    max_hasty_share: float = Field(
        default=0.34,
        ge=0,
        le=1,
        description="Votes of annotators far faster than usual are left out, unless more than this "
        "share of the active annotators is; 0 = read all votes",
    )


def prepare_stream(
    errors: pd.DataFrame, params: StreamParams, quarantines: Quarantines = NO_QUARANTINES
) -> pd.DataFrame:
    """The rows in seq order, with `error` less its rhythm and `left_out`: empty for votes that
    detectors read, else `repeated`, `hasty` or `quarantined`.

    Columns: seq, day, error; where they are known also comparison_id (of the original, for a
    repeat), annotator_id, duration_s, hour and category. A row depends on earlier votes and earlier
    days only.
    """
    rows = errors.sort_values("seq", ignore_index=True)
    left_out = np.full(len(rows), READ, dtype=object)
    if quarantines and "annotator_id" in rows.columns:
        left_out[quarantines.find(rows).to_numpy()] = QUARANTINED
    if params.max_hasty_share and set(rows.columns) >= TIMED:
        kept = rows[left_out == READ]
        left_out[kept.index[_find_haste(kept, params.max_hasty_share).left_out]] = HASTY
    if params.first_votes_only and "comparison_id" in rows.columns:
        later = rows.loc[left_out == READ, "comparison_id"].duplicated()
        left_out[later.index[later]] = REPEATED
    rows["left_out"] = left_out
    if params.rhythm_weeks:
        read = left_out == READ
        kept = rows[read]
        adjusted = remove_rhythm(
            kept["error"].to_numpy(dtype=float), expected_excess(kept, params.rhythm_weeks)
        )
        rows["error"] = rows["error"].astype(float)
        rows.loc[read, "error"] = adjusted
    return rows


def mark_hasty_votes(errors: pd.DataFrame, params: StreamParams | None = None) -> pd.DataFrame:
    """The rows in seq order with `is_hasty`, cast while their annotator was much faster than usual,
    and `is_left_out`, which neither detectors nor calibration tests read: a hasty vote, unless
    everybody was hasty or the annotator stayed so.
    """
    rows = errors.sort_values("seq", ignore_index=True)
    if not set(rows.columns) >= TIMED:
        return rows.assign(is_hasty=False, is_left_out=False)
    max_share = (params or StreamParams()).max_hasty_share
    found = _find_haste(rows, max_share)
    return rows.assign(is_hasty=found.hasty, is_left_out=found.left_out & (max_share > 0))


def _find_haste(rows: pd.DataFrame, max_share: float) -> HastyVotes:
    return find_hasty_votes(
        rows["annotator_id"].to_numpy(dtype=object),
        rows["duration_s"].to_numpy(dtype=float),
        max_share,
    )
