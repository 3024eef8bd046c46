import numpy as np
import pytest

from rlhf_pipeline.core.errors import CompletionError, InvalidScores, ModelError
from rlhf_pipeline.core.records import DimensionHead
from rlhf_pipeline.generate.policy.causal_lm import GeneratedText, Policy
from rlhf_pipeline.improve.evaluation import (
    CompletionJudge,
    EvaluationParams,
    JudgedPolicy,
    evaluate,
    frozen_prompts,
)
from rlhf_pipeline.improve.evaluation.divergence import kl_per_token
from tests.ledgers import temporary_ledger

PARAMS = EvaluationParams(max_new_tokens=4, n_resamples=200, min_prompts=15)


def judge(
    candidate, champion, prompts, reward_model, params=PARAMS, *, calibrator=None, heads=(), **more
):
    return evaluate(
        JudgedPolicy(candidate, "demo.policy@2"),
        JudgedPolicy(champion, "demo.policy@1"),
        prompts,
        CompletionJudge(reward_model, "demo.reward_model@1", calibrator, heads),
        params,
        **{"ledger": temporary_ledger()} | more,
    )


class LikesLength:
    def member_scores(self, prompts, completions, *, progress=None):
        return np.array([[len(text) / 10 for text in completions]])


class HasHeads(LikesLength):
    """Finds long texts helpful and short ones stylish."""

    def dimension_scores(self, prompts, completions, *, progress=None):
        [scores] = self.member_scores(prompts, completions)
        return {"helpful": 2 * scores, "style": -scores}


HEADS = tuple(
    DimensionHead(dimension=name, n_train=n, has_head=n > 50)
    for name, n in (("correct", 9), ("helpful", 90), ("style", 90))
)


class Halves:
    def transform(self, margins):
        return np.full(len(margins), 0.5)


def tiny_policy(seed, *, vocabulary=260):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<extra{i}>" for i in range(vocabulary - len(names))]
    raw = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Policy(LlamaForCausalLM(config).eval(), tokenizer, name=f"tiny{seed}")


class Says(Policy):
    """A policy whose weights are real and whose completions are given."""

    def __init__(self, policy, text):
        super().__init__(policy.model, policy.tokenizer, name="says")
        self.text = text

    def generate(self, prompts, **more):
        return [GeneratedText(self.text, 1, 1, "stop") for _ in prompts]


@pytest.fixture(scope="module")
def champion():
    return tiny_policy(0)


@pytest.fixture(scope="module")
def prompts():
    return frozen_prompts(20)


class RightOnce(Says):
    """Gives the right answer to the first of its answers to a prompt, a wrong one to others."""

    def generate(self, prompts, **more):
        first = {prompt: at for at, prompt in reversed(list(enumerate(prompts)))}
        right = dict(zip(self.text["text"], self.text["reference"], strict=True))
        return [
            GeneratedText(right[prompt] if first[prompt] == at else "no", 1, 1, "stop")
            for at, prompt in enumerate(prompts)
        ]


def test_facts_are_graded_by_four_answers_of_which_one_is_judged(champion, prompts):
    checkable = prompts.assign(reference=[f"answer{n}" for n in range(len(prompts))])
    result, samples = judge(
        RightOnce(champion, checkable), Says(champion, "no"), checkable, LikesLength()
    )
    assert result.checkable_difference.value == 0.25
    assert result.checkable_difference.n == len(prompts)
    assert samples["prompt_id"].tolist() == sorted(prompts["prompt_id"])
    assert samples["right_candidate"].all()


def test_policy_against_itself_wins_half_with_zero_kl(champion, prompts):
    result, samples = judge(champion, champion, prompts, LikesLength(), PARAMS)
    assert (result.win_rate.value, result.win_rate.low, result.win_rate.high) == (0.5, 0.5, 0.5)
    assert (result.kl.value, result.length_ratio, result.checkable_difference.value) == (
        0.0,
        1.0,
        0.0,
    )
    assert samples["completion_candidate"].tolist() == samples["completion_champion"].tolist()
    assert result.expected_win_rate is None
    assert result.n_prompts == 20


def test_policies_are_compared_in_each_dimension_with_a_head(champion, prompts):
    long, short = (Says(champion, text) for text in ("a long completion", "short"))
    result, _ = judge(long, short, prompts, HasHeads(), heads=HEADS)
    correct, helpful, style = result.by_dimension
    assert [head_result.head for head_result in result.by_dimension] == list(HEADS)
    assert (correct.win_rate, correct.score_difference) == (None, None)
    assert (helpful.win_rate.value, helpful.win_rate.n) == (1.0, 20)
    assert helpful.score_difference.value == pytest.approx(2.4)
    assert (style.win_rate.value, style.score_difference.high) == (0.0, pytest.approx(-1.2))
    assert judge(long, short, prompts, HasHeads())[0].by_dimension == ()


def test_labelling_members_have_their_own_win_rate(champion, prompts):
    class LikesBrevity:
        def member_scores(self, prompts, completions, *, progress=None):
            return -LikesLength().member_scores(prompts, completions)

    labelled_by = CompletionJudge(LikesBrevity(), "demo.reward_model@1, labelling half")
    result, _ = judge(tiny_policy(1), champion, prompts, LikesLength(), labelled_by=labelled_by)
    assert result.win_rate_by_labels.value == pytest.approx(1 - result.win_rate.value)


def test_evaluation_does_not_depend_on_prompt_order(champion, prompts):
    candidate = tiny_policy(1)
    results = [
        judge(candidate, champion, frame, LikesLength(), PARAMS)[0]
        for frame in (prompts, prompts.iloc[::-1])
    ]
    assert results[0].samples_hash == results[1].samples_hash
    assert results[0].model_dump(exclude={"evaluated_at"}) == results[1].model_dump(
        exclude={"evaluated_at"}
    )
    assert results[0].kl.low > 0


def test_wins_are_counted_by_prompt(champion, prompts):
    params = PARAMS.model_copy(update={"samples_per_prompt": 2})
    result, samples = judge(
        Says(champion, "a long completion"),
        Says(champion, "short"),
        prompts,
        LikesLength(),
        params,
        calibrator=Halves(),
    )
    assert result.win_rate.value == 1.0
    assert result.win_rate.n == 20
    assert len(samples) == 40
    assert result.expected_win_rate.value == 0.5
    assert (result.length_candidate.value, result.length_champion.value) == (17.0, 5.0)
    assert result.mean_reward_candidate.value == pytest.approx(1.7)


def test_a_policy_that_writes_nothing_is_named(champion, prompts):
    with pytest.raises(CompletionError, match=r"demo\.policy@2 wrote nothing in all 56 answers"):
        judge(
            Says(champion, " "),
            champion,
            prompts,
            LikesLength(),
            PARAMS,
        )


def test_a_prompt_that_a_policy_cannot_complete_is_named(champion, prompts):
    long = prompts.assign(
        text=prompts["text"].where(prompts.index != prompts.index[3], "word " * 200)
    )
    with pytest.raises(
        CompletionError,
        match=f"could not complete prompt {prompts['prompt_id'].iloc[3]}: The prompt has",
    ):
        judge(champion, champion, long, LikesLength(), PARAMS)


def test_a_reward_that_is_not_a_number_is_refused(champion, prompts):
    class Broken:
        def member_scores(self, prompts, completions, *, progress=None):
            return np.full((1, len(completions)), np.nan)

    with pytest.raises(InvalidScores, match="40 of 40 completions"):
        judge(champion, champion, prompts, Broken(), PARAMS)


def test_kl_is_computed_over_whole_distributions(champion):
    import torch

    candidate = tiny_policy(1)
    # without a chat template a space parts prompt and completion
    head = champion.tokenizer("hi")["input_ids"]
    tail = [*champion.tokenizer(" yes")["input_ids"], champion.tokenizer.eos_token_id]
    with torch.inference_mode():
        p, q = (
            x.model(torch.tensor([head + tail])).logits[0, len(head) - 1 : -1].double().softmax(-1)
            for x in (candidate, champion)
        )
    expected = float((p * (p / q).log()).sum(-1).mean())
    got = kl_per_token(candidate, champion, ["hi", "a longer prompt than that"], ["yes", ""])
    assert got[0] == pytest.approx(expected, rel=1e-5)
    assert (got > 0).all()


def test_kl_between_vocabularies_is_refused(champion):
    with pytest.raises(ModelError, match="different"):
        kl_per_token(tiny_policy(1, vocabulary=270), champion, ["a"], ["b"])
