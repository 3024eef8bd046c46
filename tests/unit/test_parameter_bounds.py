"""Every number that a setting, rule or parameter takes is finite, and settings that cannot work are
refused at load.
"""

import importlib
import math
import pkgutil
from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

import rlhf_pipeline
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError


def parameter_classes() -> list[type[BaseModel]]:
    for module in pkgutil.walk_packages(rlhf_pipeline.__path__, "rlhf_pipeline."):
        importlib.import_module(module.name)
    classes = {
        kind for kind in descendants(BaseModel) if kind.__module__.startswith("rlhf_pipeline.")
    }
    return sorted(
        (kind for kind in classes if kind.__name__.endswith(("Params", "Settings", "Rules"))),
        key=lambda kind: kind.__name__,
    )


def descendants(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)


def test_every_number_of_a_parameter_class_is_finite():
    accepted = []
    for kind in parameter_classes():
        for name, field in kind.model_fields.items():
            annotation = str(field.annotation)
            if "float" not in annotation:
                continue
            for value in (math.inf, -math.inf, math.nan):
                infinite = (
                    [value]
                    if "list[" in annotation
                    else {"a": value}
                    if "dict[" in annotation
                    else value
                )
                try:
                    kind.model_validate({name: infinite})
                except ValidationError as refusal:
                    if any(error["loc"][:1] == (name,) for error in refusal.errors()):
                        continue
                accepted.append(f"{kind.__module__}.{kind.__name__}.{name}={value}")
    assert accepted == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"RLHF_QUIET_MINUTES": "inf"},
            r"quiet_minutes: .*finite number, not 'inf'; correct RLHF_QUIET_MINUTES, or "
            r"quiet_minutes in rlhf\.yaml",
        ),
        ({"RLHF_RETENTION__RUN_DAYS": "many"}, "retention.run_days: .*integer"),
        (
            {"RLHF_RETENTION": '{"run_days": 1000000000}'},
            "retention.run_days: .*less than or equal to 36500, not 1000000000",
        ),
        (
            {"RLHF_START_DAY": "0001-01-01"},
            "start_day: .*greater than or equal to 1970-01-01, not '0001-01-01'",
        ),
        ({"RLHF_START_DAY": "9999-12-31"}, "start_day: .*less than or equal to 2099-12-31"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_load(tmp_path, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Settings.read(settings, tmp_path)
