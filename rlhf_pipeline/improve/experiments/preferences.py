"""Asks annotators which arm's answer to a served request they prefer, and reads their votes.

A session gives one pair at most. Of the larger arm only so many sessions are drawn that both arms
are asked about equally often.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from rlhf_pipeline.core.conversations import normalise_text, prompt_id
from rlhf_pipeline.core.experiments import Arm, Experiment
from rlhf_pipeline.core.frames import COMPARISONS, IDENTICAL, check_frame
from rlhf_pipeline.core.records import Choice, content_id
from rlhf_pipeline.improve.gate_sessions import MOST_SKIPS, draw_sides, select_blind_votes
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.audit import joint_transaction
from rlhf_pipeline.store.card_draw import EXPERIMENT_PRIORITY
from rlhf_pipeline.store.experiments import PAIR_SOURCE

WAITING_AT_MOST = 20  # cards of a day


class Preference(NamedTuple):
    """Of one pair: 1 for the treatment, 0 for the control, one half for a tie, for `both_bad` and
    for MOST_SKIPS skips. `annotator` is None of a tie that nobody's vote is.
    """

    value: float
    annotator: str | None = None


def assign(experiment: Experiment, unit: str) -> Arm:
    """The arm of a session, or of an answer without one: the same at each call, and for a
    session of the treatment at each larger share too.
    """
    is_treated = _draw_number(experiment, unit) < experiment.traffic_split
    return "treatment" if is_treated else "control"


def wants_pair(store: Store, experiment: Experiment, unit: str) -> bool:
    """Whether annotators are to compare both arms' answers to this session's present request."""
    share = experiment.traffic_split
    own = share if assign(experiment, unit) == "treatment" else 1 - share
    if _draw_number(experiment, f"pair/{unit}") * own >= min(share, 1 - share):
        return False
    return store.experiments.has_place(_find_id(experiment, unit), WAITING_AT_MOST)


def offer_pair(
    store: Store, experiment: Experiment, unit: str, prompt: str, texts: Mapping[str, str]
) -> None:
    """Let annotators compare the texts by version; equal ones are a tie that nobody is asked
    about.
    """
    is_tie = len(set(map(normalise_text, texts.values()))) == 1
    now, comparison_id = store.database.clock.now(), _find_id(experiment, unit)
    prompt_key = prompt_id(prompt)
    row = {
        "day": now.date().isoformat(),
        "comparison_id": comparison_id,
        "prompt_id": prompt_key,
        "prompt": prompt,
        **draw_sides(texts, prompt_key, (experiment.salt, comparison_id)),
        "category": "chat",
        "repeat_of": None,
        "position": 0,
        "source": PAIR_SOURCE,
        "flag": IDENTICAL if is_tie else None,
    }
    frame = check_frame(pd.DataFrame([row]), COMPARISONS)
    with joint_transaction(store.database):
        if store.experiments.get(experiment.experiment_id).status != "running":
            return  # it ended meanwhile
        store.comparisons.publish(frame, published_at=now)
        if not is_tie:
            store.cards.offer([comparison_id], overlap=1, priority=EXPERIMENT_PRIORITY)


def read_preferences(store: Store, experiment: Experiment) -> list[Preference]:
    """One of each pair, in the order of votes. Ties without a card enter with the vote on the next
    pair drawn: at once, they would outnumber pairs that wait for a vote.
    """
    pairs = store.experiments.pairs(experiment)
    n_ties: dict[str, int] = {}  # drawn just before the pair
    n_before = 0
    for comparison_id, side in pairs.items():
        if side is None:
            n_before += 1
        else:
            n_ties[comparison_id], n_before = n_before, 0
    votes = store.votes.log(comparison_ids=[*n_ties])
    votes = select_blind_votes(votes[votes["pass_no"] == 1])
    if experiment.end_date is not None:
        votes = votes[votes["received_at"] <= experiment.end_date]
    preferences: list[Preference] = []
    n_skips = Counter[str]()
    columns = (votes[name] for name in ("comparison_id", "choice", "annotator_id"))
    for comparison_id, choice, annotator in zip(*columns, strict=True):
        is_skip = choice == Choice.SKIP
        n_skips[comparison_id] += is_skip
        is_answered = not is_skip or n_skips[comparison_id] == MOST_SKIPS
        if is_answered and comparison_id in n_ties:
            preferences += [Preference(0.5)] * n_ties.pop(comparison_id)
            a = float(pairs[comparison_id] == "treatment")
            value = {"a": a, "b": 1 - a}.get(choice, 0.5)
            preferences.append(Preference(value, None if is_skip else annotator))
    return preferences


def _find_id(experiment: Experiment, unit: str) -> str:
    # with the salt, which annotators do not know
    return content_id(PAIR_SOURCE, experiment.experiment_id, experiment.salt, unit)


def _draw_number(experiment: Experiment, name: str) -> float:
    """Uniform from 0 to 1, the same at each call."""
    digest = hashlib.sha256(f"{experiment.salt}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
