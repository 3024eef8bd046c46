"""Does one retraining bring a policy back after a change of taste? Worlds with known truth.

In each world people vote, their taste changes, they vote again, and the embedded policy is trained
once by DPO: on the votes alone (older pairs that contradict the reward model left out, no minimum
of steps), by the default recipe, and by the default recipe with the true labels. What counts is the
true utility, since the change, of completions of 300 prompts that no vote was about.

    python benchmarks/bench_recovery.py [--worlds 20] [--first 0] [--with curriculum=true]

`--with` adds a column: the default recipe with other parameters of the training or of the set. A
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

from benchmarks.measurement import Limits, print_table  # noqa: E402
from benchmarks.recovery_worlds import (  # noqa: E402
    CompletedPool,
    RecoveryWorld,
    VotedWorld,
    measure_truth,
)
from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402
from rlhf_pipeline.documents import parse_yaml  # noqa: E402
from rlhf_pipeline.policy.causal_lm import load_policy  # noqa: E402
from rlhf_pipeline.policy.pretraining import pretrain  # noqa: E402
from rlhf_pipeline.retraining.parameters import StrategyParams  # noqa: E402
from rlhf_pipeline.retraining.selection import SelectionParams  # noqa: E402
from rlhf_pipeline.retraining.strategies import train_candidate  # noqa: E402
from rlhf_pipeline.reward_model import EmbeddingCache, Encoder  # noqa: E402

SHARE_CLOSED, SHARE_OF_WORLDS, WORST = 0.6, 0.9, -0.05
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
    given = parser.parse_args()
    silence_telemetry()
    base = Settings.read().cache / "embedded_policy"
    pretrain(base)
    recipes: dict[str, tuple[Mapping[str, object], bool]] = {
        "votes alone": (BEFORE, False),
        "default": ({}, False),
        "true labels": ({}, True),
    }
    if given.other:
        changes = dict(each.split("=", 1) for each in given.other)
        recipes[" ".join(given.other)] = (
            {name: parse_yaml(value) for name, value in changes.items()},
            False,
        )
    pool, found = CompletedPool.generate(base), []
    with tempfile.TemporaryDirectory() as cache:
        encoder = Encoder(cache=EmbeddingCache(Path(cache)))
        for seed in range(given.first, given.first + given.worlds):
            world = VotedWorld.vote(RecoveryWorld.draw(seed), pool)
            results = {"policy before": measure_truth(load_policy(base), world.world.after)}
            results |= {
                name: retrain(base, world, encoder, changes, truth)
                for name, (changes, truth) in recipes.items()
            }
            found.append({name: utility for name, (utility, _) in results.items()})
            found[-1] |= {f"{name}, facts": facts for name, (_, facts) in results.items()}
            figures = ", ".join(f"{n} {u:+.3f}/{f:.3f}" for n, (u, f) in results.items())
            print(f"world {seed}: {figures}", flush=True)
    return report(pd.DataFrame(found), ["policy before", *recipes])


def report(found: pd.DataFrame, names: list[str]) -> int:
    print_table(
        f"True utility after one retraining, {len(found)} worlds: median [least, most]",
        ("recipe", "true utility", "less votes alone", "facts right"),
        [
            (
                name,
                spread(found[name]),
                spread(found[name] - found["votes alone"]),
                spread(found[f"{name}, facts"]),
            )
            for name in names
        ],
    )
    gain = found["default"] - found["votes alone"]
    gap = found["true labels"] - found["votes alone"]
    closed = (gain >= SHARE_CLOSED * gap) & (gain >= WORST)
    limits = Limits()
    limits.check(
        closed.mean() >= SHARE_OF_WORLDS,
        f"{int(closed.sum())} of {len(found)} worlds close {SHARE_CLOSED:.0%} of the gap to true "
        f"labels (median {np.median(gain / gap):.0%}) and lose at most {-WORST:g} to votes alone, "
        f"limit {SHARE_OF_WORLDS:.0%}; the worst is {gain.min():+.2f} from votes alone",
    )
    return limits.print_summary()


def spread(values: pd.Series) -> str:
    return f"{values.median():+.3f} [{values.min():+.3f}, {values.max():+.3f}]"


if __name__ == "__main__":
    sys.exit(main())
