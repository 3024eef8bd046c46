from dataclasses import replace

import pytest

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.frames import RETRAINING_SET
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.improve.evaluation import CompletionJudge
from rlhf_pipeline.improve.retraining.vote_halves import (
    VoteHalves,
    has_votes_for_judging,
    is_for_judging,
    measure_heads,
)
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from tests.unit.learn.reward_model.judged_dimensions import judged_pairs
from tests.unit.learn.reward_model.word_pairs import WordEncoder, make_pairs

MODEL = EmbeddingRewardModel(
    EmbeddingParams(l2_grid=[0.1], context_penalty_grid=[3.0]), WordEncoder()
)
JUDGE = CompletionJudge(MODEL, "demo.reward_model@1")
VERSION = ModelVersion(
    name="demo.reward_model", version=1, kind="reward_model", uri="", content_hash=""
)

CHANGED = VERSION.model_copy(
    update={"params": {"taste_changes": {"since_seq": 601}, "weight_before_change": 0.0}}
)


def members_hash(judge):
    return judge.reward_model.weights_hash


def test_each_half_is_fitted_on_its_own_votes_alone():
    pairs = make_pairs(400)
    halves = VoteHalves.fit(JUDGE, VERSION, pairs)
    assert halves.judging.label == f"{VERSION.label}, refitted on the votes kept for judging"
    is_judging = is_for_judging(pairs["prompt_id"])
    assert 0.4 < is_judging.mean() < 0.6
    flipped = pairs.copy()
    sides = ["chosen", "rejected"]
    flipped.loc[is_judging, sides] = pairs.loc[is_judging, sides[::-1]].to_numpy()
    calib = pairs["split"] == "calib"
    flipped.loc[calib] = pairs.loc[calib]
    other = VoteHalves.fit(JUDGE, VERSION, flipped.sample(frac=1, random_state=1))
    assert members_hash(other.labelling) == members_hash(halves.labelling)
    assert members_hash(other.judging) != members_hash(halves.judging)


def test_judging_half_has_heads_measured_on_unseen_votes():
    pairs = judged_pairs()
    halves = VoteHalves.fit(JUDGE, VERSION, pairs)
    own = pairs[is_for_judging(pairs["prompt_id"]) & (pairs["split"] == "train")]
    n_calib = int((pairs["split"] == "calib").sum())
    assert {head.n_train for head in halves.judging.heads} == {len(own)}
    assert {head.vote_accuracy.n for head in halves.judging.heads} == {3 * n_calib}
    assert all(head.beats_chance for head in halves.judging.heads)
    assert halves.labelling.heads == ()
    whole = measure_heads(
        replace(JUDGE, reward_model=halves.judging.reward_model), CHANGED, pairs
    ).heads
    since = pairs["max_seq"] >= CHANGED.params["taste_changes"]["since_seq"]
    assert whole[0].vote_accuracy.n == 3 * int((since & (pairs["split"] == "calib")).sum())


def test_the_halves_of_one_retraining_are_fitted_once(tmp_path, monkeypatch):
    pairs = judged_pairs()
    judge = replace(JUDGE, reward_model=MODEL.quick().fit(pairs))
    fitted = VoteHalves.fit(judge, VERSION, pairs, cache=tmp_path / "halves")
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingRewardModel, "fit", None)
        read = VoteHalves.fit(judge, VERSION, pairs, cache=tmp_path / "halves")
    for half in ("labelling", "judging"):
        half_a, other = getattr(fitted, half), getattr(read, half)
        assert members_hash(half_a) == members_hash(other)
        assert (half_a.label, half_a.heads) == (other.label, other.heads)
        assert half_a.calibrator.to_json() == other.calibrator.to_json()
    VoteHalves.fit(judge, VERSION, pairs.iloc[:-1], cache=tmp_path / "halves")
    assert len(list((tmp_path / "halves").iterdir())) == 1  # those of the last retraining


def test_too_few_pairs_or_a_slow_kind_cannot_be_halved():
    with pytest.raises(NotEnoughData, match="needs 30"):
        VoteHalves.fit(JUDGE, VERSION, make_pairs(60))

    class Slow:
        name = "transformer"

        def quick(self, **changes):
            return None

    with pytest.raises(NotEnoughData, match="A transformer takes too long"):
        VoteHalves.fit(CompletionJudge(Slow(), "demo.reward_model@1"), VERSION, make_pairs(60))


def test_set_with_judging_votes_is_recognised():
    judging = next(p for p in map(str, range(20)) if is_for_judging([p])[0])
    row = dict.fromkeys(RETRAINING_SET.columns, None) | {"prompt_id": judging}
    frame = RETRAINING_SET.empty_frame()
    assert not has_votes_for_judging(frame)
    for origin, expected in (("vote", True), (None, True), ("relabelled", False)):
        frame.loc[0] = row | {"origin": origin}
        assert has_votes_for_judging(frame) is expected
