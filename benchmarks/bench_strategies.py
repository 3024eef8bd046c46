"""What each training strategy gains and costs on the embedded policy, and whether sentinels stop a
training that is rewarded for length.

    python benchmarks/bench_strategies.py [--only gain,penalty,length,cost] [--seeds 1] [--first 0]

Pairs are chosen by the simulator's truth, which is also the reward of online strategies: no error
of a reward model is in these figures. Reads the embedded policy from RLHF_HOME (default var/) where
`rlhf init` has left one, else trains it first (a minute).
"""

import argparse
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.bench_policy import pairs_by_truth, truth  # noqa: E402
from benchmarks.measurement import Limits, pin_to_cores, print_table  # noqa: E402
from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402
from rlhf_pipeline.evaluation import frozen_prompts  # noqa: E402
from rlhf_pipeline.evaluation.divergence import kl_per_token  # noqa: E402
from rlhf_pipeline.intervals import interval_of_mean  # noqa: E402
from rlhf_pipeline.policy.causal_lm import Policy, load_policy  # noqa: E402
from rlhf_pipeline.policy.pretraining import pretrain  # noqa: E402
from rlhf_pipeline.retraining.parameters import StrategyParams  # noqa: E402
from rlhf_pipeline.retraining.sentinels import (  # noqa: E402
    LABELS,
    SAMPLED_LENGTH,
    Measurement,
    SentinelParams,
    SentinelWatch,
    find_violation,
)
from rlhf_pipeline.retraining.strategies import STRATEGIES, train_candidate  # noqa: E402
from rlhf_pipeline.simulation import SOURCED_TASTE, Taste, utility  # noqa: E402

PARTS = ("gain", "penalty", "length", "cost")
CORES, LONGEST_S = 2, 300
# Its name and the fewest steps. DPO needs the default number: at first a higher beta only weighs
# the same gradients more.
PENALTIES = {
    "dpo": ("beta", 60),
    "ppo": ("kl_penalty", 20),
    "rloo": ("kl_penalty", 20),
    "grpo": ("kl_penalty", 20),
}
LOW, HIGH = 0.05, 0.5
# A taste for short answers under a reward that loves length: the true utility rises while sources
# are learnt, and falls once length pays more than they cost.
TERSE_TASTE = Taste(name="terse", weights=SOURCED_TASTE.weights | {"length": -0.5})
LENGTH_REWARD = 3.4  # per ten words
N_PROMPTS, STEPS = 256, 32  # 2,048 samples
HOT = {"learning_rate": 7e-4, "kl_penalty": 0.01, "max_new_tokens": 64}
WINDOW = 5  # batches of a smoothed figure
LARGEST_LOSS, LEAST_SHARE_OF_SEEDS = 0.2, 0.9
ROUNDS, BARE_COST, WATCHED_COST = 5, 1.05, 1.25


class TrueReward:
    """The simulator's utility, plus `length_reward` per ten words; `history` has the completions
    and the mean true utility of each call.
    """

    def __init__(self, taste: Taste = SOURCED_TASTE, length_reward: float = 0.0) -> None:
        self.taste, self.length_reward = taste, length_reward
        self.weights_hash = f"truth by {taste.name} and {length_reward} per ten words"
        self.history: list[tuple[Sequence[str], float]] = []

    def member_scores(self, prompts: Sequence[str], completions: Sequence[str]) -> Any:
        true = utility(prompts, [None] * len(prompts), completions, self.taste)
        self.history.append((completions, float(true.mean())))
        words = np.array([len(text.split()) for text in completions])
        return np.stack([true + self.length_reward * words / 10])


class Bench:
    """The embedded policy, its frozen prompts and the pairs of each seed."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.base = Settings.read(folder=ROOT).cache / "embedded_policy"
        pretrain(self.base)
        self.champion = load_policy(self.base)
        self.prompts = frozen_prompts()
        self.before, _ = truth(self.champion, self.prompts)
        self._pairs: dict[int, pd.DataFrame] = {}

    def pairs(self, seed: int) -> pd.DataFrame:
        if seed not in self._pairs:
            self._pairs[seed] = pairs_by_truth(self.base, seed)
        return self._pairs[seed]

    def train(
        self,
        strategy: str,
        seed: int,
        reward: TrueReward | None = None,
        pairs: pd.DataFrame | None = None,
        **changes: Any,
    ) -> tuple[Any, Policy, float, float]:
        """Report, candidate, and seconds of wall and CPU."""
        pairs = self.pairs(seed) if pairs is None else pairs
        out = Path(tempfile.mkdtemp())
        try:
            wall, cpu = perf_counter(), process_time()
            report = train_candidate(
                strategy,
                self.base,
                pairs,
                out,
                StrategyParams(seed=seed, **changes),
                reward=reward or TrueReward(),
            )
            seconds = perf_counter() - wall, process_time() - cpu
            return report, load_policy(out / "model"), *seconds
        finally:
            shutil.rmtree(out)

    def measure_gain(self, strategies: Sequence[str], seeds: range) -> None:
        rows = []
        for strategy in strategies:
            for seed in seeds:
                report, candidate, wall, cpu = self.train(strategy, seed)
                after, right = truth(candidate, self.prompts)
                wins = interval_of_mean(
                    np.where(after > self.before, 1.0, np.where(after < self.before, 0.0, 0.5))
                )
                stopped = report.stop.sentinel if report.stop else "-"
                figures = f"{wall:.0f}", f"{cpu:.0f}", wins, f"{after.mean():+.2f}"
                facts = f"{np.nanmean(right):.2f}"
                rows.append([strategy, seed, report.n_steps, *figures, facts, stopped])
                print(*rows[-1], flush=True)
                where = f"{strategy}, seed {seed}"
                self.limits.check(wall < LONGEST_S, f"{where}: {wall:.0f} s of {LONGEST_S}")
                self.limits.check(wins.low > 0.5, f"{where}: true win rate {wins}")
        header = ["strategy", "seed", "steps", "wall s", "CPU s", "true win rate"]
        print_table(
            f"{len(self.prompts)} frozen prompts; the base has {self.before.mean():+.2f}",
            [*header, "true utility", "facts right", "stopped by"],
            rows,
        )

    def measure_penalty(self, seeds: range) -> None:
        rows = []
        texts = self.prompts["text"].tolist()[:100]
        for strategy, (name, n_steps) in PENALTIES.items():
            for seed in seeds:
                kls = []
                for penalty in (LOW, HIGH):
                    changes = {name: penalty, "min_steps": n_steps, "epochs": 1}
                    candidate = self.train(strategy, seed, sentinels={"every": 0}, **changes)[1]
                    made = candidate.generate(texts, seeds=range(len(texts)))
                    kl = kl_per_token(candidate, self.champion, texts, [g.text for g in made])
                    kls.append(float(kl.mean()))
                rows.append([strategy, name, seed, *(f"{kl:.4f}" for kl in kls)])
                print(*rows[-1], flush=True)
                self.limits.check(
                    kls[1] < kls[0], f"{strategy}, seed {seed}: KL {kls[0]:.4f} → {kls[1]:.4f}"
                )
        header = ["strategy", "penalty", "seed", f"KL at {LOW}", f"KL at {HIGH}"]
        print_table("KL per token to the base, 100 prompts", header, rows)

    def measure_length(self, seeds: range) -> None:
        """One training a seed, measured at every step and not stopped: weights are equal until a
        limit would stop it.
        """
        off = {name: None for name in SentinelParams.model_fields if name.startswith("m")}
        params = HOT | {"min_steps": STEPS, "epochs": 1, "checkpoint_every": STEPS}
        rows, n_held = [], 0
        for seed in seeds:
            reward = TrueReward(TERSE_TASTE, LENGTH_REWARD)
            pairs = self.pairs(0).sample(N_PROMPTS, random_state=seed)
            report = self.train(
                "grpo", seed, reward, pairs, sentinels={"every": 1, **off}, **params
            )[0]
            largest = max(len(texts) for texts, _ in reward.history)
            batches = [(texts, true) for texts, true in reward.history if len(texts) == largest]
            lengths = [self.count_tokens(texts) for texts, _ in batches]
            stop = _find_stop(report.curves, lengths)
            smooth = np.convolve([true for _, true in batches], np.ones(WINDOW) / WINDOW, "valid")
            lost, peak = _share_lost(smooth, stop[0] if stop else STEPS)
            n_held += lost < LARGEST_LOSS
            figures = f"{smooth[0]:+.2f}", f"{peak:+.2f}", f"{smooth[-1]:+.2f}", f"{lost:.2f}"
            rows.append([seed, *(stop or ("-", "never")), *figures])
            print(*rows[-1], flush=True)
        header = ["seed", "stopped at step", "by", "true reward at start", "peak", "at the end"]
        print_table(
            f"GRPO, {STEPS * largest:,} samples, a terse taste plus {LENGTH_REWARD} per ten words",
            [*header, "share of the rise lost at the stop"],
            rows,
        )
        self.limits.check(
            n_held >= LEAST_SHARE_OF_SEEDS * len(seeds),
            f"{n_held} of {len(seeds)} seeds lose less than {LARGEST_LOSS:.0%} of the rise",
        )

    def count_tokens(self, texts: Sequence[str]) -> float:
        """Mean tokens of completions, with the end token."""
        ids = self.champion.tokenizer(list(texts))["input_ids"]
        return float(np.mean([len(row) + 1 for row in ids]))

    def measure_cost(self, n_rounds: int) -> None:
        """CPU seconds of the same training: bare TRL, ours without and with sentinels. One pass:
        a whole training has three times the steps, and fixed costs weigh a third.
        """
        rows = []
        for strategy in ("dpo", "grpo"):
            short = {"min_steps": 20, "epochs": 1}
            bare, off, on = [], [], []
            for _ in range(n_rounds):
                bare.append(self._train_bare(strategy))
                off.append(self.train(strategy, 0, sentinels={"every": 0}, **short)[3])
                on.append(self.train(strategy, 0, **short)[3])
                print(f"{strategy}: {bare[-1]:.1f}, {off[-1]:.1f}, {on[-1]:.1f} s", flush=True)
            cost = [float(np.median(np.array(each) / np.array(bare))) for each in (off, on)]
            rows.append([strategy, f"{np.median(bare):.1f}", *(f"× {each:.2f}" for each in cost)])
            said = f"{strategy} without sentinels × {cost[0]:.2f}"
            self.limits.check(cost[0] <= BARE_COST, said)
            self.limits.check(cost[1] <= WATCHED_COST, f"{strategy} with them × {cost[1]:.2f}")
        print_table(
            f"Median of {n_rounds} interleaved rounds",
            ["strategy", "CPU s of bare TRL", "without sentinels", "with sentinels"],
            rows,
        )

    def _train_bare(self, strategy: str) -> float:
        """CPU seconds of a script of TRL alone, with the same rows, steps and checkpoints."""
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
        from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

        pairs, out = self.pairs(0), tempfile.mkdtemp()
        started = process_time()
        model = AutoModelForCausalLM.from_pretrained(self.base, dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(self.base)
        n_batches = -(-len(pairs) // 16)
        common: dict[str, Any] = {
            "output_dir": out,
            "learning_rate": 2e-4,
            "warmup_steps": 0.1,
            "max_steps": n_batches * max(1, -(-20 // n_batches)),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "save_steps": StrategyParams().checkpoint_every,
            "logging_steps": 1,
            "report_to": "none",
            "disable_tqdm": True,
        }
        user = [[{"role": "user", "content": text}] for text in pairs["prompt"]]
        if strategy == "dpo":
            sides = {
                side: [[{"role": "assistant", "content": text}] for text in pairs[side]]
                for side in ("chosen", "rejected")
            }
            trainer = DPOTrainer(
                model=model,
                ref_model=AutoModelForCausalLM.from_pretrained(self.base, dtype="float32"),
                args=DPOConfig(per_device_train_batch_size=16, max_length=256, **common),
                train_dataset=Dataset.from_dict({"prompt": user, **sides}),
                processing_class=tokenizer,
            )
        else:
            reward = TrueReward()

            def score(prompts: Any, completions: Any, **more: Any) -> list[float]:
                texts = [one[-1]["content"] for one in completions]
                questions = [one[-1]["content"] for one in prompts]
                return [float(each) for each in reward.member_scores(questions, texts)[0]]

            trainer = GRPOTrainer(
                model=model,
                reward_funcs=score,
                args=GRPOConfig(
                    per_device_train_batch_size=64,
                    num_generations=4,
                    max_completion_length=48,
                    beta=0.05,
                    **common,
                ),
                train_dataset=Dataset.from_dict({"prompt": user}),
                processing_class=tokenizer,
            )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        trainer.save_model(out)
        shutil.rmtree(out)
        return process_time() - started


def _find_stop(curves: dict[str, Any], lengths: Sequence[float]) -> tuple[int, str] | None:
    """Step and name of the first sentinel that would have stopped the training by its default
    limit, among the steps at which defaults measure: those that are due, and those after a batch
    whose `lengths` are beyond a limit.
    """
    params = SentinelParams()
    figures = {name: dict(curves.get(label, ())) for name, label in LABELS.items()}
    points = [
        Measurement(step=step, **{name: by.get(step) for name, by in figures.items()})
        for step in figures["kl"]
    ]
    watch = SentinelWatch(params, None, pd.DataFrame(), Path(), 0, measurements=points)
    for now in points[1:]:
        is_due = watch.is_due(now.step) or now.step == points[-1].step
        if is_due or watch.is_suspect({SAMPLED_LENGTH: lengths[now.step - 1]}):
            found = find_violation(now, points[0], params)
            if found is not None:
                return now.step, found[0]
    return None


def _share_lost(smooth: Any, stop: int) -> tuple[float, float]:
    """Share of the rise from start to peak that is lost at the stop, and the peak, in means over
    WINDOW batches. A stop before the peak has lost nothing.
    """
    peak_at = int(np.argmax(smooth))
    # batch `stop` is the first that the stopped policy would have sampled
    at = int(np.clip(stop - WINDOW // 2, 0, len(smooth) - 1))
    rise = smooth[peak_at] - smooth[0]
    lost = 0.0 if at <= peak_at else (smooth[peak_at] - smooth[at]) / max(rise, 1e-9)
    return float(lost), float(smooth[peak_at])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="of the part gain")
    given = parser.parse_args()
    parts, strategies = given.only.split(","), given.strategies.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r}. Known: {', '.join(PARTS)}")
    warnings.filterwarnings("ignore")
    silence_telemetry()
    limits, seeds = Limits(), range(given.first, given.first + given.seeds)
    with pin_to_cores(CORES):
        bench = Bench(limits)
        for part, measure in (
            ("gain", lambda: bench.measure_gain(strategies, seeds)),
            ("penalty", lambda: bench.measure_penalty(seeds)),
            ("length", lambda: bench.measure_length(seeds)),
            ("cost", lambda: bench.measure_cost(given.rounds)),
        ):
            if part in parts:
                measure()
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
