"""Fine-tuning on comparisons that share completions, beside TRL's RewardTrainer with its defaults.

    python benchmarks/bench_trainer.py [--data ../shared/data] [--seconds 40] [--seeds 3]

CPU seconds of an epoch over one fixed set of the training debates, and over a set in which no
completion is shared. Then both train for equal CPU seconds and predict pairs of debates that were
left out, and pairs that were left out of known texts; the test split stays closed. Both learn the
known right choice as certain, with one network, on one thread. Where the data is absent it says so.
"""

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.core.config import silence_telemetry  # noqa: E402

silence_telemetry()

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame  # noqa: E402
from rlhf_pipeline.learn.reward_model import (  # noqa: E402
    Encoder,
    TransformerParams,
    TransformerRewardModel,
)
from rlhf_pipeline.learn.reward_model.evaluation import length_gaps, margins_of, wins  # noqa: E402
from rlhf_pipeline.learn.reward_model.network import build_network, silence_trl  # noqa: E402

LEFT_OUT = ("is-porn-wrong", "personal-pursuit-or-advancing-the-common-good")
BAR_SECONDS = 1 / 3
SHARED_PROMPTS, SHARED_TEXTS, UNSHARED_PAIRS = 4, 12, 64


def read_pairs(data: Path) -> pd.DataFrame:
    """The training debates' pairs with a known right choice."""
    rows = pd.read_parquet(data / "pairs.parquet")
    rows = rows[(rows["source"] == "convarg") & (rows["split"] == "train")]
    rows = rows[rows["gold"].isin(["a", "b"]) & (rows["response_a"] != rows["response_b"])]
    is_a = (rows["gold"] == "a").to_numpy()
    pairs = pd.DataFrame(
        {
            "day": "2016-01-01",
            "comparison_id": rows["pair_id"],
            "prompt_id": rows["topic"],
            "prompt": rows["prompt"],
            "chosen": np.where(is_a, rows["response_a"], rows["response_b"]),
            "rejected": np.where(is_a, rows["response_b"], rows["response_a"]),
            "margin": 1.0,
            "agreement": 1.0,
            "n_votes": 1,
            "chosen_side": rows["gold"],
            "annotator_kind": "human",
            "category": "argument",
            "split": "train",
            "max_seq": np.arange(1, len(rows) + 1),
        }
    )
    return check_frame(pairs.reset_index(drop=True), PREFERENCE_PAIRS)


def choose_shared(pairs: pd.DataFrame) -> pd.DataFrame:
    """Every pair among the first texts of a few prompts."""
    parts = []
    for _, rows in list(pairs.groupby("prompt_id"))[:SHARED_PROMPTS]:
        texts = sorted({*rows["chosen"], *rows["rejected"]})[:SHARED_TEXTS]
        parts.append(rows[rows["chosen"].isin(texts) & rows["rejected"].isin(texts)])
    return pd.concat(parts, ignore_index=True)


def choose_unshared(pairs: pd.DataFrame) -> pd.DataFrame:
    """Pairs of which no two have a text in common."""
    used: set[str] = set()
    places = []
    for row, sides in enumerate(zip(pairs["chosen"], pairs["rejected"], strict=True)):
        if used.isdisjoint(sides):
            used.update(sides)
            places.append(row)
    return pairs.iloc[places[:UNSHARED_PAIRS]].reset_index(drop=True)


def new_model(steps: int | None = None, seed: int = 0) -> TransformerRewardModel:
    params = TransformerParams(label="majority", steps=steps, seed=seed)
    return TransformerRewardModel(params, Encoder(max_tokens=params.max_tokens))


def train_ours(
    pairs: pd.DataFrame, steps: int | None = None, seed: int = 0
) -> tuple[TransformerRewardModel, float, int]:
    """The model, CPU seconds and steps."""
    model = new_model(steps, seed).fit(pairs)
    return model, model.records_[0].cpu_s, model.records_[0].n_steps


def train_trl(
    pairs: pd.DataFrame, steps: int | None = None, seed: int = 0
) -> tuple[TransformerRewardModel, float, int]:
    """The same of TRL's trainer, whose defaults are kept but for what it writes."""
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    model = new_model(steps, seed)
    chosen, rejected = (
        model.reader.encode(pairs["prompt"].tolist(), pairs[side].tolist())
        for side in ("chosen", "rejected")
    )
    network = build_network(model.encoder.folder, model.params, seed=seed)
    network.__class__ = _pairwise(network.__class__)
    with silence_trl(), tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        trainer = RewardTrainer(
            model=network,
            args=RewardConfig(
                output_dir=folder,
                max_steps=steps or -1,
                num_train_epochs=1,
                max_length=None,  # texts are already cut
                use_cpu=True,
                seed=seed,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(
                [
                    {"chosen_ids": better, "rejected_ids": worse}
                    for better, worse in zip(chosen, rejected, strict=True)
                ]
            ),
            processing_class=model.reader.tokenizer,
        )
        trainer.train()
        spent = time.process_time() - started
        trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    model.networks_ = [network.eval()]
    return model, spent, trainer.state.global_step


def _pairwise(network_class: Any) -> Any:
    from transformers.modeling_outputs import SequenceClassifierOutput

    class PairwiseNetwork(network_class):  # type: ignore[misc]
        def forward(self, input_ids: Any, attention_mask: Any, **ignored: Any) -> Any:
            scores = super().forward([(input_ids, attention_mask)])
            return SequenceClassifierOutput(logits=scores[:, None])

    return PairwiseNetwork


def measure_seconds(pairs: pd.DataFrame, limits: Limits) -> dict[str, float]:
    """Print the CPU seconds of an epoch; return those of a step on shared completions."""
    rows, a_step = [], {}
    for name, chosen in (
        ("shared", choose_shared(pairs)),
        ("none shared", choose_unshared(pairs)),
    ):
        n_texts = len({*chosen["chosen"], *chosen["rejected"]})
        (_, ours, n_ours), (_, trl, n_trl) = train_ours(chosen), train_trl(chosen)
        rows.append((name, len(chosen), n_texts, f"{ours:.1f}", f"{trl:.1f}", f"{ours / trl:.2f}"))
        if name == "shared":
            a_step = {"ours": ours / n_ours, "TRL": trl / n_trl}
            limits.check(ours / trl <= BAR_SECONDS, f"shared: {ours / trl:.2f} of TRL, at most 1/3")
    print_table(
        "CPU seconds of an epoch",
        ("completions", "pairs", "texts", "ours", "TRL's defaults", "ratio"),
        rows,
    )
    return a_step


def measure_accuracy(
    pairs: pd.DataFrame, a_step: dict[str, float], seconds: float, seeds: int, limits: Limits
) -> None:
    """Both for equal seconds, on the same seeds."""
    is_out = pairs["prompt_id"].str.startswith(LEFT_OUT).to_numpy()
    rows: list[tuple[object, ...]] = []
    accuracies_by_trainer: dict[str, list[list[float]]] = {"ours": [], "TRL": []}
    for seed in range(seeds):
        is_held = ~is_out & (np.random.default_rng(seed).random(len(pairs)) < 0.15)
        learnt = pairs[~is_out & ~is_held].reset_index(drop=True)
        for name, train in (("ours", train_ours), ("TRL", train_trl)):
            model, spent, n = train(learnt, max(1, round(seconds / a_step[name])), seed)
            right = wins(margins_of(model, pairs))
            accuracies = [float(right[rows_of].mean()) for rows_of in (is_out, is_held)]
            accuracies_by_trainer[name].append(accuracies)
            rows.append((seed, name, f"{spent:.0f}", n, *(f"{share:.3f}" for share in accuracies)))
    longer = wins(length_gaps(pairs))
    rows.append(
        ("-", "longer wins", "-", "-", *(f"{longer[of].mean():.3f}" for of in (is_out, is_held)))
    )
    print_table(
        f"Right share of pairs after {seconds:.0f} CPU seconds",
        ("seed", "trainer", "CPU s", "steps", "unseen texts", "unseen pairs of known texts"),
        rows,
    )
    for column, what in enumerate(("unseen texts", "unseen pairs of known texts")):
        gains = np.subtract(accuracies_by_trainer["ours"], accuracies_by_trainer["TRL"])[:, column]
        limits.check(
            gains.mean() >= 0,
            f"{what}: ours - TRL {gains.mean():+.3f} ({', '.join(f'{g:+.3f}' for g in gains)})",
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--seconds", type=float, default=40, help="CPU seconds of each training")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    limits = Limits()
    warnings.filterwarnings("ignore")
    if not (options.data / "pairs.parquet").exists():
        limits.skip(f"seconds and accuracy beside TRL: {options.data} lacks pairs.parquet")
        return limits.print_summary()
    import torch

    torch.set_num_threads(1)
    pairs = read_pairs(options.data)
    a_step = measure_seconds(pairs, limits)
    measure_accuracy(pairs, a_step, options.seconds, options.seeds, limits)
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
