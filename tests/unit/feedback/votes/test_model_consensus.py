"""What the annotator model says of each comparison: whose state follows from chance and interval,
and who votes badly weighs little.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.frames import SOFT_LABELS, check_frame
from rlhf_pipeline.feedback.votes import joint_model
from rlhf_pipeline.feedback.votes.consensus import (
    consensus,
)
from rlhf_pipeline.feedback.votes.model_consensus import (
    LABELS_FRAME,
    consensus_by_model,
    store_labels,
)
from tests.unit.feedback.votes.simulated import select_judgements, simulate, votes_of


def labels(*rows: tuple[int, float, float, float], up_to_seq: int | None = 1000) -> pd.DataFrame:
    """(number of the comparison, p_a, its ends)."""
    named = [
        {
            "comparison_id": f"c{i:05d}",
            "prompt_id": "p0",
            "utility": 0.0,
            "sd": 1.0,
            "p_a": p,
            "p_low": low,
            "p_high": high,
            "n_votes": 2,
        }
        for i, p, low, high in rows
    ]
    return (
        check_frame(pd.DataFrame(named).assign(max_seq=up_to_seq), SOFT_LABELS)
        if rows
        else SOFT_LABELS.empty_frame()
    )


def make_votes(choices: str, comparison: int = 0) -> pd.DataFrame:
    """Votes of different people on one comparison: a, b, t(ie) or n(either is good)."""
    words = {"a": "a", "b": "b", "t": "tie", "n": "both_bad"}
    return votes_of(
        [comparison] * len(choices), range(len(choices)), [words[choice] for choice in choices]
    )


def model_consensus_of(log: pd.DataFrame, *more: object) -> pd.DataFrame:
    return consensus_by_model(select_judgements(log), *more)


@pytest.mark.parametrize(
    ("p", "low", "high", "choice", "state", "share", "ends"),
    [
        (0.9, 0.7, 0.97, "a", "agreed", 0.9, (0.7, 0.97)),
        (0.1, 0.03, 0.3, "b", "agreed", 0.9, (0.7, 0.97)),
        (0.9, 0.5, 0.99, "a", "disputed", 0.9, (0.5, 0.99)),  # the interval holds one half
        (0.3, 0.1, 0.6, "b", "disputed", 0.7, (0.4, 0.9)),
        # surely a, but by less than two thirds
        (0.6, 0.55, 0.65, "a", "disputed", 0.6, (0.55, 0.65)),
        (0.5, 0.2, 0.8, None, "disputed", 0.5, (0.2, 0.8)),
    ],
)
def test_consensus_state_follows_from_the_probability(p, low, high, choice, state, share, ends):
    row = model_consensus_of(make_votes("ab"), labels((0, p, low, high))).iloc[0]
    assert (row["choice"] if choice else pd.isna(row["choice"]), row["state"]) == (
        choice or True,
        state,
    )
    assert (row["share"], row["low"], row["high"]) == pytest.approx((share, *ends))
    assert (row["p_a"], row["p_low"], row["p_high"]) == pytest.approx((p, low, high))


def test_two_unreliable_annotators_are_outvoted():
    row = model_consensus_of(make_votes("aab"), labels((0, 0.1, 0.05, 0.2))).iloc[0]
    assert (row["choice"], row["state"], row["n_a"], row["n_b"]) == ("b", "agreed", 2, 1)


def test_too_few_judgements_stay_open():
    known = labels((0, 0.95, 0.9, 0.99))
    assert model_consensus_of(make_votes("a"), known).iloc[0]["state"] == "open"
    assert model_consensus_of(make_votes("a"), known, 1).iloc[0]["state"] == "agreed"
    assert model_consensus_of(make_votes("aa"), known, 3).iloc[0]["state"] == "open"


def test_later_votes_are_counted_without_moving_the_fit():
    cast = make_votes("abb")
    before, after = (
        model_consensus_of(cast, labels((0, 0.9, 0.8, 0.95), up_to_seq=seq)).iloc[0]
        for seq in (3, 1)
    )
    assert (before["n_since"], after["n_since"], after["up_to_seq"], after["n_votes"]) == (
        0,
        2,
        1,
        3,
    )
    assert (before["p_a"], before["state"]) == (after["p_a"], after["state"])
    skipped = cast.assign(choice=["a", "b", "skip"])
    assert (
        model_consensus_of(skipped, labels((0, 0.9, 0.8, 0.95), up_to_seq=1)).iloc[0]["n_since"]
        == 1
    )


def test_older_labels_do_not_replace_newer_ones(tmp_path: Path):
    files = Artefacts(tmp_path)

    def p_a() -> list[float]:
        return files.read_frame(*LABELS_FRAME)["p_a"].tolist()

    assert store_labels(files, labels(), newest_seq=0) is None
    assert p_a() == []
    assert store_labels(files, labels((0, 0.8, 0.7, 0.9), up_to_seq=10), newest_seq=10) is None
    assert store_labels(files, labels((0, 0.1, 0.0, 0.2), up_to_seq=9), newest_seq=12) == 10
    assert store_labels(files, labels(), newest_seq=12) == 10, "a fit to no vote"
    assert p_a() == [0.8]
    assert store_labels(files, labels((0, 0.3, 0.2, 0.4), up_to_seq=10), newest_seq=12) is None, (
        "the same votes, fitted otherwise"
    )
    assert p_a() == [0.3]
    assert store_labels(files, labels((0, 0.4, 0.2, 0.6), up_to_seq=3), newest_seq=5) is None, (
        "what lies there knows votes that there are not"
    )
    assert p_a() == [0.4]


def share_right(choice: pd.Series, better: np.ndarray) -> float:
    """Where none is named, half right."""
    return float(np.where(choice.isin(["a", "b"]), choice == better, 0.5).mean())


def test_joint_model_beats_the_majority_with_a_fifth_of_bad_raters():
    """A fifth of thirty people vote at random, five votes a comparison, in three worlds of 2,000
    comparisons.
    """
    gains = []
    for seed in range(3):
        truth = simulate(2000, n_annotators=30, votes_each=5, spammers=0.2, seed=seed)
        better = np.where(truth.d > 0, "a", "b")
        base = share_right(consensus(select_judgements(truth.votes))["choice"], better)
        by_model = model_consensus_of(truth.votes, joint_model(truth.votes).labels)["choice"]
        gains.append(share_right(by_model, better) - base)
    assert min(gains) > 0.01  # one standard error of such a difference is some 0.007
