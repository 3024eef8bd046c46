"""`rlhf votes annotators`: figures over time, days as they were voted on, and verdicts for the
consensus page.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.records import NewVote
from rlhf_pipeline.votes import (
    joint_model,
    judged_comparison_ids,
)
from rlhf_pipeline.votes.annotators_over_time import ANNOTATORS_OVER_TIME, annotators_over_time
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.model_consensus import LABELS_FRAME
from tests.learnt_home import LearntHome, voted_home

STAGE, PART = LABELS_FRAME


@pytest.fixture
def home(tmp_path: Path) -> LearntHome:
    """Votes of 2026-01-02, and ann0's change of the first one a fortnight later."""
    found = voted_home(tmp_path)
    with found.store as store:
        first = store.votes.page(limit=1000, annotator_id="ann0")[-1]
        store.votes.cast(
            NewVote(
                comparison_id=first.comparison_id,
                annotator_id="ann0",
                annotator_kind=first.annotator_kind,
                choice="tie",
                voted_at=datetime(2026, 1, 16, 12, tzinfo=UTC),
                origin="cli",
                idempotency_key="changed",
                supersedes=first.vote_id,
            )
        )
    return found


def read_figures(home: LearntHome, *more: str) -> dict:
    return json.loads(home.rlhf("votes", "annotators", "--over-time", "--json", *more).output)


def test_figures_over_time_are_a_table_json_and_csv(home: LearntHome, tmp_path: Path) -> None:
    found = read_figures(home)
    with home.store as store:
        said = store.votes.log()
        expected = annotators_over_time(
            said, store.comparisons.with_ids(judged_comparison_ids(said))
        )
    assert [
        (one["annotator_id"], one["first_day"], one["n_votes"]) for one in found["annotators"]
    ] == list(expected[["annotator_id", "first_day", "n_votes"]].itertuples(index=False, name=None))
    assert [one["first_day"] for one in found["together"]] == ["2025-12-29", "2026-01-12"]
    assert (
        found["together"][0]["alpha_low"]
        < found["together"][0]["alpha"]
        < found["together"][0]["alpha_high"]
    )
    assert found["window_days"] == 7
    path = tmp_path / "figures.csv"
    table = home.rlhf("votes", "annotators", "--over-time", "--csv", str(path)).output
    assert list(pd.read_csv(path).columns) == list(ANNOTATORS_OVER_TIME.columns)
    assert len(pd.read_csv(path)) == len(expected)
    assert "5 annotators over 2 windows of 7 days" in table
    assert table.index("2026-01-12") < table.index("2025-12-29")
    assert "Krippendorff's alpha" in table


def test_labels_are_published_to_the_consensus_page_on_request(home: LearntHome) -> None:
    files = Artefacts(home.settings.frames)
    home.rlhf("votes", "annotators")
    assert not files.path(STAGE, PART).exists()
    home.rlhf("votes", "annotators", "--publish")
    with home.store as store:
        votes = counting(store.votes.log())
        expected = joint_model(
            votes, store.comparisons.with_ids(judged_comparison_ids(votes))
        ).labels
    left = files.read_frame(STAGE, PART)
    assert left["comparison_id"].tolist() == expected["comparison_id"].tolist(), (
        "those of the test split too"
    )
    assert left["max_seq"].unique().tolist() == [721]
    assert (left["p_a"] - expected["p_a"]).abs().max() < 0.02  # begun elsewhere, the same end
