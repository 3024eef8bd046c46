"""How often the joint model's intervals hold the truth: simulated worlds and halved real votes.

Worlds: 900 comparisons, completions shared by six comparisons or by none, 2 to 5 votes each by
annotators of whom half cast two votes or fewer, with discriminations N(1.5, 0.5). Where tastes
differ, each vote also feels a taste of its own, N(0, 0.7) on the difference.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

from benchmarks.measurement import Limits, print_table
from rlhf_pipeline.votes import JointModel, joint_model
from tests.unit.votes.simulated import Simulated, comparisons_of, votes_of

Floats = npt.NDArray[np.float64]

TYPICAL, SPREAD = 1.5, 0.5  # discrimination
TASTES = 0.7
CELLS = [(k, n) for k in (4, 2) for n in (2, 3, 4, 5)]  # completions a prompt, votes a comparison
N_COMPARISONS = 900
COVERAGE = (0.92, 0.98)
LIMITS = dict.fromkeys(("reliability", "utility", "p_a"), COVERAGE) | {
    "of_frequent": (0.90, 0.98)  # a few dozen a world
}
SLOPE = (0.95, 1.05)
LEAST_WITH_TASTES = 0.88
HALVINGS, LEAST_VOTES, LEAST_HALVED = 20, 20, 0.93


def sparse_world(seed: int, completions: int, votes_each: int, tastes: float) -> Simulated:
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(completions, 1)
    n_prompts = N_COMPARISONS // len(first)
    utilities = rng.normal(0, np.sqrt(0.5), (n_prompts, completions))
    d = (utilities[:, first] - utilities[:, second]).ravel()
    prompt = np.repeat(np.arange(n_prompts), len(first))
    n_annotators = len(d) * votes_each // 5
    activity = 1 / (1 + np.arange(n_annotators))
    activity /= activity.sum()
    c = np.repeat(np.arange(len(d)), votes_each)
    j = np.concatenate([rng.choice(n_annotators, votes_each, replace=False, p=activity) for _ in d])
    discrimination = rng.normal(TYPICAL, SPREAD, n_annotators)
    own = d[c] + (rng.normal(0, tastes, len(c)) if tastes else 0.0)
    felt = discrimination[j] * own + rng.logistic(size=len(c))
    choice = np.where(np.abs(felt) < 0.3, "tie", np.where(felt > 0, "a", "b"))
    return Simulated(
        votes_of(c, j, choice, prompt=prompt[c]),
        comparisons_of(prompt, np.tile(first, n_prompts), np.tile(second, n_prompts)),
        d,
        discrimination,
        np.zeros(n_annotators),
        np.zeros(n_annotators, dtype=bool),
    )


def coverage(limits: Limits, n_worlds: int) -> None:
    """Both tables of simulated worlds, `n_worlds` in each cell."""
    for tastes, title in ((0.0, "Sparse worlds"), (TASTES, "Sparse worlds where tastes differ")):
        rows = []
        for completions, votes_each in CELLS:
            is_shared = completions > 2
            found = pd.DataFrame(
                [
                    _measure(sparse_world(seed, completions, votes_each, tastes), is_shared, tastes)
                    for seed in range(n_worlds)
                ]
            ).mean()
            name = f"{votes_each} votes, completions {'shared' if is_shared else 'apart'}"
            rows.append((name, *(f"{found[column]:.3f}" for column in COLUMNS)))
            if tastes:
                limits.check(
                    found["p_a"] >= LEAST_WITH_TASTES,
                    f"{name}, tastes differ: p_a held in {found['p_a']:.3f}, "
                    f"at least {LEAST_WITH_TASTES}",
                )
                continue
            for column, (low, high) in LIMITS.items():
                limits.check(
                    low <= found[column] <= high,
                    f"{name}: {column} held in {found[column]:.3f}, {low} to {high}",
                )
            low, high = SLOPE
            limits.check(
                low <= found["slope"] <= high,
                f"{name}: slope of true on fitted utility {found['slope']:.3f}, {low} to {high}",
            )
        print_table(
            f"{title}: share of 95 % intervals that hold the truth, {n_worlds} worlds each",
            ("world", *COLUMNS.values()),
            rows,
        )


COLUMNS = {
    "reliability": "reliability",
    "of_frequent": "of annotators with 20 votes or more",
    "utility": "utility",
    "p_a": "p_a",
    "slope": "slope of true on fitted utility",
    "discrimination": f"typical discrimination ({TYPICAL})",
}


def _measure(truth: Simulated, is_shared: bool, tastes: float) -> dict[str, float]:
    model = joint_model(truth.votes, truth.comparisons if is_shared else None)
    labels, annotators = model.labels, model.annotators
    d = truth.d[labels["comparison_id"].str.removeprefix("c").astype(int)]
    named = annotators["annotator_id"].str.removeprefix("ann").astype(int)
    holds = _holds(annotators, "reliability", _reliability(truth.discrimination[named]))
    frequent = annotators["n_votes"] >= LEAST_VOTES
    nodes, weights = np.polynomial.hermite_e.hermegauss(31)
    felt = TYPICAL * (d[:, None] + tastes * nodes)
    p_a = (expit(felt) * (weights / weights.sum())).sum(axis=1)
    return {
        "reliability": holds.mean(),
        "of_frequent": holds[frequent].mean(),
        "utility": float((np.abs(labels["utility"] - d) <= 1.96 * labels["sd"]).mean()),
        "p_a": float(((labels["p_low"] <= p_a) & (p_a <= labels["p_high"])).mean()),
        "slope": float(np.polyfit(labels["utility"], d, 1)[0]),
        "discrimination": model.discrimination,
    }


def _holds(frame: pd.DataFrame, name: str, truth: Floats) -> "pd.Series[bool]":
    return frame[f"{name}_low"].le(truth) & frame[f"{name}_high"].ge(truth)


def _reliability(discrimination: Floats) -> Floats:
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    return np.asarray((weights / weights.sum()) @ expit(np.abs(nodes)[:, None] * discrimination))


def halve_real_votes(limits: Limits, votes: pd.DataFrame, comparisons: pd.DataFrame) -> None:
    """Random halves of each frequent annotator's votes as two annotators of one fit: how often
    their reliabilities differ by no more than their standard errors allow.
    """
    counts = votes["annotator_id"].map(votes["annotator_id"].value_counts())
    frequent = counts.ge(LEAST_VOTES).to_numpy()
    inside: list[float] = []
    for seed in range(HALVINGS):
        rng = np.random.default_rng(seed)
        half = np.where(frequent, np.where(rng.random(len(votes)) < 0.5, ":1", ":2"), "")
        model = joint_model(votes.assign(annotator_id=votes["annotator_id"] + half), comparisons)
        inside.append(_agreement_of_halves(model))
    share = float(np.mean(inside))
    limits.check(
        share >= LEAST_HALVED,
        f"real annotators with {LEAST_VOTES} votes or more, {HALVINGS} halvings: reliabilities "
        f"agree in {share:.3f} [{min(inside):.3f}, {max(inside):.3f}], at least {LEAST_HALVED}",
    )


def _agreement_of_halves(model: JointModel) -> float:
    halves = model.annotators.assign(
        sd=lambda f: (f["reliability_high"] - f["reliability_low"]) / (2 * 1.96)
    ).set_index("annotator_id")[["reliability", "sd"]]
    one = halves[halves.index.str.endswith(":1")].rename(index=lambda name: name[:-2])
    two = halves[halves.index.str.endswith(":2")].rename(index=lambda name: name[:-2])
    both = one.join(two, lsuffix="_1", rsuffix="_2", how="inner")
    gap = (both["reliability_1"] - both["reliability_2"]).abs()
    return float((gap <= 1.96 * np.hypot(both["sd_1"], both["sd_2"])).mean())
