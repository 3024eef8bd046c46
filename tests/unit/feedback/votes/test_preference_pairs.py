import json

import pandas as pd
import pytest

from rlhf_pipeline.core.frames import COMPARISONS, PREFERENCE_PAIRS, VOTES, check_frame
from rlhf_pipeline.feedback.votes.preference_pairs import (
    PairParams,
    make_pairs,
    read_dimension_votes,
    read_trl_texts,
    training_rows,
)
from rlhf_pipeline.feedback.votes.splits import SPLITS, prompts_in_several_splits, split_of


def comparisons(*ids: str, repeat_of: dict[str, str] | None = None) -> pd.DataFrame:
    rows = [
        {
            "day": "2026-01-01",
            "comparison_id": c,
            "prompt_id": f"prompt-{c}",
            "prompt": f"ask {c}",
            "completion_a_id": f"{c}a",
            "completion_b_id": f"{c}b",
            "completion_a": f"text a of {c}",
            "completion_b": f"text b of {c}",
            "model_version_a": "demo.policy@1",
            "model_version_b": "demo.policy@1",
            "category": "factual",
            "repeat_of": (repeat_of or {}).get(c),
            "position": i,
            "seed": 0,
        }
        for i, c in enumerate(ids)
    ]
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def votes(*cast: tuple[str, str, str, int | None], kinds: tuple[str, ...] = ()) -> pd.DataFrame:
    """(comparison, annotator, choice, strength), in order of seq."""
    rows = [
        {
            "day": "2026-01-01",
            "seq": i + 1,
            "vote_id": f"v{i}",
            "comparison_id": c,
            "prompt_id": f"prompt-{c}",
            "annotator_id": who,
            "annotator_kind": kinds[i] if kinds else "human",
            "choice": choice,
            "strength": strength,
            "repeat_of": None,
            "voted_at": pd.Timestamp("2026-01-01T10:00Z"),
            "received_at": pd.Timestamp("2026-01-01T10:00Z"),
        }
        for i, (c, who, choice, strength) in enumerate(cast)
    ]
    return check_frame(pd.DataFrame(rows), VOTES) if rows else VOTES.empty_frame()


def test_the_majority_is_chosen_with_its_mean_signed_strength():
    cast = votes(("c1", "x", "b", 4), ("c1", "y", "b", 2), ("c1", "z", "a", 2))
    row = make_pairs(cast, comparisons("c1"))[0].iloc[0]
    assert (row["chosen"], row["rejected"], row["chosen_side"]) == (
        "text b of c1",
        "text a of c1",
        "b",
    )
    assert row["agreement"] == pytest.approx(2 / 3)
    assert row["margin"] == pytest.approx((4 + 2 - 2) / 3 / 4)
    assert (row["n_votes"], row["max_seq"], row["annotator_kind"]) == (3, 3, "human")


def test_a_tie_is_not_a_preference():
    cast = votes(
        ("c1", "x", "tie", None),
        ("c1", "y", "both_bad", None),
        ("c2", "x", "a", 1),
        ("c2", "y", "tie", None),
        ("c2", "z", "skip", None),
    )
    pairs = make_pairs(cast, comparisons("c1", "c2"))[0]
    assert pairs["comparison_id"].tolist() == ["c2"]
    assert pairs["n_votes"].tolist() == [1]
    counts = make_pairs(cast, comparisons("c1", "c2"))[1]
    assert (counts.n_votes, counts.n_ties, counts.n_skips, counts.n_only_ties, counts.n_pairs) == (
        5,
        3,
        1,
        1,
        1,
    )


@pytest.mark.parametrize(
    "cast", [votes(), votes(("c1", "x", "tie", None), ("c1", "y", "tie", None))]
)
def test_no_votes_or_only_ties_give_the_empty_frame(cast):
    pairs = make_pairs(cast, comparisons("c1"))[0]
    assert pairs.empty
    assert list(pairs.columns) == list(PREFERENCE_PAIRS.columns)
    assert make_pairs(cast, comparisons("c1"))[1].n_pairs == 0


def test_even_split_has_a_pair_only_if_kept_at_margin_zero():
    cast = votes(("c1", "x", "a", 4), ("c1", "y", "b", 1))
    assert make_pairs(cast, comparisons("c1"))[0].empty
    assert make_pairs(cast, comparisons("c1"))[1].n_without_majority == 1
    pair = make_pairs(cast, comparisons("c1"), PairParams(keep_even_splits=True))[0].iloc[0]
    assert (pair["agreement"], pair["margin"]) == (0.5, 0.0)


def test_votes_on_repeats_make_no_pair():
    frame = comparisons("c1", "c2", repeat_of={"c2": "c1"})
    cast = votes(("c1", "x", "a", 1), ("c2", "x", "b", 1))
    assert make_pairs(cast, frame)[0]["comparison_id"].tolist() == ["c1"]
    assert make_pairs(cast, frame)[1].n_repeats == 1


def test_pair_judged_by_humans_and_machines_is_mixed():
    cast = votes(
        ("c1", "x", "a", 1),
        ("c1", "y", "a", 1),
        ("c2", "x", "a", 1),
        kinds=("human", "simulated", "human"),
    )
    assert make_pairs(cast, comparisons("c1", "c2"))[0]["annotator_kind"].tolist() == [
        "mixed",
        "human",
    ]
    assert make_pairs(cast, comparisons("c1", "c2"))[1].n_mixed == 1


def test_splits_depend_on_the_prompt_alone():
    splits = pd.Series([split_of(f"prompt-{i}") for i in range(20_000)])
    shares = splits.value_counts(normalize=True)
    assert all(abs(shares[split] - share) < 0.01 for split, share in SPLITS.items())
    # Written down, because a change of the rule would leak test prompts of old runs into training.
    assert splits[:6].tolist() == ["train", "train", "train", "calib", "calib", "train"]


def test_training_rows_start_with_trls_columns():
    pairs = make_pairs(votes(("c1", "x", "a", 1), ("c2", "x", "b", 3)), comparisons("c1", "c2"))[0]
    rows = training_rows(pairs)
    assert list(rows[0])[:4] == ["prompt", "chosen", "rejected", "margin"]
    assert rows[1]["chosen"] == "text b of c2"


def test_training_rows_of_conversations_are_messages_and_are_read_back():
    chat = '[{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Why?"}]'
    frame = comparisons("c1", "c2").assign(prompt=[chat, "Plain."])
    pairs = make_pairs(votes(("c1", "x", "a", 1), ("c2", "x", "b", 3)), frame)[0]
    rows = training_rows(pairs)
    assert rows[0]["prompt"] == json.loads(chat)
    assert rows[1]["prompt"] == [{"role": "user", "content": "Plain."}]
    assert rows[1]["chosen"] == [{"role": "assistant", "content": "text b of c2"}]
    read = [read_trl_texts(row) for row in rows]
    assert [row["prompt"] for row in read] == [chat, "Plain."]
    assert [row["chosen"] for row in read] == pairs.sort_values("comparison_id")["chosen"].tolist()


def test_imported_split_wins_and_keeps_its_group_together():
    frame = comparisons("c1", "c2", "c3").assign(
        split=["test", None, None], split_group=["debate", "debate", None]
    )
    cast = votes(("c1", "x", "a", 1), ("c2", "x", "a", 1), ("c3", "x", "a", 1))
    pairs = make_pairs(cast, frame)[0].set_index("comparison_id")
    assert pairs["split"].to_dict() == {
        "c1": "test",
        "c2": split_of("debate"),
        "c3": split_of("prompt-c3"),
    }


def test_flagged_comparisons_make_no_pair_and_are_counted():
    frame = comparisons("c1", "c2", "c3").assign(flag=["identical", "repeated", None])
    cast = votes(("c1", "x", "a", 1), ("c2", "x", "a", 1), ("c2", "y", "a", 1), ("c3", "x", "a", 1))
    assert make_pairs(cast, frame)[0]["comparison_id"].tolist() == ["c3"]
    counts = make_pairs(cast, frame)[1]
    assert (counts.n_votes, counts.n_flagged, counts.n_repeats, counts.n_pairs) == (1, 3, 0, 1)


def test_machine_votes_give_no_pairs_by_default():
    cast = votes(
        ("c1", "x", "a", 2),
        ("c1", "m", "b", None),
        ("c1", "m2", "b", None),
        ("c2", "m", "b", None),
        kinds=("human", "machine", "machine", "machine"),
    )
    frame = comparisons("c1", "c2")
    by_default = make_pairs(cast, frame)[0]
    with_machines = make_pairs(cast, frame, PairParams(with_machine_votes=True))[0]
    assert by_default[
        ["comparison_id", "chosen_side", "annotator_kind", "n_votes"]
    ].values.tolist() == [["c1", "a", "human", 1]]
    assert with_machines["annotator_kind"].tolist() == ["mixed", "machine"]
    assert with_machines["chosen_side"].tolist() == ["b", "b"]
    counts = make_pairs(cast, frame)[1]
    assert (counts.n_votes, counts.n_machine, counts.n_pairs, counts.n_mixed) == (1, 3, 1, 0)
    assert make_pairs(cast, frame, PairParams(with_machine_votes=True))[1].n_machine == 0


@pytest.mark.parametrize("last", ["tie", "both_bad", "skip"])
def test_a_pair_carries_the_seq_of_its_last_vote(last):
    """A tie is counted, and a tie or skip may stand where a vote for a side stood: learnt from at
    an earlier seq, it would be known early.
    """
    cast = votes(("c1", "x", "a", None), ("c2", "x", "a", None), ("c1", "y", last, None))
    pairs = make_pairs(cast, comparisons("c1", "c2"))[0].set_index("comparison_id")
    assert pairs["max_seq"].to_dict() == {"c1": 3, "c2": 2}
    assert pairs.loc["c1", "n_ties"] == (0 if last == "skip" else 1)


def test_imported_prompt_in_two_splits_is_named():
    frame = comparisons("c1", "c2", "c3").assign(
        prompt_id=["p", "p", "q"], split=["test", "train", "train"]
    )
    pairs = make_pairs(votes(("c1", "x", "a", 1), ("c2", "x", "a", 1), ("c3", "x", "a", 1)), frame)[
        0
    ]
    assert prompts_in_several_splits(pairs) == ["p"]
    assert prompts_in_several_splits(pairs[pairs["split"] == "train"]) == []
    assert prompts_in_several_splits(PREFERENCE_PAIRS.empty_frame()) == []


def test_votes_in_a_dimension_are_counted_for_the_chosen_side():
    cast = votes(
        ("c1", "ann", "b", 2),
        ("c1", "bob", "b", 1),
        ("c1", "cid", "a", 1),
        ("c1", "dan", "skip", None),
        ("c2", "ann", "a", 1),
    ).assign(
        dimensions=[
            '{"correct": "a", "helpful": "b"}',
            '{"correct": "b", "style": "tie"}',
            '{"correct": "a"}',
            '{"correct": "a"}',  # a skip judges nothing
            None,
        ]
    )
    pairs = make_pairs(cast, comparisons("c1", "c2"))[0]
    assert pairs["dimension_votes"][0] == '{"correct": [1, 2], "helpful": [1, 0]}'
    assert pd.isna(pairs["dimension_votes"][1])
    read = read_dimension_votes(pairs)
    assert read[["row", "dimension", "n_chosen", "n"]].to_numpy().tolist() == [
        [0, "correct", 1, 3],
        [0, "helpful", 1, 1],
    ]
    assert make_pairs(cast[::-1], comparisons("c1", "c2"))[0].equals(pairs)
