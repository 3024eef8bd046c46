"""`rlhf votes annotators` publishes verdicts for the consensus page."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.records import NewVote
from rlhf_pipeline.votes import (
    joint_model,
    judged_comparison_ids,
)
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
