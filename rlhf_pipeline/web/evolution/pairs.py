"""Lists the pairs of a policy's retraining set from its file, the document that it shows."""

from typing import Annotated

import pandas as pd
from pydantic import Field

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.filters import Filter
from rlhf_pipeline.errors import MissingPartition
from rlhf_pipeline.records import Text
from rlhf_pipeline.web.evolution.answers import LearntPair, PolicyVersionOut, RewardModelVersionOut
from rlhf_pipeline.web.lists import make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.site import Site

VersionLabel = Annotated[
    Text, Field(max_length=200, description="A version, such as demo.policy@3.")
]


class LearntPairFilter(Filter):
    """Which version's retraining set."""

    model: VersionLabel


def list_pairs(
    site: Site,
    version: PolicyVersionOut | RewardModelVersionOut,
    asked: LearntPairFilter,
) -> Page[LearntPair]:
    """In the order of the set. None for a reward model, and for a set that is unknown or whose file
    retention deleted. Raises Problem 422 for an invalid cursor.
    """
    (first,) = parse_cursor(asked.cursor, int) or (0,)
    first = max(0, first)
    pairs = _read_set(site, version)
    if pairs is None:
        return Page(items=(), next=None)
    page = pairs.iloc[first : first + asked.limit]
    known = site.store.comparisons.with_ids(list(page["comparison_id"]))
    categories = dict(zip(known["comparison_id"], known["category"], strict=True))
    return Page(
        items=tuple(
            LearntPair(
                comparison_id=row["comparison_id"],
                prompt=row["prompt"],
                category=categories.get(row["comparison_id"]),
                origin=row["origin"],
                reason=row["reason"],
            )
            for row in plain_rows(page[["comparison_id", "prompt", "origin", "reason"]])
        ),
        next=make_cursor(first + asked.limit) if first + asked.limit < len(pairs) else None,
    )


def _read_set(site: Site, version: PolicyVersionOut | RewardModelVersionOut) -> pd.DataFrame | None:
    if not isinstance(version, PolicyVersionOut) or version.training is None:
        return None
    if version.training.data_hash is None:
        return None
    try:
        return site.files.read_frame("retraining_set", version.training.data_hash)
    except MissingPartition:
        return None
