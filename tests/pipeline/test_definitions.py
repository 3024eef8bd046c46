"""The graph as a person sees it: the mission's edges, every asset described and checked, every knob
explained.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.assets.delivery import SCHEMA_CHECK
from rlhf_pipeline.application.definitions import definitions_for
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.artefacts import RECORDS
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]

# What each stage is made from.
MISSION = {
    "prompts": set(),
    "completions": {"prompts"},
    "comparisons": {"prompts", "completions"},
    "votes_inbox": set(),
    "votes": {"votes_inbox", "comparisons"},
    "preference_pairs": {"votes"},
    "annotator_model": {"votes"},
    "reward_model": {"annotator_model", "preference_pairs", "votes"},
    "calibration": {"reward_model", "preference_pairs", "votes"},
    "reflection_log": {"votes"},
    "drift_report": {"reflection_log", "votes"},
    "retraining_set": {
        "preference_pairs",
        "reflection_log",
        "prompts",
        "reward_model",
        "calibration",
        "retraining_decision",
    },
    "retraining_decision": {"drift_report"},
    "candidate_model": {"retraining_set", "preference_pairs", "reward_model"},
    "evaluation": {
        "candidate_model",
        "retraining_set",
        "preference_pairs",
        "reward_model",
        "calibration",
    },
    "gate": {"evaluation", "candidate_model"},
}
EXTERNAL = {"votes_inbox", "retraining_decision"}  # reported, not materialised by a run
DAILY = {
    "prompts",
    "completions",
    "comparisons",
    "votes",
    "reflection_log",
    "drift_report",
}
JOBS = {
    "collection": {"prompts", "completions", "comparisons"},
    "feedback": {"votes", "reflection_log", "drift_report"},
    "learning": {"preference_pairs", "annotator_model", "reward_model", "calibration"},
    "retraining": {
        "preference_pairs",
        "annotator_model",
        "reward_model",
        "calibration",
        "retraining_set",
        "candidate_model",
        "evaluation",
        "gate",
    },
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    return definitions_for(Settings(home=tmp_path_factory.mktemp("home"), annotators="simulated"))


@pytest.fixture(scope="module")
def human(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    return definitions_for(Settings(home=tmp_path_factory.mktemp("home"), sensors_running=False))


def graph(defs: dg.Definitions) -> Any:
    return defs.get_repository_def().asset_graph


def test_graph_equals_the_required_one(simulated: dg.Definitions) -> None:
    parents_of = {
        n.key.to_user_string(): {p.to_user_string() for p in n.parent_keys}
        for n in graph(simulated).asset_nodes
    }
    assert parents_of == MISSION


def test_every_asset_has_a_description_an_owner_and_a_group(
    simulated: dg.Definitions,
) -> None:
    for node in graph(simulated).asset_nodes:
        name = node.key.to_user_string()
        assert node.description, name
        assert len(node.description) > 40, name
        assert node.group_name in {"generate", "feedback", "learn", "watch", "improve"}, name
        assert node.owners == ["team:rlhf"], name
        assert node.kinds, name
        assert node.tags["part"] == node.group_name
        assert node.is_executable is (name not in EXTERNAL)


def test_every_frame_documents_its_columns(simulated: dg.Definitions) -> None:
    for node in graph(simulated).asset_nodes:
        name = node.key.to_user_string()
        if name in RECORDS or name in EXTERNAL:
            continue
        table = node.metadata["dagster/column_schema"]
        assert [c.name for c in table.columns] == list(SCHEMAS[name].columns)
        assert all(c.description and c.type for c in table.columns), name


def test_each_frame_has_one_blocking_check(
    simulated: dg.Definitions,
) -> None:
    nodes = [*graph(simulated).asset_check_nodes]
    blocking = {n.key.asset_key.to_user_string(): n.key.name for n in nodes if n.blocking}
    assert blocking == {
        stage: SCHEMA_CHECK for stage in MISSION if stage not in EXTERNAL and stage not in RECORDS
    }
    others = {(n.key.asset_key.to_user_string(), n.key.name) for n in nodes if not n.blocking}
    assert {
        ("votes", "has_rows"),
        ("votes", "side_balance"),
        ("drift_report", "champion_fits_the_day"),
    } <= others
    assert all(n.description for n in nodes)


def test_daily_stages_are_partitioned_and_backfill_in_one_run(simulated: dg.Definitions) -> None:
    for node in graph(simulated).asset_nodes:
        name = node.key.to_user_string()
        assert node.is_partitioned is (name in DAILY | {"votes_inbox"}), name
        if name in DAILY:
            assert node.backfill_policy == dg.BackfillPolicy.single_run(), name


def test_jobs_are_selections_of_the_graph(simulated: dg.Definitions) -> None:
    for name, stages in JOBS.items():
        job = simulated.resolve_job_def(name)
        assert {key.to_user_string() for key in job.asset_layer.executable_asset_keys} == stages, (
            name
        )
        assert job.description, name


def config_fields(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every field of a config schema, nested ones too."""
    for name, field in (getattr(kind, "fields", None) or {}).items():
        yield f"{path}.{name}", field
        yield from config_fields(field.config_type, f"{path}.{name}")


def test_every_launchpad_field_has_a_description(simulated: dg.Definitions) -> None:
    fields: list[tuple[str, Any]] = []
    for name in (*JOBS, "simulated_voting"):
        for node in simulated.resolve_job_def(name).graph.node_defs:
            fields += config_fields(node.config_schema.as_field().config_type, node.name)
    assert len(fields) > 60
    assert [path for path, field in fields if not field.description] == []


def test_one_setting_stops_all_sensors_and_schedules(
    simulated: dg.Definitions, human: dg.Definitions
) -> None:
    for defs, running in ((simulated, True), (human, False)):
        repository = defs.get_repository_def()
        assert {s.name for s in repository.sensor_defs} == {
            "votes",
            "replay",
            "learning",
            "retraining",
            "gate",
            "served_check",
            "paused_runs",
            "alerts",
        }
        assert {s.default_status.value == "RUNNING" for s in repository.sensor_defs} == {running}
        assert {s.default_status.value == "RUNNING" for s in repository.schedule_defs} == {running}


def test_ui_shows_no_secret(tmp_path: Path) -> None:
    from dagster._core.remote_representation.external_data import RepositorySnap
    from dagster._serdes import serialize_value

    settings = Settings(
        home=tmp_path, api_key="sk-hush-1", database_url=f"sqlite:///{tmp_path}/hush-2.db"
    )
    snapshot = serialize_value(
        RepositorySnap.from_def(definitions_for(settings).get_repository_def())
    )
    assert "retraining_set" in snapshot
    assert "hush" not in snapshot


def test_definitions_load_through_the_workspace_file_from_another_folder(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).parent / "dagster"),
        "definitions",
        "validate",
        "-w",
        str(ROOT / "workspace.yaml"),
    ]
    settings = Settings(home=tmp_path / "home")
    prepare(Workspace(settings))
    environ = os.environ | settings.environ
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Validation successful for code location rlhf_pipeline" in done.stdout + done.stderr
