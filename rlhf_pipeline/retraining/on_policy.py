"""Trains a candidate further on its own completions, best against worst, in bounded rounds.

Pairs of the champion teach a candidate what to leave, its own completions what to do next (Guo et
al. 2024). A reward model is right near what people voted on, so each round is bounded by the
divergence from the champion, and pairs on which its members disagree are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.errors import StoppedBySentinel
from rlhf_pipeline.evaluation import CompletionJudge
from rlhf_pipeline.evaluation.divergence import kl_per_token
from rlhf_pipeline.frames import RETRAINING_SET, check_frame
from rlhf_pipeline.parameters import Parameters
from rlhf_pipeline.policy.causal_lm import Policy, load_policy
from rlhf_pipeline.prompts.references import is_right
from rlhf_pipeline.records import content_hash, content_id
from rlhf_pipeline.retraining.candidates import TrainingReport
from rlhf_pipeline.retraining.training import TrainingParams
from rlhf_pipeline.reward_model.base import preference_probability

Curve = tuple[tuple[int, float], ...]  # (optimiser step, value)
MIN_PAIRS = 20  # fewer give no round: most samples were alike, or the members disagreed


class OnPolicyParams(Parameters):
    """Rounds in which the candidate learns from its own completions."""

    on_policy_rounds: int = Field(
        0,
        description="Rounds of further training on the candidate's own completions, the best "
        "against the worst by the reward model",
        ge=0,
        le=10,
    )
    on_policy_prompts: int = Field(
        300, description="Prompts of the retraining set that a round samples from", ge=1
    )
    on_policy_samples: int = Field(
        4, description="Completions of each of those prompts", ge=2, le=64
    )
    on_policy_tokens: int = Field(
        48, description="Most tokens of each of those completions", ge=1, le=8192
    )
    max_kl: float = Field(
        0.5,
        description="Nats per token from the champion; a round that ends beyond is discarded, and "
        "the candidate is that before it",
        gt=0,
    )
    max_disagreement: float = Field(
        0.2,
        description="Standard deviation of the members' probabilities from which a pair is left "
        "out",
        gt=0,
        le=0.5,
    )


@dataclass(frozen=True)
class Round:
    """One round: its rows, the divergence at its end, and why it was discarded, if it was."""

    rows: pd.DataFrame
    kl: float | None = None
    report: TrainingReport | None = None
    discarded: str = ""


def train_rounds(
    first: Path,
    champion: Path,
    retraining_set: pd.DataFrame,
    judge: CompletionJudge,
    params: OnPolicyParams,
    train: Callable[[Path, pd.DataFrame, Path], TrainingReport],
    *,
    references: Mapping[str, str],
    training: TrainingParams,
) -> tuple[Path, list[Round]]:
    """Run the rounds from the candidate in folder `first`; return the last good candidate's folder
    and every round.

    `train` trains the policy of a folder on rows into another folder; completions are sampled on
    the device of `training`, with its seed. Round folders lie beside `first`, and a round that was
    done is not repeated. A round that a sentinel stops before its first checkpoint is discarded.
    """
    load = partial(load_policy, device=training.device, dtype=training.dtype)
    current = first
    rounds: list[Round] = []
    known = retraining_set[["prompt_id", "prompt", "day"]].drop_duplicates("prompt_id")
    known = known.sort_values("prompt_id")
    for number in range(1, params.on_policy_rounds + 1):
        policy = load(current)
        drawn = int(content_hash("on-policy", training.seed, number)[:8], 16)
        prompts = _sample_prompts(policy, known, params, drawn)
        rows = draw_pairs(policy, prompts, judge, params, references, drawn)
        if len(rows) < MIN_PAIRS:
            why = (
                f"{len(rows)} pairs with a clear best and worst, of {len(prompts)} prompts that "
                f"leave room for on_policy_tokens; {MIN_PAIRS} are needed."
            )
            return current, [*rounds, Round(rows, discarded=why)]
        folder = first.parent / f"round-{number}"
        try:
            report = train(current, rows, folder)
        except StoppedBySentinel as cause:  # nothing of the round is from before the harm
            return current, [*rounds, Round(rows, discarded=str(cause))]
        kl = _measure_kl(
            load(folder / "model"),
            load(champion),
            prompts["prompt"].tolist(),
            drawn,
            params.on_policy_tokens,
        )
        if kl > params.max_kl:
            why = f"KL {kl:.2f} nats per token from the champion, at most {params.max_kl:g}."
            return current, [*rounds, Round(rows, kl, report, why)]
        rounds.append(Round(rows, kl, report))
        current = folder / "model"
    return current, rounds


def _sample_prompts(
    policy: Policy, known: pd.DataFrame, params: OnPolicyParams, seed: int
) -> pd.DataFrame:
    """At most `on_policy_prompts` of those that leave room for a completion."""
    longest = policy.context_length - params.on_policy_tokens
    fitting = known[[policy.count_prompt_tokens(text) <= longest for text in known["prompt"]]]
    return fitting.sample(min(len(fitting), params.on_policy_prompts), random_state=seed)


def draw_pairs(
    policy: Policy,
    prompts: pd.DataFrame,
    judge: CompletionJudge,
    params: OnPolicyParams,
    references: Mapping[str, str],
    seed: int,
) -> pd.DataFrame:
    """RETRAINING_SET of origin on_policy: per prompt the best completion against the worst.

    A wrong answer is never preferred to a right one: among right and wrong ones, the best right one
    is chosen. Left out are pairs of equal texts and those on which the members disagree.
    """
    if prompts.empty:
        return RETRAINING_SET.empty_frame()
    k = params.on_policy_samples
    repeated = prompts.loc[prompts.index.repeat(k)].reset_index(drop=True)
    made = policy.generate(
        repeated["prompt"].tolist(),
        temperature=1.0,
        seeds=[seed + i for i in range(len(repeated))],
        max_new_tokens=params.on_policy_tokens,
    )
    texts = [one.text for one in made]
    members = judge.reward_model.member_scores(repeated["prompt"].tolist(), texts)
    scores, rows = members.mean(axis=0), []
    for i, one in enumerate(prompts.itertuples()):
        of_prompt = np.arange(i * k, (i + 1) * k)
        reference = references.get(one.prompt_id)
        ranked = sorted(
            of_prompt,
            key=lambda j: (reference is not None and is_right(reference, texts[j]), scores[j]),
        )
        worst, best = ranked[0], ranked[-1]
        p = preference_probability(members[:, best] - members[:, worst])
        if texts[best] == texts[worst] or p.std() > params.max_disagreement or p.mean() <= 0.5:
            continue
        mean = float(p.mean())
        rows.append(
            {
                "comparison_id": content_id("on-policy", one.prompt_id, texts[best], texts[worst]),
                "prompt_id": one.prompt_id,
                "prompt": one.prompt,
                "chosen": texts[best],
                "rejected": texts[worst],
                "margin": 2 * mean - 1,
                "weight": 1.0,
                "origin": "on_policy",
                "information": 2 * (1 - mean),
                "difficulty": 2 * (1 - mean),
                "reason": f"best against worst of {k} completions of the candidate, reward model "
                f"gives {mean:.2f} to the best",
                "split": "train",
                "day": one.day,
            }
        )
    if not rows:
        return RETRAINING_SET.empty_frame()
    return check_frame(pd.DataFrame(rows), RETRAINING_SET)


def _measure_kl(
    candidate: Policy, champion: Policy, prompts: list[str], seed: int, max_new_tokens: int
) -> float:
    made = candidate.generate(
        prompts,
        temperature=1.0,
        seeds=[seed + i for i in range(len(prompts))],
        max_new_tokens=max_new_tokens,
    )
    return float(kl_per_token(candidate, champion, prompts, [one.text for one in made]).mean())


def describe_rounds(rounds: Sequence[Round]) -> dict[str, float]:
    """Figures for the candidate's record; none without rounds."""
    if not rounds:
        return {}
    kept = [each for each in rounds if not each.discarded]
    figures = {
        "on_policy_rounds": float(len(kept)),
        "on_policy_pairs": float(sum(len(each.rows) for each in kept)),
    }
    return figures | ({"on_policy_kl": kept[-1].kl} if kept and kept[-1].kl is not None else {})


def add_rounds(report: TrainingReport, rounds: Sequence[Round]) -> TrainingReport:
    """The report of a candidate's first training with its rounds: time of all, and warnings, steps
    and curves of those that were kept, one after the other. Metrics are those of the last kept.
    """
    kept = [one.report for one in rounds if one.report is not None and not one.discarded]
    n_steps, warnings = report.n_steps, list(report.warnings)
    loss_curve, curves = report.loss_curve, dict(report.curves)
    for number, each in enumerate(kept, start=1):
        loss_curve += _shift(each.loss_curve, n_steps)
        for label, curve in each.curves.items():
            curves[label] = curves.get(label, ()) + _shift(curve, n_steps)
        warnings += [f"On-policy round {number}: {text}" for text in each.warnings]
        n_steps += each.n_steps
    return report.model_copy(
        update={
            "content_hash": kept[-1].content_hash if kept else report.content_hash,
            "metrics": kept[-1].metrics if kept else report.metrics,
            "n_steps": n_steps,
            "seconds": report.seconds + sum(one.report.seconds for one in rounds if one.report),
            "loss_curve": loss_curve,
            "curves": curves,
            "warnings": tuple(warnings),
        }
    )


def _shift(curve: Curve, n_steps: int) -> Curve:
    return tuple((step + n_steps, value) for step, value in curve)


def list_discarded(rounds: Sequence[Round]) -> list[str]:
    """A warning for each round that was discarded."""
    return [f"On-policy round discarded: {one.discarded}" for one in rounds if one.discarded]
