"""Does one retraining bring a policy back after a change of taste? Worlds with known truth.

In each world people vote, their taste changes, they vote again, and the embedded policy is trained
once by DPO: on the votes alone (older pairs that contradict the reward model left out, no minimum
of steps), by the default recipe, and by the default recipe with the true labels. What counts is the
true utility, since the change, of completions of 300 prompts that no vote was about.

    python benchmarks/bench_recovery.py [--worlds 20] [--first 0] [--with curriculum=true]
    python benchmarks/bench_recovery.py --demo 3

`--with` sets the default recipe beside itself with other parameters of the training or of the set,
in place of the other two: an ablation, with the mean difference by world and its 95% interval. A
world takes about a minute on one core.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from scipy import stats  # noqa: E402

from benchmarks.measurement import (  # noqa: E402
    Limits,
    open_fresh_store,
    print_table,
)
from benchmarks.recovery_worlds import (  # noqa: E402
    CompletedPool,
    RecoveryWorld,
    VotedWorld,
    compare_facts,
    draw_checkable_prompts,
    measure_truth,
)
from rlhf_pipeline.core.config import silence_telemetry  # noqa: E402
from rlhf_pipeline.core.documents import parse_yaml  # noqa: E402
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY  # noqa: E402
from rlhf_pipeline.generate.policy.causal_lm import load_policy  # noqa: E402
from rlhf_pipeline.improve.evaluation import (  # noqa: E402
    EvaluationParams,
    GateParams,
    JudgedPolicy,
    decide_promotion,
    evaluate,
    frozen_prompts,
)
from rlhf_pipeline.improve.retraining.parameters import StrategyParams  # noqa: E402
from rlhf_pipeline.improve.retraining.selection import SelectionParams  # noqa: E402
from rlhf_pipeline.improve.retraining.strategies import train_candidate  # noqa: E402
from rlhf_pipeline.learn.reward_model import EmbeddingCache, Encoder  # noqa: E402

SHARE_CLOSED, SHARE_OF_WORLDS, WORST = 0.6, 0.9, -0.05
N_FACTS, WORST_FACTS = 1000, -0.05
MIN_PAIRS = 50  # small worlds have fewer than the default 100
BEFORE = {"relabel_confidence": 1.0, "separate_votes": False, "min_steps": 0}


def retrain(
    base: Path, world: VotedWorld, encoder: Encoder, changes: Mapping[str, object], truth: bool
) -> tuple[float, float]:
    """True utility and share of right answers of the policy after one retraining."""
    selection, training = (
        {name: value for name, value in changes.items() if name in kind.model_fields}
        for kind in (SelectionParams, StrategyParams)
    )
    rows = world.select(
        SelectionParams(**{"min_pairs": MIN_PAIRS} | selection), encoder, by_truth=truth
    )
    with tempfile.TemporaryDirectory() as out:
        train_candidate("dpo", base, rows, Path(out), StrategyParams(**training))
        return measure_truth(load_policy(Path(out) / "model"), world.world.after)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--with", dest="other", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--demo", type=int, metavar="SEEDS", help="only the demo's change")
    options = parser.parse_args()
    silence_telemetry()
    pool = CompletedPool.generate(EMBEDDED_POLICY)
    measured = measure_demo if options.demo else measure_worlds
    return measured(EMBEDDED_POLICY, pool, options).print_summary()


def measure_worlds(base: Path, pool: CompletedPool, options: argparse.Namespace) -> Limits:
    """Every recipe in every world."""
    recipes: dict[str, tuple[Mapping[str, object], bool]] = {
        "votes alone": (BEFORE, False),
        "default": ({}, False),
        "true labels": ({}, True),
    }
    if options.other:
        changes = {
            name: parse_yaml(value)
            for name, value in (each.split("=", 1) for each in options.other)
        }
        recipes = {"default": ({}, False), " ".join(options.other): (changes, False)}
    utilities = []
    with tempfile.TemporaryDirectory() as cache:
        encoder = Encoder(cache=EmbeddingCache(Path(cache)))
        for seed in range(options.first, options.first + options.worlds):
            world = VotedWorld.vote(RecoveryWorld.draw(seed), pool)
            results = {"policy before": measure_truth(load_policy(base), world.world.after)}
            results |= {
                name: retrain(base, world, encoder, changes, truth)
                for name, (changes, truth) in recipes.items()
            }
            utilities.append({name: utility for name, (utility, _) in results.items()})
            utilities[-1] |= {f"{name}, facts": facts for name, (_, facts) in results.items()}
            figures = ", ".join(f"{n} {u:+.3f}/{f:.3f}" for n, (u, f) in results.items())
            print(f"world {seed}: {figures}", flush=True)
    tell = compare if options.other else report
    return tell(pd.DataFrame(utilities), ["policy before", *recipes])


def compare(utilities: pd.DataFrame, names: list[str]) -> Limits:
    """The last recipe beside the default, world by world."""
    print_table(
        f"True utility after one retraining, {len(utilities)} worlds: median [least, most]",
        ("recipe", "true utility", "facts right"),
        [(name, spread(utilities[name]), spread(utilities[f"{name}, facts"])) for name in names],
    )
    change = (utilities[names[-1]] - utilities["default"]).to_numpy()
    half = stats.t.ppf(0.975, len(change) - 1) * change.std(ddof=1) / np.sqrt(len(change))
    print(
        f"{names[-1]} less default, mean of {len(change)} worlds: {change.mean():+.3f} "
        f"[{change.mean() - half:+.3f}, {change.mean() + half:+.3f}]"
    )
    return Limits()


def report(utilities: pd.DataFrame, names: list[str]) -> Limits:
    print_table(
        f"True utility after one retraining, {len(utilities)} worlds: median [least, most]",
        ("recipe", "true utility", "less votes alone", "facts right"),
        [
            (
                name,
                spread(utilities[name]),
                spread(utilities[name] - utilities["votes alone"]),
                spread(utilities[f"{name}, facts"]),
            )
            for name in names
        ],
    )
    gain = utilities["default"] - utilities["votes alone"]
    gap = utilities["true labels"] - utilities["votes alone"]
    closed = (gain >= SHARE_CLOSED * gap) & (gain >= WORST)
    limits = Limits()
    limits.check(
        closed.mean() >= SHARE_OF_WORLDS,
        f"{int(closed.sum())} of {len(utilities)} worlds close {SHARE_CLOSED:.0%} of the gap to "
        f"true labels (median {np.median(gain / gap):.0%}) and lose at most {-WORST:g} to votes "
        f"alone, limit {SHARE_OF_WORLDS:.0%}; the worst is {gain.min():+.2f} from votes alone",
    )
    return limits


def measure_demo(base: Path, pool: CompletedPool, options: argparse.Namespace) -> Limits:
    """The demo's own change of taste with its default recipe, through the gate."""
    rows, limits, frozen = [], Limits(), frozen_prompts()
    for seed in range(options.demo):
        world = VotedWorld.vote(RecoveryWorld.of_demo(seed), pool)
        before, _ = measure_truth(load_policy(base), world.world.before)
        changed, _ = measure_truth(load_policy(base), world.world.after)
        with tempfile.TemporaryDirectory() as out, open_fresh_store() as store:
            encoder = Encoder(cache=EmbeddingCache(Path(out) / "embeddings"))
            halves = world.fit_halves(encoder)
            pairs = world.select(SelectionParams(), encoder)
            train_candidate("dpo", base, pairs, Path(out), StrategyParams(seed=seed))
            candidate, champion = load_policy(Path(out) / "model"), load_policy(base)
            evaluation, _ = evaluate(
                JudgedPolicy(candidate, "demo.policy@2"),
                JudgedPolicy(champion, "demo.policy@1"),
                frozen,
                halves.judging,
                EvaluationParams(seed=seed),
                ledger=store.generation,
                labelled_by=halves.labelling,
            )
            gate = decide_promotion(evaluation, GateParams())
            after, _ = measure_truth(candidate, world.world.after)
            facts = compare_facts(candidate, champion, draw_checkable_prompts(pool, N_FACTS, seed))
        by_labels = evaluation.win_rate_by_labels
        assert by_labels is not None
        rows.append(
            (
                str(seed),
                f"{len(pairs)}",
                *(f"{value:+.3f}" for value in (before, changed, after)),
                f"{facts.value:+.3f} [{facts.low:+.3f}, {facts.high:+.3f}]",
                f"{evaluation.win_rate.value:.3f} / {by_labels.value:.3f}",
                f"{evaluation.kl.value:.3f}",
                "promoted" if gate.promoted else "refused",
            )
        )
        print(rows[-1], flush=True)
        limits.check(
            after >= before and facts.low >= WORST_FACTS and gate.promoted,
            f"seed {seed}: true utility {after:+.3f} after one retraining, {before:+.3f} before "
            f"the change; facts {facts.low:+.3f} or more from the base; {rows[-1][-1]}",
        )
    print_table(
        f"The demo's change of taste; facts on {N_FACTS} checkable prompts, paired with the base",
        (
            *("seed", "pairs", "before", "changed", "after", "facts"),
            *("win rate: judging / labelling half", "KL", "gate"),
        ),
        rows,
    )
    return limits


def spread(values: pd.Series) -> str:
    return f"{values.median():+.3f} [{values.min():+.3f}, {values.max():+.3f}]"


if __name__ == "__main__":
    sys.exit(main())
