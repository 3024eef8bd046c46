"""From models to the votes and feedback that taught them, and back: the ids agree exactly."""

import random
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from rlhf_pipeline.core.api_types.feedback_reviews import FeedbackReview
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.curation import DatasetQuery, FeedbackQuery, PairTexts, VoteQuery
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.frames import COMPARISONS, RETRAINING_SET, check_frame
from rlhf_pipeline.core.records import ModelVersion, NewFeedback, NewVote, Quarantine
from rlhf_pipeline.feedback.votes.preference_pairs import make_pairs
from rlhf_pipeline.improve import curated_sets
from rlhf_pipeline.improve.lineage import LineageReader
from rlhf_pipeline.store import Store

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
PEOPLE = ("ann", "bob", "eve", "bot")
N = 8


class StepClock:
    """One second later at each look."""

    at = NOON

    def now(self):
        self.at += timedelta(seconds=1)
        return self.at


@pytest.fixture
def store(tmp_path, migrated):
    shutil.copy(migrated, tmp_path / "store.db")
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}", clock=StepClock()) as store:
        yield store


def publish(store, n, prefix="c", **more):
    rows = {
        "day": "2026-01-01",
        "comparison_id": [f"{prefix}{i}" for i in range(n)],
        "prompt_id": [f"p{i}" for i in range(n)],
        "prompt": [f"Question {i}?" for i in range(n)],
        "completion_a_id": [f"x{i}" for i in range(n)],
        "completion_b_id": [f"y{i}" for i in range(n)],
        "completion_a": [f"Answer {i}." for i in range(n)],
        "completion_b": [f"No idea {i}." for i in range(n)],
        "model_version_a": "demo.policy@1",
        "model_version_b": "demo.policy@1",
        "category": "factual",
        "repeat_of": None,
        "position": range(n),
        "seed": 7,
        "split": "train",
    }
    frame = check_frame(pd.DataFrame(rows | more), COMPARISONS)
    store.comparisons.publish(frame, published_at=NOON)


def cast(store, rng, n, live):
    """Votes of people and a machine, some corrected and some passes repeated."""
    for _ in range(n):
        old = rng.choice(live) if live and rng.random() < 0.2 else None
        ids = [f"c{i}" for i in range(N)] + ["r0", "r1"]
        who = rng.choice(PEOPLE) if old is None else old.annotator_id
        vote = NewVote(
            comparison_id=rng.choice(ids) if old is None else old.comparison_id,
            annotator_id=who,
            annotator_kind="machine" if who == "bot" else "human",
            choice=rng.choice(("a", "a", "b", "tie", "skip")),
            supersedes=old and old.vote_id,
            voted_at=store.database.clock.now(),
            origin="api",
            idempotency_key=f"k{rng.random()}",
        )
        live[:] = [each for each in live if each is not old] + [store.votes.cast(vote)]


class Project:
    """Votes, feedback and a data set; its models take what there is at the time."""

    def __init__(self, store, folder, seed):
        self.store, self.files = store, Artefacts(folder / "frames")
        self.rng, self.live, self.models = random.Random(seed), [], []
        publish(store, N)
        publish(store, 2, prefix="r", repeat_of="c0")
        store.comparisons.flag(["c1"], "broken", actor="ada")

    def pairs(self):
        log = self.store.votes.log()
        ids = log["comparison_id"].unique().tolist()
        rule = LineageReader(self.store, self.files, [])._find_rule(log, self.quarantines())
        return make_pairs(log, self.store.comparisons.with_ids(ids), None, rule)[0]

    def quarantines(self):
        from rlhf_pipeline.feedback.votes import Quarantines

        return Quarantines.from_decisions(self.store.decisions.fires())

    def register(self, kind, *, rows=None, dataset=None):
        data_hash = None
        if rows is not None:
            data_hash = self.files.keep_version("retraining_set", as_set(rows, dataset))
        version = 1 + sum(model.kind == kind for model in self.models)
        self.models.append(
            ModelVersion(
                name=f"demo.{kind}",
                version=version,
                kind=kind,
                uri="runs:/x",
                content_hash=f"{version}",
                data_hash=data_hash,
                data_seq=None if dataset else self.store.votes.max_seq(),
                params={"dataset": dataset} if dataset else {},
                created_at=self.store.database.clock.now(),
            )
        )


def as_set(rows, dataset):
    values = {
        "margin": 0.5,
        "weight": 1.0,
        "origin": "dataset" if dataset else "vote",
        "information": 0.1,
        "difficulty": 0.5,
        "reason": "a test",
        "split": "train",
        "dataset": dataset,
    }
    same = ("comparison_id", "prompt_id", "prompt", "chosen", "rejected", "day")
    return check_frame(pd.DataFrame({name: rows[name] for name in same} | values), RETRAINING_SET)


@pytest.fixture(params=[0])
def project(store, tmp_path, request):
    project = Project(store, tmp_path, request.param)
    cast(store, project.rng, 40, project.live)
    texts = {"prompt": "Question 0?", "completion": "Hm."}
    add = store.feedback.add
    add(NewFeedback(kind="correction", correction="Yes.", **texts), created_by="ann")
    add(NewFeedback(kind="correction", correction="Ja.", **texts), created_by="bob")
    for value in (5, 2):
        rating = {"prompt": "Rate?", "completion": f"Text {value}.", "value": value}
        add(NewFeedback(kind="rating", **rating), created_by="app")
    add(NewFeedback(kind="thumbs", value=1, **texts), created_by="app")
    approval = FeedbackReview(feedback_ids=[1, 2, 3, 4, 5], status="approved")
    store.feedback_reviews.review(approval, actor="cara")
    project.register("reward_model")
    pairs = project.pairs()
    project.register("policy", rows=pairs[pairs["split"] == "train"].head(5))
    store.adjudications.add("c2", "a", reason="r", actor="eve")
    store.decisions.fire_by_hand(
        "careless",
        actor="ada",
        now=store.database.clock.now(),
        quarantine=Quarantine(annotator_ids=("bob",), from_seq=25),
    )
    project.files.write_frame("preference_pairs", project.pairs())
    query = DatasetQuery(
        votes=VoteQuery(comparison_ids=("c0", "c3", "c4", "c5")),
        feedback=FeedbackQuery(kinds=("correction", "rating"), feedback_ids=(2, 3, 4)),
    )
    number = store.datasets.add("picked", "preference", query, "", actor="ada").dataset_id
    by_hand = PairTexts(prompt="By hand?", chosen="Yes.", rejected="No.")
    store.curated_pairs.add(number, [(by_hand, (5,))], actor="ada")
    curated_sets.build(project.files, store, number, actor="ada")
    curated_sets.freeze(project.files, store, number, actor="ada")
    cast(store, project.rng, 25, project.live)
    project.register("reward_model")
    rows, label = curated_sets.take_training_pairs(store, "picked")
    project.register("policy", rows=rows, dataset=label)
    cast(store, project.rng, 10, project.live)
    return project


def test_ids_agree_from_models_to_votes_and_back(project):
    store, reader = project.store, LineageReader(project.store, project.files, project.models)
    log = store.votes.log()
    votes = {vote_id: reader.trace_vote(vote_id) for vote_id in log["vote_id"]}
    people = {who: reader.trace_annotator(who) for who in log["annotator_id"].unique()}
    n_feedback = sum(store.feedback.count_by_kind().values())
    entries = {n: reader.trace_feedback(n) for n in range(1, n_feedback + 1)}
    for model in project.models:
        trace, label = reader.trace_model(model), model.label
        back = [vote for vote in votes.values() if label in {each.model for each in vote.models}]
        counts = Counter(vote.annotator_id for vote in back)
        assert {each.annotator_id: each.n_votes for each in trace.annotators} == counts
        assert (trace.n_votes, trace.first_seq, trace.last_seq) == (
            len(back),
            min(vote.seq for vote in back),
            max(vote.seq for vote in back),
        )
        assert {who: of.models[label] for who, of in people.items() if label in of.models} == counts
        assert [n for n, entry in entries.items() if label in entry.models] == [*trace.feedback_ids]
        if model.kind == "policy":
            assert sorted(vote.seq for vote in back) == [*trace.vote_seqs]
            assert {vote.comparison_id for vote in back} <= {*trace.comparison_ids}
    first, curated = (reader.trace_model(model) for model in project.models[1::2])
    assert first.rows == {"vote": len(first.comparison_ids)}
    assert (curated.dataset, curated.feedback_ids) == ("picked@1", (2, 3, 4, 5))
    for vote in votes.values():
        assert vote.datasets == (
            ("picked@1",) if vote.comparison_id in curated.comparison_ids else ()
        )
    for n, entry in entries.items():
        assert bool(entry.datasets) == (n in curated.feedback_ids)


def test_a_vote_that_does_not_teach_says_why(project):
    reader, store = LineageReader(project.store, project.files, project.models), project.store
    teaching = {*reader._select_taught(newest(store), store.votes.log(), all_of(store))["seq"]}
    reasons = {}
    for vote_id in store.votes.log()["vote_id"]:
        trace = reader.trace_vote(vote_id)
        assert (trace.left_out is None) == (trace.seq in teaching)
        reasons[trace.left_out] = trace
    assert {*reasons} >= {
        None,
        "a quarantine of bob leaves it out",
        "a later vote of the annotator stands in its place",
        "a machine cast it",
        "its comparison repeats another or is flagged",
    }


def newest(store):
    """A reward model that learnt from all votes."""
    return ModelVersion(
        name="demo.reward_model",
        version=9,
        kind="reward_model",
        uri="x",
        content_hash="x",
        data_seq=store.votes.max_seq(),
        created_at=store.database.clock.now(),
    )


def all_of(store):
    return store.comparisons.with_ids(store.votes.log()["comparison_id"].unique().tolist())


def test_a_set_that_is_not_kept_names_no_votes(project):
    for name in project.files.days("retraining_set"):
        project.files.path("retraining_set", name).unlink()
    reader = LineageReader(project.store, project.files, project.models)
    trace = reader.trace_model(project.models[1])
    assert (trace.rows, trace.n_votes, trace.annotators) == (None, 0, ())


def test_what_does_not_exist_is_named(project):
    reader = LineageReader(project.store, project.files, project.models)
    with pytest.raises(NotFound, match="'zoe' cast no vote"):
        reader.trace_annotator("zoe")
    with pytest.raises(NotFound, match="no feedback 99"):
        reader.trace_feedback(99)
