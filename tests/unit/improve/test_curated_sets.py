"""Curated data sets of a project: live drafts, frozen versions, exports, and their retraining."""

import json

import pytest

from rlhf_pipeline.core.api_types.feedback_reviews import FeedbackReview
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.curation import DatasetQuery, FeedbackQuery, PairTexts, VoteQuery
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    DatasetConflict,
    NotEnoughData,
    NotFound,
)
from rlhf_pipeline.core.records import NewFeedback
from rlhf_pipeline.improve import curated_sets
from rlhf_pipeline.improve.retraining.selection import SelectionParams, take_dataset
from rlhf_pipeline.improve.retraining.vote_halves import has_votes_for_judging, is_for_judging
from rlhf_pipeline.store import Store
from tests.clusters import failing_cluster, write_clusters
from tests.dataset_rows import AT, build_vote_pairs

VOTES = DatasetQuery(votes=VoteQuery())
TEXTS = PairTexts(prompt="p", chosen="c", rejected="a longer one")


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.migrate()
        yield store


@pytest.fixture
def files(tmp_path):
    files = Artefacts(tmp_path / "frames")
    files.write_frame("preference_pairs", build_vote_pairs())
    return files


def add(store, query=VOTES, kind="preference"):
    return store.datasets.add("set", kind, query, "", actor="cara")


def ids_of(files, store, query, kind="preference"):
    dataset = add(store, query, kind)
    return list(curated_sets.read_draft(files, store, dataset)["row_id"])


def freeze(files, store, query=VOTES, kind="preference"):
    number = add(store, query, kind).dataset_id
    curated_sets.build(files, store, number, actor="cara")
    return curated_sets.freeze(files, store, number, actor="cara")


def approve(store, *feedback_ids, status="approved"):
    order = FeedbackReview(feedback_ids=feedback_ids, status=status)
    store.feedback_reviews.review(order, actor="cara")


def test_only_approved_feedback_enters_a_draft(files, store):
    """Neither as feedback nor as the vote that a correction casts at once."""
    correction = NewFeedback(kind="correction", prompt="p", completion="x", correction="y")
    entry = store.feedback.add(correction, created_by="app")
    thumbs = NewFeedback(kind="thumbs", value=1, prompt="p", completion="x")
    store.feedback.add(thumbs, created_by="app")
    pairs = build_vote_pairs()
    ids = pairs["comparison_id"].replace("c1", entry.comparison_id)
    files.write_frame("preference_pairs", pairs.assign(comparison_id=ids))
    dataset = add(store, DatasetQuery(votes=VoteQuery(), feedback=FeedbackQuery()), "unpaired")

    def read_sources():
        rows = curated_sets.read_draft(files, store, dataset)
        return sorted({row_id.partition("/")[0] for row_id in rows["row_id"]})

    assert read_sources() == ["comparison:c2"]
    approve(store, 1, 2)
    assert read_sources() == ["comparison:c2", "feedback:1", "feedback:2"]
    approve(store, 1, status="rejected")
    assert read_sources() == ["comparison:c2", "feedback:2"]


def test_a_draft_holds_votes_feedback_and_pairs_as_they_are_now(files, store):
    dataset = add(store, DatasetQuery(votes=VoteQuery(), feedback=FeedbackQuery()))
    store.curated_pairs.add(dataset.dataset_id, [(TEXTS, ())], actor="cara")
    assert len(curated_sets.read_draft(files, store, dataset)) == 3
    correction = NewFeedback(kind="correction", prompt="p", completion="x", correction="y")
    store.feedback.add(correction, created_by="app")
    approve(store, 1)
    store.curated_pairs.revise(1, {}, actor="cara", status="rejected")
    rows = curated_sets.read_draft(files, store, dataset)
    assert list(rows["row_id"]) == ["comparison:c1", "comparison:c2", "feedback:1"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, []),
        ({"votes": {"comparison_ids": ["c2"]}}, ["comparison:c2"]),
        ({"votes": {"cluster": "2026-03-02-A"}}, ["comparison:c1"]),
        ({"votes": {"cluster": "2026-03-02-A", "comparison_ids": ["c2"]}}, []),
        ({"votes": {}, "leave_out": ["comparison:c1"]}, ["comparison:c2"]),
    ],
)
def test_a_draft_holds_what_its_query_names(files, store, query, expected):
    write_clusters(files, "2026-03-02", failing_cluster("2026-03-02-A", ["c1", "c9"]))
    assert ids_of(files, store, DatasetQuery.model_validate(query)) == expected


def test_votes_need_the_pairs_of_the_learning_job(tmp_path, store):
    dataset = add(store)
    with pytest.raises(NotEnoughData, match="rlhf run learning"):
        curated_sets.build(Artefacts(tmp_path / "none"), store, dataset.dataset_id, actor="cara")


def test_an_unknown_cluster_is_named(files, store):
    with pytest.raises(NotFound, match="'2026-01-01-Z'"):
        ids_of(files, store, DatasetQuery(votes=VoteQuery(cluster="2026-01-01-Z")))


def test_a_build_counts_and_measures_and_begins_curation(files, store):
    dataset = curated_sets.build(files, store, add(store).dataset_id, actor="cara")
    assert (dataset.status, dataset.n_rows, dataset.quality.n_rows) == ("curating", 2, 2)


@pytest.mark.parametrize("act", [curated_sets.build, curated_sets.freeze])
@pytest.mark.parametrize(
    "edit",
    [
        lambda store: store.datasets.change(1, query=DatasetQuery(), actor="ada"),
        lambda store: store.curated_pairs.add(1, [(TEXTS, ())], actor="ada"),
        lambda store: store.curated_pairs.revise(1, {"notes": "n"}, actor="ada"),
    ],
)
def test_rows_read_before_another_edit_are_not_stored(files, store, act, edit):
    class EditedMeanwhile(Artefacts):
        def read_frame(self, *args):
            edit(store)
            return super().read_frame(*args)

    number = add(store).dataset_id
    store.curated_pairs.add(number, [(TEXTS, ())], actor="cara")
    curated_sets.build(files, store, number, actor="cara")
    with pytest.raises(DatasetConflict, match="while its rows were read"):
        act(EditedMeanwhile(files.base), store, number, actor="cara")
    assert (store.datasets.get(number).n_rows, store.datasets.versions(number)) == (3, [])


def test_an_empty_set_is_not_frozen(files, store):
    with pytest.raises(DatasetConflict, match="no rows"):
        freeze(files, store, DatasetQuery())


def test_a_frozen_version_is_exported_and_recorded(files, store, tmp_path):
    version = freeze(files, store)
    (tmp_path / "frames" / "preference_pairs.parquet").unlink()  # the version has its own rows
    export = curated_sets.export(
        store, version.dataset_id, "trl", tmp_path / "out", actor="cara", now=AT
    )
    lines = (tmp_path / "out" / "set-1.trl.jsonl").read_text().splitlines()
    assert [json.loads(line)["chosen"] for line in lines] == ["In Switzerland.", "In Norway."]
    dataset = store.datasets.get(version.dataset_id)
    assert (dataset.status, dataset.last_export) == ("exported", export)


def test_an_edited_set_is_frozen_again_before_its_export(files, store, tmp_path):
    version = freeze(files, store)
    store.curated_pairs.add(version.dataset_id, [(TEXTS, ())], actor="cara")
    order = (store, version.dataset_id, "trl", tmp_path / "out")
    with pytest.raises(DatasetConflict, match="cannot become exported"):
        curated_sets.export(*order, actor="cara", now=AT)
    assert not (tmp_path / "out").exists(), "a refused export writes nothing"
    named = curated_sets.export(*order, actor="cara", now=AT, version=1)
    dataset = store.datasets.get(version.dataset_id)
    assert (dataset.status, dataset.last_export) == ("curating", named)


@pytest.mark.parametrize("name", ["set", "set@1"])
def test_a_version_is_taken_for_training(files, store, name):
    freeze(files, store)
    pairs, label = curated_sets.take_training_pairs(store, name)
    assert label == "set@1"
    assert list(pairs["chosen"]) == ["In Switzerland.", "In Norway."]
    assert list(pairs["prompt_id"]) == ["p1", "p2"]
    assert set(pairs["split"]) == {"train"}


@pytest.mark.parametrize(
    ("name", "error"),
    [("none", NotFound), ("set@2", NotFound), ("set@x", ConfigurationError)],
)
def test_an_unknown_data_set_or_version_is_refused(files, store, name, error):
    freeze(files, store)
    with pytest.raises(error, match=r"data set|version"):
        curated_sets.take_training_pairs(store, name)


def test_only_preferences_are_trained_on(files, store):
    freeze(files, store, kind="sft")
    with pytest.raises(ConfigurationError, match="type sft"):
        curated_sets.take_training_pairs(store, "set")


def test_a_retraining_set_is_the_whole_data_set_as_people_chose_it(files, store):
    freeze(files, store)
    pairs, label = curated_sets.take_training_pairs(store, "set")
    # the reward model prefers what a person rejected, and is sure of the other
    scores = pairs[["comparison_id"]].assign(p_chosen=[0.1, 0.99])
    params = SelectionParams(dataset="set", max_pairs=1, min_pairs=1)
    frame = take_dataset(pairs, scores, label, params)
    assert dict(zip(frame["comparison_id"], frame["chosen"], strict=True)) == {
        "comparison:c1": "In Switzerland.",
        "comparison:c2": "In Norway.",
    }
    assert set(frame["origin"]) == {"dataset"}
    assert set(frame["dataset"]) == {"set@1"}
    assert frame["reason"].str.startswith("data set set@1; ").all()
    rest = take_dataset(pairs, scores, label, params, frozen_prompt_ids=["p1"])
    assert list(rest["comparison_id"]) == ["comparison:c2"]


def test_rows_that_a_person_chose_are_votes_to_the_judge(files, store):
    freeze(files, store)
    pairs, label = curated_sets.take_training_pairs(store, "set")
    scores = pairs[["comparison_id"]].assign(p_chosen=0.9)
    frame = take_dataset(pairs, scores, label, SelectionParams(min_pairs=1))
    judging = next(f"p{i}" for i in range(99) if is_for_judging([f"p{i}"])[0])
    assert has_votes_for_judging(frame.assign(prompt_id=judging))
