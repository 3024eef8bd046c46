"""Configuration of stages from `stage.field=value`, checked by the stage's own parameter class."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from rlhf_pipeline.application.assets import STAGES
from rlhf_pipeline.application.assets.delivery import config_class
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import parse_parameters

CONFIG_CLASSES = {
    stage.key.to_user_string(): params_class
    for stage in STAGES
    if isinstance(stage, dg.AssetsDefinition) and (params_class := config_class(stage)) is not None
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
