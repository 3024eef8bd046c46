from typing import get_args

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.feedback.votes.consensus import (
    CONSENSUS,
    Weighing,
    adjudication_queue,
    consensus,
)
from tests.unit.feedback.votes.simulated import select_judgements


def votes(
    *cast: tuple[str, str, str, int | None],
    kind: str = "human",
    repeat_of: str | None = None,
    first_seq: int = 1,
) -> pd.DataFrame:
    """(comparison, annotator, choice, strength), in order of seq."""
    moment = pd.Timestamp("2026-01-01T10:00Z")
    rows = [
        {
            "day": "2026-01-01",
            "seq": first_seq + i,
            "vote_id": f"v{first_seq + i}",
            "comparison_id": c,
            "prompt_id": f"p-{c}",
            "annotator_id": who,
            "annotator_kind": kind,
            "choice": choice,
            "strength": strength,
            "repeat_of": repeat_of,
            "voted_at": moment,
            "received_at": moment,
        }
        for i, (c, who, choice, strength) in enumerate(cast)
    ]
    return check_frame(pd.DataFrame(rows), VOTES) if rows else VOTES.empty_frame()


def consensus_of(log: pd.DataFrame, *more: object, **named: object) -> pd.DataFrame:
    return consensus(select_judgements(log), *more, **named)


def only(frame: pd.DataFrame) -> pd.Series:
    assert len(frame) == 1
    return frame.iloc[0]


def test_two_of_three_agree_and_are_counted():
    row = only(consensus_of(votes(("c", "x", "a", 1), ("c", "y", "a", 2), ("c", "z", "b", 4))))
    assert (
        row["choice"],
        row["state"],
        row["n_votes"],
        row["n_a"],
        row["n_b"],
        row["last_seq"],
    ) == ("a", "agreed", 3, 2, 1, 3)
    assert row["share"] == pytest.approx(2 / 3)


def test_strength_outweighs_number():
    cast = votes(("c", "x", "a", 1), ("c", "y", "a", 1), ("c", "z", "b", 4))
    row = only(consensus_of(cast, "strength_weighted"))
    assert (row["choice"], row["share"], row["state"]) == ("b", pytest.approx(4 / 6), "agreed")
    assert only(consensus_of(cast))["choice"] == "a"


def test_equal_weights_have_no_winner():
    row = only(consensus_of(votes(("c", "x", "a", 1), ("c", "y", "b", 4))))
    assert pd.isna(row["choice"])
    assert (row["state"], row["share"]) == ("disputed", 0.5)


def test_tie_and_both_bad_share_a_side_named_by_the_heavier():
    both_bad = only(
        consensus_of(
            votes(
                ("c", "x", "tie", None),
                ("c", "y", "both_bad", None),
                ("c", "z", "both_bad", None),
                ("c", "w", "a", 4),
            )
        )
    )
    assert (both_bad["choice"], both_bad["share"], both_bad["state"]) == (
        "both_bad",
        0.75,
        "agreed",
    )
    assert (both_bad["n_ties"], both_bad["n_both_bad"]) == (1, 2)
    assert (
        only(consensus_of(votes(("c", "x", "tie", None), ("c", "y", "both_bad", None))))["choice"]
        == "tie"
    )


def test_machines_skips_and_repeats_are_not_counted():
    people = votes(("c", "x", "a", 1), ("c", "y", "a", 1))
    machine = votes(
        ("c", "m", "b", None),
        ("c", "m2", "b", None),
        ("d", "m", "b", None),
        kind="machine",
        first_seq=10,
    )
    repeat = votes(("r", "x", "b", 1), repeat_of="c", first_seq=20)
    pd.testing.assert_frame_equal(
        consensus_of(pd.concat([people, machine, repeat])), consensus_of(people)
    )


@pytest.mark.parametrize("method", get_args(Weighing))
def test_only_the_last_pass_counts(method):
    once = votes(("c", "x", "b", 1), ("c", "y", "b", 1), ("c", "x", "a", 4), ("d", "y", "a", 1))
    taken_back = votes(("d", "y", "skip", None), first_seq=5)
    log = pd.concat([once, taken_back], ignore_index=True).assign(
        pass_no=[1, 1, 2, 1, 1],
        revision_no=[0, 0, 0, 0, 1],
        supersedes=[None, None, None, None, "v4"],
    )
    row = only(consensus_of(log, method))
    assert (row["comparison_id"], row["n_votes"], row["n_a"], row["n_b"]) == ("c", 2, 1, 1)
    pd.testing.assert_frame_equal(
        consensus_of(log, method), consensus_of(once.iloc[[1, 2]], method)
    )


@pytest.mark.parametrize("method", get_args(Weighing))
def test_no_votes_give_the_empty_frame(method):
    pd.testing.assert_frame_equal(consensus_of(votes(), method), CONSENSUS.empty_frame())


@pytest.mark.parametrize("method", get_args(Weighing))
def test_the_order_of_votes_changes_nothing(method):
    rng = np.random.default_rng(1)
    cast = votes(
        *(
            (f"c{i % 40}", f"w{i // 40}", str(rng.choice(["a", "b", "tie", "both_bad"])), None)
            for i in range(200)
        )
    )
    frame = consensus_of(cast, method)
    pd.testing.assert_frame_equal(consensus_of(cast.sample(frac=1, random_state=2), method), frame)


def test_adjudication_lists_the_most_even_dispute_first():
    cast = votes(
        ("agreed", "x", "a", 1),
        ("agreed", "y", "a", 1),
        ("split", "x", "a", 1),
        ("split", "y", "b", 1),
        ("three ways", "x", "a", 1),
        ("three ways", "y", "b", 1),
        ("three ways", "z", "tie", None),
        ("leaning", "v", "a", 1),
        ("leaning", "w", "a", 1),
        ("leaning", "x", "a", 1),
        ("leaning", "y", "b", 1),
        ("leaning", "z", "b", 1),
        ("alone", "x", "a", 1),
    )
    assert adjudication_queue(consensus_of(cast))["comparison_id"].tolist() == [
        "three ways",
        "split",
        "leaning",
    ]
