"""Asks people about a candidate, batch by batch, until their votes decide whether it is better.

The estimand is the annotators' mean preference for the candidate on the frozen prompts, a tie one
half (`evaluation.people_win_rate`). Prompts are drawn with replacement from the session's seed; a
prompt that is drawn again goes to another annotator. Prompts on which both texts are equal are
known ties, and nobody is asked about them. A draw that several annotators skip is a tie too: so it
neither holds its batch nor leaves the sample, which stays a uniform draw of the prompts over which
the judge's mean is taken.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.api_types.project import PairPrediction
from rlhf_pipeline.core.conversations import normalise_text
from rlhf_pipeline.core.frames import COMPARISONS, PREDICTIONS, check_frame
from rlhf_pipeline.core.records import (
    GATE_SOURCE,
    AnnotatorKind,
    Choice,
    GateCheck,
    GateDecision,
    Interval,
    Record,
    content_hash,
    content_id,
    utc_now,
)
from rlhf_pipeline.core.releases import find_archived
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.improve.evaluation.gate import WIN_RATE, GateParams, replace_check
from rlhf_pipeline.improve.evaluation.judge import JudgedSample
from rlhf_pipeline.improve.evaluation.people_win_rate import estimate_people_win_rate
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.card_draw import GATE_PRIORITY
from rlhf_pipeline.store.gate_sessions import GatePrompt, GateSession, GateTerms

BATCH = 20  # votes between two readings
MOST_SHARE = 0.1  # of a session's votes by one annotator: the interval assumes many of them
MOST_SKIPS = 3  # annotators who skip a draw before it counts as a tie

Verdict = Literal["better", "worse", "too_close", "budget", "open"]


class Draw(NamedTuple):
    """One vote that the session wants: on which prompt, in which comparison."""

    prompt: int
    comparison_id: str


class GateProgress(Record):
    """How far a session is. The interval is that of whole batches, known ties included."""

    session_id: int
    candidate: str
    champion: str
    state: Literal["open", "held", "decided", "void"]
    n_votes: int
    n_skipped: int = Field(description="of these, draws that count as ties: nobody could tell")
    n_wanted: int
    max_votes: int
    smallest_effect: float
    win_rate: Interval
    verdict: Verdict
    by_annotator: dict[str, int]
    waits_since: datetime

    @property
    def half_width(self) -> float:
        return (self.win_rate.high - self.win_rate.low) / 2

    @property
    def is_batch_complete(self) -> bool:
        return self.n_votes >= self.n_wanted

    def describe(self) -> str:
        """How many votes are in, since when there are no more, and the win rate so far."""
        since = f", none since {self.waits_since:%-d %b}" if self.state == "held" else ""
        low, value, high = (100 * getattr(self.win_rate, name) for name in ("low", "value", "high"))
        rate = f"; {value:.0f}% [{low:.0f}, {high:.0f}] prefer it so far" if self.win_rate.n else ""
        return f"{self.n_votes} of {self.n_wanted} votes{since}{rate}"


def asks_people(params: GateParams, store: Store, annotators: str) -> bool:
    """Whether people decide about candidates; see GateParams.decided_by."""
    if params.decided_by != "auto":
        return params.decided_by == "people"
    return annotators == "human" and store.gate_sessions.count_active_annotators() > 0


def open_session(
    store: Store,
    decision: GateDecision,
    params: GateParams,
    samples: Sequence[JudgedSample],
    predictions: Sequence[PairPrediction] | None = None,
) -> GateSession:
    """Freeze prompts, texts and the judge's probabilities, and void a session that is running.
    Nobody is asked before the next `advance`. `predictions` are those of the champion reward model
    for the samples, if there is one.
    """
    if running := store.gate_sessions.running():
        void(store, running, f"{decision.candidate} is a newer candidate")
    n_annotators = max(1, store.gate_sessions.count_active_annotators())
    terms = GateTerms(
        decision=decision,
        seed=params.seed,
        n_annotators=n_annotators,
        max_votes=params.max_votes,
        smallest_effect=params.smallest_effect,
        min_win_rate=params.min_win_rate,
        hold_after_days=params.hold_after_days,
    )
    prompts = [
        _freeze(sample, prediction)
        for sample, prediction in zip(samples, predictions or repeat(None), strict=False)
    ]
    return store.gate_sessions.open(terms, prompts, most_share=_find_share(n_annotators))


def _freeze(sample: JudgedSample, prediction: PairPrediction | None) -> GatePrompt:
    """Without a calibrator, the judge's verdict stands for its probability."""
    names = ("prompt_id", "prompt", "category", "completion_candidate", "completion_champion")
    by_score = 0.5 + 0.5 * float(np.sign(sample.score_candidate - sample.score_champion))
    probability = by_score if sample.p_win is None else sample.p_win
    texts = {name: getattr(sample, name) for name in names}
    return GatePrompt(**texts, probability=probability, prediction=prediction)


def _find_share(n_annotators: int) -> float:
    return max(MOST_SHARE, 1 / n_annotators)


def list_draws(session: GateSession, prompts: Sequence[GatePrompt]) -> list[Draw]:
    """The votes wanted so far, in order; the same at every call.

    A comparison is judged by each annotator once. So where a prompt is drawn more often than there
    were active annotators, it becomes another comparison.
    """
    askable = [i for i, prompt in enumerate(prompts) if not _is_tie(prompt)]
    n_before: Counter[int] = Counter()
    draws = []
    for start in range(0, session.n_wanted if askable else 0, BATCH):
        size = min(BATCH, session.n_wanted - start)
        rng = np.random.default_rng([session.terms.seed, session.session_id, start])
        for number in rng.integers(len(askable), size=size).tolist():
            prompt = askable[number]
            copy = n_before[prompt] // session.terms.n_annotators
            key = ("gate", session.session_id, session.candidate, prompt, copy)
            draws.append(Draw(prompt, content_id(*key)))
            n_before[prompt] += 1
    return draws


def _is_tie(prompt: GatePrompt) -> bool:
    texts = (prompt.completion_candidate, prompt.completion_champion)
    return normalise_text(texts[0]) == normalise_text(texts[1])


def read_progress(
    session: GateSession,
    prompts: Sequence[GatePrompt],
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
) -> GateProgress:
    """The estimate from the VOTES on the COMPARISONS of the session.

    Prompts of flagged comparisons are left out, and so are votes beyond those wanted. Votes of
    machines and votes without a card do not count; `both_bad` is one half, as a tie is. MOST_SKIPS
    skips are together one vote of one half, and so is each draw that no active annotator is left
    for.
    """
    draws, terms = list_draws(session, prompts), session.terms
    flagged = set(comparisons.loc[comparisons["flag"].notna(), "comparison_id"])
    left_out = {draw.prompt for draw in draws if draw.comparison_id in flagged}
    draws = [draw for draw in draws if draw.prompt not in left_out]
    cast = _list_answers(votes, comparisons, session)
    outcomes: list[float | None] = []
    by_annotator: Counter[str] = Counter()
    for draw in draws:
        answers = cast.get(draw.comparison_id, iter(()))
        outcome, annotator = next(answers, (None, None))
        outcomes.append(outcome)
        by_annotator.update([annotator] if annotator else [])
    n_votes = sum(outcome is not None for outcome in outcomes)
    n_read = len(draws) if n_votes == len(draws) else _count_whole_batches(outcomes)
    known = np.array([outcome for outcome in outcomes[:n_read] if outcome is not None])
    askable = [i for i, prompt in enumerate(prompts) if not _is_tie(prompt) and i not in left_out]
    p = np.array([prompt.probability for prompt in prompts])
    tie_share = sum(map(_is_tie, prompts)) / len(prompts)
    width = terms.smallest_effect
    rate = Interval(value=0.5, low=tie_share / 2, high=1 - tie_share / 2, n=0)
    verdict: Verdict = "open" if askable else "too_close"
    if n_read:
        estimate = estimate_people_win_rate(
            known,
            p[[draw.prompt for draw in draws[:n_read]]],
            p[askable],
            batch_size=BATCH,
            smallest_effect=min(0.5, width / (1 - tie_share)),
        )
        rate = _add_ties(estimate.win_rate, tie_share)
        verdict = estimate.decision
        if verdict == "better" and rate.low <= terms.min_win_rate:
            verdict = "too_close" if (rate.high - rate.low) / 2 < width else "open"
        if verdict == "open" and n_read == len(draws) and session.n_wanted >= terms.max_votes:
            verdict = "budget"
    newest = votes["received_at"].max() if len(votes) else session.asked_at
    return GateProgress(
        session_id=session.session_id,
        candidate=session.candidate,
        champion=session.champion,
        state=session.state,
        n_votes=n_votes,
        n_skipped=n_votes - by_annotator.total(),
        n_wanted=len(draws),
        max_votes=terms.max_votes,
        smallest_effect=width,
        win_rate=rate,
        verdict=verdict,
        by_annotator=dict(by_annotator.most_common()),
        waits_since=max(pd.Timestamp(newest).to_pydatetime(), session.asked_at),
    )


def _list_answers(
    votes: pd.DataFrame, comparisons: pd.DataFrame, session: GateSession
) -> dict[str, Iterator[tuple[float, str | None]]]:
    """Of each comparison its answers in seq order: 1 for the candidate, and who cast it; nobody for
    a tie by skips. Later votes do not change earlier answers.
    """
    is_a = dict(
        zip(
            comparisons["comparison_id"],
            comparisons["model_version_a"] == session.candidate,
            strict=True,
        )
    )
    return {
        comparison_id: _read_answers(
            list(zip(of_one["choice"], of_one["annotator_id"], strict=True)),
            bool(is_a[comparison_id]),
            session.terms.n_annotators,
        )
        for comparison_id, of_one in select_blind_votes(votes).groupby("comparison_id")
    }


def select_blind_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """The VOTES that count, of people and on cards, without undone ones."""
    counted = counting_votes(votes)
    is_undo = (counted["choice"] == Choice.SKIP) & counted["supersedes"].notna()
    return counted[
        ~is_undo
        & (counted["annotator_kind"] != AnnotatorKind.MACHINE)
        & counted[
            "is_swapped"
        ].notna()  # on a card: a vote by an id may come from a reader of the models
    ]


def _read_answers(
    cast: Sequence[tuple[str, str]], is_a: bool, n_annotators: int
) -> Iterator[tuple[float, str | None]]:
    wins, n_skips = {"a": float(is_a), "b": float(not is_a)}, 0
    for choice, annotator in cast:
        if choice != Choice.SKIP:
            yield wins.get(choice, 0.5), annotator
        elif (n_skips := n_skips + 1) % MOST_SKIPS == 0:
            yield 0.5, None
    while len(cast) >= n_annotators:
        yield 0.5, None


def _count_whole_batches(outcomes: Sequence[float | None]) -> int:
    """Number of votes before the first batch that lacks one."""
    missing = next((i for i, outcome in enumerate(outcomes) if outcome is None), len(outcomes))
    return missing - missing % BATCH


def _add_ties(rate: Interval, share: float) -> Interval:
    """The interval over all prompts, of which a share are known ties."""
    scaled = {
        name: share / 2 + (1 - share) * getattr(rate, name) for name in ("value", "low", "high")
    }
    return rate.model_copy(update=scaled)


def find_running(store: Store) -> GateProgress | None:
    """The progress of the session that is running, if one is."""
    session = store.gate_sessions.running()
    return None if session is None else load_progress(store, session)


def load_progress(store: Store, session: GateSession) -> GateProgress:
    """The present progress of a session."""
    prompts = store.gate_sessions.prompts(session.session_id)
    ids = sorted({draw.comparison_id for draw in list_draws(session, prompts)})
    votes = store.votes.log(comparison_ids=ids)
    return read_progress(session, prompts, votes, store.comparisons.with_ids(ids))


def advance(store: Store, champion: str | None, now: datetime) -> GateProgress | None:
    """Take the running session as far as votes allow, and return its progress; None without one.

    Void it where another champion serves or the candidate is archived, ask the next batch once all
    votes of the last one are in, and hold it while nobody votes. A verdict is left to `conclude`.
    Safe to repeat.
    """
    session = store.gate_sessions.running()
    if session is None:
        return None
    if champion not in (session.champion, session.candidate):
        void(store, session, f"{champion} serves now")
        return None
    name, _, version = session.candidate.partition("@")
    if int(version) in find_archived(store.release_acts.all(name)):
        void(store, session, f"{session.candidate} is archived")
        return None
    _publish(store, session)  # what a kill left undone
    progress = load_progress(store, session)
    if progress.verdict != "open":
        return progress
    if champion == session.candidate:  # by hand; the gate deploys it only with a verdict
        void(store, session, f"{champion} serves now")
        return None
    if progress.is_batch_complete:
        share = _find_share(max(1, store.gate_sessions.count_active_annotators()))
        n_wanted = min(session.n_wanted + BATCH, session.terms.max_votes)
        next_batch = store.gate_sessions.ask(session, n_wanted, share)
        if next_batch is not None:
            _publish(store, next_batch)
            progress = load_progress(store, next_batch)
        return progress
    is_late = now - progress.waits_since > timedelta(days=session.terms.hold_after_days)
    if is_late != (session.state == "held"):
        store.gate_sessions.hold(session, "held" if is_late else "open")
    return progress.model_copy(update={"state": "held" if is_late else "open"})


def _publish(store: Store, session: GateSession) -> None:
    """Publish and offer the comparisons of all draws that are not offered yet, with the frozen
    predictions.
    """
    prompts = store.gate_sessions.prompts(session.session_id)
    draws = list_draws(session, prompts)
    n_wanted = Counter(draw.comparison_id for draw in draws)
    offered = store.cards.count_wanted(list(n_wanted))
    missing = {name: n for name, n in n_wanted.items() if offered.get(name, (0, 0))[0] < n}
    if not missing:
        return
    places = {draw.comparison_id: draw.prompt for draw in draws}
    rows = [
        _build_comparison(session, name, places[name], prompts[places[name]]) for name in missing
    ]
    predicted = [
        _build_prediction(row, prediction, session.candidate)
        for row in rows
        if (prediction := prompts[row["position"]].prediction)
    ]
    store.comparisons.publish(
        check_frame(pd.DataFrame(rows), COMPARISONS),
        check_frame(pd.DataFrame(predicted), PREDICTIONS) if predicted else None,
        published_at=session.asked_at,
    )
    for n in set(missing.values()):
        ids = [name for name, n_missing in missing.items() if n_missing == n]
        store.cards.offer(ids, overlap=n, priority=GATE_PRIORITY)


def _build_comparison(
    session: GateSession, comparison_id: str, position: int, prompt: GatePrompt
) -> dict[str, Any]:
    texts = {
        session.candidate: prompt.completion_candidate,
        session.champion: prompt.completion_champion,
    }
    return {
        "day": session.asked_at.date().isoformat(),
        "comparison_id": comparison_id,
        "prompt_id": prompt.prompt_id,
        "prompt": prompt.prompt,
        **draw_sides(texts, prompt.prompt_id, (session.terms.seed, comparison_id)),
        "category": prompt.category,
        "repeat_of": None,
        "position": position,
        "source": GATE_SOURCE,
    }


def draw_sides(texts: Mapping[str, str], prompt_id: str, key: tuple[Any, ...]) -> dict[str, Any]:
    """Fields of a comparison of the texts of two versions. The sides are random by `key`:
    annotators do not see which version wrote which text.
    """
    seed = int(content_hash(*key)[:8], 16)
    (model_a, text_a), (model_b, text_b) = list(texts.items())[:: 1 if seed & 1 else -1]
    return {
        "completion_a_id": content_id(model_a, prompt_id, text_a),
        "completion_b_id": content_id(model_b, prompt_id, text_b),
        "completion_a": text_a,
        "completion_b": text_b,
        "model_version_a": model_a,
        "model_version_b": model_b,
        "seed": seed,
    }


def _build_prediction(
    comparison: dict[str, Any], prediction: PairPrediction, candidate: str
) -> dict[str, Any]:
    """A row of PREDICTIONS; `prediction` is for the candidate's text as a."""
    row = prediction.model_dump(exclude={"data_seq"}) | {"data_hash": prediction.data_hash or ""}
    if comparison["model_version_a"] != candidate:
        row |= {
            "score_a": prediction.score_b,
            "score_b": prediction.score_a,
            "p_raw": 1 - prediction.p_raw,
            "p_calibrated": 1 - prediction.p_calibrated,
        }
    texts = (comparison[name] for name in ("prompt", "completion_a", "completion_b"))
    named = {name: comparison[name] for name in ("day", "comparison_id")}
    return row | named | {"features_hash": content_hash(*texts)}


def void(store: Store, session: GateSession, reason: str) -> None:
    """End a session without a decision: its offers are withdrawn, its votes stay."""
    withdraw(store, session)  # first: a kill in between would leave the cards to the next session
    store.gate_sessions.close(session, "void", reason)


def withdraw(store: Store, session: GateSession) -> None:
    """Deal the comparisons of a session to nobody any more: some were skipped, or left out."""
    prompts = store.gate_sessions.prompts(session.session_id)
    ids = {draw.comparison_id for draw in list_draws(session, prompts)}
    store.cards.withdraw(sorted(ids), actor="pipeline")


def decide(session: GateSession, progress: GateProgress) -> GateDecision:
    """The gate's decision by the votes; the other checks are those of the opening."""
    passed = progress.verdict == "better"
    why = {
        "better": f"its lower bound is above {session.terms.min_win_rate:g}",
        "worse": "people prefer the champion",
        "too_close": f"too close to call: more votes would settle less than "
        f"{session.terms.smallest_effect:g}",
        "budget": f"undecided after {progress.max_votes} votes",
        "open": "undecided",
    }[progress.verdict]
    n_annotators = len(progress.by_annotator)
    skipped = f" ({progress.n_skipped} skipped: ties)" if progress.n_skipped else ""
    check = GateCheck(
        name=WIN_RATE,
        passed=passed,
        reason=f"By people: win rate {progress.win_rate} from {progress.n_votes} blind votes of "
        f"{n_annotators} annotator{'' if n_annotators == 1 else 's'}{skipped}; {why}.",
        is_required=session.terms.decision.checks[0].is_required,
    )
    decision = replace_check(session.terms.decision, check)
    return decision.model_copy(
        update={
            "promoted": not decision.blocking,
            "decided_at": utc_now(),
            "asks_people": False,
            "people_win_rate": progress.win_rate,
            "session_id": session.session_id,
        }
    )
