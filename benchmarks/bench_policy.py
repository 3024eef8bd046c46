"""Does learning from preferences raise what simulated people really want? DPO and best-of-n SFT on
the embedded policy.

Per strategy and seed: pairs drawn and judged under the `sourced` taste, one candidate trained on
them, both policies on frozen prompts, judged by the simulator's truth. Run it alone: `python
benchmarks/bench_policy.py [--seeds 3]`.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from time import process_time

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.completion_calls import open_fresh_store  # noqa: E402
from benchmarks.measurement import Limits  # noqa: E402
from rlhf_pipeline.comparisons import PairingParams, pair_completions  # noqa: E402
from rlhf_pipeline.completions import CompletionParams, LocalBackend  # noqa: E402
from rlhf_pipeline.completions import generate as complete_prompts  # noqa: E402
from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402
from rlhf_pipeline.evaluation import frozen_prompt_ids, frozen_prompts  # noqa: E402
from rlhf_pipeline.evaluation.win_rate import grade_answers  # noqa: E402
from rlhf_pipeline.intervals import interval_of_mean  # noqa: E402
from rlhf_pipeline.policy.causal_lm import Policy, load_policy  # noqa: E402
from rlhf_pipeline.policy.pretraining import pretrain  # noqa: E402
from rlhf_pipeline.prompts import PromptParams, generate  # noqa: E402
from rlhf_pipeline.retraining.parameters import StrategyParams  # noqa: E402
from rlhf_pipeline.retraining.strategies import STRATEGIES, train_candidate  # noqa: E402
from rlhf_pipeline.simulation import SOURCED_TASTE, utility  # noqa: E402

N_PAIRS = 400
DAY = "2026-01-01"


def pairs_by_truth(policy_folder: Path, seed: int) -> pd.DataFrame:
    """Pairs of completions of the policy, chosen by true utility: what a strategy makes of votes
    without noise.
    """
    prompts = generate(
        PromptParams(n=N_PAIRS, seed=seed), day=DAY, exclude=frozen_prompt_ids(frozen_prompts())
    )
    with open_fresh_store() as store:
        made = complete_prompts(
            prompts,
            [LocalBackend(policy_folder, model_version="bench")],
            CompletionParams(k=2, seed=seed),
            ledger=store.generation,
        ).frame
    frame = pair_completions(
        prompts, made, PairingParams(pairs_per_prompt=1, repeat_share=0.0, seed=seed), day=DAY
    )
    references = prompts.set_index("prompt_id")["reference"].reindex(frame["prompt_id"])
    known = [None if pd.isna(r) else r for r in references]
    a, b = (
        utility(frame["prompt"].tolist(), known, frame[side].tolist(), SOURCED_TASTE)
        for side in ("completion_a", "completion_b")
    )
    frame = frame.assign(gap=np.abs(a - b), chose_a=a > b)[lambda f: f["gap"] > 0]
    return pd.DataFrame(
        {
            "comparison_id": frame["comparison_id"],
            "prompt_id": frame["prompt_id"],
            "prompt": frame["prompt"],
            "chosen": frame["completion_a"].where(frame["chose_a"], frame["completion_b"]),
            "rejected": frame["completion_b"].where(frame["chose_a"], frame["completion_a"]),
            "margin": 0.5,
            "weight": 1.0,
            "origin": "vote",
            "information": 1.0,
            "reason": "true utility",
            "split": "train",
            "day": DAY,
        }
    )


def truth(policy: Policy, prompts: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """True utility of one completion per frozen prompt, and which checkable answers are right (NaN
    elsewhere).
    """
    texts = [
        g.text
        for g in policy.generate(
            prompts["text"].tolist(),
            temperature=0.8,
            top_p=1.0,
            seeds=range(len(prompts)),
            max_new_tokens=48,
        )
    ]
    known = [None if pd.isna(r) else r for r in prompts["reference"]]
    return utility(prompts["text"].tolist(), known, texts, SOURCED_TASTE), grade_answers(
        prompts["reference"], pd.Series(texts)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    silence_telemetry()
    base = Settings.read().cache / "embedded_policy"
    pretrain(base)
    prompts, champion = frozen_prompts(), load_policy(base)
    before, right_before = truth(champion, prompts)
    table = Table(
        "strategy",
        "seed",
        "pairs",
        "CPU s",
        "true win rate",
        "true utility",
        "facts right",
        title="Embedded policy, 300 frozen prompts",
    )
    table.add_row(
        "(base)", "-", "-", "-", "0.500", f"{before.mean():+.2f}", f"{np.nanmean(right_before):.2f}"
    )
    for strategy in sorted(STRATEGIES):
        for seed in seeds:
            pairs = pairs_by_truth(base, seed)
            with tempfile.TemporaryDirectory() as out:
                started = process_time()
                train_candidate(strategy, base, pairs, Path(out), StrategyParams(seed=seed))
                seconds = process_time() - started
                after, right = truth(load_policy(Path(out) / "model"), prompts)
            wins = interval_of_mean(
                np.where(after > before, 1.0, np.where(after < before, 0.0, 0.5))
            )
            facts = f"{np.nanmean(right):.2f}"
            table.add_row(
                strategy,
                str(seed),
                str(len(pairs)),
                f"{seconds:.0f}",
                str(wins),
                f"{after.mean():+.2f}",
                facts,
            )
    Console(width=120).print(table)
    return Limits().print_summary()


if __name__ == "__main__":
    sys.exit(main())
