"""TRL's trainer and ours on a GPU: pairs a second and memory, for a causal backbone of 0.1 to 0.5 B
made from configuration.

Random weights and random tokens: what is measured is work, not learning. See `bench_trainers`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.measurement import Limits, print_table
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.losses import Targets
from rlhf_pipeline.reward_model.network import NetworkParams, wrap_backbone
from rlhf_pipeline.reward_model.token_ids import TokenReader
from rlhf_pipeline.reward_model.trainers import (
    TRAINERS,
    TrainerParams,
    TrainingContext,
    TrainingData,
)

N_PROMPTS = 64
N_COMPLETIONS = 8
N_TOKENS = (64, 512)
WARM_STEPS, STEPS = 5, 30
LAYERS, WIDTH = 16, 1024  # 0.30 B with the vocabulary
TRAINER_SETTINGS: dict[str, dict[str, Any]] = {
    "shared text": {"trainer": "shared_text", "texts_per_batch": 32},
    "shared text, gradient checkpointing": {
        "trainer": "shared_text",
        "texts_per_batch": 32,
        "gradient_checkpointing": True,
    },
    "TRL, its defaults": {"trainer": "trl", "pairs_per_batch": 8, "gradient_checkpointing": True},
    "TRL, no gradient checkpointing": {"trainer": "trl", "pairs_per_batch": 8},
}


def build_backbone(layers: int, width: int, vocabulary: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=1024,
        architectures=["LlamaForCausalLM"],
    )
    return LlamaModel(config)


def make_data(seed: int, vocabulary: int, n_prompts: int, tokens: tuple[int, int]) -> TrainingData:
    """All pairs of eight completions a prompt."""
    rng = np.random.default_rng(seed)
    token_ids = [
        rng.integers(1000, vocabulary, int(rng.integers(*tokens))).tolist()
        for _ in range(n_prompts * N_COMPLETIONS)
    ]
    pairs = [
        (p * N_COMPLETIONS + i, p * N_COMPLETIONS + j)
        for p in range(n_prompts)
        for i in range(N_COMPLETIONS)
        for j in range(i)
    ]
    first, second = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    n = len(pairs)
    return TrainingData(
        token_ids, first, second, Targets(np.ones(n)), np.ones(n), first // N_COMPLETIONS, pad_id=0
    )


def measure_training(
    way: dict[str, Any],
    seed: int,
    reader: TokenReader,
    device: str,
    *,
    layers: int,
    width: int,
    n_prompts: int,
    steps: int,
) -> Any:
    """The record of `steps` steps after some that warm up, and the peak of memory in GB (0 on a
    CPU).
    """
    import torch

    vocabulary = len(reader.tokenizer)
    data = make_data(seed, vocabulary, n_prompts, N_TOKENS)
    shared = {
        "label": "majority",
        "loss": "bradley_terry",
        "device": device,
        "precision": "bfloat16",
        "seed": seed,
    }
    network = wrap_backbone(build_backbone(layers, width, vocabulary), NetworkParams(), seed=seed)
    around = TrainingContext(tokenizer=reader.tokenizer)
    record = None
    for n_steps in (WARM_STEPS, steps):
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        params = TrainerParams(**way, **shared, steps=n_steps)
        record = TRAINERS[params.trainer](network, data, params, replace(around))
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.startswith("cuda") else 0.0
    return record, peak


def measure_cuda(limits: Limits, seeds: int) -> None:
    import torch

    if not torch.cuda.is_available():
        limits.skip("bf16 on CUDA against TRL: no CUDA here, not run")
        return
    encoder = Encoder(max_tokens=512)
    reader = TokenReader.from_folder(encoder.folder, 512, is_causal=True)
    rows = []
    speed: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for name, way in TRAINER_SETTINGS.items():
        found = [
            measure_training(
                way,
                seed,
                reader,
                "cuda",
                layers=LAYERS,
                width=WIDTH,
                n_prompts=N_PROMPTS,
                steps=STEPS,
            )
            for seed in range(seeds)
        ]
        speed[name] = [record.n_pairs_seen / record.wall_s for record, _ in found]
        memory[name] = [peak for _, peak in found]
        texts = [record.n_texts_encoded / record.wall_s for record, _ in found]
        rows.append(
            (
                name,
                *(
                    f"{np.median(v):.1f} [{min(v):.1f}, {max(v):.1f}]"
                    for v in (speed[name], texts, memory[name])
                ),
            )
        )
    print_table(
        f"{torch.cuda.get_device_name()}: bfloat16, causal backbone of {LAYERS} layers and {WIDTH} "
        f"dimensions, {seeds} seeds",
        ("trainer", "pairs a second", "texts a second", "peak memory, GB"),
        rows,
    )
    ours, theirs = (np.median(speed[name]) for name in ("shared text", "TRL, its defaults"))
    limits.check(
        ours > theirs,
        f"shared text learns from {ours:.0f} pairs a second on CUDA, TRL's defaults from "
        f"{theirs:.0f}",
    )
