"""Who votes well, and what their votes say together: the joint model beside majority and
who knows the truth. Prints tables.

    python benchmarks/bench_annotators.py [--votes 1000000] [--data ../shared/data] [--worlds 50]
        [--only simulated,coverage,real,big]

Simulated: annotators with a discrimination, a side they lean to and a tie width, a fifth or more of
them spammers; worlds of benchmarks/simulation.yaml; three seeds, median and range. Real: the
convarg votes of `--data`, skipped where they are not. There one vote of each comparison is held out
at random and asked which side it took: no label that was made from the same votes judges the votes.
Coverage: how often intervals hold the truth, in simulated worlds and in halves of real votes.
Big: a process for each way of fitting, CPU seconds and peak memory; comparisons share completions,
as those that the pipeline makes do.
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

from benchmarks.annotator_coverage import coverage, halve_real_votes  # noqa: E402
from benchmarks.measurement import Limits, print_table  # noqa: E402
from benchmarks.simulation import Crowd, read_simulation, simulation_hash  # noqa: E402
from rlhf_pipeline.votes import (  # noqa: E402
    consensus,
    fit_annotator_model,
    joint_model,
    krippendorff_alpha,
    preference_pairs,
    select_judgements,
)
from rlhf_pipeline.votes.annotators_over_time import (  # noqa: E402
    agreement_over_time,
    annotators_over_time,
)
from tests.unit.votes.simulated import Simulated, comparisons_of, simulate, votes_of  # noqa: E402

Floats = npt.NDArray[np.float64]

SIMULATED = read_simulation().annotators
SIGNS = {"a": 1, "b": -1, "tie": 0, "both_bad": 0}
CPU_S = 60.0
GIGABYTES = 2.0
PAIRS_S = 10.0
BELOW_MAJORITY = 0.003  # of held-out real votes, in no seed more
JOINT, JOINT_SHARED = "joint model, each comparison by itself", "joint model, completions shared"
# Who makes use of which, of those that real votes judge.
USED_BY = {
    "majority": "default of the consensus page, preference pairs",
    JOINT: "nothing: what sharing completions adds to",
    JOINT_SHARED: "annotator_model: soft labels and reliabilities",
}
# How a million votes are fitted: as the table names it, and in which process.
FITS = {
    "alone": "joint model, each comparison by itself",
    "shared": "joint model, completions shared",
    "asset": "all that the asset fits",
}


def majority(votes: pd.DataFrame) -> Floats:
    signs = votes["choice"].map(SIGNS)
    return np.asarray(signs.groupby(votes["comparison_id"]).sum(), dtype=np.float64)


def oracle(truth: Simulated) -> Floats:
    """Votes weighed by how well each annotator really discriminates."""
    known = dict(
        zip(sorted(truth.votes["annotator_id"].unique()), truth.discrimination, strict=True)
    )
    weighed = truth.votes["choice"].map(SIGNS) * truth.votes["annotator_id"].map(known)
    return np.asarray(weighed.groupby(truth.votes["comparison_id"]).sum(), dtype=np.float64)


def by_joint(votes: pd.DataFrame, comparisons: pd.DataFrame | None = None) -> Floats:
    return np.asarray(joint_model(votes, comparisons).labels["utility"], dtype=np.float64)


def share_right(score: Floats, is_a: npt.NDArray[np.bool_]) -> float:
    """Undecided ones are half right."""
    return float(np.where(score == 0, 0.5, (score > 0) == is_a).mean())


def auroc(score: Floats, is_positive: npt.NDArray[np.bool_]) -> float:
    """Chance that a positive one has the lower score."""
    low, high = score[is_positive], score[~is_positive]
    return float(((low[:, None] < high[None]) + 0.5 * (low[:, None] == high[None])).mean())


def format_spread(values: list[float], digits: int = 3) -> str:
    return f"{np.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def worlds(crowd: Crowd) -> list[Simulated]:
    return [
        simulate(
            crowd.n_prompts,
            completions=crowd.completions,
            n_annotators=crowd.n_annotators,
            votes_each=crowd.votes_each,
            spammers=crowd.spammers,
            bias=crowd.bias,
            seed=seed,
        )
        for seed in SIMULATED.seeds
    ]


def simulated(limits: Limits) -> None:
    print(f"Simulated worlds: parameters {simulation_hash()[:12]}")
    ways: dict[str, Callable[[Simulated], Floats]] = {
        "majority": lambda truth: majority(truth.votes),
        "joint model": lambda truth: by_joint(truth.votes),
        "who knows the annotators": oracle,
    }
    crowd = SIMULATED.consensus
    truths = worlds(crowd)
    found = {
        name: [share_right(way(truth), truth.d > 0) for truth in truths]
        for name, way in ways.items()
    }
    print_table(
        f"Better side of {len(truths[0].d):,} comparisons, {crowd.votes_each} votes each, "
        f"{crowd.spammers:.0%} spammers",
        ("by", "found"),
        [(n, format_spread(v)) for n, v in found.items()],
    )
    base, best = np.median(found["majority"]), np.median(found["who knows the annotators"])
    closed = float((np.median(found["joint model"]) - base) / (best - base))
    limits.check(
        closed >= 0.5,
        f"the joint model closes {closed:.0%} of the gap between majority and who knows the "
        "annotators, limit 50 %",
    )

    shared = worlds(SIMULATED.shared)
    alone = [share_right(by_joint(truth.votes), truth.d > 0) for truth in shared]
    together = [
        share_right(by_joint(truth.votes, truth.comparisons), truth.d > 0) for truth in shared
    ]
    rows = [
        ("each comparison by itself", format_spread(alone)),
        ("completions shared", format_spread(together)),
    ]
    print_table(
        f"The same where {SIMULATED.shared.completions} completions of a prompt are all compared, "
        f"{SIMULATED.shared.spammers:.0%} spammers",
        ("joint model", "found"),
        rows,
    )

    ranked = [
        auroc(
            np.asarray(joint_model(truth.votes).annotators["reliability"], dtype=np.float64),
            truth.is_spammer,
        )
        for truth in worlds(SIMULATED.spammers)
    ]
    few = SIMULATED.spammers
    each = few.n_prompts * few.votes_each / few.n_annotators
    limits.check(
        min(ranked) >= 0.9,
        f"{few.spammers:.0%} spammers at {each:.0f} votes each are found with AUROC "
        f"{format_spread(ranked)}, limit 0.9",
    )

    injected, inside = 1 / (1 + np.exp(-SIMULATED.position_bias.bias)) - 0.5, []
    for truth in worlds(SIMULATED.position_bias):
        annotators = joint_model(truth.votes).annotators
        inside.append(
            float(
                (
                    (annotators["position_bias_low"] <= injected)
                    & (injected <= annotators["position_bias_high"])
                ).mean()
            )
        )
    limits.check(
        float(np.median(inside)) >= 0.8,
        f"an injected position bias of {injected:.3f} lies in {format_spread(inside, 2)} of the "
        "95 % intervals",
    )


def read_real(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The pairs of convarg as they are, its VOTES and its COMPARISONS."""
    pairs = pd.read_parquet(folder / "pairs.parquet")
    cast = pd.read_parquet(folder / "votes.parquet")
    pairs = (
        pairs[pairs["source"] == "convarg"]
        .drop_duplicates("pair_id")
        .sort_values("pair_id", ignore_index=True)
    )
    cast = cast[cast["pair_id"].isin(pairs["pair_id"])]
    number = pd.Index(pairs["pair_id"]).get_indexer(cast["pair_id"])
    annotator = pd.factorize(cast["annotator_id"], sort=True)[0]
    prompt = pd.factorize(pairs["prompt"], sort=True)[0].astype(np.int64)
    texts = pd.factorize(pd.concat([pairs["response_a_id"], pairs["response_b_id"]]), sort=True)[
        0
    ].astype(np.int64)
    comparisons = comparisons_of(prompt, texts[: len(pairs)], texts[len(pairs) :])
    votes = votes_of(number, annotator, cast["choice"].to_numpy(), prompt=prompt[number])
    return pairs, votes, comparisons


def real(limits: Limits, folder: Path) -> None:
    pairs, votes, comparisons = read_real(folder)
    number = votes["comparison_id"].str.removeprefix("c").astype(int).to_numpy()
    print(
        f"\n{len(votes):,} votes on {len(pairs):,} comparisons; Krippendorff's alpha "
        f"{krippendorff_alpha(votes)}"
    )
    ways: dict[str, Callable[[pd.DataFrame], Floats]] = {
        "majority": majority,
        JOINT: by_joint,
        JOINT_SHARED: lambda votes: by_joint(votes, comparisons),
    }
    held: dict[str, list[float]] = {name: [] for name in ways}
    for seed in SIMULATED.seeds:
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
    gaps = {
        name: [one - base for one, base in zip(held[name], held["majority"], strict=True)]
        for name in ways
    }
    rows = [
        (
            name,
            format_spread(held[name]),
            ", ".join(f"{100 * gap:+.1f}" for gap in gaps[name]),
            f"{of_gold[name]:.3f}",
            USED_BY[name],
        )
        for name in ways
    ]
    print_table(
        "Real votes (convarg)",
        (
            "by",
            "side of a held-out vote",
            "points beside majority, by seed",
            "the corpus's own label, made from these votes",
            "used by",
        ),
        rows,
    )
    worst = min(gaps[JOINT_SHARED])
    limits.check(
        worst >= -BELOW_MAJORITY,
        f"held-out real votes, worst of {len(gaps[JOINT_SHARED])} seeds: {JOINT_SHARED} "
        f"{100 * worst:+.1f} points beside majority, limit {-100 * BELOW_MAJORITY:.1f}",
    )


def big(limits: Limits, n_votes: int) -> None:
    """Each way of fitting in a process of its own, whose peak memory is then its own."""
    rows, of_pairs = [], 0.0
    for fit, name in FITS.items():
        command = [
            sys.executable,
            "-c",
            f"from benchmarks.bench_annotators import only_big; only_big({n_votes}, {fit!r})",
        ]
        # what went wrong is seen
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        cpu, gigabytes, before, n, iterations, pairs_cpu, agreed_cpu = map(
            float, child.stdout.split()
        )
        of_pairs = max(of_pairs, pairs_cpu)
        rows.append(
            (
                name,
                f"{cpu:.0f}",
                f"{agreed_cpu:.1f}",
                f"{gigabytes:.2f}",
                f"{before:.2f}",
                f"{iterations:.0f}",
            )
        )
        limits.check(
            cpu + agreed_cpu <= CPU_S * n / 1e6 and gigabytes <= GIGABYTES,
            f"{n:,.0f} votes, {name}: with the consensus {cpu + agreed_cpu:.0f} s of CPU and "
            f"{gigabytes:.2f} GB, limits {CPU_S:g} s and {GIGABYTES:g} GB a million",
        )
    print_table(
        f"{n:,.0f} votes, {SIMULATED.million.votes_each} a comparison, of "
        f"{SIMULATED.million.n_annotators:,} people",
        (
            "fit",
            "CPU s",
            "consensus, CPU s",
            "GB at most",
            "GB of the votes themselves",
            "iterations",
        ),
        rows,
    )
    limits.check(
        of_pairs <= PAIRS_S * n / 1e6,
        f"preference pairs of {n:,.0f} votes: {of_pairs:.1f} s of CPU, limit {PAIRS_S:g} s a "
        "million",
    )


def million(n_votes: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """VOTES and the COMPARISONS they are on: all pairs of each prompt's completions."""
    world = SIMULATED.million
    n, rng = n_votes // world.votes_each, np.random.default_rng(world.seed)
    first, second = np.triu_indices(world.completions, 1)
    number = np.arange(n)
    prompt, which = number // len(first), number % len(first)
    a, b = prompt * world.completions + first[which], prompt * world.completions + second[which]
    utility = rng.normal(0, np.sqrt(0.5), int(b.max()) + 1)
    comparison = np.repeat(number, world.votes_each)
    annotator = rng.integers(0, world.n_annotators, len(comparison))
    discrimination = rng.normal(world.discrimination, world.discrimination_sd, world.n_annotators)
    felt = (utility[a] - utility[b])[comparison] * discrimination[annotator] + rng.logistic(
        size=len(comparison)
    )
    choice = np.select([felt > world.tie_width, felt < -world.tie_width], ["a", "b"], "tie")
    votes = votes_of(comparison, annotator, choice, prompt=prompt[comparison])
    # as cards do: a coin says which side a stands on
    swapped = pd.array(rng.random(len(comparison)) < 0.5, dtype="boolean")
    return votes.assign(is_swapped=swapped), comparisons_of(prompt, a, b)


def only_big(n_votes: int, fit: str) -> None:
    votes, shown = million(n_votes)
    before, start = peak(), time.process_time()
    if fit == "asset":
        seconds = np.random.default_rng(SIMULATED.million.seed).lognormal(3.0, 0.5, len(votes))
        said = votes.assign(pass_no=1, duration_s=seconds, stated_confidence=np.nan)
        figures, together = annotators_over_time(said, shown), agreement_over_time(said)
        assert len(figures) >= votes["annotator_id"].nunique(), "every annotator has a window"
        assert len(together) >= 1
        del figures, together, said
        model = fit_annotator_model(votes, shown).model
    else:
        model = joint_model(votes, shown if fit == "shared" else None)
    fitted = time.process_time()
    consensus(select_judgements(votes), "strength_weighted")
    agreed = time.process_time()
    most = peak()
    begun = time.process_time()
    preference_pairs(votes, shown)
    print(
        fitted - start,
        most,
        before,
        len(votes),
        model.n_iterations,
        time.process_time() - begun,
        agreed - fitted,
    )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--worlds", type=int, default=50)
    parser.add_argument("--only", default="simulated,coverage,real,big")
    given = parser.parse_args()
    limits, parts = Limits(), set(given.only.split(","))
    has_real = (given.data / "votes.parquet").exists()
    if parts & {"coverage", "real"} and not has_real:
        limits.skip(f"real votes: {given.data} holds no votes.parquet; name it with --data")
    if "simulated" in parts:
        simulated(limits)
    if "coverage" in parts:
        coverage(limits, given.worlds)
    if "coverage" in parts and has_real:
        halve_real_votes(limits, *read_real(given.data)[1:])
    if "real" in parts and has_real:
        real(limits, given.data)
    if "big" in parts:
        big(limits, given.votes)
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
