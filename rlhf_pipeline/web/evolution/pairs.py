"""Lists the pairs of a policy's retraining set from its file, the document that it shows."""

import pandas as pd

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.evolution import LearntPair, PolicyVersionOut, RewardModelVersionOut
from rlhf_pipeline.api_types.filters import LearntPairFilter
from rlhf_pipeline.errors import MissingPartition
from rlhf_pipeline.web.lists import make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.site import Site


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
