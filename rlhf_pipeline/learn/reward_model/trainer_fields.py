"""Checks the fields that the parameter `trainer` hands to a config class of transformers or TRL."""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import reduce
from operator import or_
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import suggest

# Beginnings of names of fields that would send something out of the pipeline, or take from it what
# it reads: the reason.
PIPELINE_FIELDS = {
    "disable_tqdm": "it shows the progress itself",
    "do_": "it measures a model after the training",
    "eval_": "it measures a model after the training",
    "greater_is_better": "it measures a model after the training",
    "hub_": "it registers models in MLflow and uploads none",
    "load_best_model_at_end": "it measures a model after the training",
    "log_": "it reads the loss curve from the trainer's log",
    "logging_": "it reads the loss curve from the trainer's log",
    "metric_for_best_model": "it measures a model after the training",
    "model_init_kwargs": "it loads the model itself",
    "project": "it reports to MLflow itself",
    "push_to_hub": "it registers models in MLflow and uploads none",
    "remove_unused_columns": "its trainers read all columns",
    "report_to": "it reports to MLflow itself",
    "run_name": "it reports to MLflow itself",
    "trackio_": "it reports to MLflow itself",
}


def read_trainer_fields(
    kind: Any,
    values: Mapping[str, Any],
    *,
    owners: Mapping[str, str] | None = None,
    owning_stage: str = "",
    reserved: Mapping[str, str] = PIPELINE_FIELDS,
) -> dict[str, Any]:
    """`values` in the types of the fields of `kind`, a config class; builds no config, which would
    take the GPU and set environment variables.

    Raises ConfigurationError for a field that `kind` lacks, with the nearest one that it has, for
    one that a parameter of `owning_stage` sets (`owners`), for a `reserved` one, with the reason,
    and for a value of another type.
    """
    owners = owners or {}
    fields = [field.name for field in dataclasses.fields(kind) if field.init]
    free = [name for name in fields if name not in owners and not _reason(name, reserved)]
    hints = get_type_hints(kind)
    read = {}
    for name, value in values.items():
        owner, reason = owners.get(name), _reason(name, reserved)
        if owner == name:
            raise ConfigurationError(
                f"trainer: {name} is a setting of {owning_stage} itself; set it there."
            )
        if owner is not None:
            raise ConfigurationError(
                f"trainer: {name} is set by {owner} of {owning_stage}; use that."
            )
        if name not in fields:
            raise ConfigurationError(
                f"trainer: {kind.__name__} has no field {name!r}. {suggest(name, free)}"
            )
        if reason:
            raise ConfigurationError(
                f"trainer: {name} belongs to the pipeline: {reason}. Leave it out."
            )
        read[name] = _convert(name, value, hints[name], kind)
    return read


def _reason(name: str, reserved: Mapping[str, str]) -> str | None:
    return next((reason for start, reason in reserved.items() if name.startswith(start)), None)


def _convert(name: str, value: Any, hint: Any, kind: Any) -> Any:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    if any(isinstance(member, type) and issubclass(member, Enum) for member in members):
        # such as `OptimizerNames | str`: the trainer takes no other words than the enum's
        hint = reduce(or_, (member for member in members if member is not str))
    try:
        return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
    except ValidationError as cause:
        problem = cause.errors()[0]["msg"]
        raise ConfigurationError(
            f"trainer: {name} is {value!r}. {problem}: see {kind.__name__}."
        ) from None
