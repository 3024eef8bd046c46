import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.errors import FrameError
from rlhf_pipeline.frames import VOTES, check_frame
from rlhf_pipeline.simulation.annotators import SimulatedAnnotator
from rlhf_pipeline.votes import agreement, drop_machine_votes, gold_ceiling, noise_ceiling
from rlhf_pipeline.votes.consensus import (
    CONSENSUS,
    WEIGHINGS,
    ConsensusParams,
    adjudication_queue,
    consensus,
    select_judgements,
)


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


def test_a_vote_without_strength_weighs_what_the_parameters_say():
    cast = votes(("c", "x", "a", None), ("c", "y", "b", 3))
    assert only(consensus_of(cast, "strength_weighted"))["choice"] == "b"
    assert (
        only(consensus_of(cast, "strength_weighted", ConsensusParams(strength_when_missing=4)))[
            "choice"
        ]
        == "a"
    )


def test_nobody_wins_where_two_sides_weigh_the_same():
    row = only(consensus_of(votes(("c", "x", "a", 1), ("c", "y", "b", 4))))
    assert pd.isna(row["choice"])
    assert (row["state"], row["share"]) == ("disputed", 0.5)


def test_tie_and_both_bad_are_one_side_and_the_heavier_names_it():
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


def test_one_vote_agrees_with_nobody():
    row = only(consensus_of(votes(("c", "x", "a", 4), ("c", "y", "skip", None))))
    assert (row["state"], row["choice"], row["n_votes"]) == ("open", "a", 1)
    assert (
        only(consensus_of(votes(("c", "x", "a", 4)), params=ConsensusParams(min_votes=1)))["state"]
        == "agreed"
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


@pytest.mark.parametrize("method", WEIGHINGS)
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


@pytest.mark.parametrize("method", WEIGHINGS)
def test_no_votes_are_the_empty_frame(method):
    pd.testing.assert_frame_equal(consensus_of(votes(), method), CONSENSUS.empty_frame())


@pytest.mark.parametrize("method", WEIGHINGS)
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


def test_a_frame_that_breaks_its_schema_is_refused():
    with pytest.raises(FrameError, match="missing columns"):
        consensus(pd.DataFrame({"comparison_id": ["c"]}))


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


def test_shares_that_differ_by_rounding_alone_are_equal_in_adjudication():
    """Of mirrored votes a model says p and 1 - p, and their shares differ in the last bit: the next
    key decides.
    """
    frame = consensus_of(
        votes(
            *(
                (c, who, side, 1)
                for c in ("c0", "c1", "c2", "c3")
                for who, side in (("x", "a"), ("y", "b"))
            )
        )
    )
    mirrored = [1 - 0.41, 0.59] * 2
    assert mirrored[0] != mirrored[1]
    assert adjudication_queue(frame.assign(share=mirrored))["comparison_id"].tolist() == [
        "c0",
        "c1",
        "c2",
        "c3",
    ]


def test_the_interval_covers_the_share_of_a_crowd():
    """Of 400 comparisons with 15 votes from a crowd that says a with 0.7, about 95 % of the
    intervals hold 0.7.
    """
    rng = np.random.default_rng(5)
    cast = votes(
        *(
            (f"c{i}", f"w{j}", "a" if rng.random() < 0.7 else "b", None)
            for i in range(400)
            for j in range(15)
        )
    )
    frame = consensus_of(cast)
    of_a = frame["choice"] == "a"
    low = frame["low"].where(of_a, 1 - frame["high"])
    high = frame["high"].where(of_a, 1 - frame["low"])
    assert 0.91 <= ((low <= 0.7) & (high >= 0.7)).mean() <= 0.99


def test_more_votes_find_the_truth_more_often_and_strength_helps():
    """Simulated annotators with known utilities: strength is how much they felt, so it tells
    guesses from convictions.
    """
    rng = np.random.default_rng(3)
    truth = rng.normal(size=1500)
    pool = [SimulatedAnnotator(annotator_id=f"w{j}", noise=0.9) for j in range(5)]
    cast = []
    for i, gap in enumerate(truth):
        for annotator in pool:
            choice, strength = annotator.vote(gap / 2, -gap / 2, n_earlier=0, rng=rng)
            cast.append((f"c{i:04d}", annotator.annotator_id, choice.value, strength))

    def accuracy(frame: pd.DataFrame) -> float:
        gap = frame["comparison_id"].str[1:].astype(int).map(dict(enumerate(truth)))
        return float((frame["choice"] == np.where(gap > 0, "a", "b")).mean())

    cast = votes(*cast)
    alone = accuracy(consensus_of(cast[cast["annotator_id"] == "w0"]))
    majority, weighted = (accuracy(consensus_of(cast, method)) for method in WEIGHINGS)
    assert alone + 0.03 < majority < weighted


def test_machine_votes_measure_no_agreement_among_people():
    people = votes(("c", "x", "a", 1), ("c", "y", "b", 1), ("d", "x", "a", 2))
    machine = votes(("c", "m", "a", None), ("d", "m", "a", None), kind="machine", first_seq=10)
    both = pd.concat([people, machine])
    assert agreement(both) == agreement(people)
    assert agreement(both).n_annotators == 2
    assert noise_ceiling(both) == noise_ceiling(people)
    pd.testing.assert_frame_equal(drop_machine_votes(both), people)


def test_machine_votes_do_not_meet_gold():
    from rlhf_pipeline.frames import COMPARISONS

    row = dict.fromkeys(COMPARISONS.columns) | {
        "day": "2026-01-01",
        "comparison_id": "c",
        "prompt_id": "p-c",
        "prompt": "?",
        "completion_a_id": "a",
        "completion_b_id": "b",
        "completion_a": "x",
        "completion_b": "y",
        "model_version_a": "m",
        "model_version_b": "m",
        "category": "factual",
        "position": 0,
        "seed": 0,
        "gold": "a",
    }
    judged = check_frame(pd.DataFrame([row]), COMPARISONS)
    people = votes(("c", "x", "b", 1))
    machine = votes(("c", "m", "a", None), kind="machine", first_seq=9)
    assert gold_ceiling(pd.concat([people, machine]), judged) == gold_ceiling(people, judged)
    assert gold_ceiling(machine, judged) is None
