"""The annotator model as an asset: what it leaves behind, what it may not know, and what it says of nothing."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.frames import SOFT_LABELS
from rlhf_pipeline.votes import joint_model, judged_ids, last_words


def told(project: Any) -> dict[str, Any]:
    event = project.instance.get_latest_materialization_event(dg.AssetKey("annotator_model"))
    return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}


def all_votes(project: Any) -> pd.DataFrame:
    return project.files.read_days("votes", project.files.days("votes"))


def limited(**config: Any) -> dict[str, Any]:
    return {"ops": {"annotator_model": {"config": config}}}


def test_its_frame_are_the_soft_labels_of_all_votes_it_may_know(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"])
    frame, votes = project.files.read_frame("annotator_model"), last_words(all_votes(project))
    assert list(frame.columns) == list(SOFT_LABELS.columns)
    pd.testing.assert_frame_equal(frame, joint_model(votes, project.store.comparisons.with_ids(judged_ids(votes))).labels)
    metadata = told(project)
    assert metadata["n_annotators"] == votes["annotator_id"].nunique()
    assert metadata["is_converged"] == 1.0
    assert -1 <= metadata["krippendorff_alpha"] <= 1
    assert metadata["preview"].startswith("| annotator_id")
    files = {path.name for path in (project.settings.home / "mlflow").rglob("artifacts/*") if path.is_file()}
    assert {"annotators.png", "annotators.csv", "annotator_model.json", "pairwise_kappa.csv"} <= files


def test_it_learns_from_no_vote_above_the_seq_it_is_given(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    seq = int(all_votes(project)["seq"].median())
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))
    known = last_words(all_votes(project), up_to_seq=seq)
    frame = project.files.read_frame("annotator_model")
    assert 0 < len(known) < len(all_votes(project))
    assert frame["n_votes"].sum() == (known["choice"] != "skip").sum()
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))  # the same votes, the same labels
    pd.testing.assert_frame_equal(project.files.read_frame("annotator_model"), frame, check_exact=True)


def test_without_a_vote_the_frame_is_empty_and_says_why(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"], config=limited(up_to_seq=0))
    assert project.files.read_frame("annotator_model").empty
    assert "No vote judges a comparison" in told(project)["headline"]


def test_a_fit_that_did_not_end_fails_its_check_and_stops_nothing(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    result = project.materialise(["annotator_model"], config=limited(max_iterations=1))
    checks = {c.check_name: c for c in result.get_asset_check_evaluations()}
    assert checks["schema"].passed
    assert not checks["distribution"].passed
    assert "raise max_iterations" in (checks["distribution"].description or "")
    assert len(project.files.read_frame("annotator_model")) > 0
