"""Experiments: sticky arms, the moves between states, winners, guardrails and full deployment."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.errors import (
    ExperimentConflict,
    ModelRefused,
    ReleaseConflict,
    StoreError,
)
from rlhf_pipeline.core.experiments import ExperimentChange, NewExperiment
from rlhf_pipeline.core.records import AnnotationRules, NewFeedback
from rlhf_pipeline.improve.evaluation import GateParams, decide_promotion
from rlhf_pipeline.improve.experiments import (
    Analysis,
    Experiments,
    assign,
    offer_pair,
    wants_pair,
)
from rlhf_pipeline.store import ServedAnswer
from tests.policy_versions import evaluate
from tests.unit.improve.test_releases import deploy, registered, releases, require_approval
from tests.unit.store.conftest import vote_on

__all__ = ["registered", "releases"]
START = datetime(2026, 1, 5, tzinfo=UTC)


class Served:
    """A running experiment that answers one request after another."""

    def __init__(self, releases, split=0.5, **more):
        deploy(releases, 1, 2)
        self.experiments = Experiments(releases)
        self.store = releases.champions.store
        new = NewExperiment(
            name="shorter", treatment_model_id="demo.policy@3", traffic_split=split, **more
        )
        self.experiment = self.experiments.create(new, actor="ann")
        self.n = 0

    def answer(self, session, *, error=None, latency_s=1.0, thumbs=None):
        self.n += 1
        arm = assign(self.experiment, session)
        answer = ServedAnswer(
            answer_id=f"answer_{self.n}",
            version=getattr(self.experiment, f"{arm}_model_id"),
            session_id=session,
            created_at=START + timedelta(seconds=self.n),
            latency_s=latency_s,
            finish_reason="stop" if error is None else "error",
            error=error,
            experiment_id=self.experiment.experiment_id,
            arm=arm,
            traffic_split=self.experiment.traffic_split,
        )
        self.store.answers.add(answer)
        if thumbs is not None:
            entry = NewFeedback(kind="thumbs", value=thumbs, answer_id=answer.answer_id)
            self.store.feedback.add(entry, created_by="app")
        if arm == "treatment":
            self.experiments.check_guardrails(self.experiment.experiment_id, answer)
        return arm

    def change(self, **fields):
        self.experiment = self.experiments.change(
            self.experiment.experiment_id, ExperimentChange(**fields), actor="bob"
        )
        return self.experiment

    @property
    def stored(self):
        return self.store.experiments.get(self.experiment.experiment_id)


def test_arms_are_sticky_through_the_ramp_and_split_as_planned(releases):
    served = Served(releases, split=0.1)
    sessions = [f"session-{i}" for i in range(20_000)]
    first = {s for s in sessions if assign(served.experiment, s) == "treatment"}
    assert len(first) / 20_000 == pytest.approx(0.1, abs=0.01)
    served.change(traffic_split=0.5)
    assert served.change(traffic_split=0.5).acts == served.stored.acts
    assert [act.act for act in served.stored.acts] == ["start", "extend"]
    second = {s for s in sessions if assign(served.experiment, s) == "treatment"}
    assert first < second
    assert len(second) / 20_000 == pytest.approx(0.5, abs=0.015)
    assert served.stored.acts[-1].reason == "to 50% of the sessions"
    with pytest.raises(ReleaseConflict, match=r"in experiment 1\. End that first"):
        releases.archive("demo.policy@3", reason="odd", actor="ann")
    with pytest.raises(ExperimentConflict, match="50% of the sessions already"):
        served.change(traffic_split=0.2)
    other = served.experiment.model_copy(update={"salt": "another"})
    both = sum(assign(other, s) == "treatment" for s in second) / len(second)
    assert both == pytest.approx(0.5, abs=0.03)


def test_illegal_moves_and_second_experiments_are_conflicts(releases):
    served = Served(releases, status="draft")
    with pytest.raises(ExperimentConflict, match="draft and cannot become completed; it can "):
        served.change(status="completed")
    assert served.change(traffic_split=0.05).traffic_split == 0.05  # no session keeps it yet
    assert served.change(status="running").start_date is not None
    assert [served.change(status=s).status for s in ("paused", "running")] == ["paused", "running"]
    new = NewExperiment(name="two", treatment_model_id="demo.policy@4")
    with pytest.raises(ExperimentConflict, match="one at a time"):
        served.experiments.create(new, actor="ann")
    ended = served.change(status="completed")
    assert (ended.winner, ended.results.n_control) == ("inconclusive", 0)
    for fields in ({"status": "running"}, {"traffic_split": 0.9}):
        with pytest.raises(ExperimentConflict, match="completed"):
            served.change(**fields)
    links = served.store.audit.page(AuditFilter(action="experiment.*"))[0]
    acts = [(link.action, link.actor) for link in reversed(links)]
    assert acts[0] == ("experiment.draft", "ann")
    assert [a.partition(".")[2] for a, _ in acts[1:]] == [
        "extend",
        "start",
        "pause",
        "resume",
        "end",
    ]
    served.store.audit.verify()


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"treatment_model_id": "demo.policy@2"}, ExperimentConflict, "it is the control"),
        ({"control_model_id": "demo.policy@1"}, ExperimentConflict, "it is the control"),
        ({"treatment_model_id": "demo.policy@1"}, ReleaseConflict, "archived"),
        ({"end_date": START}, ExperimentConflict, "is over"),
    ],
)
def test_versions_that_cannot_be_compared_are_refused(releases, fields, error, words):
    deploy(releases, 1, 2)
    releases.archive("demo.policy@1", reason="old", actor="ann")
    new = NewExperiment(**({"name": "n", "treatment_model_id": "demo.policy@3"} | fields))
    with pytest.raises(error, match=words):
        Experiments(releases).create(new, actor="ann")


def test_winner_is_read_from_sessions_and_the_treatment_deployed(releases):
    served = Served(releases)
    for i in range(200):
        arm = assign(served.experiment, f"s{i}")
        likes = i % 10 < (9 if arm == "treatment" else 3)
        # several answers of a session count once
        for _ in range(2):
            served.answer(f"s{i}", thumbs=int(likes))
    results = served.experiments.report(served.stored).results
    effect = results.find("satisfaction")
    assert effect.n_control + effect.n_treatment == 200
    assert (effect.treatment, effect.better) == (pytest.approx(0.9, abs=0.05), "treatment")
    assert effect.effect.low > 0.1
    assert results.find("errors").better is results.find("latency").better is None
    assert results.find("errors").effect.value == 0, "neither arm had any"
    assert not results.is_broken
    assert results.recommendation.startswith("Deploy the treatment")
    assert Analysis.read(served.store, served.stored).trace()[1][-1] == effect.effect.low
    promotion = served.experiments.deploy(1, reason="liked", actor="bob")
    assert (promotion.label, promotion.previous_version) == ("demo.policy@3", 2)
    assert (served.stored.status, served.stored.winner) == ("completed", "treatment")
    assert served.experiments.refresh() is None
    served.store.feedback.add(
        NewFeedback(kind="thumbs", value=1, answer_id="answer_1"), created_by="app"
    )
    assert Analysis.read(served.store, served.stored).results == served.stored.results


def test_preferences_need_texts_and_votes(releases):
    served = Served(releases)
    report = served.experiments.report(served.stored)
    assert "need chat texts" in report.preference_note
    served.change(status="cancelled")
    new = NewExperiment(name="n", treatment_model_id="demo.policy@3", success_metric="preference")
    with pytest.raises(ExperimentConflict, match="keep_texts"):
        served.experiments.create(new, actor="ann")


def test_both_arms_are_asked_about_equally_once_a_session(releases):
    served = Served(releases, split=0.1)
    store, experiment = served.store, served.experiment
    drawn = [f"s{i}" for i in range(4000) if wants_pair(store, experiment, f"s{i}")]
    treated = sum(assign(experiment, unit) == "treatment" for unit in drawn)
    assert treated / len(drawn) == pytest.approx(0.5, abs=0.08)
    for i in range(25):
        texts = {"demo.policy@2": f"Control {i}.", "demo.policy@3": f"Treatment {i}."}
        if wants_pair(store, experiment, drawn[i]):
            offer_pair(store, experiment, drawn[i], "Hi", texts)
    assert store.cards.remaining_work().n_open == 20
    assert not wants_pair(store, experiment, drawn[30])

    rules = AnnotationRules(repeat_share=0, gold_share=0)
    *skipped, card, other = store.cards.deal("ann", 6, rules)
    for dealt in skipped:
        store.votes.cast(vote_on(dealt, "skip"))
    for annotator in ("bob", "cat"):
        for dealt in store.cards.deal(annotator, 20, rules):
            store.votes.cast(vote_on(dealt, "skip"))
    is_a = store.experiments.pairs(experiment)[card.comparison_id] == "treatment"
    store.votes.cast(vote_on(card, "a" if is_a else "b"))
    store.votes.cast(vote_on(other, "both_bad"))
    assert not wants_pair(store, experiment, drawn[0])
    assert wants_pair(store, experiment, drawn[30])
    effect = served.experiments.report(served.stored).results.find("preference")
    assert (effect.n_control, effect.treatment) == (6, pytest.approx(3.5 / 6))
    served.change(status="paused")
    offer_pair(store, experiment, "late", "Hi", texts)
    assert store.cards.remaining_work().n_open == 0


def test_equal_answers_are_ties_that_count_as_often_as_they_were_drawn(releases):
    served = Served(releases)
    store = served.store

    def draw(unit, control):
        texts = {"demo.policy@2": control, "demo.policy@3": "Yes."}
        offer_pair(store, served.experiment, unit, "Hi", texts)

    def read():
        report = served.experiments.report(served.stored)
        effect = report.results.find("preference")
        return effect.n_treatment, effect.treatment, report.preference_note

    for unit in ("equal-1", "equal-2"):
        draw(unit, "Yes. \n")
    assert read()[0] == 0
    draw("differs-1", "No.")
    draw("equal-3", "Yes.")
    draw("differs-2", "Never.")
    pairs = store.experiments.pairs(served.experiment)
    assert [side is None for side in pairs.values()] == [True, True, False, True, False]

    cards = store.cards.deal("ann", 9, AnnotationRules(repeat_share=0, gold_share=0))
    first, second = sorted(cards, key=lambda card: [*pairs].index(card.comparison_id))

    def prefer_treatment(card):
        is_a = pairs[card.comparison_id] == "treatment"
        store.votes.cast(vote_on(card, "a" if is_a else "b"))

    prefer_treatment(second)
    assert read()[:2] == (2, 0.75)  # those before the other pair wait for its vote
    prefer_treatment(first)
    assert read()[:2] == (5, 0.7)
    assert "2 votes of 1 annotator, at most 100% of one, and 3 ties" in read()[2]


def test_experiment_ends_together_with_its_cards(releases):
    served = Served(releases)
    texts = {"demo.policy@2": "No.", "demo.policy@3": "Yes."}
    offer_pair(served.store, served.experiment, "session", "Hi", texts)
    with served.store.database.write_transaction() as connection:
        fault = "BEFORE DELETE ON offers BEGIN SELECT RAISE(ABORT, 'killed'); END"
        connection.execute(text(f"CREATE TRIGGER fault {fault}"))
    with pytest.raises(StoreError, match="killed"):
        served.change(status="completed")
    assert served.stored.status == "running"


def test_deployment_waits_for_a_second_person_where_asked(releases):
    served = Served(require_approval(releases))
    with pytest.raises(ExperimentConflict, match="at most 50%"):
        served.change(traffic_split=1.0)
    request = served.experiments.deploy(1, reason="liked", actor="bob")
    assert (request.act, request.label) == ("request", "demo.policy@3")
    assert served.stored.status == "completed"
    assert served.store.promotions.champion("demo.policy").version == 1


def test_names_are_not_blank_and_ends_are_moments_in_utc():
    body = {"name": "n", "treatment_model_id": "demo.policy@3"}
    new = NewExperiment(**body, end_date="2026-12-30T23:00:00+05:00")
    assert new.end_date.isoformat() == "2026-12-30T18:00:00+00:00"
    for fields in ({"name": "  "}, {"end_date": "9999-12-31T23:00:00-05:00"}):
        with pytest.raises(ValidationError, match=r"blank|out of the range"):
            NewExperiment(**body | fields)


@pytest.mark.parametrize("fault", [{"error": "overloaded"}, {"latency_s": 30.0}])
def test_guardrail_cancels_a_treatment_that_fails(releases, fault):
    served = Served(releases, split=0.1)
    arms = Counter()
    for i in range(3000):
        is_faulty = i % (5 if assign(served.experiment, f"s{i}") == "treatment" else 50) == 0
        arms[served.answer(f"s{i}", **(fault if is_faulty else {}))] += 1
        if not served.stored.is_live:
            break
    assert arms["treatment"] < 200
    assert (served.stored.status, served.stored.acts[-1].actor) == ("cancelled", "pipeline")
    assert served.experiments.refresh() is None


def test_faults_of_both_arms_or_of_one_session_cancel_nothing(releases):
    served = Served(releases)

    def find_session(prefix, arm):
        names = (f"{prefix}-{i}" for i in range(99))
        return next(name for name in names if assign(served.experiment, name) == arm)

    treated = find_session("x", "treatment")
    for i in range(60):
        session = find_session(i, ("treatment", "control")[i % 2])  # at random 2% would fail
        served.answer(session, error="overloaded" if i % 3 else None)
        served.answer(treated, error="its prompt is too long")
    assert served.stored.status == "running"


def test_another_deployed_version_or_the_end_ends_it(releases):
    served = Served(releases)
    releases.roll_back("demo.policy", reason="rude", actor="ann")
    assert served.experiments.refresh() is None
    assert (served.stored.status, served.stored.winner) == ("cancelled", None)
    assert "demo.policy@1 was deployed" in served.stored.acts[-1].reason


def test_lost_sessions_mark_the_experiment_as_broken(releases):
    served = Served(releases)
    n = 0
    for i in range(600):
        if assign(served.experiment, f"s{i}") == "control" or i % 3 == 0:
            served.answer(f"s{i}", thumbs=1)
            n += 1
    results = served.experiments.report(served.stored).results
    assert results.is_broken
    assert results.winner == "inconclusive"
    assert results.n_control + results.n_treatment == n


def test_refused_version_answers_nobody(releases):
    deploy(releases, 1)
    new = NewExperiment(name="n", treatment_model_id="demo.policy@2")
    decision = decide_promotion(evaluate("demo", 2, 0.4), GateParams())
    releases.champions.store.gates.record(decision)
    with pytest.raises(ModelRefused, match="refused"):
        Experiments(releases).create(new, actor="ann")
