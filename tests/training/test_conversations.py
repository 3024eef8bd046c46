"""A conversation is the same for providers, annotators, reward models and trainers."""

import json
from copy import deepcopy

import pandas as pd
import pytest

from rlhf_pipeline.core.conversations import parse_prompt, render_transcript, split_turns
from rlhf_pipeline.generate.completions import AnthropicBackend, OpenAICompatibleBackend
from rlhf_pipeline.generate.completions.base import CompletionRequest
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.improve.retraining.online import STORED, make_trl_reward
from rlhf_pipeline.improve.retraining.strategies import STRATEGIES
from rlhf_pipeline.improve.retraining.training import TrainingParams
from rlhf_pipeline.learn.reward_model import EmbeddingRewardModel
from tests.foreign_policies import build_foreign_policy

CHAT = [
    {"role": "system", "content": "Be terse."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Name a river."},
]
CHOSEN, REJECTED = "Rhine? No.</think>\n\nThe Douro.", "The Rhine."
IDS = {
    "dpo": ("prompt_ids", "chosen_ids"),
    "kto": ("prompt_ids", "completion_ids"),
    "sft": (None, "input_ids"),
}


def build_trainer(name, policy, prompts, folder):
    rows = pd.DataFrame(
        {"prompt": prompts, "chosen": CHOSEN, "rejected": REJECTED, "label": True, "weight": 1.0}
    )
    params = TrainingParams(learning_rate=1e-4, device="cpu", dtype="float32", batch_size=2)
    strategy = STRATEGIES[name]()
    strategy.reference = deepcopy(policy.model)
    return strategy.build_trainer(policy, rows, params, folder)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("r1", "dpo"), ("qwen", "kto"), ("chatml_two_stops", "sft"), ("plain", "sft")],
)
def test_trainers_read_the_sampled_prompt_and_the_whole_completion(tmp_path, name, strategy):
    policy = load_policy(build_foreign_policy(name, tmp_path / "policy"))
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    prompts = ["Name a river in Portugal.", parse_prompt(CHAT)]
    data = build_trainer(strategy, policy, prompts, tmp_path / "checkpoints").train_dataset
    head, tail = IDS[strategy]
    for row, prompt in zip(data, prompts, strict=True):
        prompt_ids, completion_ids = policy.tokenize_exchange(prompt, CHOSEN)
        expected = completion_ids if head else [*prompt_ids, *completion_ids]
        assert row[tail] == expected
        assert head is None or row[head] == prompt_ids
        if strategy == "sft":
            assert row["labels"] == [-100] * len(prompt_ids) + completion_ids


def test_every_reader_of_a_conversation_has_its_messages(tmp_path):
    prompt = parse_prompt({"messages": CHAT})
    sampling = {"temperature": 1, "top_p": 1, "sample_index": 0, "seed": 1, "max_tokens": 8}
    request = CompletionRequest(prompt_id="p", prompt=prompt, **sampling)
    body = OpenAICompatibleBackend("m", "http://127.0.0.1/v1")._build_body(request)
    assert body["messages"] == CHAT
    body = AnthropicBackend("m", "http://127.0.0.1/v1")._build_body(request)
    assert (body["system"], body["messages"]) == ("Be terse.", CHAT[1:])
    texts = [message["content"] for message in CHAT]
    turns = split_turns(prompt)
    assert [turn.text for turn in turns] == texts
    transcript = "\n\n".join(f"{turn.speaker}: {turn.text}" for turn in turns)
    assert EmbeddingRewardModel().join_prompt(prompt, "Aare.") == f"{transcript} [SEP] Aare."
    policy = load_policy(build_foreign_policy("chatml", tmp_path / "policy"))
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    [row, _] = build_trainer("dpo", policy, [prompt] * 2, tmp_path / "out").train_dataset
    rendered = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in CHAT)
    assert policy.tokenizer.decode(row["prompt_ids"]) == f"{rendered}<|im_start|>assistant\n"


def test_online_trainers_reward_the_stored_prompt():
    prompts = []

    class Reward:
        weights_hash = "1"

        def member_scores(self, texts, completions):
            prompts.extend(texts)
            return [[float(len(text)) for text in completions]]

    stored = json.dumps(CHAT)
    reward = make_trl_reward(Reward())
    answer = [{"role": "assistant", "content": " Aare.\n"}]
    assert reward(prompts=[CHAT], completions=[answer], **{STORED: [stored]}) == [5.0]
    assert prompts == [stored]
    assert render_transcript(stored).endswith("User: Name a river.")
