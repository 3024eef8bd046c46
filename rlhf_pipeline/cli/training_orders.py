"""Builds the order of a training job from the command line, and checks its rows."""

import json
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pandas as pd

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ExpectationFailed,
    MissingPartition,
    NotEnoughData,
    NotEnoughVotes,
)
from rlhf_pipeline.core.parameters import parse_parameters, section_class, suggest
from rlhf_pipeline.core.records import CalibrationReport, ModelVersion, TrainingOrder
from rlhf_pipeline.generate.policy.causal_lm import load_prompt_format
from rlhf_pipeline.improve.evaluation import frozen_prompt_ids
from rlhf_pipeline.improve.loop_settings import PARTS, CandidateParams, LoopSettings
from rlhf_pipeline.improve.retraining.parameters import read_strategy_params
from rlhf_pipeline.improve.retraining.selection import SelectionParams, list_usable_pairs
from rlhf_pipeline.improve.retraining.strategies import STRATEGIES, check_batch
from rlhf_pipeline.improve.retraining.strategies.base import has_one_text

CANDIDATE = "candidate_model"
STAGES = ("retraining_set", CANDIDATE, "evaluation", "gate")  # of the job


def build_order(
    loop: LoopSettings, strategy: str | None, changes: Sequence[str], key: str | None
) -> TrainingOrder:
    """All parameters of the job's stages: as `rlhf.yaml` sets them, then `params_file`, with these
    changes: NAME=VALUE of the training, STAGE.NAME=VALUE of another stage. What later changes in
    a file changes nothing in the order.

    Raises ConfigurationError for an unknown strategy, stage or name, and for an invalid value.
    """
    if key is not None and not key.strip():
        raise ConfigurationError("--key is empty. Give a name, or leave it out.")
    if strategy is not None and strategy not in STRATEGIES:
        raise ConfigurationError(
            f"Unknown strategy {strategy!r}. {suggest(strategy, sorted(STRATEGIES))}"
        )
    by_stage: dict[str, list[str]] = {stage: [] for stage in STAGES}
    for change in changes:
        stage, dot, rest = change.partition(".")
        is_of_stage = dot and stage in STAGES
        _refuse_unknown_part(change)
        by_stage[stage if is_of_stage else CANDIDATE].append(rest if is_of_stage else change)
    values = {stage: deepcopy(dict(loop.given.get(stage, {}))) for stage in STAGES}
    if strategy is not None:
        values[CANDIDATE]["strategy"] = strategy
    stages: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        params = parse_parameters(PARTS[stage], by_stage[stage], **deepcopy(values[stage]))
        if isinstance(params, CandidateParams) and params.params_file is not None:
            of_file = read_strategy_params(Path(params.params_file))
            values[stage] |= of_file.model_dump(mode="json", exclude_unset=True)
            params = parse_parameters(PARTS[stage], by_stage[stage], **values[stage])
            params = params.model_copy(update={"params_file": None})
        stages[stage] = params.model_dump(mode="json")
    return TrainingOrder(stages=stages, key=key)


def list_set_parameters(order: TrainingOrder) -> Iterator[tuple[str, dict[str, Any]]]:
    """By stage, the parameters of an order that are not at their default, and the strategy."""
    for stage, own in order.stages.items():
        defaults = PARTS[stage]().model_dump(mode="json")
        changed = {
            name: value
            for name, value in own.items()
            if name == "strategy" or value != defaults.get(name)
        }
        if changed:
            yield stage, changed


def _refuse_unknown_part(change: str) -> None:
    """Raises ConfigurationError for STAGE.NAME=VALUE of neither a stage nor a section."""
    part, dot, _ = change.partition("=")[0].partition(".")
    training = PARTS[CANDIDATE]
    sections = [name for name in training.model_fields if section_class(training, name)]
    if dot and part not in (*STAGES, *sections):
        raise ConfigurationError(
            f"--set {change!r}: {part} is neither a stage nor a section. "
            f"{suggest(part, (*STAGES, *sections))}"
        )


def check_inputs(workspace: Workspace, order: TrainingOrder) -> list[str]:
    """`check_pairs` of the current preference pairs. Raises ConfigurationError where a stage before
    the job has not run, and ModelError for a champion that cannot be trained.
    """
    pairs = _read_pairs(workspace)
    champion = workspace.champions.policy()
    policy = load_prompt_format(workspace.champions.policy_folder(champion))
    policy.check_tokenizer(champion.label)
    sets = workspace.store.evaluation_sets
    frozen = sets.latest()
    return check_pairs(
        pairs, order, frozen_prompt_ids(sets.prompts(frozen.version)) if frozen else frozenset()
    )


def check_pairs(
    pairs: pd.DataFrame, order: TrainingOrder, frozen_prompt_ids: Collection[str] = ()
) -> list[str]:
    """Lines about the rows: how many can be trained on, and what leaves none out.

    Raises ConfigurationError as `check_batch`, ExpectationFailed, naming each, for rows that would
    stop it, NotEnoughVotes for too few others, and NotEnoughData for too few frozen prompts.
    """
    selection = cast(SelectionParams, _params(order, "retraining_set"))
    training = cast(CandidateParams, _params(order, CANDIDATE)).training_params()
    check_batch(order.strategy, training)
    usable = list_usable_pairs(pairs, selection, frozen_prompt_ids)
    same = usable.loc[has_one_text(usable), "comparison_id"].tolist()
    if same:
        raise ExpectationFailed(
            f"{len(same)} of {len(usable)} rows have one text as chosen and rejected, so there is "
            "nothing to prefer, and nothing was started. Correct the import, or leave them out: "
            f"--set 'retraining_set.leave_out={json.dumps(same)}'"
        )
    n_needed = max(selection.min_pairs, training.min_pairs, 2)
    if len(usable) < n_needed:
        raise NotEnoughVotes(
            f"{len(usable)} of {len(pairs)} preference pairs can be trained on; {n_needed} are "
            "needed. Collect more votes, or lower retraining_set.min_pairs and min_pairs."
        )
    least = _params(order, "evaluation").min_prompts
    if frozen_prompt_ids and len(frozen_prompt_ids) < least:
        raise NotEnoughData(
            f"The evaluation set has {len(frozen_prompt_ids)} prompts; {least} are needed to judge "
            "the candidate. Add prompts to it, or lower evaluation.min_prompts."
        )
    unknown = sorted({*selection.leave_out} - {*pairs["comparison_id"]})
    return [
        f"{len(usable)} of {len(pairs)} preference pairs can be trained on",
        *([f"leave_out names no current pair: {', '.join(unknown)}"] if unknown else []),
    ]


def _params(order: TrainingOrder, stage: str) -> Any:
    return PARTS[stage].model_validate(order.stages.get(stage, {}))


def _read_pairs(workspace: Workspace) -> pd.DataFrame:
    try:
        workspace.files.read_record("reward_model", ModelVersion)
        workspace.files.read_record("calibration", CalibrationReport)
        return workspace.files.read_frame("preference_pairs")
    except MissingPartition as cause:
        raise ConfigurationError(
            f"A training needs preference pairs and a calibrated reward model: {cause} "
            "`rlhf run learning` makes them."
        ) from cause
