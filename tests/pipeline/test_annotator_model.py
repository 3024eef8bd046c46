"""The annotator model as an asset: what it leaves behind, what it may not know, and what it says of
nothing.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.core.frames import SOFT_LABELS
from rlhf_pipeline.feedback.votes import (
    judged_comparison_ids,
    training_labels,
)
from rlhf_pipeline.feedback.votes.counting import counting_votes


def read_metadata(project: Any) -> dict[str, Any]:
    event = project.instance.get_latest_materialization_event(dg.AssetKey("annotator_model"))
    return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}


def all_votes(project: Any) -> pd.DataFrame:
    return project.files.read_days("votes", project.files.days("votes"))


def find_judged_comparisons(project: Any, votes: pd.DataFrame) -> pd.DataFrame:
    return project.store.comparisons.with_ids(judged_comparison_ids(votes))


def limited(**config: Any) -> dict[str, Any]:
    return {"ops": {"annotator_model": {"config": config}}}


def test_frame_holds_soft_labels_of_the_training_votes(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"])
    frame, votes = project.files.read_frame("annotator_model"), counting_votes(all_votes(project))
    assert list(frame.columns) == list(SOFT_LABELS.columns)
    pd.testing.assert_frame_equal(
        frame, training_labels(votes, find_judged_comparisons(project, votes))
    )
    pairs = project.files.read_frame("preference_pairs")
    in_test = set(pairs.loc[pairs["split"] == "test", "comparison_id"])
    assert in_test
    assert not set(frame["comparison_id"]) & in_test
    assert set(pairs["comparison_id"]) - in_test <= set(frame["comparison_id"])
    assert frame["max_seq"].nunique() == 1
    assert frame["max_seq"].iloc[0] <= votes["seq"].max()
    metadata = read_metadata(project)
    assert metadata["n_labels"] == len(frame) < metadata["numbers"]["n_comparisons"]
    assert metadata["n_annotators"] == votes["annotator_id"].nunique()
    assert metadata["numbers"]["is_converged"] == 1.0
    assert -1 <= metadata["krippendorff_alpha"] <= 1
    assert metadata["preview"].startswith("| annotator_id")
    files = {
        path.name
        for path in (project.settings.home / "mlflow").rglob("artifacts/*")
        if path.is_file()
    }
    assert {
        "annotators.png",
        "annotators.csv",
        "annotator_model.json",
    } <= files


def test_votes_above_the_given_seq_are_not_learnt(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    seq = int(all_votes(project)["seq"].median())
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))
    known = counting_votes(all_votes(project).query("seq <= @seq"))
    frame = project.files.read_frame("annotator_model")
    assert 0 < len(known) < len(all_votes(project))
    assert frame["max_seq"].max() <= seq
    pd.testing.assert_frame_equal(
        frame, training_labels(known, find_judged_comparisons(project, known))
    )
    # the same votes, the same labels
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))
    pd.testing.assert_frame_equal(
        project.files.read_frame("annotator_model"), frame, check_exact=True
    )


def test_without_votes_the_frame_is_empty_with_a_reason(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"], config=limited(up_to_seq=0))
    assert project.files.read_frame("annotator_model").empty
    assert "No usable votes" in read_metadata(project)["headline"]
