import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughVotes
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, REFLECTIONS, RETRAINING_SET, check_frame
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.improve.retraining.selection import (
    SelectionParams,
    drop_reasoning,
    find_set_problems,
    select_pairs,
)

PARAMS = SelectionParams(max_pairs=20, min_pairs=1)
BY_PEOPLE = SelectionParams(max_pairs=20, min_pairs=1, relabel_confidence=1)  # none is relabelled


def pairs(n=6, **columns):
    rows = {
        "day": "2026-01-01",
        "comparison_id": [f"c{i}" for i in range(n)],
        "prompt_id": [f"p{i}" for i in range(n)],
        "prompt": "What is 1 + 1?",
        "chosen": [f"two {i}" for i in range(n)],
        "rejected": "three",
        "margin": 0.5,
        "agreement": 1.0,
        "n_votes": 3,
        "chosen_side": "a",
        "annotator_kind": "simulated",
        "category": "reasoning",
        "split": "train",
        "max_seq": [10 * (i + 1) for i in range(n)],
    }
    return check_frame(pd.DataFrame(rows | columns), PREFERENCE_PAIRS)


def scores(p):
    return pd.DataFrame({"comparison_id": [f"c{i}" for i in range(len(p))], "p_chosen": p})


def reflections(*votes, reward_model="demo.reward_model@1", predicted_at="2026-01-01T00:00:00Z"):
    """One row per (comparison_id, is_error)."""
    rows = [
        {
            "day": "2026-01-01",
            "comparison_id": comparison,
            "reward_model": reward_model,
            "calibrator": "1",
            "data_hash": "d",
            "features_hash": "f",
            "score_a": 0.0,
            "score_b": 0.0,
            "p_raw": 0.5,
            "p_calibrated": 0.5,
            "predicted_at": predicted_at,
            "seq": i + 1,
            "vote_id": f"v{i}",
            "annotator_id": f"a{i}",
            "annotator_kind": "simulated",
            "choice": "a",
            "strength": 2,
            "voted_at": "2026-01-01T01:00:00Z",
            "is_error": is_error,
        }
        for i, (comparison, is_error) in enumerate(votes)
    ]
    return check_frame(pd.DataFrame(rows), REFLECTIONS)


def test_most_uncertain_pair_is_selected_first():
    chosen = select_pairs(pairs(3), scores([0.9, 0.55, 0.7]), None, PARAMS)
    assert chosen["comparison_id"].tolist() == ["c1", "c2", "c0"]
    assert chosen["information"].tolist() == pytest.approx([0.9, 0.6, 0.2])
    assert chosen["reason"].iloc[0] == "reward model unsure: 0.55 for the chosen completion"
    check_frame(chosen, RETRAINING_SET)


def test_votes_against_the_champion_are_selected_with_reason():
    votes = [("c0", True), ("c0", True), ("c0", True), ("c1", False), ("c1", True), ("c1", None)]
    chosen = select_pairs(
        pairs(2), scores([0.9, 0.9]), reflections(*votes), PARAMS, taste_changes=TasteChanges(5)
    )
    assert chosen["reason"].tolist() == [
        "champion disagreed with 3 of 3 annotators after the change",
        "champion disagreed with 1 of 2 annotators after the change",
    ]
    assert chosen["information"].tolist() == pytest.approx([1.2, 0.7])


def test_pairs_before_a_change_weigh_less_and_only_fill_up():
    chosen = select_pairs(
        pairs(4),
        scores([0.5, 0.5, 0.9, 0.9]),
        None,
        BY_PEOPLE.model_copy(update={"max_pairs": 3}),
        taste_changes=TasteChanges(30),
    )
    # .2 * 1.0 ties with 1.0 * .2: by comparison_id
    assert chosen["comparison_id"].tolist() == ["c0", "c1", "c2"]
    newer = select_pairs(
        pairs(4),
        scores([0.5, 0.5, 0.8, 0.8]),
        None,
        BY_PEOPLE.model_copy(update={"max_pairs": 3}),
        taste_changes=TasteChanges(30),
    )
    assert newer["comparison_id"].tolist() == ["c2", "c3", "c0"]
    assert newer["weight"].tolist() == [1.0, 1.0, 0.2]
    assert newer["reason"].iloc[-1].endswith("before the change")


def test_failing_clusters_weigh_more_if_set():
    inputs = (pairs(3), scores([0.6, 0.6, 0.6]), None)
    plain = select_pairs(*inputs, PARAMS, failing_ids={"c2"})
    pd.testing.assert_frame_equal(plain, select_pairs(*inputs, PARAMS))
    params = PARAMS.model_copy(update={"failing_cluster_weight": 3.0})
    chosen = select_pairs(*inputs, params, failing_ids={"c2"})
    assert chosen["comparison_id"].tolist() == ["c2", "c0", "c1"]
    assert chosen["weight"].tolist() == [3, 1, 1]
    assert chosen["reason"].iloc[0].endswith("completion, in a failing cluster")
    assert "cluster" not in chosen["reason"].iloc[1]


def test_old_votes_contradicted_by_an_unsure_model_are_dropped():
    chosen = select_pairs(
        pairs(4), scores([0.4, 0.6, 0.2, 0.6]), None, PARAMS, taste_changes=TasteChanges(30)
    )
    # c0 and c1 came before the change, c2 is new and surprising
    assert set(chosen["comparison_id"]) == {"c1", "c2", "c3"}
    assert chosen.set_index("comparison_id")["weight"]["c1"] == 0.2


def test_old_votes_take_the_choice_of_a_confident_new_model():
    votes = reflections(("c0", True), ("c1", True))
    chosen = select_pairs(
        pairs(3), scores([0.1, 0.9, 0.1]), votes, PARAMS, taste_changes=TasteChanges(30)
    ).set_index("comparison_id")
    assert chosen["origin"].to_dict() == {"c0": "relabelled", "c1": "vote", "c2": "vote"}
    assert chosen.loc["c0", ["chosen", "rejected"]].tolist() == ["three", "two 0"]
    assert chosen["weight"].tolist() == [1.0] * 3
    # how strongly people preferred the other completion says nothing of this one
    assert chosen["margin"].to_dict() == pytest.approx({"c0": 0.8, "c1": 0.5, "c2": 0.5})
    assert chosen.loc["c0", "reason"] == (
        "relabelled: reward model gives 0.90 to what people rejected before the change"
    )
    assert chosen.loc["c0", "information"] == pytest.approx(0.2)  # its votes count no more


def test_pair_preferring_a_wrong_answer_is_dropped():
    frame = pairs(4, chosen=["three", "two", "three", "four"], rejected=["two", "three", "2", "2"])
    right = {"p0": "two", "p1": "two", "p2": "two"}
    chosen = select_pairs(frame, scores([0.6] * 4), None, PARAMS, references=right)
    # both of c2 are wrong, nobody knows the answer to p3
    assert set(chosen["comparison_id"]) == {"c1", "c2", "c3"}


def test_evaluation_splits_and_frozen_prompts_are_excluded():
    chosen = select_pairs(
        pairs(4, split=["calib", "test", "train", "train"]),
        scores([0.5] * 4),
        None,
        PARAMS,
        frozen_prompt_ids={"p2"},
    )
    assert chosen["comparison_id"].tolist() == ["c3"]


def test_the_order_of_the_inputs_does_not_matter():
    p = np.random.default_rng(0).uniform(size=6).round(1)
    votes = reflections(("c0", True), ("c3", True), ("c3", False))
    once = select_pairs(pairs(), scores(p), votes, PARAMS, taste_changes=TasteChanges(30))
    shuffled = select_pairs(
        pairs().sample(frac=1, random_state=1),
        scores(p).sample(frac=1, random_state=2),
        votes.sample(frac=1, random_state=3),
        PARAMS,
        taste_changes=TasteChanges(30),
    )
    pd.testing.assert_frame_equal(once, shuffled)


@pytest.mark.parametrize("p", [np.nan, 1.2, np.inf])
def test_invalid_probability_is_refused_by_name(p):
    with pytest.raises(InvalidScores, match="c1"):
        select_pairs(pairs(2), scores([0.5, p]), None, PARAMS)


def test_too_few_pairs_are_refused_with_number_and_cure():
    with pytest.raises(
        NotEnoughVotes,
        match=r"2 of 4 preference pairs .* needs 3\. Collect more votes or lower min_pairs",
    ):
        select_pairs(
            pairs(4, split=["calib", "test", "train", "train"]),
            scores([0.5] * 4),
            None,
            SelectionParams(min_pairs=3),
        )


def test_problems_of_a_retraining_set_are_named():
    good = select_pairs(pairs(4), scores([0.5] * 4), None, PARAMS)
    assert find_set_problems(good, {"p9"}, 4) == ()
    few, leaked, frozen = find_set_problems(
        good.assign(split=["test", "train", "train", "train"]), {"p1"}, 5
    )
    assert few.startswith("4 pairs, 5 are needed")
    assert "evaluation splits" in leaked
    assert "p1" in frozen


def test_pair_without_a_preferred_side_is_not_trained_on():
    even = pairs(4, agreement=[1.0, 0.5, 0.5, 0.75], n_votes=[3, 2, 0, 4])
    assert set(select_pairs(even, scores([0.6, 0.5, 0.5, 0.6]), None, PARAMS)["comparison_id"]) == {
        "c0",
        "c3",
    }


def test_reserved_pairs_get_the_models_label_or_none():
    scored = scores([0.9, 0.1, 0.6, 0.6]).assign(is_reserved=[True, True, True, False])
    chosen = select_pairs(pairs(4), scored, None, PARAMS).set_index("comparison_id")
    assert chosen["origin"].to_dict() == {"c0": "relabelled", "c1": "relabelled", "c3": "vote"}
    assert chosen["chosen"].to_dict() == {"c0": "two 0", "c1": "three", "c3": "two 3"}
    assert chosen.loc["c0", "reason"] == (
        "labelled: reward model gives 0.90 to the chosen completion; the gate judges by the votes "
        "on it"
    )


def test_comparisons_to_leave_out_are_never_selected():
    params = BY_PEOPLE.model_copy(update={"leave_out": ["c1", "unknown"]})
    selection = select_pairs(pairs(4), scores([0.9, 0.55, 0.6, 0.7]), None, params)
    assert sorted(selection["comparison_id"]) == ["c0", "c2", "c3"]


def test_reasoning_is_dropped_from_both_sides() -> None:
    columns = {
        "chosen": ["<think>\nHm.\n</think>\n\nTwo.", "<think>\nOh.\n</think>\n\nThree."],
        "rejected": ["Hm.\n</think>\n\nFour.", "Three."],
    }
    frame = select_pairs(pairs(2, **columns), scores([0.6, 0.6]), None, BY_PEOPLE)
    answers = drop_reasoning(frame)
    assert list(zip(answers["chosen"], answers["rejected"], strict=True)) == [("Two.", "Four.")]
