import pandas as pd
import pytest

from rlhf_pipeline.core.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.feedback.votes import gold_ceiling, gold_pairs, make_pairs

DAY = "2026-01-01"


def comparisons(rows: list[tuple[str, str | None, str | None, str | None]]) -> pd.DataFrame:
    """(comparison, gold, flag, split)"""
    frame = pd.DataFrame(rows, columns=["comparison_id", "gold", "flag", "split"])
    ids = frame["comparison_id"]
    sides = {f"completion_{side}": ids + f" text {side}" for side in "ab"} | {
        f"completion_{side}_id": ids + side for side in "ab"
    }
    models = {"model_version_a": "m@1", "model_version_b": "m@2"}
    more = {
        "day": DAY,
        "prompt_id": "p" + ids,
        "prompt": "ask " + ids,
        "category": "argument",
        "repeat_of": None,
        "position": 1,
        "seed": 0,
    }
    return check_frame(frame.assign(**sides, **models, **more), COMPARISONS)


def votes(rows: list[tuple[str, str]]) -> pd.DataFrame:
    """(comparison, choice), each by a person of their own"""
    frame = pd.DataFrame(rows, columns=["comparison_id", "choice"])
    n, moment = range(1, len(frame) + 1), pd.Timestamp("2026-01-01T10:00Z")
    ids = {
        "vote_id": [f"v{i}" for i in n],
        "annotator_id": [f"w{i}" for i in n],
        "seq": n,
        "prompt_id": "p" + frame["comparison_id"],
    }
    more = {
        "day": DAY,
        "annotator_kind": "human",
        "strength": None,
        "repeat_of": None,
        "voted_at": moment,
        "received_at": moment,
    }
    return check_frame(frame.assign(**ids, **more), VOTES)


def test_a_known_right_choice_makes_a_certain_pair():
    pair = gold_pairs(comparisons([("c1", "b", None, "test")])).iloc[0]
    assert (pair["chosen"], pair["rejected"], pair["chosen_side"]) == (
        "c1 text b",
        "c1 text a",
        "b",
    )
    assert (pair["agreement"], pair["n_votes"], pair["split"]) == (1.0, 1, "test")


def test_ties_unknown_flagged_and_repeats_make_no_pair():
    frame = comparisons(
        [
            ("c1", "tie", None, None),
            ("c2", None, None, None),
            ("c3", "a", "identical", None),
            ("c4", "a", "repeated", None),
        ]
    )
    assert gold_pairs(frame).empty
    again = comparisons([("c5", "a", None, None)]).assign(repeat_of="c0")
    assert gold_pairs(again).empty


def test_gold_pairs_use_vote_counts_only_if_votes_agree_with_gold():
    frame = comparisons([("c1", "a", None, None), ("c2", "a", None, None), ("c3", "b", None, None)])
    cast = votes([("c1", "a"), ("c1", "a"), ("c1", "b"), ("c2", "b"), ("c2", "b")])
    pairs = gold_pairs(frame, make_pairs(cast, frame)[0]).set_index("comparison_id")
    assert (
        pairs.loc["c1", "agreement"],
        pairs.loc["c1", "n_votes"],
        pairs.loc["c1", "max_seq"],
    ) == (pytest.approx(2 / 3), 3, 3)
    assert (
        pairs.loc["c2", "chosen_side"],
        pairs.loc["c2", "agreement"],
        pairs.loc["c2", "n_votes"],
    ) == ("a", 1.0, 1)
    assert pairs.loc["c3", "agreement"] == 1.0


def test_gold_split_is_the_given_one_or_that_of_the_votes():
    frame = comparisons([(f"c{i}", "a", None, None) for i in range(30)])
    by_votes = make_pairs(votes([(c, "a") for c in frame["comparison_id"]]), frame)[0]
    assert gold_pairs(frame)["split"].tolist() == by_votes["split"].tolist()


def test_the_ceiling_against_gold_counts_single_votes_for_a_side():
    frame = comparisons(
        [
            ("c1", "a", None, None),
            ("c2", "b", None, None),
            ("c3", "tie", None, None),
            ("c4", "a", "repeated", None),
        ]
    )
    cast = votes(
        [
            ("c1", "a"),
            ("c1", "b"),
            ("c1", "tie"),
            ("c2", "b"),
            ("c2", "b"),
            ("c3", "a"),
            ("c4", "b"),
        ]
    )
    ceiling = gold_ceiling(cast, frame)
    assert (ceiling.value, ceiling.n) == (0.75, 4)
