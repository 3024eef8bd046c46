"""Experiments on served versions: false winners, time to a real one, and guardrails.

    python benchmarks/bench_experiments.py [--experiments 1000]

Simulated experiments whose base rate, split, trend over time, ramp and sessions' tempers are drawn
from ranges. A/A ones are read after every session, and once more after every answer of sessions
that overlap. A planted effect is read after every session up to three times the sessions of a
fixed test with power 0.8; its mean stopping time is compared with the fixed test of the power that
it reached. Guardrails are read after every faulty answer. Exits with 1 where a limit is broken.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.core.config import silence_telemetry  # noqa: E402

silence_telemetry()

from collections import defaultdict  # noqa: E402

import numpy as np  # noqa: E402
from scipy.stats import chi2, norm  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.core.experiments import Experiment  # noqa: E402
from rlhf_pipeline.core.intervals import Floats  # noqa: E402
from rlhf_pipeline.improve.experiments import assign  # noqa: E402
from rlhf_pipeline.improve.experiments.analysis import BROKEN_SPLIT, HARMFUL  # noqa: E402
from rlhf_pipeline.improve.experiments.effects import (  # noqa: E402
    LIMIT,
    Sessions,
    find_harm_p_value,
    find_split_p_value,
    score_effects,
)
from rlhf_pipeline.improve.loop_settings import ExperimentParams  # noqa: E402

N_SESSIONS = 2_000
EFFECT = 0.1
MAX_RATIO = ExperimentParams().max_ratio


def draw_splits(n: int, rng: np.random.Generator) -> Floats:
    """One share, or a ramp from 10 to 50 %."""
    if rng.random() < 0.5:
        return np.full(n, rng.choice((0.1, 0.5)))
    return np.where(np.arange(n) < rng.integers(n // 10, n), 0.1, 0.5)


def find_winner(sessions: Sessions) -> tuple[int, int]:
    """The sign of the winner, 0 without one, and the session at which it is known."""
    scores = score_effects(sessions)
    for sign, side in ((1, scores), (-1, scores.mirrored)):
        is_past = side.log_wealth(0.0) >= LIMIT
        if is_past.any():
            return sign, int(is_past.argmax()) + 1
    return 0, len(sessions.values)


def run_equal(n: int, rng: np.random.Generator) -> float:
    """Share of A/A experiments with a winner at any session."""
    winners = 0
    for _ in range(n):
        splits = draw_splits(N_SESSIONS, rng)
        treated = rng.random(N_SESSIONS) < splits
        chance = rng.uniform(0.2, 0.95) + np.linspace(0, rng.uniform(-0.2, 0.2), N_SESSIONS)
        values = (rng.random(N_SESSIONS) < np.clip(chance, 0.02, 0.98)).astype(float)
        winners += find_winner(Sessions(values, treated, splits))[0] != 0
    return winners / n


def run_equal_answers(n: int, rng: np.random.Generator) -> float:
    """Share of A/A experiments with a winner at any answer: sessions of 1 to 4 answers overlap,
    and a session's mean changes with each.
    """
    winners, n_sessions = 0, 150
    for _ in range(n):
        splits = draw_splits(n_sessions, rng)
        treated = rng.random(n_sessions) < splits
        temper = rng.beta(*(4 * np.array((share := rng.uniform(0.3, 0.9), 1 - share))), n_sessions)
        n_answers = rng.integers(1, 5, n_sessions)
        owners = np.repeat(np.arange(n_sessions), n_answers)
        times = owners + rng.exponential(5, len(owners)) * (np.diff(owners, prepend=-1) == 0)
        owners = owners[np.argsort(times, kind="stable")]
        values = (rng.random(len(owners)) < temper[owners]).astype(float)
        for look in range(20, len(owners) + 1):
            sessions, first = np.unique(owners[:look], return_index=True)
            order = sessions[np.argsort(first)]
            total = np.bincount(owners[:look], values[:look], n_sessions)
            means = total[order] / np.bincount(owners[:look], minlength=n_sessions)[order]
            if find_winner(Sessions(means, treated[order], splits[order]))[0]:
                winners += 1
                break
    return winners / n


def run_planted(n: int, split: float, base: float, rng: np.random.Generator) -> list[str]:
    """Power, mean stopping time and its ratio to the fixed test of equal power."""
    rates = (base, base + EFFECT)
    variance = rates[1] * (1 - rates[1]) / split + base * (1 - base) / (1 - split)

    def size(power: float) -> float:
        z = norm.ppf(0.975) + norm.ppf(power)
        return float(z**2 * variance / EFFECT**2)

    horizon = int(3 * size(0.8))
    n_found, stops = 0, 0
    for _ in range(n):
        treated = rng.random(horizon) < split
        values = (rng.random(horizon) < np.where(treated, rates[1], rates[0])).astype(float)
        sign, stop = find_winner(Sessions(values, treated, np.full(horizon, split)))
        n_found += sign > 0
        stops += stop
    power = min(n_found / n, 1 - 0.5 / n)
    return [
        f"{split:.0%}, {base:.0%}",
        f"{power:.3f}",
        f"{stops / n:.0f}",
        f"{size(power):.0f}",
        f"{stops / n / size(power):.2f}",
    ]


def run_guardrail(rate: float, split: float, rng: np.random.Generator) -> int | None:
    """The treatment's requests until it is stopped, its errors at `rate` where control has 2 %;
    None if 5,000 requests do not stop it. Sessions have 1 to 4 requests and tempers.
    """
    faults: dict[bool, set[int]] = defaultdict(set)
    own = n = session = 0
    while n < 5_000:
        session += 1
        treated = rng.random() < split
        chance = rng.beta(1, 1 / (rate if treated else 0.02) - 1)
        for _ in range(rng.integers(1, 5)):
            n += 1
            own += treated
            if rng.random() < chance:
                faults[treated].add(session)
                counts = [len(faults[True])], [len(faults[False])], [split]
                if treated and find_harm_p_value(*counts, MAX_RATIO) < HARMFUL:
                    return own
    return None


def run_split(rng: np.random.Generator) -> tuple[float, float]:
    """The p-value of a chi-square test of 200 salts with 5,000 sessions each, and the share of
    them that the sequential test calls broken at any of 50 looks.
    """
    statistic, broken = 0.0, 0
    for number in range(200):
        experiment = Experiment(
            experiment_id=1,
            name="split",
            control_model_id="demo.policy@1",
            treatment_model_id="demo.policy@2",
            traffic_split=0.1,
            status="running",
            success_metric="satisfaction",
            salt=str(rng.integers(2**60)),
        )
        sessions = [f"session-{number}-{i}" for i in range(5_000)]
        treated = np.cumsum([assign(experiment, unit) == "treatment" for unit in sessions])
        statistic += float((treated[-1] - 500) ** 2 / 450)
        broken += any(
            find_split_p_value([treated[i - 1]], [i - treated[i - 1]], [0.1]) < BROKEN_SPLIT
            for i in range(100, 5_001, 100)
        )
    return float(chi2.sf(statistic, 200)), broken / 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=1_000)
    n = parser.parse_args().experiments
    rng = np.random.default_rng(7)
    limits = Limits()

    equal, answers = run_equal(n, rng), run_equal_answers(max(n // 5, 10), rng)
    planted = [run_planted(n, *cell, rng) for cell in ((0.5, 0.6), (0.5, 0.8), (0.1, 0.6))]
    stops = {
        split: [run_guardrail(0.2, split, rng) or 5_000 for _ in range(n // 2)]
        for split in (0.1, 0.5)
    }
    false = sum(run_guardrail(0.02, 0.5, rng) is not None for _ in range(n // 2)) / (n // 2)
    p_value, broken = run_split(rng)
    worst = max(float(row[-1]) for row in planted)
    header = ["split, base", "power", "mean sessions", "fixed test", "ratio"]
    print_table("a planted effect of 10 points", header, planted)
    limits.check(equal <= 0.05, f"{equal:.1%} of A/A have a winner, read after every session (5 %)")
    limits.check(answers <= 0.05, f"{answers:.1%} of A/A, read after every answer (5 %)")
    limits.check(worst <= 1.3, f"stopping time by the fixed test of equal power {worst:.2f} (1.3)")
    for split, own in stops.items():
        mean, high, late = np.mean(own), np.quantile(own, 0.95), np.mean(np.array(own) >= 200)
        what = f"own requests until 2 to 20 % errors stop at a split of {split:.0%}"
        limits.check(high < 200, f"{what}: mean {mean:.0f}, p95 {high:.0f} (200), later {late:.1%}")
    limits.check(false <= 0.02, f"{false:.1%} stopped without more errors (2 %)")
    limits.check(p_value > 0.01, f"chi-square of the split: p = {p_value:.2f} (0.01)")
    limits.check(broken <= 0.01, f"{broken:.1%} of right splits called broken (1 %)")
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
