"""The real human votes, imported by the command line: all of them, once, in the order in which they
were cast.
"""

import shutil
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.config import HomeFacts
from rlhf_pipeline.drift.ddm import DDM
from rlhf_pipeline.drift.hddm_a import HDDMA
from rlhf_pipeline.store import Store
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


def test_real_votes_are_imported_once_in_the_order_they_were_cast(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def rlhf(*arguments: object) -> str:
        environ = {"RLHF_HOME": str(home), "COLUMNS": "200"}
        return (
            CliRunner()
            .invoke(app, [str(a) for a in arguments], env=environ, catch_exceptions=False)
            .output
        )

    skip_without_data()
    for name in ("pairs", "votes"):
        shutil.copy(DATA / f"{name}.parquet", tmp_path)
    output = rlhf(
        "import", "comparisons", tmp_path / "pairs.parquet", "--project", "real"
    ).splitlines()
    assert output[:3] == [
        "17,614 imported, 0 already known, 0 merged, 0 rejected",
        "unused columns: topic, response_a_id, response_b_id, votes_a, votes_b, votes_tie",
        "flagged and left out of training: 26 identical, 284 repeated",
    ]
    # Two data sets ask some of the same prompts; each has split them in its own way.
    assert output[3].startswith("38 prompts, first ")
    assert "in several splits because of their split_groups" in output[3]
    output = rlhf("import", "votes", tmp_path / "votes.parquet", "--no-replay").splitlines()
    assert output[0] == "63,011 imported, 0 already known, 0 merged, 0 rejected"
    assert (
        output[2]
        == "1,584 votes without a time: filed under the day of import, outside the drift streams"
    )
    assert rlhf("import", "votes", tmp_path / "votes.parquet", "--no-replay").startswith(
        "0 imported, 63,011 already known, 0 merged, 0 rejected"
    )
    with Store.open(f"sqlite:///{home}/store.db") as store:
        assert store.votes.max_seq() == store.votes.count() == 63_011
        dated = store.votes.log()["voted_at"].tolist()
        assert store.audit.verify() > 63_011
    known = [moment for moment in dated if not pd.isna(moment)]
    assert known == sorted(known)
    assert [not pd.isna(moment) for moment in dated] == [True] * 61_427 + [False] * 1_584
    assert HomeFacts.load(home).start_day == date(2016, 1, 31)
