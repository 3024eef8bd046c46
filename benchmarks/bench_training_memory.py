"""How near the estimate before a training is to the memory that the training then takes, on the
CPU.

    python benchmarks/bench_training_memory.py [--layers 6] [--width 384] [--only "dpo with LoRA"]

Random weights of a Llama-like model, made from configuration, take two steps on pairs of equal
length. Each training runs in a process of its own; its memory is the peak of its resident set less
what it held once everything was imported.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402
from rlhf_pipeline.policy.causal_lm import load_prompt_format  # noqa: E402
from rlhf_pipeline.policy.pretraining import pretrain  # noqa: E402
from rlhf_pipeline.retraining.memory import GIB, read_shape  # noqa: E402
from rlhf_pipeline.retraining.parameters import StrategyParams  # noqa: E402
from rlhf_pipeline.retraining.preparation import (  # noqa: E402
    complete_params,
    estimate_need,
    place_training,
)
from rlhf_pipeline.retraining.strategies import train_candidate  # noqa: E402

VOCABULARY = 32_000
CONTEXT = 512  # tokens
N_PAIRS = 32  # two steps of 16
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpo": ("dpo", {}),
    "dpo, batch in four parts": ("dpo", {"gradient_accumulation": 4}),
    "dpo, gradient checkpointing": ("dpo", {"gradient_checkpointing": True}),
    "dpo in four parts, without sentinels": (
        "dpo",
        {"gradient_accumulation": 4, "sentinels": {"every": 0}},
    ),
    "dpo with LoRA": ("dpo", {"lora_rank": 16}),
    "sft": ("sft", {}),
}
LEAST, MOST = 0.6, 1.5  # what is measured, in estimates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--only", choices=TRAININGS, help="one training")
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "TRAINING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    silence_telemetry()
    limits, rows = Limits(), []
    if arguments.one:
        print(json.dumps(train(Path(arguments.one[0]), arguments.one[1])))
        return limits.print_summary()
    with tempfile.TemporaryDirectory() as folder:
        n = build_policy(Path(folder), arguments.layers, arguments.width)
        for name in [arguments.only] if arguments.only else TRAININGS:
            estimated, measured = run_alone(folder, name)
            ratio = measured / estimated
            passed = LEAST <= ratio <= MOST
            limits.check(passed, f"{name}: {ratio:.2f} of the estimate ({LEAST} to {MOST})")
            rows.append((name, f"{estimated / GIB:.2f}", f"{measured / GIB:.2f}", f"{ratio:.2f}"))
    header = ("training", "estimate, GiB", "measured, GiB", "measured / estimate")
    print_table(f"Memory of a training of {n / 1e6:.0f} M weights", header, rows)
    return limits.print_summary()


def build_policy(folder: Path, layers: int, width: int) -> int:
    """Its number of weights. The tokenizer is that of the embedded policy."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    embedded = Settings.read(folder=ROOT).cache / "embedded_policy"
    pretrain(embedded)
    tokenizer = AutoTokenizer.from_pretrained(embedded)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def run_alone(folder: str, name: str) -> tuple[float, float]:
    """Bytes estimated and measured."""
    command = [sys.executable, __file__, "--one", folder, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{name}` failed:\n{done.stderr[-2000:]}")
    (told,) = (line for line in done.stdout.splitlines() if line.startswith("["))
    estimated, measured = json.loads(told)
    return float(estimated), float(measured)


def train(folder: Path, name: str) -> tuple[int, int]:
    strategy, changes = TRAININGS[name]
    import peft  # noqa: F401  # what a training imports does not count
    import trl  # noqa: F401

    pairs = build_pairs()
    params = StrategyParams(epochs=1, min_steps=1, min_pairs=1, max_length=CONTEXT, **changes)
    shape, place = read_shape(folder), place_training(params)
    need = estimate_need(
        pairs,
        complete_params(params, shape, place),
        shape,
        load_prompt_format(folder),
        has_reference=strategy == "dpo",
    )
    before = _peak()
    with tempfile.TemporaryDirectory() as out:
        train_candidate(strategy, folder, pairs, Path(out), params)
    return need.total, _peak() - before


def build_pairs() -> pd.DataFrame:
    """All of the same length, so that every batch is as large as the largest."""
    text = "Why does the sky turn red when the sun goes down? " * 5
    return pd.DataFrame(
        {
            "comparison_id": [f"c{i}" for i in range(N_PAIRS)],
            "prompt_id": [f"p{i}" for i in range(N_PAIRS)],
            "prompt": [f"{text}{i}" for i in range(N_PAIRS)],
            "chosen": [f"Because {i} of blue light is scattered. {text}" for i in range(N_PAIRS)],
            "rejected": [f"Nobody knows why {i} it does that. {text}" for i in range(N_PAIRS)],
            "margin": 0.5,
            "weight": 1.0,
            "origin": "vote",
            "information": 1.0,
            "reason": "made up",
            "split": "train",
            "day": "2026-01-01",
        }
    )


def _peak() -> int:
    """Bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    sys.exit(main())
