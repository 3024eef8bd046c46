"""Asks annotators which arm's answer to a served request they prefer, and reads their votes.

A session gives one pair at most. Of the larger arm only so many sessions are drawn that both arms
are asked about equally often.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

import pandas as pd

from rlhf_pipeline.core.conversations import normalise_text, prompt_id
from rlhf_pipeline.core.experiments import Arm, Experiment
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import Choice, content_id
from rlhf_pipeline.improve.gate_sessions import MOST_SKIPS, draw_sides, select_blind_votes
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.card_draw import EXPERIMENT_PRIORITY
from rlhf_pipeline.store.experiments import PAIR_SOURCE

WAITING_AT_MOST = 20  # cards of a day


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
    """Let annotators compare the texts by version, unless they are equal."""
    if len(set(map(normalise_text, texts.values()))) == 1:
        return
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
    }
    store.comparisons.publish(check_frame(pd.DataFrame([row]), COMPARISONS), published_at=now)
    store.cards.offer([comparison_id], overlap=1, priority=EXPERIMENT_PRIORITY)
    if store.experiments.get(experiment.experiment_id).status != "running":  # it ended meanwhile
        store.cards.withdraw([comparison_id], actor="pipeline")


def read_preferences(store: Store, experiment: Experiment) -> Iterable[float]:
    """One of each pair, in the order of votes: 1 for the treatment, 0 for the control, one half for
    a tie, for `both_bad` and for MOST_SKIPS skips.
    """
    pairs = store.experiments.pairs(experiment)
    votes = store.votes.log(comparison_ids=[*pairs])
    votes = select_blind_votes(votes[votes["pass_no"] == 1])
    if experiment.end_date is not None:
        votes = votes[votes["received_at"] <= experiment.end_date]
    preferences: dict[str, float] = {}
    n_skips = Counter[str]()
    for comparison_id, choice in zip(votes["comparison_id"], votes["choice"], strict=True):
        n_skips[comparison_id] += choice == Choice.SKIP
        if choice != Choice.SKIP or n_skips[comparison_id] == MOST_SKIPS:
            wins = {"a": float(pairs[comparison_id]), "b": float(not pairs[comparison_id])}
            preferences.setdefault(comparison_id, wins.get(choice, 0.5))
    return preferences.values()


def _find_id(experiment: Experiment, unit: str) -> str:
    # with the salt, which annotators do not know
    return content_id(PAIR_SOURCE, experiment.experiment_id, experiment.salt, unit)


def _draw_number(experiment: Experiment, name: str) -> float:
    """Uniform from 0 to 1, the same at each call."""
    digest = hashlib.sha256(f"{experiment.salt}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
