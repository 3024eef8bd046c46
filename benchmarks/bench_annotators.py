"""Do the annotator model's intervals hold the truth? Worlds whose constants are drawn one by one.

Each world draws how many people vote how unequally, how their abilities, leanings and tie widths
differ, how many votes a comparison has, whether strengths are given, and how far apart the
completions of a prompt lie: normally, with long tails, in two groups, or unequally between prompts.

    python benchmarks/bench_annotators.py [--worlds 40] [--first 0]

40 worlds a row take five minutes on one core.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.feedback.votes.joint_model import joint_model  # noqa: E402
from tests.unit.feedback.votes.simulated import comparisons_of, votes_of  # noqa: E402

Floats = npt.NDArray[np.float64]
LEAST_VOTES = 20  # of an annotator whose interval is judged
LEAST_COVERAGE = 0.9
SHAPES = ("normal", "long tails", "two groups", "unequal prompts")


@dataclass(frozen=True)
class World:
    """Votes on comparisons, the true difference of each, and each annotator's discrimination."""

    votes: pd.DataFrame
    comparisons: pd.DataFrame
    d: Floats
    discrimination: Floats
    is_shared: bool


def draw_utilities(shape: str, n_prompts: int, k: int, rng: np.random.Generator) -> Floats:
    """Utilities (prompts, k), whose differences have a standard deviation of 1."""
    utilities = rng.normal(size=(n_prompts, k))
    if shape == "long tails":
        utilities = rng.standard_t(rng.uniform(3, 6), (n_prompts, k))
    elif shape == "two groups":
        is_poor = rng.random((n_prompts, k)) < rng.uniform(0.1, 0.5)
        utilities = rng.uniform(0.2, 0.6) * utilities - 2 * is_poor
    elif shape == "unequal prompts":
        utilities *= np.exp(rng.normal(0, rng.uniform(0.2, 0.7), (n_prompts, 1)))
    return np.asarray((utilities - utilities.mean()) / utilities.std() / np.sqrt(2))


def draw_world(seed: int, typical: float, is_shared: bool) -> World:
    rng = np.random.default_rng([seed, is_shared])
    n_annotators, n_votes = int(rng.integers(8, 121)), int(np.exp(rng.uniform(7.3, 9.4)))
    k = int(rng.integers(3, 9)) if is_shared else 2
    n_pairs = int(rng.integers(k - 1, k * (k - 1) // 2 + 1))
    votes_each = int(rng.integers(1, 6))
    n_prompts = max(n_votes // votes_each // n_pairs, 30)
    utilities = draw_utilities(SHAPES[seed % len(SHAPES)], n_prompts, k, rng)
    first, second = np.triu_indices(k, 1)
    pairs = np.concatenate(
        [rng.choice(len(first), n_pairs, replace=False) for _ in range(n_prompts)]
    )
    prompt = np.repeat(np.arange(n_prompts), n_pairs)
    a, b = first[pairs], second[pairs]
    d = utilities[prompt, a] - utilities[prompt, b]
    ability = rng.normal(0, rng.uniform(0.1, 0.5), n_annotators)
    discrimination = typical * (np.exp(ability) if rng.random() < 0.5 else 1 + ability)
    discrimination[rng.random(n_annotators) < rng.uniform(0, 0.15)] = 0.0
    activity = rng.normal(0, rng.uniform(0.3, 1.3), n_annotators)
    chosen = np.argsort(-(activity + rng.gumbel(size=(len(d), n_annotators))), axis=1)
    j, c = chosen[:, :votes_each].ravel(), np.repeat(np.arange(len(d)), votes_each)
    leaning = rng.normal(0, rng.uniform(0, 0.5), n_annotators)
    width = rng.uniform(0, 0.8) * np.exp(rng.normal(0, 0.3, n_annotators))
    is_swapped, has_strengths = rng.random(len(c)) < 0.5, rng.random() < 0.5
    felt = discrimination[j] * d[c] + np.where(is_swapped, -1, 1) * leaning[j]
    felt += rng.logistic(size=len(c))
    beyond = np.abs(felt) - width[j]
    steps = np.minimum(4, 1 + beyond / rng.uniform(0.5, 1.5)).astype(int)
    votes = votes_of(
        c,
        j,
        np.where(beyond < 0, "tie", np.where(felt > 0, "a", "b")),
        prompt=prompt[c],
        strength=np.where((beyond < 0) | (not has_strengths), 0, steps),
    ).assign(is_swapped=pd.array(is_swapped, dtype="boolean"))
    return World(votes, comparisons_of(prompt, a, b), d, discrimination, is_shared)


def judge(world: World) -> dict[str, Floats]:
    """Which intervals hold the truth, and the fitted typical discrimination by the true one."""
    model = joint_model(world.votes, world.comparisons if world.is_shared else None)
    labels, people = model.labels, model.annotators
    d = world.d[labels["comparison_id"].str[1:].astype(int)]
    p_a = _logistic(world.discrimination.mean() * d)
    people = people[people["n_votes"] >= LEAST_VOTES]
    slopes = world.discrimination[people["annotator_id"].str[3:].astype(int)]
    reliability = _logistic(np.abs(world.d)[:, None] * slopes).mean(axis=0)
    return {
        "reliability": _is_within(people, reliability, "reliability_low", "reliability_high"),
        "utility": np.abs(labels["utility"] - d).to_numpy() <= 1.96 * labels["sd"].to_numpy(),
        "p_a": _is_within(labels, p_a, "p_low", "p_high"),
        "discrimination": np.array([model.discrimination / world.discrimination.mean()]),
    }


def _logistic(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def _is_within(frame: pd.DataFrame, truth: Floats, low: str, high: str) -> Floats:
    return ((frame[low] <= truth) & (truth <= frame[high])).to_numpy()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    options = parser.parse_args()
    limits, rows = Limits(), []
    for is_shared in (True, False):
        for typical in (1.5, 2.5):
            seeds = range(options.first, options.first + options.worlds)
            results = [judge(draw_world(seed, typical, is_shared)) for seed in seeds]
            means = {name: np.concatenate([each[name] for each in results]) for name in results[0]}
            where = f"{typical}, completions {'shared' if is_shared else 'apart'}"
            rows.append((where, *(f"{each.mean():.3f}" for each in means.values())))
            if is_shared:
                covered = means["reliability"].mean()
                limits.check(
                    bool(covered >= LEAST_COVERAGE),
                    f"{where}: {covered:.3f} of {len(means['reliability'])} intervals of "
                    f"reliability hold the truth, limit {LEAST_COVERAGE}",
                )
    print_table(
        f"Share of 95 % intervals that hold the truth, {options.worlds} worlds a row",
        (
            "typical discrimination",
            f"reliability ({LEAST_VOTES}+ votes)",
            "utility",
            "p_a",
            "fitted discrimination by the true one",
        ),
        rows,
    )
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
