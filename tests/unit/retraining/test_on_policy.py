"""Rounds on the candidate's own completions: their pairs, and what stops them."""

import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.errors import ConfigurationError, StoppedBySentinel
from rlhf_pipeline.evaluation import CompletionJudge
from rlhf_pipeline.retraining.candidates import TrainingReport
from rlhf_pipeline.retraining.on_policy import (
    OnPolicyParams,
    Round,
    add_rounds,
    describe_rounds,
    draw_pairs,
    list_discarded,
    train_rounds,
)
from rlhf_pipeline.retraining.training import TrainingParams
from tests.unit.evaluation.test_judge import tiny_policy
from tests.unit.retraining.test_selection import BY_PEOPLE, pairs, scores, select_pairs


class Members:
    """Two members, of which the second scores some texts otherwise."""

    def __init__(self, score, doubted=()):
        self.score_text, self.doubted = score, doubted

    def member_scores(self, prompts, completions, *, progress=None):
        first = np.array([self.score_text(text) for text in completions], dtype=float)
        return np.stack([first, np.where(np.isin(completions, self.doubted), -first, first)])


class Writes:
    def __init__(self, *texts):
        self.texts = texts

    def generate(self, prompts, *, temperature, seeds, max_new_tokens):
        return [SimpleNamespace(text=text) for text in self.texts]


ASKED = pd.DataFrame({"prompt_id": ["p0"], "prompt": ["What is 3 + 4?"], "day": "2026-01-01"})
VALUE = {"7": 0.0, "8": 2.0, "9": -2.0, "seven 7": 1.0}


def draw(*texts, members=None, references=None, **params):
    judge = CompletionJudge(members or Members(VALUE.__getitem__), "demo.reward_model@1")
    params = OnPolicyParams(on_policy_samples=len(texts), **params)
    return draw_pairs(Writes(*texts), ASKED, judge, params, references or {}, 0)


def test_the_best_completion_is_chosen_over_the_worst():
    (row,) = draw("7", "8", "9").to_dict("records")
    assert (row["chosen"], row["rejected"], row["origin"]) == ("8", "9", "on_policy")
    assert row["reason"] == (
        "best against worst of 3 completions of the candidate, reward model gives 0.98 to the best"
    )


def test_no_wrong_answer_is_preferred_to_a_right_one():
    right = {"p0": "7"}
    (row,) = draw("7", "seven 7", "9", references=right).to_dict("records")
    assert (row["chosen"], row["rejected"]) == ("seven 7", "9")
    assert draw("7", "8", references=right).empty


def test_equal_texts_and_doubtful_pairs_are_left_out():
    assert draw("8", "8").empty
    doubtful = Members(VALUE.__getitem__, doubted=["8"])
    assert draw("8", "9", members=doubtful).empty
    assert len(draw("8", "9", members=doubtful, max_disagreement=0.5)) == 1


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("policies")
    for seed in range(2):
        tiny_policy(seed).save(base / f"policy-{seed}")
    return base


def run_rounds(folders, tmp_path, train, *, prompts=None, **training):
    """Two rounds of the candidate `policy-0`, which is the champion too."""
    rows = select_pairs(
        pairs(30), scores([0.9] * 30), None, BY_PEOPLE.model_copy(update={"max_pairs": 30})
    )
    rows["prompt"] = prompts or rows["prompt"]
    champion = folders / "policy-0"
    shutil.copytree(champion, tmp_path / "model")
    return train_rounds(
        tmp_path / "model",
        champion,
        rows,
        CompletionJudge(Members(lambda text: sum(map(ord, text))), "demo.reward_model@1"),
        OnPolicyParams(on_policy_rounds=2, on_policy_samples=3, on_policy_tokens=4, max_kl=1e-4),
        train,
        references={},
        training=TrainingParams(**training),
    )


@pytest.mark.parametrize(("result", "n_kept"), [("policy-0", 2), ("policy-1", 0)])
def test_a_round_that_ends_too_far_from_the_champion_is_discarded(
    folders, tmp_path, result, n_kept
):
    def train(folder, drawn, out):
        shutil.copytree(folders / result, out / "model")

    last, rounds = run_rounds(folders, tmp_path, train)
    kept = [one for one in rounds if not one.discarded]
    assert len(kept) == n_kept
    assert last == (tmp_path / "round-2" / "model" if kept else tmp_path / "model")
    assert describe_rounds(rounds)["on_policy_rounds"] == n_kept
    assert all("KL" in text for text in list_discarded(rounds))
    assert bool(list_discarded(rounds)) is not bool(kept)


def test_prompts_without_room_for_a_completion_are_left_out(folders, tmp_path):
    """The context has 256 bytes, and completions take 4: also those of which the KL is measured."""
    prompts, seen = [f"{i:02}" * 126 for i in range(30)], []
    prompts[7] = "7" * 253

    def train(folder, drawn, out):
        seen.extend(drawn["prompt"])
        shutil.copytree(folders / "policy-0", out / "model")

    _, rounds = run_rounds(folders, tmp_path, train, prompts=prompts)
    assert [one.discarded for one in rounds] == ["", ""]
    assert set(seen) <= {*prompts} - {prompts[7]}
    shutil.rmtree(tmp_path / "model")
    _, rounds = run_rounds(folders, tmp_path, train, prompts=["7" * 253] * 30)
    assert list_discarded(rounds) == [
        "On-policy round discarded: 0 pairs with a clear best and worst, of 0 prompts that leave "
        "room for on_policy_tokens; 20 are needed."
    ]


def test_completions_are_sampled_where_the_training_computes(folders, tmp_path):
    with pytest.raises(ConfigurationError, match="cuda:99"):
        run_rounds(folders, tmp_path, None, device="cuda:99")


def report(n_steps, *warnings):
    return TrainingReport(
        strategy="dpo",
        params={},
        parent_hash="p",
        data_hash="d",
        fingerprint="f",
        content_hash=f"after {n_steps}",
        n_pairs=30,
        n_examples=30,
        n_too_long=0,
        n_steps=n_steps,
        loss_curve=((n_steps, 0.5),),
        curves={"KL": ((0, 0.0), (n_steps, 0.1))},
        metrics={"loss": 1 / n_steps},
        warnings=warnings,
        seconds=2.0,
    )


def test_the_report_of_a_candidate_covers_its_rounds():
    rows = pd.DataFrame()
    rounds = [
        Round(rows, 0.1, report(4, "Sentinel length stopped the training at step 5.")),
        Round(rows, 0.9, report(7, "not part of the candidate"), "KL 0.90"),
        Round(rows, discarded="a sentinel"),
    ]
    first = report(10, "first")
    assert add_rounds(first, []) == first
    whole = add_rounds(first, rounds)
    assert whole.warnings == (
        "first",
        "On-policy round 1: Sentinel length stopped the training at step 5.",
    )
    assert (whole.n_steps, whole.content_hash, whole.seconds) == (14, "after 4", 6.0)
    assert whole.metrics == {"loss": 0.25}
    assert whole.loss_curve == ((10, 0.5), (14, 0.5))
    assert whole.curves == {"KL": ((0, 0.0), (10, 0.1), (10, 0.0), (14, 0.1))}


def test_a_round_without_a_checkpoint_from_before_the_harm_is_discarded(folders, tmp_path):
    def train(folder, drawn, out):
        if out.name == "round-2":
            raise StoppedBySentinel("Sentinel length stopped the training at step 10.")
        shutil.copytree(folders / "policy-0", out / "model")

    last, rounds = run_rounds(folders, tmp_path, train)
    assert last == tmp_path / "round-1" / "model"
    assert list_discarded(rounds) == [
        "On-policy round discarded: Sentinel length stopped the training at step 10."
    ]
