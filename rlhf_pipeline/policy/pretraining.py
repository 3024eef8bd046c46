"""Trains the embedded policy: a small Llama on the generated corpus, in half a minute on two cores.

Training is deterministic (two torch threads, one seed, no timestamps in the files): the same
parameters give the same bytes on the same kind of processor and version of torch.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rlhf_pipeline.errors import ConfigurationError, TrainingFailed
from rlhf_pipeline.parameters import Parameters
from rlhf_pipeline.policy.corpus import CorpusParams, TrainingText, make_corpus
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import content_hash

REPORT = "training.json"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", REPORT)
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


def pretrain(
    folder: Path, params: PretrainingParams | None = None, *, progress: Progress = ignore_progress
) -> dict[str, Any]:
    """Train the policy into a transformers folder and return the report of its training.

    A complete folder is left unchanged, and its report is returned with `is_new` False. The folder
    appears complete or not at all. Raises ConfigurationError if it was trained with other
    parameters, TrainingFailed if the loss is not finite.
    """
    params = params or PretrainingParams()
    if is_complete(folder):
        return _read_existing_report(folder, params)
    wall, cpu = time.perf_counter(), time.process_time()
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.unfinished-"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as work:
        unfinished = Path(work) / folder.name
        with _use_two_threads(params.seed):
            report = _train_into(unfinished, params, progress)
        _publish(unfinished, folder)
    return report | {
        "is_new": True,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


def is_complete(folder: Path) -> bool:
    """Whether the folder holds every file of a finished training."""
    return all((folder / name).is_file() for name in FILES)


def _read_existing_report(folder: Path, params: PretrainingParams) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    if report["params"] != params.model_dump(mode="json"):
        raise ConfigurationError(
            f"{folder} was trained with other parameters. Give another folder, or delete this one "
            "to train again."
        )
    return report | {"is_new": False, "seconds": 0.0, "cpu_seconds": 0.0}


def _publish(unfinished: Path, folder: Path) -> None:
    if folder.exists() and not is_complete(folder):
        shutil.rmtree(folder)  # left by an interrupted copy
    try:
        os.replace(unfinished, folder)
    except OSError:
        if not is_complete(folder):  # otherwise another process was first, with the same result
            raise


def _train_into(folder: Path, params: PretrainingParams, progress: Progress) -> dict[str, Any]:
    folder.mkdir()
    corpus = make_corpus(params.corpus, params.seed)
    tokenizer = train_tokenizer(
        (part for text in corpus for part in text), params.n_vocabulary, params.context_length
    )
    model = build_model(params, tokenizer)
    losses = _fit(model, _encode(corpus, tokenizer), params, progress)
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
    (folder / REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


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


def _fit(
    model: Any, texts: list[tuple[list[int], int]], params: PretrainingParams, progress: Progress
) -> list[float]:
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
        progress(step, params.steps, f"loss {np.mean(losses[-20:]):.3f}")
    return losses


def _batches(texts: list[tuple[list[int], int]], params: PretrainingParams) -> Iterator[list[int]]:
    """Rows of each step: texts of similar length share a batch, and batches come in seeded
    order.
    """
    rng = np.random.default_rng(params.seed)
    size, made = params.batch_size, 0
    while made < params.steps:
        shuffled = rng.permutation(len(texts))
        # stable: ties stay shuffled
        by_length = sorted(shuffled.tolist(), key=lambda i: len(texts[i][0]))
        batches = [by_length[start : start + size] for start in range(0, len(texts), size)]
        for at in rng.permutation(len(batches))[: params.steps - made]:
            made += 1
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
