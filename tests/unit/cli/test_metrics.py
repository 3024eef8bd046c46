"""`rlhf metrics`: the newest figure of each metric, or the points of some, in three formats."""

import csv
import io
import json
from datetime import UTC, date, datetime

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError, NotFound
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.store import Store

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def rlhf(tmp_path):
    settings = Settings(home=tmp_path / "home")
    prepare(Workspace(settings))

    def point(day, name, value, **labels):
        return MetricPoint(
            day=date(2026, 1, day), name=name, labels=labels, n=9, value=value, measured_at=NOON
        )

    with Store.of_home(settings) as store:
        store.migrate()
        store.metric_points.put(
            [
                point(3, "queue.open", 30),
                point(4, "queue.open", 40),
                point(4, "drift.verdict", None, space="errors"),
                point(4, "drift.verdict", 2, space="overall"),
            ]
        )
    environ = {"RLHF_HOME": str(settings.home), "COLUMNS": "200"}

    def call(*arguments):
        result = CliRunner().invoke(
            app, ("metrics", *arguments), env=environ, catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_without_a_name_the_newest_figures_are_shown(rlhf):
    shown = rlhf()
    assert "3 figures" in shown
    assert "space=overall" in shown
    found = json.loads(rlhf("--labels", "space=overall", "--format", "json"))
    assert [(one["name"], one["value"]) for one in found] == [("drift.verdict", 2.0)]


def test_points_of_a_metric_are_read_by_day(rlhf):
    rows = list(csv.DictReader(io.StringIO(rlhf("queue.open", "--format", "csv"))))
    assert [(row["day"], row["value"]) for row in rows] == [
        ("2026-01-03", "30.0"),
        ("2026-01-04", "40.0"),
    ]
    assert "1 figure," in rlhf("queue.open", "--since", "2026-01-04")
    gaps = list(csv.DictReader(io.StringIO(rlhf("drift.verdict", "--format", "csv"))))
    assert [row["value"] for row in gaps] == ["", "2.0"]
    assert "Nothing has been measured yet" in rlhf("model.ece")


def test_unknown_names_and_labels_are_refused(rlhf):
    with pytest.raises(NotFound, match=r"No metric 'queue'\. There are "):
        rlhf("queue")
    with pytest.raises(ConfigurationError, match="Invalid label 'space'; expected name=value"):
        rlhf("drift.verdict", "--labels", "space")
