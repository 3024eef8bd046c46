"""Defines the protocol of a training strategy, and the rows that its trainer reads."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field

from rlhf_pipeline.core.errors import ExpectationFailed, NotEnoughVotes
from rlhf_pipeline.core.frames import RETRAINING_SET, check_frame
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.candidates import TrainingReport, train_and_report
from rlhf_pipeline.improve.retraining.rewards import RewardFunction, require_reward
from rlhf_pipeline.improve.retraining.training import FinishedTraining, TrainingParams

__all__ = ["Strategy", "TrainingParams", "TrainingReport"]


class PullParams(Parameters):
    """The parameter that DPO and KTO share, so two runs can differ in the strategy alone."""

    beta: float = Field(
        0.1,
        description="DPO and KTO: strength of the pull back to the parent policy (their KL "
        "penalty)",
        gt=0,
        le=10,
    )


class Strategy(Protocol):
    """One way to train a candidate policy on preferences.

    The class is instantiated without arguments. `Params` holds the parameters specific to it.

    `train` reads the policy in `policy_folder`, trains on `pairs` (RETRAINING_SET, all of the train
    split) and writes the candidate to `out/model` and the report to `out/report.json`; all its
    other files stay below `out`. `params` has the common parameters and those of every strategy:
    `select_params(Params, params)` returns its own. A call after a kill continues from the last
    complete checkpoint and ends with the same weights; a call after success with the same inputs
    returns the stored report.

    A strategy with `needs_reward` samples completions and trains on the scores of `reward`; for the
    others `reward` only serves the sentinels.

    Raises NotEnoughVotes, ExpectationFailed (rows of an evaluation split, or with nothing to
    prefer), ModelNotFound (also for a missing reward), ModelError (a policy that cannot be
    trained), TrainingFailed.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    needs_reward: ClassVar[bool]

    def train(
        self,
        policy_folder: Path,
        pairs: pd.DataFrame,
        out: Path,
        params: TrainingParams,
        *,
        reward: RewardFunction | None = None,
        progress: Progress = ignore_progress,
    ) -> TrainingReport: ...


class TrainedStrategy(ABC):
    """A Strategy around a trainer of transformers, which a subclass builds.

    `train_and_report` does the rest: memory of finished trainings, checkpoints, sentinels, report.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    config: ClassVar[str]  # the class of the trainer's config, such as trl.DPOConfig
    owned_fields: ClassVar[Mapping[str, str]] = {}  # its fields -> the parameters that set them
    needs_reward: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False  # the trainer compares with the parent's model
    reference: Any = (
        None  # that model, at `build_trainer`; None of adapters, which TRL switches off
    )
    imitates: ClassVar[bool] = False  # texts, not preferences: a higher learning rate
    # label of a plotted curve -> the number that the trainer logs
    curves: ClassVar[Mapping[str, str]] = {}

    def draw_rows(self, pairs: pd.DataFrame, params: TrainingParams) -> pd.DataFrame:
        """The examples to train on, from checked RETRAINING_SET rows; a row a pair by default."""
        return sample_by_weight(pairs, seed=params.seed)

    @abstractmethod
    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        """A trainer on the `rows` of `draw_rows` that fit; it writes to `checkpoints`."""

    @abstractmethod
    def check_health(
        self, done: FinishedTraining, params: TrainingParams
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        """Numbers that distinguish a healthy training from a broken one, and warnings in words."""

    def config_class(self) -> Any:
        return import_class(self.config)

    def count_updates(self, params: TrainingParams) -> int:
        """How often one step updates the weights, each time at the learning rate."""
        return 1

    def train(
        self,
        policy_folder: Path,
        pairs: pd.DataFrame,
        out: Path,
        params: TrainingParams,
        *,
        reward: RewardFunction | None = None,
        progress: Progress = ignore_progress,
    ) -> TrainingReport:
        """See `Strategy.train`."""
        if self.needs_reward:
            self.reward = require_reward(self.name, reward)
        checked = check_trainable_pairs(pairs, params.min_pairs)
        return train_and_report(
            self,
            policy_folder,
            pairs=checked,
            rows=self.draw_rows(checked, params),
            out=out,
            params=params,
            reward=reward,
            progress=progress,
        )


def import_class(path: str) -> Any:
    """The class at a dotted path, imported at its use: TRL takes seconds."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def check_trainable_pairs(pairs: pd.DataFrame, min_pairs: int) -> pd.DataFrame:
    """Check `pairs` and sort them canonically, so their original order does not matter."""
    checked = check_frame(pairs, RETRAINING_SET)
    leaked = checked[checked["split"] != "train"]
    if len(leaked):
        raise ExpectationFailed(
            f"{len(leaked)} rows of the retraining set are of an evaluation split, first "
            f"comparison {leaked['comparison_id'].iloc[0]} ({leaked['split'].iloc[0]}). Train on "
            "the train split alone."
        )
    needed = max(min_pairs, 2)  # one row alone is learnt by heart
    if len(checked) < needed:
        raise NotEnoughVotes(
            f"{len(checked)} preference pairs in the retraining set; the strategy needs "
            f"{needed}. Collect more votes or lower min_pairs."
        )
    same = checked[has_one_text(checked)]
    if len(same):
        raise ExpectationFailed(
            f"{len(same)} rows of the retraining set have one text as chosen and rejected, so "
            f"there is nothing to prefer. Leave them out: leave_out of retraining_set = "
            f"{json.dumps(same['comparison_id'].tolist())}."
        )
    return checked.sort_values("comparison_id", ignore_index=True)


def has_one_text(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Whether chosen and rejected are the same but for spaces around them."""
    return rows["chosen"].str.strip() == rows["rejected"].str.strip()


def sample_by_weight(rows: pd.DataFrame, *, seed: int, key: str = "comparison_id") -> pd.DataFrame:
    """Repeat or leave out rows so that a row of weight w is expected w times: TRL's losses take no
    weight per row.

    Systematic sampling: with rows in a random order (drawn from `seed` and `key`, not from their
    position), a row is taken once for every whole number its cumulative weight passes. So w = 1 is
    taken exactly once, w = 0 never, any other w either floor(w) or ceil(w) times, and the total is
    the sum of weights rounded down or up.
    """
    draws = rows[key].map(lambda value: content_hash("weight", seed, value))
    ordered = (
        rows.assign(_draw=draws)
        .sort_values(["_draw", key], ignore_index=True)
        .drop(columns="_draw")
    )
    start = np.random.default_rng([seed, len(ordered)]).uniform()
    passed = np.floor(start + np.cumsum(ordered["weight"].to_numpy(dtype=float)) + 1e-9)
    copies = np.diff(passed, prepend=math.floor(start)).astype(int)
    return ordered.loc[np.repeat(ordered.index.to_numpy(), copies)].reset_index(drop=True)
