"""The annotator model as an asset: what it leaves behind, what it may not know, and what it says of
nothing.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.frames import SOFT_LABELS
from rlhf_pipeline.records import NewVote
from rlhf_pipeline.votes import (
    TasteChanges,
    joint_model,
    judged_comparison_ids,
    separate_old_completions,
    training_labels,
)
from rlhf_pipeline.votes.annotators_over_time import AnnotatorWindowParams, annotators_over_time
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.model_consensus import LABELS_FRAME


def read_metadata(project: Any) -> dict[str, Any]:
    event = project.instance.get_latest_materialization_event(dg.AssetKey("annotator_model"))
    return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}


def all_votes(project: Any) -> pd.DataFrame:
    return project.files.read_days("votes", project.files.days("votes"))


def find_judged_comparisons(project: Any, votes: pd.DataFrame) -> pd.DataFrame:
    return project.store.comparisons.with_ids(judged_comparison_ids(votes))


def limited(**config: Any) -> dict[str, Any]:
    return {"ops": {"annotator_model": {"config": config}}}


def test_its_frame_are_the_soft_labels_of_all_votes_it_may_know(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"])
    frame, votes = project.files.read_frame("annotator_model"), counting(all_votes(project))
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
    assert {
        "annotators_over_time.png",
        "annotators_over_time.csv",
        "agreement_over_time.csv",
    } <= files


def test_labels_of_every_comparison_are_left_for_the_consensus_page(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"])
    frame, votes = project.files.read_frame("annotator_model"), counting(all_votes(project))
    left = project.files.read_frame(*LABELS_FRAME)
    expected = joint_model(votes, find_judged_comparisons(project, votes)).labels
    assert left["comparison_id"].tolist() == expected["comparison_id"].tolist()
    assert set(left["comparison_id"]) > set(frame["comparison_id"]), (
        "those of the test split are looked at, and learnt from by nobody"
    )
    assert (left["p_a"] - expected["p_a"]).abs().max() < 0.02  # begun elsewhere, the same end
    assert left["max_seq"].iloc[0] == votes["seq"].max()
    seq = int(votes["seq"].median())
    for older in (seq, 0):  # as a replay and a repeated retraining are fitted
        project.materialise(["annotator_model"], config=limited(up_to_seq=older))
        pd.testing.assert_frame_equal(
            project.files.read_frame(*LABELS_FRAME), left, check_exact=True
        )
    project.files.path(*LABELS_FRAME).unlink()
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))
    assert 0 < project.files.read_frame(*LABELS_FRAME)["max_seq"].max() <= seq


def test_figures_over_time_are_of_the_votes_as_they_were_cast(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"], config=limited(window_days=1))
    # MLflow keeps whole paths: a copied home's runs lie in the first
    homes = (grown.settings.home, project.settings.home)
    found = [path for home in homes for path in (home / "mlflow").rglob("annotators_over_time.csv")]
    path = max(found, key=lambda one: one.stat().st_mtime)
    said = project.store.votes.log()
    expected = annotators_over_time(
        said, find_judged_comparisons(project, said), AnnotatorWindowParams(window_days=1)
    )
    pd.testing.assert_frame_equal(
        pd.read_csv(path), expected.astype(object), check_dtype=False, rtol=1e-9
    )
    assert set(expected["first_day"]) == set(said.loc[said["choice"] != "skip", "day"])


def test_it_learns_from_no_vote_above_the_seq_it_is_given(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    seq = int(all_votes(project)["seq"].median())
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))
    known = counting(all_votes(project).query("seq <= @seq"))
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


def test_after_a_change_of_taste_labels_rest_on_no_utility_of_before(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    votes = counting(all_votes(project))
    # within a day, whose completions are in comparisons on both sides of it
    change = int(votes["seq"].median())
    project.materialise(["annotator_model"], config=limited(change_seq=change))
    shown = find_judged_comparisons(project, votes)
    pd.testing.assert_frame_equal(
        project.files.read_frame("annotator_model"),
        training_labels(votes, separate_old_completions(shown, votes, TasteChanges(change))),
    )
    assert (
        separate_old_completions(shown, votes, TasteChanges(change))["completion_a_id"]
        != shown["completion_a_id"]
    ).any()


def test_a_vote_withdrawn_later_still_counts_up_to_that_seq(
    grown: Any, branch: Callable[..., Any]
) -> None:
    """A day's snapshot of today has lost a vote that was superseded since; up to a seq before that,
    it counts.
    """
    project = branch(grown)
    seq = int(all_votes(project)["seq"].max())
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))
    before = project.files.read_frame("annotator_model")
    said = all_votes(project)
    said = said[
        (said["day"] == project.day(0))
        & said["choice"].isin(["a", "b"])
        & said["comparison_id"].isin(before["comparison_id"])
    ]
    first = said.iloc[0]
    project.store.votes.cast(
        NewVote(
            comparison_id=first["comparison_id"],
            annotator_id=first["annotator_id"],
            annotator_kind=first["annotator_kind"],
            choice="skip",
            voted_at=first["voted_at"],
            origin="simulation",
            idempotency_key="taken back",
            supersedes=first["vote_id"],
        )
    )
    project.run("feedback", project.day(0))
    assert first["vote_id"] not in set(counting(all_votes(project))["vote_id"])
    project.materialise(["annotator_model"], config=limited(up_to_seq=seq))
    pd.testing.assert_frame_equal(
        project.files.read_frame("annotator_model"), before, check_exact=True
    )
    project.materialise(["annotator_model"])
    after = project.files.read_frame("annotator_model")
    assert after["max_seq"].iloc[0] == seq + 1
    assert after["n_votes"].sum() == before["n_votes"].sum() - 1


def test_without_a_vote_the_frame_is_empty_and_says_why(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    project.materialise(["annotator_model"], config=limited(up_to_seq=0))
    assert project.files.read_frame("annotator_model").empty
    assert "No usable votes" in read_metadata(project)["headline"]


def test_a_fit_that_did_not_end_fails_its_check_and_stops_nothing(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    result = project.materialise(["annotator_model"], config=limited(max_iterations=1))
    checks = {c.check_name: c for c in result.get_asset_check_evaluations()}
    assert checks["columns_and_keys"].passed
    assert not checks["has_converged"].passed
    assert "Raise max_iterations" in (checks["has_converged"].description or "")
    assert len(project.files.read_frame("annotator_model")) > 0
