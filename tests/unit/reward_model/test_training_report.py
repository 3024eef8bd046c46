"""What a fit says of itself, and on whose account it looked at test pairs."""

import numpy as np
import pytest

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model import RewardModelParams, RewardModelReport, fit_reward_model
from rlhf_pipeline.votes import Opening
from tests.unit.reward_model.word_pairs import WordEncoder, make_pairs

FEW = {"l2_grid": [0.1], "context_penalty_grid": [3.0]}
CEILING = Interval(value=0.8, low=0.75, high=0.85, n=100)


class LikesLength:
    """A model of another kind, that learns nothing."""

    name = "likes_length"
    weights_hash = "likes length"
    loss_curve_: list[float] = []

    def fit(self, pairs, *, weights=None, warm_start=None, progress=None):
        self.n_fitted_on = len(pairs)
        return self

    def score(self, prompts, completions, *, progress=None):
        return np.array([float(len(c)) for c in completions])


def test_the_test_split_is_opened_once_after_the_fit_and_for_this_model():
    opened: list[Opening] = []
    pairs = make_pairs()
    fitted = fit_reward_model(pairs, RewardModelParams(**FEW), encoder=WordEncoder(), record=opened.append)
    assert [(o.model, o.n_pairs) for o in opened] == [(fitted.report.weights_hash, (pairs["split"] == "test").sum())]


def test_who_cannot_record_an_opening_sees_no_test_pair():
    def refused(opening: Opening) -> None:
        raise StoreError("no MLflow")

    with pytest.raises(StoreError):
        fit_reward_model(make_pairs(), RewardModelParams(**FEW), encoder=WordEncoder(), record=refused)


def test_the_ceiling_stands_beside_every_accuracy():
    pairs = make_pairs(600)
    half = int(pairs["max_seq"].median())
    report = fit_reward_model(pairs, RewardModelParams(**FEW), encoder=WordEncoder(), ceiling=CEILING, change_seq=half).report
    assert report.test.ceiling == report.test_since_change.ceiling == CEILING
    assert RewardModelReport.from_json(report.model_dump_json()) == report
    assert fit_reward_model(pairs, RewardModelParams(**FEW), encoder=WordEncoder()).report.test.ceiling is None


def test_a_model_of_any_kind_may_be_handed_in():
    pairs, model = make_pairs(), LikesLength()
    fitted = fit_reward_model(pairs, model=model, ceiling=CEILING, change_seq=int(pairs["max_seq"].median()))
    assert fitted.model is model
    assert model.n_fitted_on == fitted.report.n_train == (pairs["split"] == "train").sum()
    assert (fitted.report.kind, fitted.report.l2, fitted.report.encoder_hash, fitted.report.length) == ("likes_length", None, None, None)
    assert fitted.report.test.accuracy == fitted.report.test.longer_wins


def test_what_both_kinds_have_is_said_once():
    params = RewardModelParams(kind="transformer", loss="davidson", label="annotators", n_members=3, seed=7, prompt_chars=50, min_pairs=9)
    shared = ("loss", "label", "n_members", "seed", "prompt_chars", "min_pairs", "margin_scale")
    assert {name: getattr(params.transformer(), name) for name in shared} == {name: getattr(params, name) for name in shared}
    assert params.embedding().n_members == 3


def test_an_ensemble_says_how_many_it_is():
    params = RewardModelParams(n_members=3, **FEW)
    assert fit_reward_model(make_pairs(), params, encoder=WordEncoder()).report.n_members == 3
