"""Pairs for a model that may know votes up to a seq alone."""

import pandas as pd
import pytest

from assets.votes import pairs_up_to
from rlhf_pipeline.errors import FrameError


def test_pairs_that_know_later_votes_are_refused_and_not_thinned_out() -> None:
    pairs = pd.DataFrame({"max_seq": [3, 5, 9]})
    assert pairs_up_to(pairs, None) is pairs
    assert pairs_up_to(pairs, 9) is pairs
    with pytest.raises(FrameError, match=r"2 of 3 .* up_to_seq 4"):
        pairs_up_to(pairs, 4)
