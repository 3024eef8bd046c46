"""Can a fine-tuned reward model learn more than length? Judged by left-out debates alone.

    python benchmarks/length_variants.py [--data ../shared/data] [--runs FOLDER] [--seeds 1]

Variants of the preset's single seed: as it is; `residual`, which adds the length's best logit to
each margin while the encoder learns (a product of experts, Clark et al. 2019), judged with and
without it; `balanced`, which weighs the votes for the longer and for the shorter text alike.
Trainings run one after the other on one thread, about 30 CPU seconds each.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import print_table  # noqa: E402
from benchmarks.opening_log import OpeningLog  # noqa: E402
from benchmarks.real_debates import ALL, FOLDS, RECIPE, ConvargData, label_pairs  # noqa: E402
from rlhf_pipeline.reward_model import TransformerParams, TransformerRewardModel  # noqa: E402
from rlhf_pipeline.reward_model.base import margins_of  # noqa: E402
from rlhf_pipeline.reward_model.trainers import shared_text  # noqa: E402
from rlhf_pipeline.votes import gold_ceiling, interval_of_mean  # noqa: E402

Floats = npt.NDArray[np.float64]
VARIANTS = ("as it is", "residual", "balanced")
BINS = 10  # of the length gap, within which `balanced` balances


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--runs", type=Path, default=ROOT / "var" / "length-runs")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    if not (given.data / "votes.parquet").exists():
        print(f"not measured: {given.data} holds no votes.parquet; name it with --data")
        return 0
    given.runs.mkdir(parents=True, exist_ok=True)
    real = ConvargData(given.data, given.runs, OpeningLog(given.runs / "openings"))
    comparisons = real.comparisons[real.comparisons["split"] != "test"]
    debate = comparisons.set_index("comparison_id")["split_group"]
    fold = {name: i % FOLDS for i, name in enumerate(sorted(debate.unique()))}
    gold = real.gold[real.gold["split"] != "test"]
    part = gold["comparison_id"].map(debate).map(fold).to_numpy()
    groups = gold["comparison_id"].map(debate).to_numpy(dtype=object)
    gap = log_length_gap(gold)
    rows: list[tuple[object, ...]] = []
    for variant in VARIANTS:
        margins, beta = np.zeros(len(gold)), np.zeros(len(gold))
        began = time.process_time()
        for seed in range(given.seeds):
            for k in range(FOLDS):
                inside = comparisons[comparisons["split_group"].map(fold) != k]
                pairs = label_pairs(inside, real.votes, ALL)
                model, slope = train(variant, pairs, seed)
                margins[part == k] += margins_of(model, gold[part == k]) / given.seeds
                beta[part == k] += slope / given.seeds
        cpu = (time.process_time() - began) / given.seeds / FOLDS
        rows.append(describe(variant, margins + beta * gap, gap, groups, cpu))
        if variant == "residual":
            rows.append(describe("residual, without the length", margins, gap, groups, cpu))
    rows.append(describe("longer wins", gap, gap, groups, 0.0))
    votes = real.votes[real.votes["comparison_id"].isin(comparisons["comparison_id"])]
    noise_ceiling = gold_ceiling(votes, real.comparisons)
    print_table(
        f"The ten train and calib debates in {FOLDS} parts, each predicted by models of the others "
        "(95 % over debates)",
        (
            "variant",
            "accuracy",
            "noise ceiling: one vote",
            "where the shorter is right",
            "correlation with length",
            "CPU s",
        ),
        [(name, accuracy, noise_ceiling, *rest) for name, accuracy, *rest in rows],
    )
    return 0


def describe(
    name: str, margins: Floats, gap: Floats, groups: npt.NDArray[np.object_], cpu: float
) -> tuple[object, ...]:
    right = (margins > 0).astype(float)
    correlation = np.corrcoef(margins, gap)[0, 1]
    return (
        name,
        interval_of_mean(right, groups=groups),
        f"{right[gap < 0].mean():.3f}",
        f"{correlation:.2f}",
        f"{cpu:.0f}",
    )


def log_length_gap(pairs: pd.DataFrame) -> Floats:
    """log(1 + characters) of chosen less rejected, (n,)."""
    chosen, rejected = (
        np.log1p(pairs[side].str.len().to_numpy(dtype=float)) for side in ("chosen", "rejected")
    )
    return np.asarray(chosen - rejected)


def train(variant: str, pairs: pd.DataFrame, seed: int) -> tuple[TransformerRewardModel, float]:
    """The fitted model, and the logit of the length that belongs to its margins."""
    label = "annotators" if variant == "balanced" else "votes"
    params = TransformerParams(**RECIPE, seed=seed, label=label, loss="soft")
    if variant == "balanced":
        pairs = balance(pairs)
    model = TransformerRewardModel(params)
    if variant != "residual":
        return model.fit(pairs), 0.0
    beta = fit_length(pairs)
    with length_in_margins(beta):
        return model.fit(pairs), beta


def fit_length(pairs: pd.DataFrame) -> float:
    """The logit per unit of log length that explains the votes best."""
    from scipy.optimize import minimize_scalar

    gap, share = log_length_gap(pairs), pairs["agreement"].fillna(0.5).to_numpy()
    n = (pairs["n_votes"] + pairs["n_ties"].fillna(0)).to_numpy(dtype=float)

    def loss(slope: float) -> float:
        each = share * np.logaddexp(0, -slope * gap) + (1 - share) * np.logaddexp(0, slope * gap)
        return float((n * each).sum())

    return float(minimize_scalar(loss, bounds=(0, 5), method="bounded").x)


def balance(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs with soft labels in which both sides weigh the same within bins of the gap."""
    gap, share = log_length_gap(pairs), pairs["agreement"].fillna(0.5).to_numpy()
    n = (pairs["n_votes"] + pairs["n_ties"].fillna(0)).to_numpy(dtype=float)
    longer = np.where(gap > 0, share, 1 - share)
    bins = pd.qcut(np.abs(gap), BINS, labels=False, duplicates="drop")
    of_longer = pd.Series(n * longer).groupby(bins).transform("sum").to_numpy()
    of_shorter = pd.Series(n * (1 - longer)).groupby(bins).transform("sum").to_numpy()
    weight_longer, weight_shorter = 1 / of_longer, 1 / of_shorter
    chosen = share * np.where(gap > 0, weight_longer, weight_shorter)
    rejected = (1 - share) * np.where(gap > 0, weight_shorter, weight_longer)
    return pairs.assign(soft_label=chosen / (chosen + rejected), label_seq=pairs["max_seq"])


@contextmanager
def length_in_margins(beta: float) -> Iterator[None]:
    """Add `beta` times the gap in log length to each margin that the trainer computes."""
    lengths: dict[str, Floats] = {}
    encode: Callable[..., Any] = TransformerRewardModel._encode
    learn: Callable[..., Any] = shared_text._Training._learn_from
    pair_losses = shared_text.pair_losses

    def encode_and_measure(self: Any, prompts: Any, completions: Any) -> Any:
        token_ids, place = encode(self, prompts, completions)
        known = np.zeros(len(token_ids))
        known[place] = [np.log1p(len(text)) for text in completions]
        lengths["of_texts"] = known
        return token_ids, place

    def learn_from(self: Any, batch: Any, total_weight: float) -> Any:
        known = lengths["of_texts"][batch.texts]
        lengths["of_pairs"] = beta * (known[batch.first] - known[batch.second])
        return learn(self, batch, total_weight)

    def losses(margins: Any, targets: Any, params: Any, **more: Any) -> Any:
        import torch

        added = torch.as_tensor(lengths["of_pairs"], dtype=margins.dtype)
        return pair_losses(margins + added, targets, params, **more)

    trainer: Any = shared_text
    TransformerRewardModel._encode = encode_and_measure  # type: ignore[method-assign]
    trainer._Training._learn_from, trainer.pair_losses = learn_from, losses
    try:
        yield
    finally:
        TransformerRewardModel._encode = encode  # type: ignore[method-assign]
        trainer._Training._learn_from, trainer.pair_losses = learn, pair_losses


if __name__ == "__main__":
    sys.exit(main())
