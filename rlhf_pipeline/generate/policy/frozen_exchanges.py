"""Freezes conversations with the tokens and log probabilities that a policy gives them."""

from collections.abc import Callable, Sequence

import numpy as np

from rlhf_pipeline.core.conversations import Message, write_prompt
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.generate.policy.causal_lm import Policy, PromptFormat
from rlhf_pipeline.generate.prompts.templates import load_shipped_templates

N_CONVERSATIONS = 32
N_LONG, N_OF_TURNS, N_WITH_SYSTEM = 2, 6, 4  # of them; the others are one message of the user
LONGEST = 1024  # tokens of a long one, which bounds the memory for its logits
MAX_NEW_TOKENS = 32
N_FIRST = 20  # likeliest first tokens: what OpenAI's API gives at most
RELOADS = 20
# The largest difference of clean reloads times this is tolerated, and what JSON and another number
# of threads round.
MARGIN, ROUNDING = 3.0, 1e-4
SYSTEM = "You are a helpful assistant. Answer in one or two short sentences."
ANSWER = "Certainly – here it is, as you asked:\n1. the first, 2. the second."


class FrozenExchange(Record):
    """A conversation and the policy's most likely answer to it. `log_p` has the log probability, in
    nats, of each token but the first; `first_tokens` text and log probability of the likeliest
    first tokens of an answer, by id.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    log_p: tuple[float, ...]
    first_tokens: dict[int, tuple[str, float]]

    @property
    def ids(self) -> tuple[int, ...]:
        """The rendered exchange with its end token."""
        return self.prompt_ids + self.answer_ids


class FrozenPolicy(Record):
    """What one version of a policy gives. `tolerance` is the difference, in nats, up to which
    another reading of the version's files is the same.
    """

    version: str
    context_length: int
    end_text: str
    tolerance: float
    exchanges: tuple[FrozenExchange, ...]


def freeze(version: str, load: Callable[[], Policy], *, n_reloads: int = RELOADS) -> FrozenPolicy:
    """Freeze the policy that `load` loads from the files of a version. It is loaded
    `n_reloads` times more and read in batches of other sizes, to see how far clean readings differ.
    """
    policy = load()
    prompts = list_prompts(policy)
    answers = policy.generate(
        prompts, temperature=0, seeds=[0] * len(prompts), max_new_tokens=MAX_NEW_TOKENS
    )
    exchanges = tuple(
        _freeze(policy, prompt, answer.text)
        for prompt, answer in zip(prompts, answers, strict=True)
    )
    largest, ordered = 0.0, sorted(exchanges, key=lambda exchange: len(exchange.ids))
    for n in range(n_reloads):
        reloaded, n_rows = load(), 2 + n % 8
        for start in range(0, len(ordered), n_rows):
            rows = ordered[start : start + n_rows]
            for row, log_p in zip(rows, reloaded.measure_log_p([r.ids for r in rows]), strict=True):
                largest = max(largest, float(np.abs(log_p - row.log_p).max()))
    return FrozenPolicy(
        version=version,
        context_length=policy.context_length,
        end_text=policy.tokenizer.decode(policy.end_ids()),
        tolerance=MARGIN * largest + ROUNDING,
        exchanges=exchanges,
    )


def list_prompts(policy: PromptFormat) -> list[str]:
    """The conversations, as prompts are stored, long ones after the first: equal for policies of
    one chat template and context.
    """
    texts: list[str] = []
    n = 0
    templates = load_shipped_templates("taught")
    while len(texts) < N_CONVERSATIONS:
        draft = templates[n % len(templates)].fill(n % templates[n % len(templates)].n_combinations)
        texts += [] if draft is None or draft.text in texts else [draft.text]
        n += 1
    takes_system = policy.tokenizer.chat_template is not None and policy.takes_system
    prompts = []
    for n, text in enumerate(texts):
        messages = [Message(role="user", content=text)]
        if 1 <= n <= N_LONG:
            messages = _lengthen(policy, texts[n:] + texts[:n])
        elif n <= N_LONG + N_OF_TURNS and n:
            messages = [*_ask(texts[n - 1]), *messages]
        elif n <= N_LONG + N_OF_TURNS + N_WITH_SYSTEM and n and takes_system:
            messages = [Message(role="system", content=SYSTEM), *messages]
        prompts.append(write_prompt(messages))
    return prompts


def _lengthen(policy: PromptFormat, texts: Sequence[str]) -> list[Message]:
    """A conversation of so many turns as the context holds."""
    room = min(policy.context_length, LONGEST) - MAX_NEW_TOKENS - 2
    messages = [Message(role="user", content=texts[0])]
    n_tokens = turn = 0
    for n in range(1, LONGEST):
        longer = [*_ask(texts[n % len(texts)]), *messages]
        # transformers warns of a text that is longer than the context
        is_full = n_tokens + turn > room
        n_longer = room if is_full else len(policy.tokenize_prompt(write_prompt(longer)))
        if is_full or n_longer > room:
            break
        n_tokens, turn, messages = n_longer, n_longer - n_tokens, longer
    return messages


def _ask(text: str) -> list[Message]:
    return [Message(role="user", content=text), Message(role="assistant", content=ANSWER)]


def _freeze(policy: Policy, prompt: str, answer: str) -> FrozenExchange:
    prompt_ids, answer_ids = policy.tokenize_exchange(prompt, answer)
    [log_p] = policy.measure_log_p([[*prompt_ids, *answer_ids]])
    first = policy.predict_next(prompt_ids)
    return FrozenExchange(
        prompt=prompt,
        prompt_ids=tuple(prompt_ids),
        answer_ids=tuple(answer_ids),
        log_p=tuple(log_p),
        first_tokens={
            int(i): (policy.tokenizer.decode([int(i)]), float(first[i]))
            for i in np.argsort(-first)[:N_FIRST]
        },
    )
