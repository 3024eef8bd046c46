"""Checks one exchange of a policy: how it is rendered, sampled, trained on and measured.

An external policy may have a chat template that opens `<think>`, ends an answer with another
token than the tokenizer's, or reads no system messages. Sampling, training and likelihoods then
agree by `PromptFormat.tokenize_exchange`; what a person should know all the same is a notice.
"""

from collections.abc import Iterator

from rlhf_pipeline.core.errors import CompletionError, ModelError
from rlhf_pipeline.generate.policy.causal_lm import Policy

PROMPT = "Name a river in Portugal."
COMPLETION = "The Douro – 897 km,\nfrom Spain to Porto."
MAX_NEW_TOKENS = 8
QUOTED = 24  # characters of a rendered text in a notice


def check_exchange(policy: Policy, name: str) -> tuple[str, ...]:
    """Notices on the policy `name`, in sentences. Its generation also stops at the end token of
    its template afterwards.

    Raises ModelError for a policy that cannot be sampled or trained on as people judge it.
    """
    policy.check_tokenizer(name)
    try:
        rendered = policy.format_prompt(PROMPT)
    except CompletionError as cause:
        raise ModelError(f"{name}: {cause}") from cause
    if PROMPT not in rendered:
        raise ModelError(
            f"The chat template of {name} leaves out the text of the user: {rendered!r:.200}. "
            "Correct chat_template in its tokenizer_config.json or chat_template.jinja."
        )
    generated = policy.generate([PROMPT], seeds=[0], max_new_tokens=MAX_NEW_TOKENS)[0]
    for completion in filter(None, (COMPLETION, generated.text)):
        prompt_ids, completion_ids = policy.tokenize_exchange(PROMPT, completion)
        decoded = policy.decode_text(completion_ids[:-1])
        if completion == COMPLETION and decoded != completion:
            raise ModelError(
                f"The tokenizer of {name} does not keep a completion: {completion!r} becomes "
                f"{decoded!r}. Give a tokenizer that decodes what it encodes."
            )
    return tuple(_list_notices(policy, rendered, prompt_ids))


def _list_notices(policy: Policy, rendered: str, prompt_ids: list[int]) -> Iterator[str]:
    tokenizer = policy.tokenizer
    [end] = policy.end_ids()
    end_token = tokenizer.convert_ids_to_tokens(end)
    if end not in policy.stop_ids():
        stops = ", ".join(tokenizer.convert_ids_to_tokens(policy.stop_ids()))
        policy.model.generation_config.eos_token_id = [*policy.stop_ids(), end]
        yield (
            f"its template ends an answer with {end_token}, but generation stopped at {stops} "
            f"alone; here it stops at both. Set eos_token of the tokenizer to {end_token}"
        )
    if tokenizer.chat_template is None:
        yield (
            "it has no chat template: it continues prompts as plain text, and conversations as a "
            "transcript"
        )
        return
    if policy.format_prompt(PROMPT) != rendered:
        yield "its template renders the time: equal seeds do not give equal texts"
    elif rendered.rstrip().endswith("<think>"):
        yield (
            "its template opens <think>: a completion begins with reasoning. Training and "
            "likelihoods read completions after the open <think>, as they are stored: with "
            "`reasoning: drop` answers without reasoning, from which it unlearns to reason. "
            "`reasoning: train` keeps it"
        )
    elif (prefix := policy.render_answer(PROMPT, COMPLETION)) is not None:
        yield (
            f"its template ends the prompt with {rendered[-QUOTED:]!r}, and in a finished exchange "
            f"with {prefix[-QUOTED:]!r}. Training and likelihoods read the prompt as it is sampled"
        )
    begin = tokenizer.bos_token_id
    is_added = begin is not None and tokenizer("a")["input_ids"][:1] == [begin]
    n_begins = prompt_ids[:2].count(begin) if is_added else 1
    if n_begins != 1:
        how = "twice" if n_begins else "not at all"
        yield f"its template writes {tokenizer.bos_token}, with which prompts begin, {how}"
    if not policy.takes_system:
        yield "its template takes no system message: its text stands before the user's message"
