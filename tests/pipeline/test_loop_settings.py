"""Loop settings are the defaults of runs, ticks and the launchpad, read anew each time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import dagster as dg
import pytest
import yaml
from pydantic import BaseModel, ValidationError

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.application.definitions import definitions_for
from rlhf_pipeline.application.driver.loop import Loop
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.resources.frames import SETTINGS_TAG
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.improve.loop_settings import PARTS

NO_STAGES = {"retraining_trigger", "release", "experiment", "schedules", "alerts"}
STAGES = sorted(PARTS.keys() - NO_STAGES)


# Values that the settings check by the config of TRL and by the parser of accelerate.
PASSED_ON = {"trainer": {"max_grad_norm": 0.5}, "launch": "--num_processes 2"}


def other_value(kind: type[BaseModel], name: str) -> Any:
    """A valid value of the field that is not its default."""
    if name in PASSED_ON:
        return PASSED_ON[name]
    field = kind.model_fields[name]
    annotation = field.annotation
    default = field.get_default(call_default_factory=True)
    candidates: list[Any] = [not default] if isinstance(default, bool) else []
    if get_origin(annotation) is Literal:
        candidates += [choice for choice in get_args(annotation) if choice != default]
    if isinstance(default, int | float) and not isinstance(default, bool):
        candidates += [default + 1, default - 1, default / 2, default + 0.01]
    if isinstance(default, list):
        candidates += [default[:1], default[1:], ["a"], [0.5], [1]]
    candidates += [{"factual": 1.0}, {"easy": 1.0}, 1, 0.5, 300, 5000, "word", "train", "en", "cpu"]
    for candidate in candidates:
        try:
            parsed = getattr(kind.model_validate({name: candidate}), name)
        except ValidationError:
            continue
        if parsed != default and parsed == candidate:
            return candidate
    raise AssertionError(f"no other value of {kind.__name__}.{name} was found")


def fields_of(kind: type[BaseModel]) -> Iterator[tuple[list[str], Any]]:
    """Path and another value of each field, those of sections included."""
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for path, value in fields_of(annotation):
                yield [name, *path], value
        else:
            yield [name], other_value(kind, name)


def settings_with(folder: Path, text: str) -> Settings:
    (folder / "rlhf.yaml").write_text(text)
    return Settings.read({"RLHF_HOME": str(folder / "home")}, folder)


def launchpad_default(schema: dg.Field, path: list[str]) -> Any:
    fields: Any = schema.config_type
    for name in path[:-1]:
        fields = fields.fields[name].config_type
    return fields.fields[path[-1]].default_value


def is_stage(asset: Any, stage: str) -> bool:
    return isinstance(asset, dg.AssetsDefinition) and asset.key == dg.AssetKey(stage)


def test_parameters_of_every_stage_set_the_launchpad_defaults(tmp_path: Path) -> None:
    """The first and the last of each stage: one rule serves all of them."""
    expected = [
        (stage, *field)
        for stage in STAGES
        for fields in [list(fields_of(PARTS[stage]))]
        for field in (fields[0], fields[-1])
    ]
    loop: dict[str, Any] = {}
    for stage, path, value in expected:
        section = loop.setdefault(stage, {})
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
    assets = definitions_for(settings_with(tmp_path, yaml.safe_dump({"loop": loop}))).assets or ()
    schemas = {
        stage: next(a for a in assets if is_stage(a, stage)).op.config_schema.as_field()
        for stage in STAGES
    }
    for stage, path, value in expected:
        default = launchpad_default(schemas[stage], path)
        assert default == value, f"{stage}.{'.'.join(path)}: {default!r}"


def write(settings: Settings, text: str) -> None:
    assert settings.config is not None
    settings.config.write_text(text)


@pytest.fixture
def runner(make_project: Any, tmp_path: Path) -> Runner:
    """A project with an rlhf.yaml that sets the number of prompts."""
    file = tmp_path / "rlhf.yaml"
    file.write_text("loop:\n  prompts: {n: 7}\n")
    project = make_project(completion_backend="template", annotators="human", config=file)
    return Runner(
        project.settings,
        project.defs,
        project.instance,
        project.store,
        build=lambda: definitions_for(project.settings),
    )


def latest_tags(runner: Runner) -> Any:
    return runner.instance.get_runs(limit=1)[0].tags


def test_runs_use_and_record_the_settings_file(runner: Runner) -> None:
    day = DAYS.get_partition_keys()[-1]
    registry = (runner.defs.resources or {})["registry"]
    for n in (7, 8):
        write(runner.settings, f"loop:\n  prompts: {{n: {n}}}\n")
        runner.run("collection", day, partition_key=day)
        assert latest_tags(runner)[SETTINGS_TAG] == f'{{"prompts": {{"n": {n}}}}}'
        run = registry.latest_runs(1, stage="prompts")[0]
        assert run.metrics["n_prompts"] == n
    assert run.params["n"] == "8"
    assert PARTS["prompts"].model_fields.keys() <= run.params.keys()
    assert f"/runs/{run.tags['dagster.run_id']}" in run.tags["mlflow.note.content"]
    assert run.tags["mlflow.parentRunId"] == registry.parent_run("again", f"day:{day}")


@pytest.mark.parametrize("sensor", ["votes", "learning", "retraining", "gate", "replay"])
def test_invalid_file_skips_the_tick_with_its_error(runner: Runner, sensor: str) -> None:
    definition = runner.repository.get_sensor_def(sensor)
    write(runner.settings, "loop: {gate: {min_win: 1}}\n")
    with dg.build_sensor_context(
        instance=runner.instance, resources={"store": runner.store, "now": runner.clock}
    ) as context:
        data = definition.evaluate_tick(context)
    assert "loop.gate.min_win is unknown. Did you mean min_win_rate?" in str(data.skip_message)


def test_invalid_file_stops_a_run_before_it_begins(runner: Runner) -> None:
    write(runner.settings, "loop: {gate: {min_win: 1}}\n")
    with pytest.raises(ConfigurationError, match="Did you mean min_win_rate"):
        runner.run("learning", "today")
    assert not runner.instance.get_runs()


def test_loop_waits_while_the_file_is_invalid(runner: Runner) -> None:
    loop = Loop(runner)
    write(runner.settings, "loop: {gate: {min_win: 1}}\n")
    assert loop.run_due() == 0
    assert "Did you mean min_win_rate?" in loop.invalid_settings
    write(runner.settings, "loop: {prompts: {n: 5}}\n")
    assert loop.run_due() > 0
    assert loop.invalid_settings == ""


def test_definitions_load_with_the_defaults_while_the_file_is_invalid(runner: Runner) -> None:
    write(runner.settings, "loop: {gate: {min_win: 1}}\n")
    assets = definitions_for(runner.settings).assets or ()
    prompts = next(asset for asset in assets if is_stage(asset, "prompts"))
    default = PARTS["prompts"].model_fields["n"].default
    assert launchpad_default(prompts.op.config_schema.as_field(), ["n"]) == default
