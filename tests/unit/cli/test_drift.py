"""`rlhf drift analyze`: stored drift reports as lines and as JSON."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.object_stores import put
from rlhf_pipeline.core.records import DriftEvent, Interval, utc_now
from rlhf_pipeline.improve.retraining.triggers import TriggerParams, decide
from rlhf_pipeline.watch.drift.cluster_history import DayClusters, PromptCluster
from rlhf_pipeline.watch.drift.report import DriftSignals, drift_report

MODEL = "demo.reward_model@1"
STEADY, CHANGED = "2026-01-04", "2026-01-05"


def event(detector: str, seq: int, **more: Any) -> DriftEvent:
    usual: dict[str, Any] = {
        "kind": "drift",
        "model_version": MODEL,
        "detector": detector,
        "params_hash": "p",
        "stream": "errors",
        "seq": seq,
        "day": date.fromisoformat(CHANGED),
        "change_seq": 880,
        "evidence": {"rate_after": 0.41},
        "detected_at": datetime.fromisoformat(f"{CHANGED}T12:00:00+00:00"),
    }
    return DriftEvent(**usual | more)


def cluster(words: str, **more: Any) -> PromptCluster:
    share = Interval(value=0.25, low=0.2, high=0.3, n=80)
    usual: dict[str, Any] = {
        "cluster_id": words[0].upper(),
        "name": words,
        "terms": {words: 1.0},
        "share_reference": share,
        "share_current": share,
        "p_share": 0.5,
        "error_reference": None,
        "error_current": share,
        "p_error": None,
        "is_worse": False,
        "lift": None,
        "p_lift": None,
        "is_failing": more["change"] == "grew",
        "examples": (),
        "comparison_ids": (),
    }
    return PromptCluster(**usual | more)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A steady day, and one on which three detectors confirm a change that the trigger fires on."""
    home = tmp_path_factory.mktemp("reported")
    HomeFacts(project="demo").write(home)
    workspace = Workspace(Settings(home=home))
    store = workspace.store
    store.migrate()
    events = [event("ddm", 1000), event("adwin", 1020), event("hddm_a", 1040)]
    store.events.add(events)
    rule = TriggerParams(min_new_votes=0)
    store.decisions.apply_rule(lambda e: decide(e, rule), now=utc_now(), champion=MODEL)
    for day in (STEADY, CHANGED):
        signals = DriftSignals(events, calibration_tests=[])
        frame = drift_report(day, model_version=MODEL, signals=signals)
        workspace.files.write_frame("drift_report", frame, day)
        clusters = DayClusters(
            day=day,
            model_version=MODEL,
            clusters=(cluster("poems", change="steady"), cluster("taxes", change="grew")),
            n_reference=100,
            n_current=80,
            p_value=0.01,
            explained=0.4,
        )
        put(workspace.files.report_path("clusters", day), clusters.model_dump_json().encode())
    store.close()
    return home


def rlhf(home: Path, *arguments: str) -> str:
    environ = {"RLHF_HOME": str(home), "COLUMNS": "300"}
    result = CliRunner().invoke(app, ["drift", *arguments], env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_summary_shows_each_day_with_what_confirmed_it(reported: Path) -> None:
    output = rlhf(reported, "analyze")
    steady, changed = (
        next(line for line in output.splitlines() if f"│ {day} │" in line)
        for day in (STEADY, CHANGED)
    )
    assert "insufficient" in steady
    assert "0, 3 needed" in steady
    assert "3, 3 needed: adwin, ddm, hddm_a" in changed
    assert "errors" in changed
    events = output[output.index("3 events of detectors") :]
    assert "1,040" in events
    assert events.count("fire 1") == 3
    assert "rate_after" not in output
    changed_clusters = output[output.index("clusters of prompts that changed or fail") :]
    assert "grew, fails" in changed_clusters
    assert "- → 0.250" in changed_clusters
    assert "poems" not in output


def test_json_holds_the_stored_rows_and_events(reported: Path) -> None:
    report = json.loads(rlhf(reported, "analyze", "--day", CHANGED, "--json"))
    stored = Artefacts(str(reported / "frames")).read_frame("drift_report", CHANGED)
    assert [test["detector"] for test in report["tests"]] == stored["detector"].tolist()
    assert report["tests"][0]["evidence"] == json.loads(stored["evidence"].iloc[0])
    assert [each["detector"] for each in report["events"]] == ["ddm", "adwin", "hddm_a"]
