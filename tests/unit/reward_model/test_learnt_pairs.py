"""What a report says was read is what the model was shown."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.reward_model import (
    EmbeddingRewardModel,
    LearningData,
    RewardModelReport,
    TransformerParams,
    TransformerRewardModel,
    fit_reward_model,
    reward_model_params,
)
from rlhf_pipeline.reward_model.embedding import EmbeddingParams
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.report import describe_cut_texts, describe_learnt_pairs
from rlhf_pipeline.votes import TasteChanges
from tests.unit.reward_model.tiny_networks import save_tiny_bert, word_pairs
from tests.unit.reward_model.word_pairs import WordEncoder, make_pairs

FEW = {"l2_grid": [0.1], "context_penalty_grid": [3.0]}
SMALL = {
    "max_tokens": 24,
    "texts_per_batch": 6,
    "precision": "float32",
    "start_from_probe": False,
    "steps": 1,
}


class Watched(TransformerRewardModel):
    """Keeps how many pairs its trainer is given."""

    def _training_data(self, pairs):
        self.n_given = len(pairs)
        return super()._training_data(pairs)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


def watched(bert, **given) -> Watched:
    return Watched(TransformerParams(**(SMALL | given)), Encoder(bert, max_tokens=24))


def test_a_transformers_warm_start_reports_the_pairs_it_learnt(bert):
    old, new = word_pairs(), word_pairs(4, seed=5, first_seq=10_000)
    both = pd.concat([old, new], ignore_index=True)
    start = watched(bert).fit(old)
    for replay, n_replayed in ((0.5, len(new) // 2), (0.0, 0)):
        model = watched(bert, replay=replay)
        report = fit_reward_model(LearningData(both), model=model, warm_start=start).report
        assert (report.n_train, report.n_learnt, report.n_new, report.n_replayed) == (
            len(both), model.n_given, len(new), model.n_given - len(new),
        )  # fmt: skip
        assert report.n_replayed == n_replayed
        assert (report.metrics()["n_learnt"], report.metrics()["n_replayed"]) == (
            model.n_given,
            n_replayed,
        )
    again = watched(bert)
    # none is new, so all are learnt again
    report = fit_reward_model(LearningData(old), model=again, warm_start=start).report
    assert (report.n_learnt, report.n_new, report.n_replayed) == (again.n_given, 0, len(old))
    anew = fit_reward_model(LearningData(both), model=watched(bert)).report
    assert (anew.n_learnt, anew.n_new, anew.n_replayed) == (len(both), len(both), 0)


def test_pairs_that_weigh_nothing_are_not_learnt(bert):
    pairs = word_pairs().assign(n_ties=0)
    pairs.loc[:9, ["n_votes", "agreement", "n_ties"]] = [0, 0.5, 5]  # nothing but ties
    for ties_as_halves, n in ((True, len(pairs)), (False, len(pairs) - 10)):
        model = watched(bert, ties_as_halves=ties_as_halves)
        report = fit_reward_model(LearningData(pairs), model=model).report
        assert report.n_learnt == model.n_given == n
    many = make_pairs(600)
    half = int(many["max_seq"].median())
    report = fit_reward_model(
        LearningData(many, taste_changes=TasteChanges(half)),
        reward_model_params(weight_before_change=0.0, **FEW),
        encoder=WordEncoder(),
    ).report
    assert report.n_learnt == report.n_train - report.n_before_change < report.n_train


def test_sentences_beyond_max_sentences_are_counted_not_read():
    model = EmbeddingRewardModel(EmbeddingParams(max_sentences=32, **FEW), WordEncoder()).fit(
        make_pairs()
    )
    assert model.n_cut == {"prompt_chars": 0, "max_sentences": 0}
    kept, rest = " ".join(["Kind and right."] * 32), " ".join(["Curt and wrong."] * 68)
    features = model.features(["ask"] * 3, [kept, f"{kept} {rest}", f"{kept} {rest}"])
    summed = (features.shape[1] - 2) // 2
    np.testing.assert_array_equal(features[0, :summed], features[1, :summed])
    assert features[0, -1] == features[1, -1] == 32
    # the distinct one of two alike; that of 32 is whole
    assert model.n_cut == {"prompt_chars": 0, "max_sentences": 1}
    model.features(["ask"], [f"{kept} One more."])
    assert model.n_cut["max_sentences"] == 2


def test_the_end_of_a_long_prompt_is_read_and_the_cut_counted():
    model = EmbeddingRewardModel(EmbeddingParams(prompt_chars=600, **FEW), WordEncoder())
    long = "x" * 4_400 + "y" * 600
    model.features([long, long, "z" * 600], ["kind", "curt", "right"])
    assert model.join_prompt(long, "kind") == f"{'y' * 600} [SEP] kind"
    assert model.n_cut == {"prompt_chars": 1, "max_sentences": 0}


def test_the_report_counts_truncated_texts_by_rule():
    pairs = make_pairs()
    long = pairs["comparison_id"].isin(
        pairs.loc[pairs["split"] == "train", "comparison_id"].head(5)
    ) | (
        pairs["comparison_id"].isin(
            pairs.loc[
                (pairs["split"] == "test") & (pairs["agreement"] > 0.5), "comparison_id"
            ].head(2)
        )
    )
    pairs.loc[long, "chosen"] += ". So it is. Yes"
    pairs["prompt"] = [
        f"{prompt} {'x' * 90 if one else ''}"
        for prompt, one in zip(pairs["prompt"], long, strict=True)
    ]
    params = reward_model_params(max_sentences=2, prompt_chars=50, **FEW)
    report = fit_reward_model(LearningData(pairs), params, encoder=WordEncoder()).report
    n_prompts = pairs.loc[long, "prompt"].nunique()
    assert report.truncated == {"window": 0, "prompt_chars": n_prompts, "max_sentences": 7}
    assert report.n_truncated == report.metrics()["n_truncated"] == n_prompts + 7
    assert (
        f"{n_prompts + 7} texts cut (prompt_chars {n_prompts}, max_sentences 7)" in report.summary
    )
    assert RewardModelReport.from_json(report.model_dump_json()) == report


def test_counts_are_reported_in_words():
    assert (
        describe_cut_texts({"window": 0, "prompt_chars": 0})
        == describe_cut_texts({})
        == "no text cut"
    )
    assert describe_cut_texts({"window": 1}) == "1 text cut (window 1)"
    assert (
        describe_learnt_pairs(1200, None, None, None)
        == describe_learnt_pairs(1200, 1200, 1200, 0)
        == "1,200 pairs"
    )
    assert describe_learnt_pairs(1200, 60, 40, 20) == "60 of 1,200 pairs (40 new, 20 replayed)"
    assert describe_learnt_pairs(1200, 1000, 1000, 0) == "1,000 of 1,200 pairs"
