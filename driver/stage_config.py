"""Configuration of stages from `stage.field=value`, checked by the stage's own parameter class."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from assets import STAGES
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.parameters import parse_parameters


def config_class(stage: dg.AssetsDefinition) -> type[dg.Config] | None:
    """The class of a stage's parameters; None for a stage without any."""
    function: Any = stage.node_def.compute_fn  # type: ignore[attr-defined]  # an op by then
    found = function.decorated_fn.__annotations__.get("config")
    return found if isinstance(found, type) and issubclass(found, dg.Config) else None


CONFIG_CLASSES = {
    stage.key.to_user_string(): found
    for stage in STAGES
    if isinstance(stage, dg.AssetsDefinition) and (found := config_class(stage)) is not None
}


def parse_stage_config(changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By stage, the fields that `changes` set. Raises ConfigurationError naming stage, field and
    the known ones.
    """
    by_stage: dict[str, list[str]] = {}
    for change in changes:
        stage, dot, assignment = change.partition(".")
        if not dot or stage not in CONFIG_CLASSES:
            raise ConfigurationError(
                f"--set {change!r} names no stage with parameters. Write STAGE.FIELD=VALUE; the "
                f"stages are {', '.join(CONFIG_CLASSES)}."
            )
        by_stage.setdefault(stage, []).append(assignment)
    return {
        stage: parse_parameters(CONFIG_CLASSES[stage], assignments).model_dump(
            mode="json", exclude_unset=True
        )
        for stage, assignments in by_stage.items()
    }
