"""Trains and reports one candidate, with the steps that all strategies share around their
trainer.
"""

import json
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.config import silence_telemetry
from rlhf_pipeline.core.errors import NotEnoughVotes
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.frames import frame_hash
from rlhf_pipeline.core.protocols import Progress
from rlhf_pipeline.core.records import Record, content_hash, folder_hash
from rlhf_pipeline.generate.policy.causal_lm import Policy, load_policy
from rlhf_pipeline.improve.retraining.checkpoints import open_checkpoints
from rlhf_pipeline.improve.retraining.curriculum import order_easy_to_hard
from rlhf_pipeline.improve.retraining.rewards import RewardFunction
from rlhf_pipeline.improve.retraining.sentinels import SentinelStop, SentinelWatch, choose_rows
from rlhf_pipeline.improve.retraining.training import (
    FinishedTraining,
    TrainingParams,
    limit_cpu_threads,
    run_to_end,
)
from rlhf_pipeline.learn.reward_model.launching import run_launched
from rlhf_pipeline.learn.reward_model.network import collect_trl_warnings, silence_trl

if TYPE_CHECKING:
    from rlhf_pipeline.improve.retraining.strategies.base import TrainedStrategy

from typing import TypeVar

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.policy.causal_lm import read_config
from rlhf_pipeline.generate.policy.devices import Placement, choose_placement
from rlhf_pipeline.improve.retraining.adapters import add_adapters, check_adapters
from rlhf_pipeline.improve.retraining.training import choose_learning_rate

LINEAGE = "candidate.json"  # beside the weights: strategy, parameters, hashes of parent and data
# Parameters that do not affect the weights.
UNHASHED_PARAMS = ("checkpoint_every",)


class TrainingReport(Record):
    """A candidate's inputs, its training and the cost."""

    strategy: str
    params: dict[str, Any]
    parent_hash: str = Field(description="content hash of the policy it was trained from")
    data_hash: str = Field(description="hash of the retraining set")
    fingerprint: str = Field(
        description="hash of strategy, parameters, parent and data: equal inputs, equal fingerprint"
    )
    content_hash: str = Field(description="content hash of the candidate's folder")
    n_pairs: int = Field(description="rows of the retraining set")
    n_examples: int = Field(
        description="rows trained on, after weighting and after dropping what is too long"
    )
    n_too_long: int = Field(description="rows dropped because the prompt alone fills max_length")
    n_steps: int
    loss_curve: tuple[tuple[int, float], ...] = Field(description="(optimiser step, loss)")
    curves: dict[str, tuple[tuple[int, float], ...]] = Field(
        default={}, description="other numbers by step"
    )
    metrics: dict[str, float] = Field(description="mean over the last quarter of the steps")
    warnings: tuple[str, ...] = ()
    stop: SentinelStop | None = Field(
        default=None, description="the sentinel that stopped the training before its last step"
    )
    notices: tuple[str, ...] = Field(
        default=(),
        description="the number format, where it is not the one that was asked for, and warnings "
        "of TRL",
    )
    seconds: float = Field(description="wall time of training, over all attempts")
    resumed_from: int | None = Field(
        default=None, description="step of the checkpoint the last attempt began at"
    )


def train_and_report(
    strategy: "TrainedStrategy",
    policy_folder: Path,
    *,
    pairs: pd.DataFrame,
    rows: pd.DataFrame,
    out: Path,
    params: TrainingParams,
    reward: RewardFunction | None,
    progress: Progress,
) -> TrainingReport:
    """Return a training already done, or resume or run it; write model and report to `out`.

    `rows` are the examples drawn from the checked `pairs`. Raises NotEnoughVotes without any, and
    if none fits max_length.
    """
    if rows.empty:
        raise NotEnoughVotes(
            f"None of {len(pairs)} rows of the retraining set gives a training example: their "
            "weights sum up to less than 1, or their completions are chosen as often as rejected. "
            "Weigh more rows above 0, or collect more votes."
        )
    silence_telemetry()
    place = place_training(params)
    params = complete_params(
        params,
        count_parameters(policy_folder),
        place,
        imitates=strategy.imitates,
        updates_per_step=strategy.count_updates(params),
    )
    lineage = build_lineage(strategy.name, params, folder_hash(policy_folder), frame_hash(pairs))
    if strategy.needs_reward and reward is not None:
        lineage["reward_hash"] = reward.weights_hash
    fingerprint = content_hash(lineage)
    earlier_report = _load_finished_report(out, fingerprint, params)
    if earlier_report is not None:
        return earlier_report
    folder = open_checkpoints(out / "checkpoints", fingerprint)
    work = Training(strategy, policy_folder, pairs, rows, out, params, reward, lineage)
    train = partial(train_weights, work)
    done = (
        run_launched(params.launch, train, progress) if params.launch else train(progress=progress)
    )
    metrics, warnings = strategy.check_health(done, params)
    if done.stop is not None:
        warnings = (done.stop.diagnosis, *warnings)
    report = TrainingReport(
        strategy=strategy.name,
        params=params.model_dump(),
        parent_hash=lineage["parent_hash"],
        data_hash=lineage["data_hash"],
        fingerprint=fingerprint,
        content_hash=done.content_hash,
        n_pairs=len(pairs),
        n_examples=done.n_examples,
        n_too_long=len(rows) - done.n_examples,
        n_steps=done.n_steps,
        loss_curve=done.curve("loss"),
        curves={label: done.curve(logged) for label, logged in strategy.curves.items()}
        | done.sentinel_curves,
        metrics=metrics,
        warnings=warnings,
        stop=done.stop,
        notices=(*filter(None, [place.notice]), *done.notices),
        seconds=done.seconds,
        resumed_from=done.resumed_from,
    )
    write_atomically(out / "report.json", report.model_dump_json(indent=1).encode())
    shutil.rmtree(folder)
    return report


@dataclass(frozen=True)
class Training:
    """What the weights of a candidate depend on, and its folder."""

    strategy: "TrainedStrategy"
    policy_folder: Path
    pairs: pd.DataFrame
    rows: pd.DataFrame
    out: Path
    params: TrainingParams
    reward: RewardFunction | None
    lineage: dict[str, Any]


def train_weights(work: Training, progress: Progress) -> FinishedTraining:
    """Train in this process, alone or as one of those that `launch` started. The parent is loaded
    once, as reference of the loss and of the sentinels.
    """
    from accelerate.utils import get_int_from_env

    strategy, params, checkpoints = work.strategy, work.params, work.out / "checkpoints"
    if params.launch and params.device != "cpu":
        number = get_int_from_env(["LOCAL_RANK"], 0)
        params = params.model_copy(update={"device": f"cuda:{number}"})
    with (
        silence_trl(),
        collect_trl_warnings() as trl_warnings,
        limit_cpu_threads(params.cpu_threads),
    ):
        policy = open_policy(work.policy_folder, params)
        check_tokenizer(policy)
        room = params.max_new_tokens if strategy.needs_reward else 1
        fitting = _select_fitting_rows(policy, work.rows, params, room)
        watched = _choose_watched_rows(policy, work.pairs, params)
        parent = None
        if watched is not None or (strategy.needs_reference and not params.lora_rank):
            parent = load_policy(work.policy_folder, device=params.device, dtype=params.dtype)
        if parent is not None and strategy.needs_reference and not params.lora_rank:
            strategy.reference = parent.model
        watch = None
        if parent is not None and watched is not None:
            log, room = checkpoints / "sentinels.json", params.max_new_tokens
            watch = SentinelWatch(params.sentinels, parent, watched, log, room, work.reward)
        done = run_to_end(
            lambda: strategy.build_trainer(policy, fitting, params, checkpoints),
            checkpoints,
            work.out / "model",
            {LINEAGE: json.dumps(work.lineage, indent=1, sort_keys=True)},
            watch=watch,
            progress=progress,
        )
    curves = {} if watch is None else watch.curves()
    return replace(
        done, n_examples=len(fitting), sentinel_curves=curves, notices=tuple(trl_warnings)
    )


def build_lineage(
    strategy: str, params: TrainingParams, parent_hash: str, data_hash: str
) -> dict[str, Any]:
    """The inputs of a candidate, as stored beside its weights: equal lineages have equal
    fingerprints.

    Of a GPU its number is left out.
    """
    values = params.model_dump(mode="json", exclude=set(UNHASHED_PARAMS))
    values["device"] = params.device.partition(":")[0]
    return {
        "strategy": strategy,
        "params": values,
        "parent_hash": parent_hash,
        "data_hash": data_hash,
    }


def _choose_watched_rows(
    policy: Policy, pairs: pd.DataFrame, params: TrainingParams
) -> pd.DataFrame | None:
    """The rows of the sentinels; None if they are off, or no prompt leaves room."""
    if not params.sentinels.every:
        return None
    rows = choose_rows(pairs, policy, params.sentinels.n_prompts, params.max_new_tokens)
    return None if rows.empty else rows


def check_tokenizer(policy: Policy) -> None:
    """Raise as `Policy.check_tokenizer`. Afterwards the tokenizer's end token is that of
    `Policy.end_ids`, which online trainers of TRL stop at, and padding without a pad token.
    """
    policy.check_tokenizer(policy.name)
    policy.tokenizer.eos_token = policy.tokenizer.convert_ids_to_tokens(policy.end_ids()[0])
    if policy.tokenizer.pad_token_id is None:
        policy.tokenizer.pad_token = policy.tokenizer.eos_token


def _select_fitting_rows(
    policy: Policy, rows: pd.DataFrame, params: TrainingParams, room: int
) -> pd.DataFrame:
    """Rows whose prompt leaves `room` tokens for a completion: TRL drops the others silently."""
    limit = min(params.max_length, policy.context_length)
    fits = [policy.count_prompt_tokens(text) + room <= limit for text in rows["prompt"]]
    fitting = rows[fits].reset_index(drop=True)
    if params.curriculum:
        fitting = order_easy_to_hard(fitting)
    if fitting.empty:
        raise NotEnoughVotes(
            f"None of {len(rows)} training examples is left: no prompt leaves {room} of "
            f"the {limit} tokens of max_length or of the policy's context. Raise max_length, or "
            "shorten the prompts."
        )
    return fitting


def _load_finished_report(
    out: Path, fingerprint: str, params: TrainingParams
) -> TrainingReport | None:
    """The stored report of a training with the same inputs, if its model is still complete; a kill
    may have truncated either. A training that a sentinel stopped has the weights of its last
    checkpoint, so it also needs the same `checkpoint_every`.
    """
    try:
        report = TrainingReport.from_json((out / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_other = report.params.get("checkpoint_every") != params.checkpoint_every
    if report.stop is not None and is_other:
        return None
    whole = (out / "model").is_dir() and folder_hash(out / "model") == report.content_hash
    return report if whole and report.fingerprint == fingerprint else None


P = TypeVar("P", bound=TrainingParams)


def place_training(params: TrainingParams) -> Placement:
    """Where a training computes. Raises ConfigurationError as `choose_placement`, and for a GPU
    that is not the first visible one, which alone a trainer takes without `launch`.
    """
    place = choose_placement(params.device, params.dtype)
    if not place.is_cpu and place.device != "cuda:0":
        raise ConfigurationError(
            f"device is {place.device}, but a trainer takes the first GPU that it sees. Set "
            f"CUDA_VISIBLE_DEVICES={place.device.partition(':')[2]} for this process and device to "
            "cuda, or `launch` to use all."
        )
    return place


def count_parameters(policy_folder: Path) -> int:
    """The size of a policy, built on torch's `meta` device, which holds no weights. Raises
    ModelNotFound as `load_policy`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = read_config(policy_folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(part.numel() for part in model.parameters())


def complete_params(
    params: P,
    n_parameters: int,
    place: Placement,
    *,
    imitates: bool = False,
    updates_per_step: int = 1,
) -> P:
    """The parameters with device, number format and learning rate as they apply here. A strategy
    that updates the weights several times per step shares the default rate among these. Raises
    ConfigurationError as `check_adapters`.
    """
    check_adapters(params, place.device)
    default = choose_learning_rate(
        n_parameters, imitates=imitates, has_adapters=params.lora_rank > 0
    )
    rate = params.learning_rate or default / updates_per_step
    return params.model_copy(
        update={"learning_rate": rate, "device": place.device, "dtype": place.dtype}
    )


def open_policy(folder: Path, params: TrainingParams) -> Policy:
    """Load the policy to train, with new adapters where `params` ask for them. Weights that are
    trained are float32: small steps would be lost in bfloat16. The policy's own dropout is off: a
    sampled completion and its likelihood are then of one policy, and parts of a batch give the step
    of the whole.
    """
    from trl.trainer.utils import disable_dropout_in_model

    has_adapters = params.lora_rank > 0
    policy = (
        load_policy(folder, device=params.device, dtype=params.dtype, in_4bit=params.qlora)
        if has_adapters
        else load_policy(folder, device=params.device)
    )
    disable_dropout_in_model(policy.model)
    return add_adapters(policy, params, params.seed) if has_adapters else policy
