"""Worlds in which people's taste changes, and what one retraining makes of a policy in each.

What bench_recovery.py measures. All worlds draw their comparisons from one pool of completions of
the embedded policy, so that a world costs no more than its votes, fits and trainings.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measurement import open_fresh_store
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.core.intervals import interval_of_mean
from rlhf_pipeline.core.records import Interval, ModelVersion
from rlhf_pipeline.feedback.votes import TasteChanges, make_pairs
from rlhf_pipeline.generate.comparisons import PairingParams, pair_completions
from rlhf_pipeline.generate.completions import CompletionParams, LocalBackend
from rlhf_pipeline.generate.completions import generate as complete_prompts
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.generate.prompts import PromptParams, generate
from rlhf_pipeline.improve.evaluation import CompletionJudge, frozen_prompt_ids, frozen_prompts
from rlhf_pipeline.improve.evaluation.win_rate import grade_answers
from rlhf_pipeline.improve.retraining.hard_negatives import add_hard_negatives
from rlhf_pipeline.improve.retraining.selection import SelectionParams, select_pairs
from rlhf_pipeline.improve.retraining.vote_halves import VoteHalves, label_reserved, score_pairs
from rlhf_pipeline.learn.calibration import fit_calibrator
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.reward_model import Encoder, LearningData, fit_reward_model
from rlhf_pipeline.simulation import (
    SOURCED_TASTE,
    WARM_TASTE,
    AnnotatorPool,
    Taste,
    simulate_votes,
    utility,
)

BEFORE, AFTER = "2026-01-01", "2026-01-02"
POOL_PROMPTS = 700
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class CompletedPool:
    """Prompts and their completions, four each, by the embedded policy."""

    prompts: pd.DataFrame
    completions: pd.DataFrame

    @classmethod
    def generate(cls, policy_folder: Path, seed: int = 0) -> "CompletedPool":
        prompts = generate(
            PromptParams(n=POOL_PROMPTS, seed=seed),
            day=BEFORE,
            exclude=frozen_prompt_ids(frozen_prompts()),
        )
        with open_fresh_store() as store:
            completions = complete_prompts(
                prompts,
                LocalBackend(policy_folder, model_version="bench@1"),
                CompletionParams(seed=seed),
                ledger=store.generation,
            ).frame
        return cls(prompts, completions)


@dataclass(frozen=True)
class RecoveryWorld:
    """A change of taste: its tastes, people and sizes, all drawn from `seed`."""

    seed: int
    before: Taste
    after: Taste
    people: AnnotatorPool
    n_before: int
    n_after: int
    votes_per_comparison: int

    @classmethod
    def draw(cls, seed: int) -> "RecoveryWorld":
        rng = np.random.default_rng([22, seed])
        shared = {
            "correct": rng.uniform(0.1, 0.5),
            "rambling": rng.uniform(-1.2, -0.4),
            "length": rng.uniform(-0.3, 0.1),
            "empty": -4.0,
        }
        liked, disliked = ("warmth", "sourcing") if rng.random() < 0.5 else ("sourcing", "warmth")

        def taste(name: str, like: str, dislike: str) -> Taste:
            own = {like: rng.uniform(0.6, 1.5), dislike: rng.uniform(-1.5, 0.0)}
            return Taste(name=name, weights=shared | own)

        return cls(
            seed,
            taste("before", liked, disliked),
            taste("after", disliked, liked),
            AnnotatorPool(
                n=int(rng.integers(6, 13)), seed=seed, noise=float(rng.uniform(0.3, 1.0))
            ),
            n_before=int(rng.integers(200, 501)),
            n_after=int(rng.integers(80, 161)),
            votes_per_comparison=int(rng.integers(1, 4)),
        )

    @classmethod
    def of_demo(cls, seed: int) -> "RecoveryWorld":
        """The demo's tastes and annotators; 500 prompts before the change, 100 after it."""
        return cls(seed, WARM_TASTE, SOURCED_TASTE, AnnotatorPool(n=12, seed=seed), 500, 100, 3)


@dataclass(frozen=True)
class VotedWorld:
    """A world with its votes: what a retraining learns from, and the truth beside it."""

    world: RecoveryWorld
    prompts: pd.DataFrame
    pairs: pd.DataFrame
    change: TasteChanges

    @classmethod
    def vote(cls, world: RecoveryWorld, pool: CompletedPool) -> "VotedWorld":
        order = np.random.default_rng([7, world.seed]).permutation(len(pool.prompts))
        parts = {
            BEFORE: order[: world.n_before],
            AFTER: order[world.n_before : world.n_before + world.n_after],
        }
        references = _references(pool.prompts)
        frames, votes = [], []
        for day, rows in parts.items():
            prompts = pool.prompts.iloc[rows].assign(day=day)
            completions = pool.completions[pool.completions["prompt_id"].isin(prompts["prompt_id"])]
            compared = pair_completions(
                prompts,
                completions.assign(day=day),
                PairingParams(repeat_share=0.0, seed=world.seed),
                day=day,
            )
            frames.append(compared)
            votes += simulate_votes(
                compared,
                references,
                world.before if day == BEFORE else world.after,
                world.people,
                day=day,
                votes_per_comparison=world.votes_per_comparison,
                seed=world.seed,
                start=datetime.fromisoformat(day).replace(tzinfo=UTC),
            )
        comparisons = pd.concat(frames, ignore_index=True)
        prompt_of = comparisons.set_index("comparison_id")["prompt_id"]
        columns = {
            "comparison_id",
            "annotator_id",
            "annotator_kind",
            "choice",
            "strength",
            "voted_at",
        }
        log = pd.DataFrame([vote.model_dump(include=columns) for vote in votes])
        log = log.assign(
            prompt_id=log["comparison_id"].map(prompt_of),
            day=[vote.voted_at.date().isoformat() for vote in votes],
            seq=range(1, len(log) + 1),
            vote_id=[f"v{i}" for i in range(len(log))],
            repeat_of=None,
            received_at=log["voted_at"],
        )
        change = TasteChanges(int(log.loc[log["day"] == AFTER, "seq"].min()))
        pairs = make_pairs(check_frame(log, VOTES), comparisons)[0]
        return cls(world, pool.prompts.iloc[order[: world.n_before + world.n_after]], pairs, change)

    def select(
        self, params: SelectionParams, encoder: Encoder, *, by_truth: bool = False
    ) -> pd.DataFrame:
        """The retraining set as the asset makes it, or with the true label of every pair."""
        references = {p: r for p, r in _references(self.prompts).items() if r is not None}
        select = partial(
            select_pairs,
            reflections=None,
            params=params,
            taste_changes=self.change,
            references=references,
        )
        if by_truth:
            # Everything is relabelled: votes of the present taste have noise too.
            labels = {"p_chosen": self._prefers_chosen(), "is_reserved": True}
            return select(self.pairs, self.pairs[["comparison_id"]].assign(**labels))
        if params.separate_votes:
            judge = self.fit_halves(encoder).labelling
            selected = select(self.pairs, label_reserved(self.pairs, judge))
        else:
            judge, _ = self._fit(encoder)
            selected = select(self.pairs, score_pairs(self.pairs, judge))
        return add_hard_negatives(
            selected,
            self.pairs[self.pairs["split"] == "train"],
            judge,
            params.hard_negatives,
            confidence=params.relabel_confidence,
            references=references,
        )

    def fit_halves(self, encoder: Encoder) -> VoteHalves:
        """The members that label, and those that judge."""
        judge, version = self._fit(encoder)
        return VoteHalves.fit(judge, version, self.pairs)

    def _fit(self, encoder: Encoder) -> tuple[CompletionJudge, ModelVersion]:
        fitted = fit_reward_model(
            LearningData(self.pairs, taste_changes=self.change),
            encoder=encoder,
        )
        current = (self.pairs["split"] == "calib") & self.change.is_current(self.pairs)
        try:
            calibrator, _ = fit_calibrator(self.pairs[current], fitted.model)
        except NotEnoughData:
            calibrator = NoCalibration()
        version = ModelVersion(
            name="bench",
            version=1,
            kind="reward_model",
            uri="",
            content_hash=fitted.model.weights_hash,
            params={
                "taste_changes": self.change.to_json(),
                "weight_before_change": fitted.report.weight_before_change,
            },
        )
        return CompletionJudge(fitted.model, "bench@1", calibrator), version

    def _prefers_chosen(self) -> Floats:
        answers = _references(self.prompts)
        prompts = self.pairs["prompt"].tolist()
        references = [answers[prompt_id] for prompt_id in self.pairs["prompt_id"]]
        chosen, rejected = (
            utility(prompts, references, self.pairs[side].tolist(), self.world.after)
            for side in ("chosen", "rejected")
        )
        return (chosen > rejected).astype(np.float64)


def _references(prompts: pd.DataFrame) -> dict[str, str | None]:
    return {
        p: None if pd.isna(r) else r
        for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)
    }


def measure_truth(policy: Policy, taste: Taste, n_samples: int = 2) -> tuple[float, float]:
    """Mean true utility of completions of the frozen prompts, and the share of right answers."""
    prompts = frozen_prompts()
    references = [None if pd.isna(r) else r for r in prompts["reference"]]
    utilities, grades = [], []
    for sample in range(n_samples):
        completions = policy.generate(
            prompts["text"].tolist(),
            temperature=0.8,
            seeds=range(sample * len(prompts), (sample + 1) * len(prompts)),
            max_new_tokens=48,
        )
        texts = [completion.text for completion in completions]
        utilities.append(utility(prompts["text"].tolist(), references, texts, taste).mean())
        grades.append(np.nanmean(grade_answers(prompts["reference"], pd.Series(texts))))
    return float(np.mean(utilities)), float(np.mean(grades))


def draw_checkable_prompts(pool: CompletedPool, n: int, seed: int) -> pd.DataFrame:
    """`n` prompts with a reference that are not in the pool, so no vote was about them."""
    prompts = generate(
        PromptParams(n=2 * n, seed=10_000 + seed),
        day="2026-02-01",
        exclude=frozenset(pool.prompts["prompt_id"]),
    )
    return prompts[prompts["reference"].notna()].head(n)


def compare_facts(candidate: Policy, base: Policy, checkable: pd.DataFrame) -> Interval:
    """Share of right answers of the candidate less that of the base, paired, on `checkable`
    prompts.
    """
    grades = [
        grade_answers(
            checkable["reference"].reset_index(drop=True),
            pd.Series(
                [
                    completion.text
                    for completion in policy.generate(
                        checkable["text"].tolist(),
                        temperature=0.8,
                        seeds=range(len(checkable)),
                        max_new_tokens=48,
                    )
                ]
            ),
        )
        for policy in (candidate, base)
    ]
    return interval_of_mean(grades[0] - grades[1])
