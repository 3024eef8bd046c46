"""A comparison that was judged on several days has one pair that counts."""

import pandas as pd

from rlhf_pipeline.frames import PREFERENCE_PAIRS, VOTES
from rlhf_pipeline.votes import latest_pairs

PAIR = {
    "day": "2026-01-01",
    "comparison_id": "c1",
    "prompt_id": "p1",
    "prompt": "Why?",
    "chosen": "Because.",
    "rejected": "No.",
    "margin": 0.5,
    "agreement": 1.0,
    "n_votes": 2,
    "chosen_side": "a",
    "annotator_kind": "human",
    "category": "factual",
    "split": "train",
    "max_seq": 5,
}


def test_the_last_day_counts_because_it_holds_all_votes() -> None:
    later = PAIR | {"day": "2026-01-02", "n_votes": 3, "agreement": 2 / 3, "max_seq": 9}
    other = PAIR | {"comparison_id": "c2"}
    kept = latest_pairs(pd.DataFrame([later, PAIR, other]))
    assert kept[["comparison_id", "n_votes"]].to_dict("records") == [
        {"comparison_id": "c1", "n_votes": 3},
        {"comparison_id": "c2", "n_votes": 2},
    ]


def test_no_pairs_stay_no_pairs() -> None:
    assert latest_pairs(PREFERENCE_PAIRS.empty_frame()).empty


def test_a_pair_that_rests_on_a_later_vote_is_as_good_as_not_there() -> None:
    early = [PAIR | {"comparison_id": name, "max_seq": 10} for name in ("c1", "c2")]
    late = [
        PAIR | {"comparison_id": name, "max_seq": 30, "day": "2026-01-03"} for name in ("c2", "c3")
    ]
    pairs = pd.DataFrame([*early, *late])
    known = latest_pairs(pairs, up_to_seq=20)
    assert known["comparison_id"].tolist() == ["c1", "c2"]
    assert set(known["day"]) == {"2026-01-01"}
    assert latest_pairs(pairs, up_to_seq=5).empty
    assert latest_pairs(pairs, up_to_seq=40).equals(latest_pairs(pairs))


def cast(*votes: tuple[str, str, int, str]) -> pd.DataFrame:
    """(day, comparison, seq, choice)"""
    noon = pd.Timestamp("2026-01-01T12:00Z")
    rows = [
        {
            "day": day,
            "seq": seq,
            "vote_id": f"v{seq}",
            "comparison_id": name,
            "prompt_id": "p1",
            "annotator_id": f"ann{seq}",
            "annotator_kind": "human",
            "choice": choice,
            "strength": None,
            "repeat_of": None,
            "voted_at": noon,
            "received_at": noon,
        }
        for day, name, seq, choice in votes
    ]
    return pd.DataFrame(rows, columns=list(VOTES.columns))


def test_a_pair_that_later_votes_made_undecided_no_longer_counts() -> None:
    votes = cast(
        ("2026-01-01", "c1", 5, "a"), ("2026-01-01", "c2", 6, "a"), ("2026-01-02", "c1", 9, "b")
    )
    pairs = pd.DataFrame([PAIR, PAIR | {"comparison_id": "c2", "max_seq": 6}])
    assert latest_pairs(pairs, votes)["comparison_id"].tolist() == ["c2"]
    assert latest_pairs(pairs, votes, up_to_seq=8)["comparison_id"].tolist() == ["c1", "c2"]


def test_a_tie_of_the_same_snapshot_does_not_undo_its_pair() -> None:
    votes = cast(("2026-01-01", "c1", 5, "a"), ("2026-01-01", "c1", 7, "tie"))
    assert latest_pairs(pd.DataFrame([PAIR]), votes)["comparison_id"].tolist() == ["c1"]


def test_a_late_vote_for_the_first_day_makes_that_days_pair_the_newest() -> None:
    votes = cast(
        ("2026-01-01", "c1", 5, "a"), ("2026-01-02", "c1", 9, "a"), ("2026-01-01", "c1", 12, "a")
    )
    remade = PAIR | {"n_votes": 3, "max_seq": 12}
    second = PAIR | {"day": "2026-01-02", "max_seq": 9}
    assert latest_pairs(pd.DataFrame([second, remade]), votes)["n_votes"].tolist() == [3]
