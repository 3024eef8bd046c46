"""Detectors on the real human votes signal as Frouros' own do."""

from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.drift.ddm import DDM
from rlhf_pipeline.drift.hddm_a import HDDMA
from tests.unit.drift.test_equal_to_frouros import (
    ddm,
    hddm_a,
    statistical_signals,
    window_signals,
)

DATA = Path(__file__).parents[3] / "shared" / "data"


def skip_without_data() -> None:
    if not (DATA / "votes.parquet").exists():
        pytest.skip("needs the 63,011 real votes, which are no part of this repository")


def test_detectors_signal_on_real_votes_as_frouros_does() -> None:
    """The stream is whether a vote agrees with the pair's majority, in vote order."""
    skip_without_data()
    votes = pd.read_parquet(DATA / "votes.parquet").sort_values("submitted_at", kind="stable")
    pairs = pd.read_parquet(DATA / "pairs.parquet").set_index("pair_id")
    votes = votes[votes["choice"].isin(["a", "b"])]
    majority = pairs["votes_a"] >= pairs["votes_b"]
    errors = (votes["choice"].eq("a") != votes["pair_id"].map(majority)).astype(float).tolist()
    for kind, make in ((DDM, ddm), (HDDMA, hddm_a)):
        detector = kind(kind.Params())
        ours = [(i, s.level) for i, e in enumerate(errors) if (s := detector.update(e, i))]
        assert ours == list(statistical_signals(make, errors))
    assert all(window_signals(errors))
