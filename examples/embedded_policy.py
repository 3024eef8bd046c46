"""Trains the policy of rlhf_pipeline/generate/policy/embedded: a small Llama on generated texts.

    python examples/embedded_policy.py FOLDER

Completions of the corpus are right or wrong; warm, sourced or plain; terse, full or rambling, so
samples of one prompt differ in qualities that people care about. Training takes half a minute on
two cores and is deterministic (two torch threads, one seed, no timestamps in the files): the same
parameters give the same bytes on the same kind of processor and version of torch.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import cos, pi
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import yaml  # noqa: E402
from pydantic import Field  # noqa: E402

from rlhf_pipeline.core.errors import TrainingFailed  # noqa: E402
from rlhf_pipeline.core.parameters import Parameters  # noqa: E402
from rlhf_pipeline.core.records import content_hash  # noqa: E402
from rlhf_pipeline.generate.prompts.base import Draft  # noqa: E402
from rlhf_pipeline.generate.prompts.templates import Template, load_templates  # noqa: E402

ANSWERS = Path(__file__).with_name("embedded_answers.yaml")
PAD = "<|pad|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"

# One format for sampling, scoring and training: it is stored with the tokenizer, and all code reads
# it from there.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    f"{{{{ '{ASSISTANT}' + message['content'] + '{END}' }}}}"
    f"{{%- else -%}}{{{{ '{USER}' + message['content'] }}}}{{%- endif -%}}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{{{{ '{ASSISTANT}' }}}}{{%- endif -%}}"
)


class CorpusParams(Parameters):
    """The number of texts, and the frequency of each quality."""

    n_texts: int = Field(13_440, description="Prompt and completion pairs", ge=100)
    wrong: float = Field(
        0.25, description="Share of checkable completions with a wrong answer", ge=0, le=1
    )
    terse: float = Field(
        0.35, description="Share of completions that say the least possible", ge=0, le=1
    )
    rambling: float = Field(
        0.12, description="Share with a rambling sentence before or after", ge=0, le=1
    )
    warm: float = Field(
        0.48, description="Chance of a warm sentence before, and again after", ge=0, le=1
    )
    sourced: float = Field(
        0.24, description="Chance of a sourced sentence before, and again after", ge=0, le=1
    )


class TrainingText(NamedTuple):
    """One training text."""

    prompt: str
    completion: str


def make_corpus(params: CorpusParams, seed: int) -> list[TrainingText]:
    """Generate `params.n_texts` texts in seeded order, with every template and level equally often;
    the same seed gives the same texts.
    """
    rng = np.random.default_rng(seed)
    templates = [t for t in load_templates() if t.template_id in _load_answers()["bodies"]]
    turns = np.resize(np.arange(len(templates)), params.n_texts)
    return [_make_text(templates[i], params, rng) for i in rng.permutation(turns)]


def style_sentences() -> dict[str, tuple[str, ...]]:
    """The sentences of each style: warm, sourced, rambling."""
    return {
        style: (*places["before"], *places["after"])
        for style, places in _load_answers()["styles"].items()
    }


@cache
def _load_answers() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml.safe_load(ANSWERS.read_text(encoding="utf-8"))
    return loaded


def _make_text(template: Template, params: CorpusParams, rng: np.random.Generator) -> TrainingText:
    draft = _fill(template, rng)
    body = _draw_body(template, draft, params, rng)
    before, after = _draw_style(params, rng), _draw_style(params, rng)
    if rng.random() < params.rambling:
        before, after = ("rambling", after) if rng.random() < 0.5 else (before, "rambling")
    sentences = [_draw_sentence(before, "before", rng), body, _draw_sentence(after, "after", rng)]
    return TrainingText(draft.text, " ".join(s for s in sentences if s))


def _fill(template: Template, rng: np.random.Generator) -> Draft:
    while True:  # skips combinations whose variables must differ but do not
        draft = template.fill(int(rng.integers(template.n_combinations)))
        if draft is not None:
            return draft


def _draw_style(params: CorpusParams, rng: np.random.Generator) -> str | None:
    draw = rng.random()
    if draw < params.warm:
        return "warm"
    return "sourced" if draw < params.warm + params.sourced else None


def _draw_sentence(style: str | None, place: str, rng: np.random.Generator) -> str:
    return _pick(_load_answers()["styles"][style][place], rng) if style else ""


def _draw_body(
    template: Template, draft: Draft, params: CorpusParams, rng: np.random.Generator
) -> str:
    answer = draft.reference
    if answer is not None and rng.random() < params.wrong:
        answer = _draw_wrong_answer(template, draft, rng)
    forms = _load_answers()["bodies"][template.template_id][
        "terse" if rng.random() < params.terse else "full"
    ]
    text = _pick(forms, rng).format(**_draw_slots(draft, rng), answer=answer)
    return text[0].upper() + text[1:]


def _draw_wrong_answer(template: Template, draft: Draft, rng: np.random.Generator) -> str:
    """The answer to another filling of the template, preferably one that the prompt's own words
    suggest.
    """
    others = [
        str(draft.variables[name])
        for name in template.distinct
        if str(draft.variables[name]) != draft.reference
    ]
    if others:
        return _pick(others, rng)
    while True:
        other = _fill(template, rng).reference
        if other is not None and other != draft.reference:
            return other


def _draw_slots(draft: Draft, rng: np.random.Generator) -> dict[str, Any]:
    slots = _load_answers()["slots"]
    drawn = {name: _pick(values, rng) for name, values in slots.items()}
    if "kind" in draft.variables:
        first, second = rng.permutation(len(slots[draft.variables["kind"]]))[:2]
        drawn |= {
            "one": slots[draft.variables["kind"]][first],
            "two": slots[draft.variables["kind"]][second],
        }
    return drawn | dict(draft.variables)


def _pick(values: Sequence[str], rng: np.random.Generator) -> str:
    return values[int(rng.integers(len(values)))]


class PretrainingParams(Parameters):
    """Size of the model and length of its training."""

    corpus: CorpusParams = Field(default_factory=CorpusParams, description="The texts it learns")
    n_vocabulary: int = Field(1024, description="Tokens of the byte-level BPE", ge=300, le=50_000)
    hidden: int = Field(192, description="Width", ge=16, multiple_of=8)
    layers: int = Field(2, description="Transformer layers", ge=1)
    heads: int = Field(4, description="Attention heads", ge=1)
    intermediate: int = Field(576, description="Width of the feed-forward layer", ge=16)
    context_length: int = Field(256, description="Tokens of prompt and completion together", ge=64)
    steps: int = Field(420, description="Optimizer steps", ge=1)
    batch_size: int = Field(32, description="Texts per step", ge=1)
    learning_rate: float = Field(
        3e-3,
        description="Peak, after warm-up over a twentieth of the steps; cosine decay to a tenth",
        gt=0,
    )
    seed: int = Field(0, description="Seed of corpus, weights and order", ge=0)


def pretrain(folder: Path, params: PretrainingParams | None = None) -> None:
    """Train the policy into a new transformers folder. Raises TrainingFailed if the loss is not
    finite.
    """
    params = params or PretrainingParams()
    folder.mkdir(parents=True)
    with _use_two_threads(params.seed):
        corpus = make_corpus(params.corpus, params.seed)
        tokenizer = train_tokenizer(
            (part for text in corpus for part in text), params.n_vocabulary, params.context_length
        )
        model = build_model(params, tokenizer)
        losses = _fit(model, _encode(corpus, tokenizer), params)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report = {
        "params": params.model_dump(mode="json"),
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "n_texts": len(corpus),
        "corpus_hash": content_hash(corpus),
        "loss_curve": [round(loss, 4) for loss in losses],
        "final_loss": round(float(np.mean(losses[-20:])), 4),
    }
    (folder / "training.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def train_tokenizer(texts: Iterable[str], n_vocabulary: int, context_length: int) -> Any:
    """Train a transformers tokenizer on `texts`: deterministic, and byte-level, so no text is out
    of vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocabulary,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def build_model(params: PretrainingParams, tokenizer: Any) -> Any:
    """An untrained Llama of this size for the tokenizer's vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=params.hidden,
        intermediate_size=params.intermediate,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        max_position_embeddings=params.context_length,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def _encode(corpus: list[TrainingText], tokenizer: Any) -> list[tuple[list[int], int]]:
    """Token ids of each text and the length of its prompt in tokens, with the tokenizer's own chat
    template.
    """
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": t.prompt}], tokenize=False, add_generation_prompt=True
        )
        for t in corpus
    ]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    completion_ids = tokenizer(
        [t.completion + tokenizer.eos_token for t in corpus], add_special_tokens=False
    )["input_ids"]
    return [([*p, *c], len(p)) for p, c in zip(prompt_ids, completion_ids, strict=True)]


def _fit(model: Any, texts: list[tuple[list[int], int]], params: PretrainingParams) -> list[float]:
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=params.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=0.01,
        fused=True,
    )
    model.train()
    losses: list[float] = []
    for step, rows in enumerate(_batches(texts, params), start=1):
        optimizer.param_groups[0]["lr"] = params.learning_rate * _schedule(step, params.steps)
        loss = _loss(model, [texts[i] for i in rows])
        if not torch.isfinite(loss):
            raise TrainingFailed(
                f"Pretraining: the loss is {loss.item()} at step {step}. Lower learning_rate "
                f"({params.learning_rate})."
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def _batches(texts: list[tuple[list[int], int]], params: PretrainingParams) -> Iterator[list[int]]:
    """Rows of each step: texts of similar length share a batch, and batches come in seeded
    order.
    """
    rng = np.random.default_rng(params.seed)
    size, n_batches = params.batch_size, 0
    while n_batches < params.steps:
        shuffled = rng.permutation(len(texts))
        # stable: ties stay shuffled
        by_length = sorted(shuffled.tolist(), key=lambda i: len(texts[i][0]))
        batches = [by_length[start : start + size] for start in range(0, len(texts), size)]
        for at in rng.permutation(len(batches))[: params.steps - n_batches]:
            n_batches += 1
            yield batches[at]


def _loss(model: Any, texts: list[tuple[list[int], int]]) -> Any:
    """Mean cross-entropy of the completions' tokens; the prompts' tokens have no loss."""
    import torch

    width = max(len(ids) for ids, _ in texts)
    ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in texts])
    # Padding is on the right and attention is causal: without loss on padding no mask is needed.
    learned = torch.tensor(
        [
            [0] * (n_prompt - 1) + [1] * (len(row) - n_prompt) + [0] * (width - len(row))
            for row, n_prompt in texts
        ]
    ).bool()
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learned]), ids[:, 1:][learned])


def _schedule(step: int, steps: int) -> float:
    warm_up = max(1, steps // 20)
    return (
        step / warm_up
        if step < warm_up
        else 0.1 + 0.45 * (1 + cos(pi * (step - warm_up) / max(1, steps - warm_up)))
    )


@contextmanager
def _use_two_threads(seed: int) -> Iterator[None]:
    """Use two torch threads on every machine, because sums over another number of threads round
    differently; restore the caller's threads and random state.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    pretrain(Path(sys.argv[1]))
