"""Watches a policy while it trains, and stops the training where the policy gets worse.

A loss or a reward can improve while the policy collapses, rambles or flatters its reward model. So
every few steps the policy completes the same prompts with the same seeds, and each figure is held
against that of the parent.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import BackendUnavailable, StoppedBySentinel, TrainingFailed
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import Record, content_hash
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.evaluation.divergence import kl_and_entropy
from rlhf_pipeline.improve.evaluation.diversity import answer_diversity
from rlhf_pipeline.improve.retraining.rewards import RewardFunction, score_with_deviation

FLAT_GROUPS = "frac_reward_zero_std"  # of a batch, as TRL's online trainers log it


class SentinelParams(Parameters):
    """What sentinels measure, how often, and the limits at which they stop a training; null = no
    limit. Shares and multiples are of the parent's figure on the same prompts.
    """

    # As often as checkpoints by default: a stop between two of them keeps the same weights.
    every: int = Field(
        20, description="Optimiser steps between measurements; 0 = no sentinels", ge=0
    )
    n_prompts: int = Field(
        32, description="Prompts of the retraining set that are completed each time", ge=2, le=4096
    )
    max_kl: float | None = Field(
        0.5, description="KL to the parent policy, in nats per token", gt=0
    )
    min_entropy: float | None = Field(
        0.3, description="Entropy of the sampled tokens, as a share", gt=0, lt=1
    )
    min_diversity: float | None = Field(
        0.6, description="Share of word pairs that are distinct, as a share", gt=0, lt=1
    )
    max_length: float | None = Field(
        1.5, description="Mean length in tokens, as a multiple", gt=1, le=100
    )
    min_length: float | None = Field(
        0.5, description="Mean length in tokens, as a share", gt=0, lt=1
    )
    max_disagreement: float | None = Field(
        2.0, description="Disagreement of the reward model's members, as a multiple", gt=1, le=100
    )
    max_cut_rise: float | None = Field(
        0.3, description="Share of completions cut at the token limit, above the parent's", gt=0
    )
    max_flat_groups: float | None = Field(
        0.8,
        description="Share of the sampled groups whose completions have one reward, which teach "
        "nothing",
        gt=0,
        lt=1,
    )
    max_chosen_loss: float | None = Field(
        15.0, description="Log probability that chosen completions lose, in nats each", gt=0
    )


class Measurement(Record):
    """Figures of the policy after `step` optimiser steps, on the fixed prompts."""

    step: int
    kl: float = Field(description="nats per token from the parent, at least 0")
    entropy: float = Field(description="nats per token")
    diversity: float | None = Field(
        description="share of word pairs that are distinct, 0 to 1; None where answers are short"
    )
    length: float = Field(description="mean tokens per completion")
    cut: float = Field(description="share of completions cut at the token limit, 0 to 1")
    flat_groups: float | None = Field(
        description="share of the last sampled groups without variance in rewards; None where "
        "none is sampled"
    )
    chosen_log_p: float = Field(description="mean over chosen completions, in nats")
    reward: float | None = Field(description="mean reward; None without a reward model")
    disagreement: float | None = Field(description="mean deviation between uncalibrated members")


class SentinelStop(Record):
    """Why a training was stopped, and what remains of it."""

    sentinel: str
    value: float
    limit: float
    step: int
    kept_step: int = Field(description="step of the checkpoint whose weights are the candidate")
    advice: str

    @property
    def diagnosis(self) -> str:
        return (
            f"Sentinel {self.sentinel} stopped the training at step {self.step}: "
            f"{self.value:.3g}, limit {self.limit:.3g}. The candidate has the weights of step "
            f"{self.kept_step}. {self.advice}"
        )


LABELS = {
    "kl": "sentinel: KL to the parent",
    "entropy": "sentinel: entropy",
    "diversity": "sentinel: diversity",
    "length": "sentinel: length",
    "cut": "sentinel: cut completions",
    "flat_groups": "sentinel: groups with one reward",
    "chosen_log_p": "sentinel: log p of chosen",
    "reward": "sentinel: reward",
    "disagreement": "sentinel: disagreement",
}
ADVICE = {
    "kl": "The policy leaves the region its reward model and votes know. Raise beta or kl_penalty, "
    "or lower the learning rate or the steps.",
    "entropy": "The policy becomes certain of few completions. Raise beta or kl_penalty, or lower "
    "the learning rate.",
    "diversity": "The policy repeats itself. Raise beta or kl_penalty, or look for one phrase that "
    "the votes or the reward model prefer.",
    "length": "The policy changes the length instead of the content. Take length out of the reward "
    "model, and compare the lengths of chosen and rejected completions.",
    "cut": "Completions no longer end by themselves. Raise max_new_tokens if the parent's were "
    "short of it, or take length out of the reward model.",
    "flat_groups": "Completions of one prompt have the same reward, so that they teach nothing: "
    "the policy repeats itself, or the reward is saturated. Raise the temperature or kl_penalty, "
    "or choose harder prompts.",
    "disagreement": "The policy finds completions on which the reward model's members disagree: "
    "their reward is a guess. Collect votes on such completions, or raise kl_penalty.",
    "chosen_log_p": "Chosen completions become less likely, and mass moves to completions nobody "
    "judged. Raise beta, or lower the learning rate or the epochs.",
}


def find_violation(
    now: Measurement, start: Measurement, params: SentinelParams
) -> tuple[str, float, float] | None:
    """The first sentinel whose limit `now` breaks: its name, the value and the limit, in the unit
    of the figure. `start` is the parent's measurement.
    """
    upper = {
        "kl": (now.kl, params.max_kl),
        "length": (now.length, _times(start.length, params.max_length)),
        "cut": (now.cut, _plus(start.cut, params.max_cut_rise)),
        "flat_groups": (now.flat_groups, params.max_flat_groups),
        "disagreement": (now.disagreement, _times(start.disagreement, params.max_disagreement)),
    }
    lower = {
        "length": (now.length, _times(start.length, params.min_length)),
        "entropy": (now.entropy, _times(start.entropy, params.min_entropy)),
        "diversity": (now.diversity, _times(start.diversity, params.min_diversity)),
        "chosen_log_p": (now.chosen_log_p, _plus(start.chosen_log_p, params.max_chosen_loss, -1)),
    }
    for name, (value, limit) in upper.items():
        if value is not None and limit is not None and not value <= limit:
            return name, value, limit
    for name, (value, limit) in lower.items():
        if value is not None and limit is not None and not value >= limit:
            return name, value, limit
    return None


@dataclass
class SentinelWatch:
    """Measures one training and remembers its figures, in `log` over kills.

    `parent` is the policy before training, `rows` the pairs that it is measured
    on.
    """

    params: SentinelParams
    parent: Policy
    rows: pd.DataFrame
    log: Path
    max_new_tokens: int
    reward: RewardFunction | None = None
    measurements: list[Measurement] = field(default_factory=list)
    violation: tuple[str, float, float] | None = None
    flat_groups: float | None = None  # as last logged

    def start(self, policy: Policy, step: int) -> None:
        """Measure the untrained policy, or read the figures up to the checkpoint of `step`."""
        stored = json.loads(self.log.read_text(encoding="utf-8")) if self.log.exists() else []
        measurements = [Measurement.model_validate(measurement) for measurement in stored]
        self.measurements = [
            measurement for measurement in measurements if measurement.step <= step
        ]
        if not self.measurements:
            self._record(measure(self.parent if step else policy, self, step=0))

    def is_due(self, step: int) -> bool:
        return step % self.params.every == 0

    def check(self, policy: Policy, step: int) -> bool:
        """Measure the policy; whether every sentinel is within its limit."""
        self._record(measure(policy, self, step=step))
        now = self.measurements[-1]
        self.violation = find_violation(now, self.measurements[0], self.params)
        return self.violation is None

    def describe_stop(self, kept_step: int | None) -> SentinelStop | None:
        """Why the training was stopped; None if it was not. Raises StoppedBySentinel without
        a checkpoint from before the harm.
        """
        if self.violation is None:
            return None
        name, value, limit = self.violation
        step = self.measurements[-1].step
        if kept_step is None:
            stopped = StoppedBySentinel(
                f"Sentinel {name} stopped the training at step {step}, before its first "
                f"checkpoint: {value:.3g}, limit {limit:.3g}. {ADVICE[name]}"
            )
            stopped.curves = self.curves()
            raise stopped
        return SentinelStop(
            sentinel=name,
            value=value,
            limit=limit,
            step=step,
            kept_step=kept_step,
            advice=ADVICE[name],
        )

    def curves(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """Each figure by step, under the label of its plot."""
        points = {
            label: tuple(
                (measurement.step, value)
                for measurement in self.measurements
                if (value := getattr(measurement, name)) is not None
            )
            for name, label in LABELS.items()
        }
        return {label: curve for label, curve in points.items() if curve}

    def _record(self, measurement: Measurement) -> None:
        from accelerate import PartialState
        from accelerate.utils import broadcast_object_list

        # Several processes decide by the figures of the first one: theirs may differ by rounding.
        self.measurements += broadcast_object_list([measurement])
        if not PartialState().is_main_process:
            return
        rows = [measurement.model_dump(mode="json") for measurement in self.measurements]
        write_atomically(self.log, json.dumps(rows).encode())


def choose_rows(rows: pd.DataFrame, policy: Policy, n: int, max_new_tokens: int) -> pd.DataFrame:
    """At most `n` pairs of distinct prompts with room for a completion; the order of `rows` does
    not matter.
    """
    distinct = rows.drop_duplicates("prompt")
    order = distinct["prompt"].map(lambda text: content_hash("sentinel", text)).sort_values().index
    fitting = []
    for at in order:
        n_chosen = policy.count_tokens(distinct.at[at, "chosen"])
        n_prompt = policy.count_prompt_tokens(distinct.at[at, "prompt"])
        if n_prompt + max(max_new_tokens, n_chosen) <= policy.context_length:
            fitting.append(at)
        if len(fitting) == n:
            break
    return distinct.loc[fitting].reset_index(drop=True)


def measure(policy: Policy, watch: SentinelWatch, *, step: int) -> Measurement:
    """Figures of `policy` on the fixed prompts, with the same seeds each time: differences between
    steps are the policy's, not those of the draw. Raises TrainingFailed for broken weights.
    """
    prompts: list[str] = watch.rows["prompt"].tolist()
    try:
        completions = policy.generate(
            prompts, seeds=range(len(prompts)), max_new_tokens=watch.max_new_tokens
        )
    except BackendUnavailable as cause:
        raise TrainingFailed(
            f"Training broke at step {step}: the policy's logits are not finite. Lower the "
            "learning rate; at step 0, restore the parent policy."
        ) from cause
    texts = [completion.text for completion in completions]
    kl, entropy = kl_and_entropy(policy, watch.parent, prompts, texts)
    rewards, deviations = (
        (None, None) if watch.reward is None else score_with_deviation(watch.reward, prompts, texts)
    )
    return Measurement(
        step=step,
        kl=float(kl.mean()),
        entropy=float(entropy.mean()),
        diversity=answer_diversity(texts),
        length=float(np.mean([completion.n_tokens for completion in completions])),
        cut=float(np.mean([completion.finish_reason == "length" for completion in completions])),
        flat_groups=watch.flat_groups,
        chosen_log_p=float(policy.log_likelihood(prompts, watch.rows["chosen"].tolist())[0].mean()),
        reward=None if rewards is None else float(rewards.mean()),
        disagreement=None if deviations is None else float(deviations.mean()),
    )


def _times(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor


def _plus(value: float, change: float | None, sign: int = 1) -> float | None:
    return None if change is None else value + sign * change


@contextmanager
def evaluation_mode(model: Any) -> Iterator[Any]:
    """The model without dropout; generation needs the cache that a training may have off."""
    was_training, had_cache = model.training, getattr(model.config, "use_cache", None)
    model.eval()
    model.config.use_cache = True
    try:
        yield model
    finally:
        model.config.use_cache = had_cache
        model.train(was_training)


def make_sentinel_callback(watch: SentinelWatch, tokenizer: Any) -> Any:
    """A callback of a transformers trainer that measures every `every` steps and before each
    checkpoint, so that every checkpoint is from before the harm.
    """
    from transformers import TrainerCallback

    class SentinelCallback(TrainerCallback):  # type: ignore[misc]
        """Stops the training at the first broken limit, without a checkpoint."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            with evaluation_mode(more["model"]) as model:
                watch.start(Policy(model, tokenizer, name="policy"), state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if not (watch.is_due(state.global_step) or control.should_save):
                return
            with evaluation_mode(more["model"]) as model:
                is_healthy = watch.check(Policy(model, tokenizer, name="policy"), state.global_step)
            if not is_healthy:
                control.should_save = False
                control.should_training_stop = True

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
        ) -> None:
            watch.flat_groups = (logs or {}).get(FLAT_GROUPS, watch.flat_groups)

    return SentinelCallback()
