"""`rlhf drift clusters` and `slices`: listed, and offered to people."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.drift_clusters import format_best_error
from rlhf_pipeline.config import HomeFacts, Settings
from rlhf_pipeline.errors import ConfigurationError, NotEnoughData, NotFound
from rlhf_pipeline.records import Interval
from tests.clusters import failing_cluster, write_clusters
from tests.unit.drift.test_slices import comparisons, reflections

PUBLISHED = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    HomeFacts(organization="default", project="demo").write(tmp_path)
    made = Workspace(Settings(home=tmp_path))
    made.store.migrate()
    made.store.comparisons.publish(comparisons(20), published_at=PUBLISHED)
    monkeypatch.setenv("RLHF_HOME", str(tmp_path))
    return made


def test_the_best_error_rate_is_the_complement_of_the_noise_ceiling() -> None:
    ceiling = Interval(value=0.9, low=0.85, high=0.95, n=60)
    assert format_best_error(ceiling) == "0.10 [0.05, 0.15]"
    repeats = ceiling.model_copy(update={"basis": "repeats"})
    assert format_best_error(repeats) == "0.10 [0.05, 0.15] from repeats"
    assert format_best_error(None) == "unknown"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["drift", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_clusters_of_the_last_day_are_listed(workspace: Workspace) -> None:
    with pytest.raises(NotEnoughData, match="There are no clusters"):
        run("clusters")
    for day in ("2026-01-04", "2026-01-05"):
        write_clusters(workspace.files, day, failing_cluster("2026-01-04-A", ["c0001", "c0002"]))
    listed = run("clusters")
    assert "judged on 2026-01-05" in listed
    assert "best reachable" in listed
    printed = json.loads(run("clusters", "--day", "2026-01-04", "--json"))
    assert printed["day"] == "2026-01-04"
    assert printed["noise_ceiling"]["value"] == 0.9
    assert printed["clusters"][0]["comparison_ids"] == ["c0001", "c0002"]
    with pytest.raises(NotEnoughData, match="no clusters of 2026-01-01"):
        run("clusters", "--day", "2026-01-01")


def test_a_cluster_is_offered_for_more_votes(workspace: Workspace) -> None:
    cluster = failing_cluster("2026-01-05-A", ["c0001", "c0002"])
    write_clusters(workspace.files, "2026-01-05", cluster)
    offered = run("clusters", "--offer", "2026-01-05-A", "--votes", "3")
    assert "2 comparisons offered to 3 people each: 6 new judgements wanted" in offered
    assert "0 new judgements wanted" in run("clusters", "--offer", "2026-01-05-A", "--votes", "3")
    assert workspace.store.assignments.count_slots(["c0001"]) == {"c0001": (3, 0)}
    with pytest.raises(NotFound, match="No drift report found a cluster '2026-01-05-B'"):
        run("clusters", "--offer", "2026-01-05-B")
    with pytest.raises(ConfigurationError, match="--votes belongs to --offer"):
        run("clusters", "--votes", "3")


def test_slices_are_measured_over_the_days(workspace: Workspace) -> None:
    assert "No grouping has two slices" in run("slices")
    workspace.store.comparisons.publish(comparisons(), published_at=PUBLISHED)
    workspace.files.write_frame("reflection_log", reflections(0, "safety"), "2026-01-05")
    first = json.loads(run("slices", "--day", "2026-01-05", "--json"))["slices"][0]
    assert (first["by"], first["name"], first["is_failing"]) == ("category", "safety", True)
    assert "1 too small ones withheld" in run("slices")
