"""`rlhf triggers`: decisions listed, explained and decided again from their evidence."""

import csv
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import DriftEvent
from rlhf_pipeline.retraining.triggers import TriggerParams, decide
from tests.learnt_home import LearntHome, voted_home

MODEL = "demo.reward_model@1"
FIRST, SECOND = datetime(2026, 1, 2, 13, tzinfo=UTC), datetime(2026, 1, 3, 13, tzinfo=UTC)


def event(detector: str, seq: int) -> DriftEvent:
    return DriftEvent(
        kind="drift",
        model_version=MODEL,
        detector=detector,
        params_hash="p",
        stream="errors",
        seq=seq,
        day=FIRST.date(),
        change_seq=seq - 20,
        evidence={"error_before": 0.2, "n_votes": 1848},
        detected_at=FIRST,
    )


@pytest.fixture(scope="module")
def voted(tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    return voted_home(tmp_path_factory.mktemp("voted"))


@pytest.fixture(scope="module")
def decided(voted: LearntHome, tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    """A home that held on one detector, fired on the second, and was retrained once by hand."""
    home = voted.copied(tmp_path_factory.mktemp("decided") / "home")
    rule = partial(decide, params=TriggerParams(min_new_votes=10))
    with home.store as store:
        for i, detector in enumerate(("ddm", "adwin")):
            store.events.add([event(detector, 300 + i * 40)])
            now = FIRST + timedelta(hours=i)
            store.decisions.decide(rule, now=now, champion=MODEL, up_to_seq=350 + i)
        store.decisions.mark_finished(2, succeeded=True)
        store.decisions.fire_by_hand("=1+1 new guidelines", actor="ada@example.org", now=SECOND)
    return home


def run(home: LearntHome, *arguments: str) -> Result:
    environ = {"RLHF_HOME": str(home.settings.home), "COLUMNS": "250"}
    return CliRunner().invoke(app, ["triggers", *arguments], env=environ)


def test_list_shows_when_why_and_who(decided: LearntHome, tmp_path: Path) -> None:
    table = decided.rlhf("triggers", "list").output
    for text in ("3 decisions", "unconfirmed: 1 detector(s)", "succeeded", "ada@example.org"):
        assert text in table
    stored = json.loads(decided.rlhf("triggers", "list", "--json").output)
    assert [d["action"] for d in stored] == ["hold", "fire", "fire"]
    assert stored[1]["evidence"]["looked_at"]["champion"] == MODEL
    decided.rlhf("triggers", "list", "--csv", str(tmp_path / "list.csv"))
    with (tmp_path / "list.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["decision"] for row in rows] == ["1", "2", "3"]
    assert rows[1]["change at vote"] == "280"


def test_list_filters_by_day(decided: LearntHome) -> None:
    later = decided.rlhf("triggers", "list", "--json", "--from", "2026-01-03").output
    assert [d["decision_id"] for d in json.loads(later)] == [3]
    assert (
        "No decision in these days" in decided.rlhf("triggers", "list", "--to", "2025-12-31").output
    )


def test_a_fire_is_explained_with_thresholds_events_and_replay(decided: LearntHome) -> None:
    output = decided.rlhf("triggers", "explain", "2").output
    assert output.startswith("Decision 2 fired on 2026-01-02 14:00 UTC (succeeded")
    for text in (
        "confirmed by 2 detectors (adwin, ddm)",
        "2 detectors within 500 votes",
        "10 since the last fire",
        "error_before 0.2, n_votes 1,848",
        "Replayed from this evidence, it decides the same.",
    ):
        assert text in output


def test_a_decision_by_hand_is_explained_by_its_reason(decided: LearntHome) -> None:
    for wanted in ((), ("latest",), ("3",)):
        output = decided.rlhf("triggers", "explain", *wanted).output
        assert "Decision 3 fired by ada@example.org" in output
        assert "new guidelines" in output
        assert "no condition of the trigger applied" in output


def test_an_unknown_decision_is_refused_with_the_known_ids(decided: LearntHome) -> None:
    refusal = run(decided, "explain", "9").exception
    assert isinstance(refusal, NotFound)
    assert "from 1 to 3" in str(refusal)


def test_home_without_decisions_says_so(voted: LearntHome) -> None:
    for command in ("list", "explain"):
        assert "No retraining was decided on yet" in voted.rlhf("triggers", command).output
