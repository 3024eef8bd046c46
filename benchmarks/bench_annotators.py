"""Who votes well, and what their votes say together: the joint model beside majority, Dawid and Skene, and who knows the truth. Prints tables.

    python benchmarks/bench_annotators.py [--votes 1000000] [--data ../shared/data]

Simulated: annotators with a discrimination, a side they lean to and a tie width, a fifth or more of them spammers; three seeds, median and
range. Real: the convarg votes of `--data`, skipped where they are not. There one vote of each comparison is held out at random and asked
which side it took: no label that was made from the same votes judges the votes. Big: one process, CPU seconds and peak memory.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measuring import Limits, table  # noqa: E402
from rlhf_pipeline.votes import consensus, dawid_skene, joint_model, krippendorff_alpha, preference_pairs  # noqa: E402
from tests.unit.votes.simulated import Simulated, comparisons_of, simulate, votes_of  # noqa: E402

Floats = npt.NDArray[np.float64]

SEEDS = (0, 1, 2)
SIGNS = {"a": 1, "b": -1, "tie": 0, "both_bad": 0}
CPU_S, GIGABYTES, PAIRS_S = 60.0, 2.0, 10.0


def majority(votes: pd.DataFrame) -> Floats:
    signs = votes["choice"].map(SIGNS)
    return np.asarray(signs.groupby(votes["comparison_id"]).sum(), dtype=np.float64)


def oracle(truth: Simulated) -> Floats:
    """Votes weighed by how well each annotator really discriminates."""
    known = dict(zip(sorted(truth.votes["annotator_id"].unique()), truth.discrimination, strict=True))
    weighed = truth.votes["choice"].map(SIGNS) * truth.votes["annotator_id"].map(known)
    return np.asarray(weighed.groupby(truth.votes["comparison_id"]).sum(), dtype=np.float64)


def by_confusion(votes: pd.DataFrame) -> Floats:
    labels = dawid_skene(votes)
    return np.asarray(labels["p_a"] - labels["p_b"], dtype=np.float64)


def by_joint(votes: pd.DataFrame, comparisons: pd.DataFrame | None = None) -> Floats:
    return np.asarray(joint_model(votes, comparisons).labels["utility"], dtype=np.float64)


def share_right(score: Floats, is_a: npt.NDArray[np.bool_]) -> float:
    """Undecided ones are half right."""
    return float(np.where(score == 0, 0.5, (score > 0) == is_a).mean())


def auroc(score: Floats, is_positive: npt.NDArray[np.bool_]) -> float:
    """Chance that a positive one has the lower score."""
    low, high = score[is_positive], score[~is_positive]
    return float(((low[:, None] < high[None]) + 0.5 * (low[:, None] == high[None])).mean())


def told(values: list[float], digits: int = 3) -> str:
    return f"{np.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def simulated(limits: Limits) -> None:
    ways: dict[str, Callable[[Simulated], Floats]] = {
        "majority": lambda truth: majority(truth.votes),
        "Dawid and Skene": lambda truth: by_confusion(truth.votes),
        "joint model": lambda truth: by_joint(truth.votes),
        "who knows the annotators": oracle,
    }
    truths = [simulate(1000, n_annotators=50, spammers=0.3, seed=seed) for seed in SEEDS]
    found = {name: [share_right(way(truth), truth.d > 0) for truth in truths] for name, way in ways.items()}
    table("Better side of 1,000 comparisons, 5 votes each, 30 % spammers", ("by", "found"), [(n, told(v)) for n, v in found.items()])
    base, best = np.median(found["majority"]), np.median(found["who knows the annotators"])
    closed = float((np.median(found["joint model"]) - base) / (best - base))
    limits.judge(closed >= 0.5, f"consensus closes {closed:.0%} of the gap between majority and who knows the annotators, limit 50 %")

    shared = [simulate(66, completions=6, n_annotators=50, spammers=0.2, seed=seed) for seed in SEEDS]
    alone = [share_right(by_joint(truth.votes), truth.d > 0) for truth in shared]
    together = [share_right(by_joint(truth.votes, truth.comparisons), truth.d > 0) for truth in shared]
    rows = [("each comparison by itself", told(alone)), ("completions shared", told(together))]
    table("The same where six completions of a prompt are all compared", ("joint model", "found"), rows)

    ranked = []
    for seed in SEEDS:
        truth = simulate(200, n_annotators=50, spammers=0.2, seed=seed)  # 20 votes each
        ranked.append(auroc(np.asarray(joint_model(truth.votes).annotators["reliability"], dtype=np.float64), truth.is_spammer))
    limits.judge(min(ranked) >= 0.9, f"20 % spammers at 20 votes each are found with AUROC {told(ranked)}, limit 0.9")

    injected, inside = 1 / (1 + np.exp(-0.5)) - 0.5, []
    for seed in SEEDS:
        annotators = joint_model(simulate(400, n_annotators=10, bias=0.5, seed=seed).votes).annotators
        inside.append(float(((annotators["position_bias_low"] <= injected) & (injected <= annotators["position_bias_high"])).mean()))
    limits.judge(
        float(np.median(inside)) >= 0.8, f"an injected position bias of {injected:.3f} lies in {told(inside, 2)} of the 95 % intervals"
    )


def real(limits: Limits, folder: Path) -> None:
    if not (folder / "votes.parquet").exists():
        limits.skip(f"real votes: {folder} holds no votes.parquet; name it with --data")
        return
    pairs, cast = pd.read_parquet(folder / "pairs.parquet"), pd.read_parquet(folder / "votes.parquet")
    pairs = pairs[pairs["source"] == "convarg"].drop_duplicates("pair_id").sort_values("pair_id", ignore_index=True)
    cast = cast[cast["pair_id"].isin(pairs["pair_id"])]
    number = pd.Index(pairs["pair_id"]).get_indexer(cast["pair_id"])
    annotator = pd.factorize(cast["annotator_id"], sort=True)[0]
    prompt = pd.factorize(pairs["prompt"], sort=True)[0].astype(np.int64)
    texts = pd.factorize(pd.concat([pairs["response_a_id"], pairs["response_b_id"]]), sort=True)[0].astype(np.int64)
    comparisons = comparisons_of(prompt, texts[: len(pairs)], texts[len(pairs) :])
    votes = votes_of(number, annotator, cast["choice"].to_numpy(), prompt=prompt[number])
    print(f"\n{len(votes):,} votes on {len(pairs):,} comparisons; Krippendorff's alpha {krippendorff_alpha(votes)}")
    ways: dict[str, Callable[[pd.DataFrame], Floats]] = {
        "majority": majority,
        "Dawid and Skene": by_confusion,
        "joint model, each comparison by itself": by_joint,
        "joint model, completions shared": lambda votes: by_joint(votes, comparisons),
    }
    held: dict[str, list[float]] = {name: [] for name in ways}
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(votes))
        out = np.zeros(len(votes), dtype=bool)
        out[order[np.unique(number[order], return_index=True)[1]]] = True
        rest, asked = votes[~out], votes[out & votes["choice"].isin(["a", "b"]).to_numpy()]
        ids = np.sort(rest["comparison_id"].unique())
        for name, way in ways.items():
            score = pd.Series(way(rest), index=ids).reindex(asked["comparison_id"]).fillna(0.0)
            held[name].append(share_right(score.to_numpy(), (asked["choice"] == "a").to_numpy()))
    gold = pairs["gold"].isin(["a", "b"]).to_numpy()
    is_a = (pairs["gold"] == "a").to_numpy()[gold]
    of_gold = {name: share_right(way(votes)[gold], is_a) for name, way in ways.items()}
    rows = [(name, told(held[name]), f"{of_gold[name]:.3f}") for name in ways]
    table("Real votes (convarg)", ("by", "side of a held-out vote", "the corpus's own label, made from these votes"), rows)
    lost = float(np.median(held["majority"]) - np.median(held["joint model, completions shared"]))
    limits.judge(lost <= 0.003, f"on held-out real votes the joint model is {-lost:+.3f} beside majority, limit -0.003")


def big(limits: Limits, n_votes: int) -> None:
    """In a process of its own, whose peak memory is then its own."""
    command = [sys.executable, "-c", f"from benchmarks.bench_annotators import only_big; only_big({n_votes})"]
    child = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    cpu, gigabytes, before, n, iterations, pairs_cpu, agreed_cpu = map(float, child.stdout.split())
    text = f"{n:,.0f} votes: consensus and annotator model {cpu + agreed_cpu:.0f} s of CPU ({agreed_cpu:.1f} s the consensus), "
    text += f"{gigabytes:.2f} GB at most ({before:.2f} before), {iterations:.0f} iterations"
    fits = cpu + agreed_cpu <= CPU_S * n / 1e6 and gigabytes <= GIGABYTES
    limits.judge(fits, f"{text}; limits {CPU_S:g} s and {GIGABYTES:g} GB a million")
    limits.judge(
        pairs_cpu <= PAIRS_S * n / 1e6, f"preference pairs of {n:,.0f} votes: {pairs_cpu:.1f} s of CPU, limit {PAIRS_S:g} s a million"
    )


def only_big(n_votes: int) -> None:
    n = n_votes // 5
    rng = np.random.default_rng(0)
    comparison = np.repeat(np.arange(n), 5)
    annotator = rng.integers(0, 2000, len(comparison))
    felt = rng.normal(size=n)[comparison] * rng.normal(2.0, 0.7, 2000)[annotator] + rng.logistic(size=len(comparison))
    choice = np.select([felt > 0.3, felt < -0.3], ["a", "b"], "tie")
    votes = votes_of(comparison, annotator, choice, prompt=comparison // 3)
    before, start = peak(), time.process_time()
    model = joint_model(votes)
    fitted = time.process_time()
    consensus(votes, "strength_weighted")
    agreed = time.process_time()
    most = peak()
    shown = comparisons_of(np.arange(n) // 3, np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.int64))
    begun = time.process_time()
    preference_pairs(votes, shown)
    print(fitted - start, most, before, len(votes), model.n_iterations, time.process_time() - begun, agreed - fitted)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    given = parser.parse_args()
    limits = Limits()
    simulated(limits)
    real(limits, given.data)
    big(limits, given.votes)
    return limits.told()


if __name__ == "__main__":
    sys.exit(main())
