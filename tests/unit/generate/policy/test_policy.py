import pytest

from rlhf_pipeline.core.errors import (
    CompletionError,
    ModelError,
    ModelNotFound,
)
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY, load_policy
from rlhf_pipeline.generate.policy.causal_lm import load_prompt_format

PROMPTS = [
    "Ana asks: what is the capital of France?",
    "Hi",
    "Write a calm line about the moon in the city.",
    "How can Sam keep a dog safe from fire?",
    "List two games for the party of Olga.",
    "Ben asks: what color is coal?",
    "Write the word tea twice for Kim.",
    "1",
]


@pytest.fixture(scope="module")
def policy():
    return load_policy(EMBEDDED_POLICY)


def test_a_batch_of_one_equals_a_batch_of_eight(policy):
    options = {
        "temperature": [0.7, 1.0, 0.0, 1.3, 0.7, 1.0, 1.0, 0.9],
        "top_p": [0.9, 1.0, 0.5, 0.95, 1.0, 0.9, 1.0, 0.8],
    }
    together = policy.generate(PROMPTS, seeds=range(8), max_new_tokens=24, **options)
    alone = [
        policy.generate([p], temperature=[t], top_p=[q], seeds=[i], max_new_tokens=24)[0]
        for i, (p, t, q) in enumerate(zip(PROMPTS, *options.values(), strict=True))
    ]
    assert together == alone
    assert (
        policy.generate(PROMPTS, seeds=range(8), max_new_tokens=24, batch_size=3, **options)
        == together
    )


def test_other_model_families_are_policies(policy, tmp_path):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 3, "eos_token_id": 3}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(policy.tokenizer), **shape, **ends)).save_pretrained(
        tmp_path
    )
    policy.tokenizer.save_pretrained(tmp_path)
    other = load_policy(tmp_path)
    together = other.generate(PROMPTS, seeds=range(8), max_new_tokens=8)
    assert together == [
        other.generate([p], seeds=[i], max_new_tokens=8)[0] for i, p in enumerate(PROMPTS)
    ]
    assert other.context_length == 64


def test_seeds_and_temperature_matter_and_greedy_ignores_seeds(policy):
    prompt = [PROMPTS[0]] * 3
    drawn = policy.generate(prompt, seeds=[1, 2, 1], max_new_tokens=12)
    assert drawn[0] == drawn[2] != drawn[1]
    greedy = policy.generate(prompt, temperature=0.0, seeds=[1, 2, 3], max_new_tokens=12)
    assert len({g.text for g in greedy}) == 1


def test_a_completion_is_cut_at_the_most_tokens_allowed(policy):
    cut = policy.generate([PROMPTS[0]], temperature=0.0, seeds=[0], max_new_tokens=2)[0]
    assert (cut.n_tokens, cut.finish_reason) == (2, "length")
    assert cut.n_prompt_tokens == policy.count_prompt_tokens(PROMPTS[0])


def test_a_prompt_beyond_the_context_is_named(policy):
    with pytest.raises(CompletionError, match=r"Prompt 2 of 2 has .* tokens.*context of 256"):
        policy.generate(["Hi", "word " * 400], seeds=[0, 1], max_new_tokens=8)


@pytest.mark.parametrize(
    "options",
    [
        {"seeds": [1]},
        {"seeds": [1, 2], "temperature": [1.0]},
        {"seeds": [1, 2], "top_p": float("nan")},
        {"seeds": [1, 2], "temperature": -1.0},
    ],
)
def test_mismatched_generation_options_are_refused(policy, options):
    with pytest.raises(CompletionError):
        policy.generate(["Hi", "Ho"], max_new_tokens=2, **options)


def test_log_likelihood_agrees_with_token_by_token_probabilities(policy):
    import torch

    prompt = policy.tokenizer(policy.format_prompt(PROMPTS[0]))["input_ids"]
    completion = [*policy.tokenizer("It is Paris.")["input_ids"], policy.tokenizer.eos_token_id]
    total, ids = 0.0, list(prompt)
    with torch.inference_mode():
        for token in completion:
            total += float(
                policy.model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)[token]
            )
            ids.append(token)
    assert policy.log_likelihood([PROMPTS[0]], ["It is Paris."])[0][0] == pytest.approx(
        total, abs=1e-3
    )


def test_log_likelihood_includes_the_end_token_of_training(policy, monkeypatch):
    before = policy.log_likelihood(PROMPTS[:1], ["It is Paris."])[0]
    ends = [policy.tokenizer.eos_token_id - 1, policy.tokenizer.eos_token_id]
    monkeypatch.setattr(policy.model.generation_config, "eos_token_id", ends)
    assert policy.log_likelihood(PROMPTS[:1], ["It is Paris."])[0] == pytest.approx(before)


def test_space_separates_prompt_and_completion_without_template(policy, monkeypatch):
    assert policy.space_completion("2+2?", "It is 4.") == "It is 4."
    monkeypatch.setattr(policy.tokenizer, "chat_template", None)
    assert policy.space_completion("2+2?", "It is 4.") == " It is 4."
    assert policy.space_completion("2+2?\n", "It is 4.") == "It is 4."
    assert policy.space_completion("2+2?", "") == ""
    joined = [*policy.tokenizer("2+2? It")["input_ids"], policy.tokenizer.eos_token_id]
    n_head = len(policy.tokenizer("2+2?")["input_ids"])
    assert policy.log_likelihood(["2+2?"], ["It"])[1] == [len(joined) - n_head]


def test_any_text_survives_the_tokenizer(policy):
    for text in ("caf\u00e9 \u4e2d\u6587 \U0001f600", "tabs\tand\nlines", "It is Paris."):
        ids = policy.tokenizer(text)["input_ids"]
        assert policy.tokenizer.decode(ids) == text


def test_a_missing_or_damaged_folder_is_not_found(tmp_path):
    with pytest.raises(ModelNotFound, match="does not exist"):
        load_policy(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match=r"holds no config\.json"):
        load_policy(tmp_path / "empty")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in EMBEDDED_POLICY.iterdir():
        (damaged / file.name).write_bytes(
            file.read_bytes()[:100] if file.suffix == ".safetensors" else file.read_bytes()
        )
    with pytest.raises(ModelNotFound, match="cannot be loaded"):
        load_policy(damaged)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("BertForMaskedLM", "no causal LM"),
        ("BertLMHeadModel", "no causal LM"),
        ("T5ForConditionalGeneration", "a sequence-to-sequence model"),
        ("LlamaForSequenceClassification", "no causal LM"),
    ],
)
def test_a_folder_of_another_family_is_refused(policy, tmp_path, kind, names):
    import transformers

    model = getattr(transformers, kind)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"vocab_size": 50, "intermediate_size": 16}
    if kind.startswith("T5"):
        shape = {"vocab_size": 50, "d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1}
    model(model.config_class(**shape)).save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelNotFound, match=rf"holds {names} \({kind}\)\. Give a model that"):
        load_policy(tmp_path)


def test_mismatched_tokenizer_is_named():
    policy = load_prompt_format(EMBEDDED_POLICY)
    policy.check_tokenizer("demo.policy@2")
    n = len(policy.tokenizer)
    policy.tokenizer.add_tokens(["<new>"])
    with pytest.raises(ModelError, match=rf"policy@2 has {n + 1} tokens, but the model knows {n}"):
        policy.check_tokenizer("demo.policy@2")
    policy.tokenizer.eos_token = None
    with pytest.raises(ModelError, match=r"of demo\.policy@2 has no end token.*Set eos_token"):
        policy.check_tokenizer("demo.policy@2")


def test_adapter_alone_is_refused_as_policy(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="holds a LoRA adapter without its base"):
        load_policy(tmp_path)
