"""Pairs for a model that may know votes up to a seq alone."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.application.assets.votes import LearningRange, pairs_up_to
from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, VOTES
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.store import Store
from tests.learnt_home import comparisons


def test_pairs_with_later_votes_are_refused() -> None:
    pairs = pd.DataFrame({"max_seq": [3, 5, 9]})
    assert pairs_up_to(pairs, None) is pairs
    assert pairs_up_to(pairs, 9) is pairs
    with pytest.raises(FrameError, match=r"2 of 3 .* up_to_seq 4"):
        pairs_up_to(pairs, 4)


def test_adjudication_replaces_a_label_in_training(migrated: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{shutil.copy(migrated, tmp_path / 'store.db')}"
    with Store.open(url) as store:
        frame = comparisons(2)
        store.comparisons.publish(frame, published_at=utc_now())
        decided, other = frame["comparison_id"]
        store.adjudications.add(decided, "b", reason="the source says so", actor="eve")
        labels = pd.DataFrame({"comparison_id": [decided, other], "p_a": 0.9, "p_low": 0.8})
        labels["p_high"] = 0.95
        pairs, votes = (schema.empty_frame() for schema in (PREFERENCE_PAIRS, VOTES))
        data = LearningRange().select(store, pairs, votes, labels)
    assert data.soft_labels is not None
    assert data.soft_labels["p_a"].tolist() == [0.0, 0.9]
