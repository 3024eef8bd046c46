"""The gate asks simulated people about fabricated texts until their votes decide."""

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from rlhf_pipeline.core.api_types.project import PairPrediction
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import VOTES
from rlhf_pipeline.core.records import AnnotationRules, ModelVersion, NewVote
from rlhf_pipeline.core.releases import ReleaseAct
from rlhf_pipeline.feedback.votes import make_pairs
from rlhf_pipeline.improve.evaluation.gate import (
    WIN_RATE,
    GateParams,
    decide_promotion,
    leave_to_people,
)
from rlhf_pipeline.improve.evaluation.judge import JudgedSample
from rlhf_pipeline.improve.gate_decisions import conclude
from rlhf_pipeline.improve.gate_sessions import (
    advance,
    asks_people,
    list_draws,
    load_progress,
    open_session,
)
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.reflection import reflect
from tests.policy_versions import evaluate, interval

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
RULES = AnnotationRules(repeat_share=0, gold_share=0)
CHAMPION, CANDIDATE = "demo.policy@1", "demo.policy@2"
PEOPLE = [f"person-{number:02}" for number in range(12)]


class SetClock:
    at = NOW

    def now(self) -> datetime:
        return self.at


@pytest.fixture
def store(tmp_path: Path, migrated: Path):
    shutil.copy(migrated, tmp_path / "store.db")
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        opened.database.clock = SetClock()
        yield opened


def make_samples(n: int = 200, n_ties: int = 0, seed: int = 0) -> list[JudgedSample]:
    """Fabricated texts, the first `n_ties` of them equal; the judge's probability is noise."""
    p = np.random.default_rng(seed).uniform(0.3, 0.8, n)
    return [
        JudgedSample(
            prompt_id=f"p{i}",
            prompt=f"Question {i}?",
            category="coding",
            sample_index=0,
            completion_candidate=f"Text {i}." if i < n_ties else f"New text {i}.",
            completion_champion=f"Text {i}.",
            score_candidate=0.0,
            score_champion=0.0,
            p_win=float(p[i]),
            right_candidate=None,
            right_champion=None,
        )
        for i in range(n)
    ]


SECOND = ModelVersion(name="demo.policy", version=2, kind="policy", uri="runs:/x", content_hash="c")


def begin(
    store: Store,
    samples: list[JudgedSample] | None = None,
    registered: ModelVersion = SECOND,
    **params: object,
):
    """A session of the second policy against the first, before anybody is asked."""
    settings = GateParams(**{"decided_by": "people", **params})
    decision = decide_promotion(evaluate("demo", 2, 0.7), settings)
    decision = decision.model_copy(update={"registered": registered, "run_id": "r"})
    return open_session(store, leave_to_people(decision), settings, samples or make_samples())


def make_vote(store: Store, card, choice: str) -> NewVote:
    return NewVote(
        comparison_id=card.comparison_id,
        annotator_id=card.annotator_id,
        annotator_kind="human",
        choice=choice,
        voted_at=store.database.clock.now(),
        origin="page",
        idempotency_key=f"{card.card_id}/{choice}",
        card_id=card.card_id,
        is_swapped=card.is_swapped,
    )


def vote_all(store: Store, people: list[str], preference: float, seed: int = 0) -> Counter[str]:
    """Everybody judges what they are dealt, one card a turn; prefers the candidate so often."""
    rng, n_votes = np.random.default_rng(seed), Counter[str]()
    while True:
        dealt = [card for name in people for card in store.cards.deal(name, 1, RULES)]
        if not dealt:
            return n_votes
        texts = store.comparisons.texts([card.comparison_id for card in dealt])
        votes = []
        for card in dealt:
            is_a = texts[card.comparison_id].model_version_a == CANDIDATE
            choice = "a" if (rng.random() < preference) == is_a else "b"
            votes.append(make_vote(store, card, choice))
            n_votes[card.annotator_id] += 1
        store.votes.cast_many(votes)


def run_session(store: Store, people: list[str], preference: float, seed: int = 0):
    """Batches until the votes decide; the progress then."""
    while (progress := advance(store, CHAMPION, NOW)) and progress.verdict == "open":
        assert vote_all(store, people, preference, seed + progress.n_wanted)
    return progress


@pytest.mark.parametrize(
    ("preference", "verdict"), [(0.9, "better"), (0.1, "worse"), (0.5, "budget")]
)
def test_votes_decide_or_the_budget_ends(store, preference, verdict):
    begin(store, max_votes=60)
    progress = run_session(store, PEOPLE, preference)
    assert progress.verdict == verdict
    assert progress.n_votes == progress.n_wanted == sum(progress.by_annotator.values())
    store.audit.verify()


def test_an_annotator_casts_no_more_than_a_tenth_of_a_batch(store):
    begin(store)
    advance(store, CHAMPION, NOW)
    store.gate_sessions.ask(store.gate_sessions.running(), 20, 0.1)
    assert vote_all(store, PEOPLE[:2], 0.5) == {PEOPLE[0]: 2, PEOPLE[1]: 2}
    assert store.cards.remaining_for(PEOPLE[0], RULES).n == 0
    assert store.cards.remaining_for(PEOPLE[2], RULES).n > 0
    store.database.clock.at = NOW + timedelta(days=1)  # the absent do not stop it
    assert vote_all(store, PEOPLE[:2], 0.5) == {PEOPLE[0]: 1, PEOPLE[1]: 1}


def test_repeated_draw_goes_to_another_annotator(store):
    begin(store, make_samples(3))
    store.gate_sessions.ask(store.gate_sessions.running(), 20, 1.0)
    session = store.gate_sessions.running()
    prompts = store.gate_sessions.prompts(session.session_id)
    assert len({draw.comparison_id for draw in list_draws(session, prompts)}) == 20  # one annotator
    many = session.model_copy(
        update={"terms": session.terms.model_copy(update={"n_annotators": 12})}
    )
    n_draws = Counter(draw.comparison_id for draw in list_draws(many, prompts))
    assert len(n_draws) == 3
    assert sum(n_draws.values()) == 20


def test_gate_cards_are_mixed_with_others(store):
    begin(store)
    advance(store, CHAMPION, NOW)
    frame = store.comparisons.with_ids(
        [
            draw.comparison_id
            for draw in list_draws(store.gate_sessions.running(), store.gate_sessions.prompts(1))
        ]
    )
    others = frame.assign(comparison_id=[f"other {i}" for i in range(len(frame))], source=None)
    store.comparisons.publish(others, published_at=NOW)
    store.cards.offer(list(others["comparison_id"]), overlap=9)
    dealt = [card.comparison_id.startswith("other") for card in store.cards.deal("ann", 12, RULES)]
    assert 2 <= dealt.count(False) <= 3


def test_identical_texts_are_known_ties_and_not_asked(store):
    session = begin(store, make_samples(200, n_ties=100))
    progress = run_session(store, PEOPLE, 0.95)
    prompts = store.gate_sessions.prompts(session.session_id)
    drawn = {draw.prompt for draw in list_draws(store.gate_sessions.running(), prompts)}
    assert min(drawn) >= 100
    assert 0.25 <= progress.win_rate.low < progress.win_rate.high <= 0.75
    begin(store, make_samples(20, n_ties=20))
    assert advance(store, CHAMPION, NOW).verdict == "too_close"


def test_flagged_prompt_is_left_out_and_does_not_stop_the_batch(store):
    begin(store)
    advance(store, CHAMPION, NOW)
    (card,) = store.cards.deal(PEOPLE[0], 1, RULES)
    store.comparisons.flag([card.comparison_id], "pii", actor="x")
    vote_all(store, PEOPLE, 0.5)
    progress = load_progress(store, store.gate_sessions.running())
    assert progress.is_batch_complete
    assert progress.n_wanted == 19


def skip_all(store: Store, people: list[str]) -> None:
    """Everybody skips what they are dealt."""
    for name in people:
        while dealt := store.cards.deal(name, 99, RULES):
            store.votes.cast_many([make_vote(store, card, "skip") for card in dealt])


@pytest.mark.parametrize("n_people", [2, 12])
def test_draws_that_everybody_skips_are_ties(store, n_people):
    people = PEOPLE[:n_people]
    begin(store)
    advance(store, CHAMPION, NOW)
    for name in people:  # who voted lately counts as active
        (card,) = store.cards.deal(name, 1, RULES)
        store.votes.cast(make_vote(store, card, "a"))
    begin(store, max_votes=20)
    assert store.gate_sessions.running().terms.n_annotators == n_people
    advance(store, CHAMPION, NOW)
    skip_all(store, people)
    progress = load_progress(store, store.gate_sessions.running())
    assert (progress.n_votes, progress.n_skipped, progress.by_annotator) == (20, 20, {})
    assert progress.verdict == "budget"
    assert progress.win_rate.low < 0.5 < progress.win_rate.high


def test_a_vote_after_the_last_skip_changes_nothing(store):
    begin(store, max_votes=20)
    advance(store, CHAMPION, NOW)
    session = store.gate_sessions.running()
    terms = session.terms.model_copy(update={"n_annotators": 12})
    prompts = store.gate_sessions.prompts(session.session_id)
    session = session.model_copy(update={"terms": terms})
    (first, *_), read = list_draws(session, prompts), []
    for name, choice in zip(PEOPLE, ["skip", "skip", "skip", "a"], strict=False):
        cards = {card.comparison_id: card for card in store.cards.deal(name, 99, RULES)}
        store.votes.cast(make_vote(store, cards[first.comparison_id], choice))
        read.append(load_progress(store, session))
    assert [progress.n_votes for progress in read] == [0, 0, 1, 1]
    assert read[-1].by_annotator == {}


def test_votes_of_the_gate_teach_nothing(store):
    begin(store)
    advance(store, CHAMPION, NOW)
    vote_all(store, PEOPLE, 0.7)
    votes = store.votes.log(schema=VOTES)
    ids = votes["comparison_id"].unique().tolist()
    pairs, counts = make_pairs(votes, store.comparisons.with_ids(ids))
    assert (len(pairs), counts.n_votes, counts.n_gate) == (0, 0, 20)
    assert store.votes.n_voted_comparisons() == 0
    assert store.comparisons.prompts() == {}
    assert store.comparisons.find_offerable_ids() == []


def test_votes_of_the_gate_measure_predictions_stated_before(store):
    judge, samples = "demo.reward_model@4", make_samples()
    stated = [
        PairPrediction(
            reward_model=judge,
            calibrator="none",
            data_hash="h",
            data_seq=1,
            predicted_at=NOW,
            p_raw=0.8,
            p_calibrated=0.7,
            score_a=2.0,
            score_b=1.0,
            features_hash="f",
        )
        for _ in samples
    ]
    params = GateParams(decided_by="people")
    decision = decide_promotion(evaluate("demo", 2, 0.7), params)
    decision = leave_to_people(decision.model_copy(update={"registered": SECOND, "run_id": "r"}))
    open_session(store, decision, params, samples, stated)
    advance(store, CHAMPION, NOW)
    vote_all(store, PEOPLE, 1.0)
    votes = store.votes.log()
    ids = votes["comparison_id"].unique().tolist()
    predictions = store.predictions.for_comparisons(ids)
    by_id = store.comparisons.with_ids(ids).set_index("comparison_id")
    is_a = predictions["comparison_id"].map(by_id["model_version_a"] == CANDIDATE)
    assert 0 < is_a.sum() < 20
    assert (predictions["p_calibrated"] == is_a.map({True: 0.7, False: 1 - 0.7})).all()
    assert not reflect(predictions, votes)["is_error"].astype(bool).any()
    assert store.detectors.errors_of(judge).empty


def test_annotators_are_shown_neither_model_nor_purpose(store):
    begin(store)
    advance(store, CHAMPION, NOW)
    ids = [card.comparison_id for card in store.cards.deal(PEOPLE[0], 2, RULES)]
    frame = store.comparisons.with_ids(ids)
    kinds = {card.kind.value for card in store.cards.deal(PEOPLE[0], 2, RULES)}
    assert kinds == {"normal"}
    assert set(frame["source"]) == {"gate"}
    all_ids = [
        d.comparison_id
        for d in list_draws(store.gate_sessions.running(), store.gate_sessions.prompts(1))
    ]
    sides = set(store.comparisons.with_ids(all_ids)["model_version_a"])
    assert sides == {CANDIDATE, CHAMPION}


@pytest.mark.parametrize("cause", ["champion", "by hand", "candidate", "archived"])
def test_what_ends_the_use_of_a_session_voids_it(store, cause):
    first = begin(store)
    advance(store, CHAMPION, NOW)
    vote_all(store, PEOPLE[:1], 0.7)
    n_votes = store.votes.count()
    if cause in ("champion", "by hand"):
        other = "demo.policy@9" if cause == "champion" else CANDIDATE
        assert advance(store, other, NOW) is None
        assert store.gate_sessions.running() is None
    elif cause == "archived":
        act = ReleaseAct(
            act="archive",
            model_name="demo.policy",
            version=2,
            actor="ann",
            reason="rude",
            acted_at=NOW,
        )
        store.release_acts.add(act)
        assert advance(store, CHAMPION, NOW) is None
        assert store.gate_sessions.latest().terms.reason == "demo.policy@2 is archived"
    else:
        begin(store)
        assert store.gate_sessions.running().session_id == first.session_id + 1
    assert store.cards.remaining_work().n_open == 0
    assert store.votes.count() == n_votes > 0


def test_session_without_votes_is_held_until_the_next_vote(store):
    begin(store, hold_after_days=3)
    advance(store, CHAMPION, NOW)
    assert advance(store, CHAMPION, NOW + timedelta(days=2)).state == "open"
    late = NOW + timedelta(days=4)
    assert advance(store, CHAMPION, late).state == "held"
    store.database.clock.at = late
    (card,) = store.cards.deal(PEOPLE[0], 1, RULES)
    store.votes.cast(make_vote(store, card, "a"))
    assert advance(store, CHAMPION, late).state == "open"


def test_people_are_asked_only_where_somebody_votes(store):
    params = GateParams()
    assert not asks_people(params, store, "human")
    begin(store)
    advance(store, CHAMPION, NOW)
    vote_all(store, PEOPLE[:1], 0.7)
    assert asks_people(params, store, "human")
    assert not asks_people(params, store, "simulated")
    assert asks_people(GateParams(decided_by="people"), store, "simulated")


def test_failing_check_refuses_without_asking_anybody():
    measured = evaluate("demo", 2, 0.7).model_copy(update={"kl": interval(2.0)})
    decision = leave_to_people(decide_promotion(measured, GateParams()))
    assert not decision.asks_people
    assert not decision.promoted
    assert [check.name for check in decision.blocking] == ["kl"]
    left = leave_to_people(decide_promotion(evaluate("demo", 2, 0.3), GateParams()))
    assert left.asks_people  # the judge's win rate is no reason
    assert [check.name for check in left.blocking] == [WIN_RATE, "win_rate_at_equal_length"][:1]


def test_verdict_of_people_refuses_the_worse_and_promotes_the_better(store, tmp_path):
    registry = Registry(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "artifacts", "demo")
    champions = Champions(store, registry, tmp_path / "cache")
    settings = Settings(home=tmp_path)
    versions = []
    for number in (1, 2):
        folder = tmp_path / f"policy{number}"
        folder.mkdir()
        (folder / "weights").write_text(f"{number}")
        with registry.run("candidate_model", {}, run_key=f"{number}") as run:
            versions.append(registry.register("policy", folder, run=run))
    champions.promote("policy", versions[0], reason="first", actor="test")
    for preference, is_better in ((0.05, False), (0.95, True)):
        store.database.clock.at += timedelta(hours=1)
        begin(store, registered=versions[1])
        assert conclude(champions, settings) is None  # nobody voted yet
        run_session(store, PEOPLE, preference)
        decision = conclude(champions, settings)
        assert decision.promoted is is_better
        assert champions.policy().label == (CANDIDATE if is_better else CHAMPION)
        check = next(check for check in decision.checks if check.name == WIN_RATE)
        assert check.reason.startswith("By people: win rate ")
        assert store.gate_sessions.latest().state == "decided"
    assert conclude(champions, settings) is None
    assert [gate.promoted for gate in store.gates.all()] == [False, True]


def test_votes_that_were_not_blind_decide_nothing(store):
    begin(store)
    advance(store, CHAMPION, NOW)
    (card,) = store.cards.deal(PEOPLE[0], 1, RULES)
    vote = make_vote(store, card, "a").model_copy(
        update={
            "card_id": None,
            "is_swapped": None,
            "annotator_id": "ada",
            "idempotency_key": "by id",
        }
    )
    store.votes.cast(vote)  # by its id, by somebody who may read the models
    assert load_progress(store, store.gate_sessions.running()).n_votes == 0


def test_comparisons_of_the_gate_are_not_rated(store):
    begin(store)
    advance(store, CHAMPION, NOW)
    rules = AnnotationRules(repeat_share=0, gold_share=0, rating_share=0.5)
    dealt = store.cards.deal(PEOPLE[0], 2, rules)
    assert [card.kind for card in dealt] == ["normal", "normal"]
