"""Names the group of each vote's annotator: their tag, else the origin of the vote."""

from collections.abc import Mapping

import pandas as pd

MIN_ANNOTATORS = 3  # a smaller group would say more about its people than about a group


def name_annotator_groups(votes: pd.DataFrame, groups: Mapping[str, str]) -> pd.Series:
    """The group of the annotator of each vote, with the index of `votes`; `groups` is by annotator
    id. An annotator without a group has that of the vote's origin.
    """
    names = votes["annotator_id"].map(dict(groups)).astype(object)
    return names.fillna(votes["origin"]) if "origin" in votes else names
