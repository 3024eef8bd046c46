"""`rlhf triggers`: decisions listed, explained and answered."""

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.core.records import Cause, ChangeCauses, DriftEvent, Interval, Promotion
from rlhf_pipeline.improve.retraining.triggers import TriggerParams, decide
from tests.learnt_home import LearntHome

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
def decided(voted: LearntHome, tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    """A home that held on one detector, fired on the second, and was retrained once by hand."""
    home = voted.copied(tmp_path_factory.mktemp("decided") / "home")
    champion = Promotion(
        model_name="demo.reward_model",
        version=1,
        previous_version=None,
        data_seq=100,
        reason="test",
        actor="test",
    )
    rule = partial(decide, params=TriggerParams(min_new_votes=10, confirmations=2))
    with home.store as store:
        store.promotions.record(champion)
        for i, detector in enumerate(("ddm", "adwin")):
            store.events.add([event(detector, 300 + i * 40)])
            now = FIRST + timedelta(hours=i)
            store.decisions.apply_rule(rule, now=now, champion=MODEL, up_to_seq=350 + i)
        store.training_jobs.mark_finished(2, succeeded=True)
        store.decisions.fire_by_hand("=1+1 new guidelines", actor="ada@example.org", now=SECOND)
    return home


def run(home: LearntHome, *arguments: str) -> Result:
    environ = {"RLHF_HOME": str(home.settings.home), "COLUMNS": "250"}
    return CliRunner().invoke(app, ["triggers", *arguments], env=environ)


def test_list_shows_time_reason_and_actor(decided: LearntHome) -> None:
    table = decided.rlhf("triggers", "list").output
    for part in ("3 decisions", "unconfirmed: 1 detector", "succeeded", "ada@example.org"):
        assert part in table
    stored = json.loads(decided.rlhf("triggers", "list", "--json").output)
    assert [d["action"] for d in stored] == ["hold", "fire", "fire"]
    assert stored[1]["evidence"]["looked_at"]["champion"] == MODEL


def test_retraining_is_explained_with_thresholds_and_events(decided: LearntHome) -> None:
    output = decided.rlhf("triggers", "explain", "2").output
    assert output.startswith("Decision 2 fired on 2026-01-02 14:00 UTC (succeeded")
    for part in (
        "confirmed by 2 detectors (adwin, ddm)",
        "2 detectors within 500 votes",
        "10 since the last retraining",
        "error_before 0.2, n_votes 1,848",
    ):
        assert part in output


def test_a_waiting_decision_is_answered(voted: LearntHome, tmp_path: Path) -> None:
    home = voted.copied(tmp_path / "home")
    named = {"quarantine": {"annotator_ids": ["ann3"], "from_seq": 300}}
    rise = Interval(value=0.2, low=0.1, high=0.3, n=100)
    careless = Cause(name="carelessness", probability=0.9, effect=rise)
    causes = ChangeCauses(
        change_seq=300,
        until_seq=340,
        n_before=300,
        n_after=40,
        rise=rise,
        causes=(careless,),
        summary="-",
    )
    with home.store as store:
        store.events.add([event("sequential_test", 340)])
        store.decisions.apply_rule(
            lambda evidence: decide(evidence).model_copy(
                update={
                    "action": "hold",
                    "remedy": "report_two_tastes",
                    "evidence": named | {"causes": causes.model_dump(mode="json")},
                }
            ),
            now=FIRST,
            champion=MODEL,
        )
    explained = run(home, "explain").output
    assert "+20 (+10 to +30) points, measured on 300 votes before" in explained
    assert re.search(r"careless annotators .* 90% .* \+20 \(\+10 to \+30\)", explained)
    assert "{" not in explained.partition("causes")[2]
    because = ("--reason", "the old taste counts")
    assert "waits for a person" in run(home, "list").output
    assert run(home, "answer", "1", "quarantine", "--reason", " ").exit_code == 2
    answered = run(home, "answer", "1", "quarantine", *because).output
    assert "decision 2: votes of ann3 from vote 300 on are left out" in answered
    assert "waits for a person" not in run(home, "list").output
