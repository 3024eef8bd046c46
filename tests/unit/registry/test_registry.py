"""Runs and model versions in a real MLflow on SQLite, alone and under several processes."""

import multiprocessing
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlhf_pipeline.core.errors import (
    ArtefactError,
    InvalidScores,
    ModelHashMismatch,
    ModelNotFound,
)
from rlhf_pipeline.core.records import ModelVersion, Promotion, folder_hash
from rlhf_pipeline.registry import (
    CHAMPION,
    KINDS,
    PREVIOUS,
    Kind,
    Registry,
    Run,
    code_commit,
    remove_files,
)
from rlhf_pipeline.store.registered_models import list_models, read_champions
from tests.full_disk import full_disk
from tests.s3 import local_s3

REMOVED_AT = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry with a space")


@pytest.fixture
def registry(home: Path, request: pytest.FixtureRequest) -> Registry:
    """A project of its own in a database that is migrated once."""
    project = f"p{abs(hash(request.node.name)) % 10**8}"
    return open_registry(home, project)


def open_registry(home: Path, project: str) -> Registry:
    return Registry(f"sqlite:///{home / 'mlflow' / 'mlflow.db'}", home / "artifacts", project)


def model_folder(tmp_path: Path, content: str = "weights") -> Path:
    folder = tmp_path / f"model-{content}"
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(content)
    (folder / "tokenizer" / "vocab.json").write_text("{}")
    return folder


def register(registry: Registry, folder: Path, **more: object) -> ModelVersion:
    with registry.run("train", run_key=str(more.pop("run_key", None) or folder)) as run:
        return registry.register("policy", folder, run=run, **more)  # type: ignore[arg-type]


def interrupted(
    registry: Registry, by: BaseException, run_key: str, log: Callable[[Run], None]
) -> Run:
    """A run that logged something before `by` ended it."""
    opened: list[Run] = []

    def work() -> None:
        with registry.run("train", run_key=run_key) as run:
            opened.append(run)
            log(run)
            raise by

    with pytest.raises(type(by)):
        work()
    return opened[0]


def test_a_version_is_rebuilt_from_the_registry_alone(
    registry: Registry, home: Path, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path)
    lineage = {"parent": "demo.policy@1", "data_hash": "d" * 64, "data_seq": 77}
    version = register(
        registry,
        folder,
        metrics={"accuracy": 0.7},
        params={"beta": 0.1, "nested": {"a": [1]}},
        **lineage,
    )
    read = open_registry(home, registry.project).get("policy", 1)
    assert read == version
    assert (read.metrics, read.params, read.data_seq, read.parent) == (
        {"accuracy": 0.7},
        {"beta": 0.1, "nested": {"a": [1]}},
        77,
        lineage["parent"],
    )
    assert read.content_hash == folder_hash(folder)
    assert registry.list_versions("policy") == [version]


def test_empty_registry_has_no_versions(registry: Registry) -> None:
    assert registry.get("policy", CHAMPION) is None
    assert registry.get("policy", 1) is None
    assert registry.list_versions("reward_model") == []
    assert registry.list_models() == []
    with pytest.raises(ModelNotFound, match="no version 3"):
        registry.set_alias("policy", CHAMPION, 3)


def test_aliases_follow_the_promotion(registry: Registry, tmp_path: Path) -> None:
    for content in "abc":
        register(registry, model_folder(tmp_path, content))
    for version, previous in ((1, None), (2, 1), (3, 2)):
        promotion = Promotion(
            model_name="demo.policy",
            version=version,
            previous_version=previous,
            data_seq=None,
            reason="won",
            actor="test",
        )
        registry.follow("policy", promotion)
    assert registry.get("policy", CHAMPION).version == 3  # type: ignore[union-attr]
    assert registry.get("policy", PREVIOUS).version == 2  # type: ignore[union-attr]
    registry.set_alias("policy", "candidate", 1)
    assert [(m.version, m.aliases) for m in registry.list_models()] == [
        (1, ("candidate",)),
        (2, ("previous",)),
        (3, ("champion",)),
    ]


def test_deleted_version_has_no_alias(registry: Registry) -> None:
    promotion = Promotion(
        model_name="demo.policy",
        version=1,
        previous_version=None,
        data_seq=None,
        reason="won",
        actor="test",
    )
    registry.follow("policy", promotion)
    assert registry.get("policy", CHAMPION) is None


def test_the_same_files_parent_and_data_are_one_version(registry: Registry, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    first = register(registry, folder, data_hash="d", run_key="one")
    assert register(registry, folder, data_hash="d", run_key="one") == first
    assert register(registry, folder, data_hash="d", run_key="two") == first
    assert register(registry, folder, data_hash="other").version == 2
    assert register(registry, folder).version == 3


@pytest.mark.parametrize(
    ("metrics", "is_tagged"),
    [
        ({"test_accuracy": 0.7}, True),
        ({"test_accuracy": 0.7, "noise_ceiling": 0.8}, False),
        ({"token_accuracy": 0.7}, False),
        ({"loss": 0.7}, False),
        ({"error_rate": 0.2}, True),
        ({"error_rate": 0.2, "noise_ceiling": 0.8}, False),
        ({"test_accuracy": 0.7, "ceiling_from_below": 0.8}, True),
    ],
)
def test_an_accuracy_without_a_ceiling_is_tagged_as_such(
    registry: Registry, tmp_path: Path, metrics: dict[str, float], *, is_tagged: bool
) -> None:
    with registry.run("train") as run:
        run.log_metrics(metrics)
        version = registry.register("policy", model_folder(tmp_path), run=run, metrics=metrics)
    client = registry.tracking.client
    expected = "unknown" if is_tagged else None
    assert client.get_run(run.run_id).data.tags.get("noise_ceiling") == expected
    assert (
        client.get_model_version(version.name, str(version.version)).tags.get("noise_ceiling")
        == expected
    )
    assert registry.get("policy", version.version) == version


def test_the_same_run_key_reopens_the_run(registry: Registry) -> None:
    key = "run:asset:it's"
    first = interrupted(
        registry, RuntimeError(), key, lambda run: run.log_params({"lr": 1, "n": 5})
    )
    with registry.run("train", {"asset": "reward_model"}, key) as second:
        second.log_params({"lr": 1, "n": 6})
        second.log_metrics({"loss": 0.5})
    with registry.run("train", run_key="another") as other:
        pass
    assert first.run_id == second.run_id != other.run_id
    run = registry.tracking.client.get_run(first.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "1", "n": "5"}
    assert run.data.tags["changed.n"] == "6"
    assert run.data.metrics == {"loss": 0.5}
    assert run.data.tags["mlflow.source.git.commit"] == code_commit()


def test_runs_are_listed_newest_first_with_their_pages(registry: Registry, home: Path) -> None:
    assert registry.latest_runs(10) == []
    for n in range(3):
        with registry.run(f"run {n}", {"dagster.asset": "votes"}) as run:
            run.log_metrics({"n": n})
    listed = registry.latest_runs(2)
    assert [(r.name, r.metrics, r.status, r.tags["dagster.asset"]) for r in listed] == [
        ("run 2", {"n": 2.0}, "FINISHED", "votes"),
        ("run 1", {"n": 1.0}, "FINISHED", "votes"),
    ]
    runs = f"#/experiments/{registry.tracking.experiment_id}/runs"
    page = f"{runs}/{run.run_id}?workflowType=machine_learning"
    assert run.url == listed[0].url == page
    behind = Registry(
        registry.tracking.tracking_uri,
        home / "artifacts",
        registry.project,
        ui="http://127.0.0.1:5000/",
    )
    assert behind.latest_runs(1)[0].url == f"http://127.0.0.1:5000/{page}"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_never_logged(registry: Registry, tmp_path: Path, value: float) -> None:
    with registry.run("train") as run:
        with pytest.raises(InvalidScores, match="loss"):
            run.log_metrics({"loss": value})
        with pytest.raises(InvalidScores, match="accuracy"):
            registry.register(
                "policy", model_folder(tmp_path), run=run, metrics={"accuracy": value}
            )
    assert registry.list_versions("policy") == []


def test_the_folder_of_a_version_is_verified(registry: Registry, tmp_path: Path) -> None:
    model = register(registry, model_folder(tmp_path))
    folder = registry.fetch_folder(model, tmp_path / "cache")
    assert folder_hash(folder) == model.content_hash
    (folder / "model.safetensors").write_text("tampered")
    with pytest.raises(ModelHashMismatch, match=model.label):
        registry.fetch_folder(model, tmp_path / "cache")
    with pytest.raises(ModelHashMismatch):
        registry.set_alias("policy", CHAMPION, 1)
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer" / "vocab.json").unlink()
    (folder / "tokenizer").rmdir()
    folder.rmdir()
    with pytest.raises(ModelNotFound, match=model.label):
        registry.fetch_folder(model, tmp_path / "cache")
    assert registry.get("policy", CHAMPION) is None
    assert register(registry, model_folder(tmp_path)) == model, (
        "registering again brings the files back"
    )
    assert registry.fetch_folder(model, tmp_path / "cache") == folder


def test_interrupted_registration_is_completed_by_the_next(
    registry: Registry, tmp_path: Path
) -> None:
    half = model_folder(tmp_path, "half of other weights")
    with registry.run("train", run_key="k") as run:
        run.log_folder(half, "model/" + folder_hash(half)[:12])
    model = register(registry, model_folder(tmp_path), run_key="k")
    assert model.version == 1
    assert model.mlflow_run_id == run.run_id
    assert folder_hash(registry.fetch_folder(model, tmp_path)) == model.content_hash


def test_remote_files_are_downloaded_once_and_verified(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = register(registry, model_folder(tmp_path))
    monkeypatch.setattr(Registry, "local_folder", lambda *_: None)
    folder = registry.fetch_folder(model, tmp_path / "cache")
    assert folder == tmp_path / "cache" / model.content_hash
    (folder / "model.safetensors").write_text("damaged")
    assert folder_hash(registry.fetch_folder(model, tmp_path / "cache")) == model.content_hash


def test_full_disk_during_download_is_named_and_retried(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = model_folder(tmp_path), tmp_path / "cache"
    os.truncate(folder / "model.safetensors", 9_000_000)
    model = register(registry, folder)
    monkeypatch.setattr(Registry, "local_folder", lambda *_: None)
    message = rf"Cannot download the files of {model.label} to {cache}: File too large\. Free some"
    with full_disk(8_000_000), pytest.raises(ArtefactError, match=message):
        registry.fetch_folder(model, cache)
    assert list(cache.iterdir()) == []
    assert folder_hash(registry.fetch_folder(model, cache)) == model.content_hash


def test_object_store_keeps_files_until_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    with local_s3() as s3:
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", s3.endpoint)
        (tmp_path / "mlflow").mkdir()
        registry = open_registry(tmp_path, "demo")
        MlflowClient(registry.tracking.tracking_uri).create_experiment(
            "demo", artifact_location=s3.url("mlflow")
        )
        model = register(registry, model_folder(tmp_path))
        folder = registry.fetch_folder(model, tmp_path / "cache")
        assert folder == tmp_path / "cache" / model.content_hash
        assert (folder / "model.safetensors").read_text() == "weights"
        registry.set_alias("policy", CHAMPION, 1)
        registry.tracking.client.delete_registered_model_alias(model.name, "champion")
        remove_files(registry, model, tmp_path / "cache", REMOVED_AT)
        remove_files(registry, model, tmp_path / "cache", REMOVED_AT)
        with pytest.raises(ModelNotFound, match="Retention removed"):
            registry.fetch_folder(model, tmp_path / "cache")
        with pytest.raises(ModelNotFound, match="Retention removed"):
            registry.set_alias("policy", CHAMPION, 1)
    assert not (tmp_path / "artifacts").exists()


def _train(home: Path, i: int) -> None:
    """What a retraining does in MLflow: a curve as it grows, its own model, one that another run
    also came to, an alias.
    """
    registry = open_registry(home, "demo")
    with registry.run(f"candidate {i}", run_key=f"candidate {i}") as run:
        run.log_params({"seed": i})
        for step in range(20):
            run.log_metrics({"loss": 1 / (step + 1)}, step=step)
            if step % 5 == 4:
                run.flush()
        own = registry.register(
            "policy", model_folder(home / str(i), str(i)), run=run, data_hash="d"
        )
        registry.register("policy", model_folder(home / str(i), "shared"), run=run, data_hash="d")
    registry.set_alias("policy", f"from_{i}", own.version)


def test_concurrent_trainings_register_on_a_fresh_database(tmp_path: Path) -> None:
    processes = [
        multiprocessing.get_context("spawn").Process(target=_train, args=(tmp_path, i))
        for i in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    registry = open_registry(tmp_path, "demo")
    versions = registry.list_versions("policy")
    assert [m.version for m in versions] == [1, 2, 3, 4], "3 of their own, 1 in common"
    assert len({m.content_hash for m in versions}) == 4
    runs = registry.latest_runs(10)
    assert sorted((run.name, run.status) for run in runs) == [
        (f"candidate {i}", "FINISHED") for i in range(3)
    ]
    for run in runs:
        assert len(registry.tracking.client.get_metric_history(run.run_id, "loss")) == 20
    named = {alias: model.version for model in registry.list_models() for alias in model.aliases}
    assert sorted(named) == [f"from_{i}" for i in range(3)]
    for alias, version in named.items():
        folder = registry.fetch_folder(
            next(m for m in versions if m.version == version), tmp_path / "cache"
        )
        assert (folder / "model.safetensors").read_text() == alias.removeprefix("from_")


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def removable(registry: Registry, tmp_path: Path) -> ModelVersion:
    return register(registry, model_folder(tmp_path), metrics={"seconds": 3.0})


def test_a_removed_version_is_named_when_requested(
    registry: Registry, removable: ModelVersion, tmp_path: Path
) -> None:
    remove_files(registry, removable, tmp_path / "cache", REMOVED_AT)
    with pytest.raises(
        ModelNotFound, match=rf"removed the files of {removable.label} on 2026-06-01"
    ):
        registry.fetch_folder(removable, tmp_path / "cache")
    with pytest.raises(ModelNotFound, match="Retention removed"):
        registry.set_alias("policy", CHAMPION, removable.version)


def test_direct_model_list_equals_the_registry(
    registry: Registry, removable: ModelVersion, tmp_path: Path
) -> None:
    registry.set_alias("policy", CHAMPION, removable.version)
    version_of = {
        model.label: model
        for model in list_models(registry.tracking.tracking_uri)
        if model.name.startswith(f"{registry.project}.")
    }
    expected = [version for kind in KINDS for version in registry.list_versions(kind)]
    assert version_of.keys() == {version.label for version in expected}
    for version in expected:
        model = version_of[version.label]
        assert model.content_hash == version.content_hash
    assert read_champions(registry.tracking.tracking_uri)[removable.name] == removable.version


def test_a_version_promoted_during_removal_keeps_its_files(
    registry: Registry, removable: ModelVersion, tmp_path: Path
) -> None:
    registry.set_alias("policy", CHAMPION, removable.version)
    assert not remove_files(registry, removable, tmp_path / "cache", REMOVED_AT)
    assert registry.fetch_folder(removable, tmp_path / "cache").is_dir()
    assert [model.removed_at for model in registry.list_models("policy")] == [None]


class RemovedAfterTheLook(Registry):
    """Retention removes the files after a promotion verified them and before it sets the alias."""

    def require(self, kind: Kind, version: int) -> ModelVersion:
        model = super().require(kind, version)
        assert remove_files(self, model, self.tracking.artifacts, REMOVED_AT)
        return model


def test_version_without_files_is_not_promoted(
    registry: Registry, home: Path, removable: ModelVersion
) -> None:
    racing = RemovedAfterTheLook(
        registry.tracking.tracking_uri, home / "artifacts", registry.project
    )
    with pytest.raises(ModelNotFound, match="Retention removed"):
        racing.set_alias("policy", CHAMPION, removable.version)
    assert registry.get("policy", "champion") is None


def test_runs_of_a_day_share_a_hidden_parent(registry: Registry) -> None:
    parents = [registry.parent_run("day 2026-01-01", "day:2026-01-01") for _ in range(2)]
    assert len(set(parents)) == 1
    with registry.run("votes", {"mlflow.parentRunId": parents[0], "dagster.asset": "votes"}):
        pass
    assert [run.name for run in registry.latest_runs(5)] == ["votes"]
    parent = registry.tracking.client.get_run(parents[0])
    assert parent.info.status == "FINISHED"
