"""Simulated people whose taste is known: reward models learnt from their votes, on prompts never
seen, beside the best anybody could do.

    python benchmarks/bench_simulated.py

The worlds' parameters stand in benchmarks/simulation.yaml, whose hash is printed and pinned by a
test. In the first world noise is set so that one who knows the taste predicts 90 % of single votes.
From raw votes to a calibrated model there is the annotator model, pairs, embeddings, an ensemble
and its calibrator; once with a cold cache, then with a warm one, on two cores. Needs no data and no
key. Soft labels rest on no vote of the test split, which is opened twice for each model, on record.
"""

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import silence_telemetry  # noqa: E402

silence_telemetry()
# Threads that wait actively take the cores from whoever else wants them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, StageTimes, pin_to_cores, print_table  # noqa: E402
from benchmarks.opening_log import OpeningLog, add_registry_option  # noqa: E402
from benchmarks.simulation import RewardModelWorld, read_simulation, simulation_hash  # noqa: E402
from rlhf_pipeline.calibration import fit_calibrator  # noqa: E402
from rlhf_pipeline.calibration.metrics import ece_debiased  # noqa: E402
from rlhf_pipeline.frames import COMPARISONS, VOTES, check_frame  # noqa: E402
from rlhf_pipeline.policy.corpus import style_sentences  # noqa: E402
from rlhf_pipeline.prompts import PromptParams, generate  # noqa: E402
from rlhf_pipeline.records import content_id  # noqa: E402
from rlhf_pipeline.reward_model import (  # noqa: E402
    EmbeddingCache,
    EmbeddingRewardModel,
    Encoder,
    FittedRewardModel,
    LearningData,
    disagreement,
    fit_reward_model,
    preference_probability,
    reward_model_params,
)
from rlhf_pipeline.reward_model.embedding import EmbeddingParams  # noqa: E402
from rlhf_pipeline.reward_model.evaluation import (  # noqa: E402
    MarginEffect,
    measure_margin_effect,
)
from rlhf_pipeline.reward_model.report import TestAccuracy  # noqa: E402
from rlhf_pipeline.simulation import (  # noqa: E402
    WARM_TASTE,
    AnnotatorPool,
    cast_votes,
    side_utilities,
    true_ceiling,
)
from rlhf_pipeline.votes import open_test_split, preference_pairs, training_labels  # noqa: E402

BAR_ACCURACY = 0.80
BAR_OF_CEILING = 0.95
BAR_AUROC = 0.6
BAR_COLD = 15 * 60
BAR_WARM = 60
CORES = 2
MARGIN_SCALES = (0.5, 1.0, 3.0)
DAY, START = "2026-01-01", datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass
class Case:
    """A world's comparisons with the truth that nobody who learns sees."""

    world: RewardModelWorld
    comparisons: pd.DataFrame
    references: dict[str, str | None]
    advantage: Floats  # true utility of a less that of b
    pool: AnnotatorPool
    ceiling: float

    @classmethod
    def of(cls, world: RewardModelWorld) -> "Case":
        comparisons, references = make_comparisons(world.n_comparisons, world.texts_seed)
        utility_a, utility_b = side_utilities(comparisons, references, WARM_TASTE)

        def ceiling_at(pool: AnnotatorPool) -> float:
            return true_ceiling(
                utility_a - utility_b, pool, votes_per_comparison=world.votes_per_comparison
            ).one_vote

        pool = noise_for(ceiling_at, world.ceiling)
        return cls(world, comparisons, references, utility_a - utility_b, pool, ceiling_at(pool))

    def votes(self, seed: int) -> pd.DataFrame:
        """VOTES of the world, in order of time."""
        cast = cast_votes(
            self.comparisons,
            self.references,
            WARM_TASTE,
            self.pool,
            day=DAY,
            start=START,
            seed=seed,
            votes_per_comparison=self.world.votes_per_comparison,
        )
        prompt_of = dict(
            zip(self.comparisons["comparison_id"], self.comparisons["prompt_id"], strict=True)
        )
        kept = {"comparison_id", "annotator_id", "annotator_kind", "choice", "strength", "voted_at"}
        frame = pd.DataFrame([vote.model_dump(include=kept) for vote in cast])
        n = range(1, len(frame) + 1)
        more = {
            "day": DAY,
            "seq": n,
            "vote_id": [f"v{i}" for i in n],
            "repeat_of": None,
            "received_at": frame["voted_at"],
        }
        return check_frame(
            frame.assign(prompt_id=frame["comparison_id"].map(prompt_of), **more), VOTES
        )


def make_comparisons(n: int, seed: int) -> tuple[pd.DataFrame, dict[str, str | None]]:
    """One comparison per prompt of two completions in random style, right or wrong; and the
    prompts' references.
    """
    rng = np.random.default_rng(seed)
    prompts = generate(PromptParams(n=n), day=DAY)
    references = {
        p: None if pd.isna(r) else r
        for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)
    }
    styles = [*(list(sentences) for sentences in style_sentences().values()), [""], [""]]

    def completion(reference: str | None) -> str:
        body = (
            f"It is {reference}."
            if reference and rng.random() < 0.7
            else f"It is {rng.integers(100)}."
        )
        before, after = (str(rng.choice(styles[rng.integers(len(styles))])) for _ in range(2))
        return " ".join(part for part in (before, body, after) if part)

    frame = pd.DataFrame(
        {
            "prompt_id": prompts["prompt_id"],
            "prompt": prompts["text"],
            "category": prompts["category"],
        }
    )
    for side in "ab":
        frame[f"completion_{side}"] = [completion(references[p]) for p in frame["prompt_id"]]
        frame[f"completion_{side}_id"] = [content_id(p, side) for p in frame["prompt_id"]]
        frame[f"model_version_{side}"] = "simulated@1"
    ids = [content_id("c", p) for p in frame["prompt_id"]]
    return check_frame(
        frame.assign(
            comparison_id=ids, day=DAY, repeat_of=None, position=range(len(frame)), seed=seed
        ),
        COMPARISONS,
    ), references


def noise_for(ceiling_at: Callable[[AnnotatorPool], float], ceiling: float) -> AnnotatorPool:
    """Annotators of whose votes nobody predicts more than `ceiling`, by bisection of their
    noise.
    """
    low, high = 0.01, 5.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if ceiling_at(AnnotatorPool(noise=middle, fatigue=0.0)) > ceiling
            else (low, middle)
        )
    return AnnotatorPool(noise=low, fatigue=0.0)


@dataclass
class Learnt:
    """A model from one seed's votes, and how it does on test pairs."""

    fitted: FittedRewardModel
    n_pairs: int
    method: str
    auroc: float
    auroc_of_truth: float
    ece: float
    member_eces: list[float]

    @property
    def test(self) -> TestAccuracy:
        assert self.fitted.report.test is not None
        return self.fitted.report.test


def learn(
    case: Case, votes: pd.DataFrame, cache: Path, spent: StageTimes, label: str, looks: OpeningLog
) -> Learnt:
    """From raw votes to a calibrated ensemble, timed; then its disagreement and calibration on test
    pairs.
    """
    with spent.stage("annotator model"):
        labels = training_labels(votes, case.comparisons)
    with spent.stage("pairs"):
        pairs = preference_pairs(votes, case.comparisons)
    with spent.stage("embed, fit and judge"):
        params = reward_model_params(
            n_members=case.world.n_members,
            label=label,  # type: ignore[arg-type]
        )
        fitted = fit_reward_model(
            LearningData(pairs, soft_labels=labels),
            params,
            encoder=Encoder(cache=EmbeddingCache(cache)),
            record=looks.record,
        )
    with spent.stage("calibrate"):
        calibrator, _ = fit_calibrator(pairs[pairs["split"] == "calib"], fitted.model)
    return Learnt(fitted, len(pairs), calibrator.name, *_disagreement(case, fitted, pairs, looks))


def _disagreement(
    case: Case, fitted: FittedRewardModel, pairs: pd.DataFrame, looks: OpeningLog
) -> tuple[float, float, float, list[float]]:
    """AUROC of the members' disagreement for errors against the majority, and against the truth;
    ECE of the ensemble and of each member.
    """
    from sklearn.metrics import roc_auc_score

    test = open_test_split(
        pairs[pairs["agreement"] > 0.5],
        model=fitted.model.weights_hash,
        purpose="disagreement and calibration of an ensemble, simulated",
        record=looks.record,
    )
    prompts, n = test["prompt"].tolist(), len(test)
    both = fitted.model.member_scores([*prompts, *prompts], [*test["chosen"], *test["rejected"]])
    margins = both[:, :n] - both[:, n:]
    apart = disagreement(fitted.model, prompts, test["chosen"].tolist(), test["rejected"].tolist())
    advantage = (
        test["comparison_id"]
        .map(dict(zip(case.comparisons["comparison_id"], case.advantage, strict=True)))
        .to_numpy()
    )
    toward_chosen = np.where(test["chosen_side"] == "a", advantage, -advantage)
    mean = margins.mean(axis=0)
    p = preference_probability(mean)
    outcome = test["agreement"].to_numpy()
    weights = test["n_votes"].to_numpy()
    members = [
        ece_debiased(preference_probability(member), outcome, weights=weights) for member in margins
    ]
    return (
        float(roc_auc_score(mean <= 0, apart)),
        float(roc_auc_score((mean > 0) != (toward_chosen > 0), apart)),
        ece_debiased(p, outcome, weights=weights),
        members,
    )


def format_spread(values: list[float]) -> str:
    return f"{np.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def world(
    name: str, which: RewardModelWorld, cache: Path, limits: Limits, looks: OpeningLog
) -> StageTimes:
    """Every seed with both labels; the cache is cold for the first. What that one spent is given
    back.
    """
    case, first = Case.of(which), StageTimes()
    found: dict[str, list[Learnt]] = {}
    for label in ("votes", "annotators"):
        found[label] = [
            learn(
                case,
                case.votes(seed),
                cache,
                first if (label, seed) == ("votes", which.vote_seeds[0]) else StageTimes(),
                label,
                looks,
            )
            for seed in which.vote_seeds
        ]
    rows = [
        (
            label,
            format_spread([float(one.n_pairs) for one in learnt]).replace(".000", ""),
            format_spread([one.test.vote_accuracy.value for one in learnt]),
            f"{case.ceiling:.3f}",
            format_spread([one.test.longer_wins.value for one in learnt]),
            format_spread([one.auroc for one in learnt]),
            format_spread([one.auroc_of_truth for one in learnt]),
            format_spread([one.ece for one in learnt]),
            format_spread([float(np.mean(one.member_eces)) for one in learnt]),
        )
        for label, learnt in found.items()
    ]
    print_table(
        f"{name}: noise {case.pool.noise:.3f}, {which.votes_per_comparison} votes a comparison, "
        f"{which.n_members} members, {len(which.vote_seeds)} seeds of votes (median and range); "
        f"parameters {simulation_hash()[:12]}",
        (
            "label",
            "pairs",
            "votes predicted",
            "ceiling",
            "longer wins",
            "AUROC of errors",
            "of the truth",
            "ECE",
            "members' mean ECE",
        ),
        rows,
    )
    learnt = found["votes"]
    print(
        f"One seed with its interval: {learnt[0].test.vote_accuracy} of votes, {learnt[0].test.n} "
        f"test pairs; calibrated by {learnt[0].method}"
    )
    accuracy = float(np.median([one.test.vote_accuracy.value for one in learnt]))
    limits.check(
        accuracy >= BAR_OF_CEILING * case.ceiling,
        f"{name}: {accuracy:.3f} of votes predicted, {accuracy / case.ceiling:.3f} of the ceiling "
        f"{case.ceiling:.3f}, limit {BAR_OF_CEILING}",
    )
    if which.ceiling >= 0.9:
        limits.check(
            accuracy >= BAR_ACCURACY,
            f"{name}: {accuracy:.3f} of votes predicted, at least {BAR_ACCURACY} wanted",
        )
    auroc = float(np.median([one.auroc for one in learnt]))
    limits.check(
        auroc > BAR_AUROC,
        f"{name}: disagreement ranks errors against the majority with AUROC {auroc:.3f}, more than "
        f"{BAR_AUROC} wanted",
    )
    gaps = [one.ece - float(np.mean(one.member_eces)) for one in learnt]
    limits.check(
        np.median(gaps) <= 0,
        f"{name}: ECE of the ensemble less the mean of its members' {format_spread(gaps)}, "
        "at most 0 wanted",
    )
    return first


def strength(which: RewardModelWorld, cache: Path) -> None:
    """What strength as a margin does to votes predicted on training prompts left out in turn. No
    limit: whether it helps is what is asked.
    """
    case, encoder = Case.of(which), Encoder(cache=EmbeddingCache(cache))
    effects: dict[float, list[MarginEffect]] = {scale: [] for scale in MARGIN_SCALES}
    for seed in which.vote_seeds:
        pairs = preference_pairs(case.votes(seed), case.comparisons)
        train = pairs[pairs["split"] == "train"].reset_index(drop=True)
        for scale, found in effects.items():
            effect = measure_margin_effect(
                train,
                EmbeddingRewardModel(EmbeddingParams(loss="margin", margin_scale=scale), encoder),
            )
            assert effect is not None
            found.append(effect)
    rows = [
        (
            f"{scale:g}",
            format_spread([one.with_margin.value for one in found]),
            format_spread([one.without.value for one in found]),
            "; ".join(
                f"{100 * one.gain.value:+.2f} [{100 * one.gain.low:+.2f}, "
                f"{100 * one.gain.high:+.2f}]"
                for one in found
            ),
        )
        for scale, found in effects.items()
    ]
    n = effects[MARGIN_SCALES[0]][0].n
    print_table(
        f"Strength as a margin: votes predicted on left-out prompts of {n} training pairs, ceiling "
        f"{case.ceiling:.3f}",
        ("margin_scale", "with", "without (its ceiling above)", "points gained, by seed"),
        rows,
    )


def timed(
    which: RewardModelWorld,
    cache: Path,
    cold: StageTimes,
    limits: Limits,
    looks: OpeningLog,
    cores: str,
) -> None:
    case, warm = Case.of(which), StageTimes()
    votes = case.votes(which.vote_seeds[0])
    learn(case, votes, cache, warm, "votes", looks)
    rows = [
        (stage, *(f"{value:.1f}" for spent in (cold, warm) for value in spent.stages[stage]))
        for stage in cold.stages
    ]
    print_table(
        f"From {len(votes)} raw votes to a calibrated ensemble, seconds ({cores}, load "
        f"{os.getloadavg()[0]:.1f})",
        ("stage", "cold: wall", "CPU", "warm: wall", "CPU"),
        rows,
    )
    for name, spent, limit in (("cold", cold, BAR_COLD), ("warm", warm, BAR_WARM)):
        wall, cpu = spent.total
        limits.check(
            wall < limit,
            f"{name} cache: {wall:.0f} s ({cpu:.0f} s of CPU) on {cores}, limit {limit} s",
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_registry_option(parser)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    simulation = read_simulation()
    limits = Limits()
    looks = OpeningLog(given.registry)
    with tempfile.TemporaryDirectory() as folder:
        with pin_to_cores(CORES) as cores:
            cold = world(
                "One vote", simulation.reward_model, Path(folder) / "one_vote", limits, looks
            )
            timed(simulation.reward_model, Path(folder) / "one_vote", cold, limits, looks, cores)
        world("Five votes", simulation.overlap, Path(folder) / "five_votes", limits, looks)
        strength(simulation.overlap, Path(folder) / "five_votes")
    looks.print_openings()
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
