"""Policies with any chat template are sampled, trained and measured on the same tokens."""

import json

import pytest

from rlhf_pipeline.core.errors import CompletionError, ModelError
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.generate.policy.exchange import check_exchange
from tests.foreign_policies import POLICIES, build_foreign_policy

PROMPT, COMPLETION = "Name a river in Portugal.", "The Douro."
REASONED = "Rhine? No.</think>\n\nThe Douro."
# name -> text of the end token, and the beginning of each notice
EXPECTED = {
    "plain": ("</s>", ["it has no chat template"]),
    "chatml": ("<|im_end|>", []),
    "chatml_other_end": ("<|im_end|>", ["its template ends an answer with <|im_end|>"]),
    "chatml_two_stops": ("<|im_end|>", []),
    "gemma": ("</turn>", ["its template takes no system message"]),
    "no_begin": ("<|im_end|>", ["its template writes <s>, with which prompts begin, not at all"]),
    "two_begins": (
        "</turn>",
        [
            "its template writes <bos>, with which prompts begin, twice",
            "its template takes no system message",
        ],
    ),
    "r1": ("</s>", ["its template opens <think>"]),
    "qwen": ("<|im_end|>", ["its template ends the prompt with"]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return {name: build_foreign_policy(name, folder / name) for name in POLICIES}


@pytest.mark.parametrize("name", EXPECTED)
def test_sampled_trained_and_measured_tokens_are_the_same(folders, name):
    policy, (end, beginnings) = load_policy(folders[name]), EXPECTED[name]
    notices = check_exchange(policy, name)
    assert len(notices) == len(beginnings)
    assert all(map(str.startswith, notices, beginnings)), notices
    [end_id] = policy.end_ids()
    assert policy.tokenizer.convert_ids_to_tokens(end_id) == end
    assert end_id in policy.stop_ids()
    generated = policy.generate([PROMPT], seeds=[1], max_new_tokens=4)[0]
    for completion in (COMPLETION, REASONED):
        head, tail = policy.tokenize_exchange(PROMPT, completion)
        assert len(head) == generated.n_prompt_tokens
        assert tail[-1] == end_id
        assert policy.tokenizer.decode(tail[:-1]).strip() == completion
        assert policy.log_likelihood([PROMPT], [completion])[1] == [len(tail)]


def test_a_template_that_opens_reasoning_names_the_setting_that_keeps_it(folders):
    (notice,) = check_exchange(load_policy(folders["r1"]), "r1")
    assert "`reasoning: drop`" in notice
    assert "`reasoning: train` keeps it" in notice


@pytest.mark.parametrize(
    ("name", "why"), [("silent", "leaves out the text"), ("refuses", "no chat")]
)
def test_a_template_without_the_users_text_is_refused(folders, name, why):
    with pytest.raises(ModelError, match=why):
        check_exchange(load_policy(folders[name]), name)


def test_a_tokenizer_that_changes_completions_is_refused(folders):
    from tokenizers import normalizers

    policy = load_policy(folders["chatml"])
    policy.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(ModelError, match="does not keep a completion"):
        check_exchange(policy, "lower")


def test_conversations_are_rendered_by_the_template(folders):
    chat = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": PROMPT},
    ]
    prompt = json.dumps(chat)
    rendered = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat)
    policy = load_policy(folders["chatml"])
    assert policy.format_prompt(prompt) == f"{rendered}<|im_start|>assistant\n"
    # a template that refuses system messages
    gemma = load_policy(folders["gemma"]).format_prompt(prompt)
    assert gemma.startswith("<bos><turn>user\nBe terse.\n\nHi</turn>\n<turn>assistant\nHello.")
    plain = load_policy(folders["plain"]).format_prompt(prompt)
    assert plain.endswith(f"Assistant: Hello.\n\nUser: {PROMPT}\n\nAssistant:")


def test_a_tool_call_is_a_text_for_a_template_without_tools(folders):
    call = {"id": "t", "function": {"name": "rivers", "arguments": '{"in": "Portugal"}'}}
    prompt = json.dumps(
        [
            {"role": "user", "content": PROMPT},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "Douro", "tool_call_id": "t"},
        ]
    )
    policy = load_policy(folders["chatml"])
    assert 'assistant\nrivers({"in": "Portugal"})<|im_end|>' in policy.format_prompt(prompt)
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.tool_calls[0].function.arguments['in'] if m.tool_calls else "
        "m.content }}|{% endfor %}"
    )
    assert policy.format_prompt(prompt) == f"{PROMPT}|Portugal|Douro|"


def test_a_prompt_that_the_template_refuses_is_named(folders):
    policy = load_policy(folders["refuses"])
    with pytest.raises(CompletionError, match=r"refuses the prompt: no chat\. Give"):
        policy.format_prompt(PROMPT)
