"""A comparison that was judged on several days has one pair that counts."""

import pandas as pd

from rlhf_pipeline.frames import PREFERENCE_PAIRS
from rlhf_pipeline.votes import latest_pairs

PAIR = {
    "day": "2026-01-01", "comparison_id": "c1", "prompt_id": "p1", "prompt": "Why?", "chosen": "Because.", "rejected": "No.", "margin": 0.5,
    "agreement": 1.0, "n_votes": 2, "chosen_side": "a", "annotator_kind": "human", "category": "factual", "split": "train", "max_seq": 5,
}  # fmt: skip


def test_the_last_day_counts_because_it_holds_all_votes() -> None:
    later = PAIR | {"day": "2026-01-02", "n_votes": 3, "agreement": 2 / 3, "max_seq": 9}
    other = PAIR | {"comparison_id": "c2"}
    kept = latest_pairs(pd.DataFrame([later, PAIR, other]))
    assert kept[["comparison_id", "n_votes"]].to_dict("records") == [
        {"comparison_id": "c1", "n_votes": 3},
        {"comparison_id": "c2", "n_votes": 2},
    ]


def test_no_pairs_stay_no_pairs() -> None:
    assert latest_pairs(PREFERENCE_PAIRS.empty()).empty
