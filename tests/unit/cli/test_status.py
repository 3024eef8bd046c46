"""`rlhf status`: what each stage waits for and what comes next."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from rlhf_pipeline.cli.status import describe_collection, describe_learning, describe_retraining
from rlhf_pipeline.config import HomeFacts
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.learning import NextFit
from rlhf_pipeline.loop_settings import LoopSettings
from rlhf_pipeline.records import TriggerDecision, utc_now
from rlhf_pipeline.retraining.triggers import TriggerParams


def store_of(**answers: Any) -> Any:
    """A store whose nouns answer what is given, whatever they are asked."""
    return SimpleNamespace(
        **{
            noun: SimpleNamespace(**{verb: lambda *_, found=found: found})
            for name, found in answers.items()
            for noun, _, verb in [name.partition("__")]
        }
    )


def test_new_home_names_its_next_steps(rlhf: Callable[..., Result]) -> None:
    lines = rlhf("status").output.splitlines()
    assert sum("never ran" in line for line in lines) == 14
    assert any("policy demo.policy@1, reward model none yet" in line for line in lines)
    assert any("nothing collected yet" in line for line in lines)
    assert any("0 of 350 voted comparisons" in line for line in lines)
    assert any("fires when the rise test or 2 detectors report within" in line for line in lines)


def test_invalid_settings_are_refused_before_anything_is_shown(
    rlhf: Callable[..., Result], initialised: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for file in initialised.iterdir():
        (home / file.name).symlink_to(file)
    config = tmp_path / "rlhf.yaml"
    config.write_text("loop: {gate: {min_win_rate: 7}}\n")
    (home / "project.json").unlink()
    facts = HomeFacts.load(initialised)
    assert facts is not None
    facts.model_copy(update={"config": config}).write(home)
    with pytest.raises(ConfigurationError, match=r"loop.gate.min_win_rate.*not 7"):
        rlhf("status", home=home)


def test_missing_pairs_are_days_at_the_present_rate() -> None:
    due = NextFit(after="0", n=192, needed=350)
    store = store_of(votes__touched_days=[1, 2])
    assert describe_learning(due, store) == (
        "192 of 350 voted comparisons for the first reward model: about 2 more days of votes"
    )
    assert describe_learning(NextFit("1", 400, 350), store).startswith("due: 400")


def test_todays_collection_is_done_due_or_late() -> None:
    loop = LoopSettings.parse({"schedules": {"collection": "00:00"}})
    assert "tomorrow's is due at 00:00" in describe_collection(loop, ["2026-01-02"], "2026-01-02")
    late = describe_collection(loop, ["2026-01-01"], "2026-01-02")
    assert late == "last collected 2026-01-01; today's was due at 00:00 UTC: `rlhf run collection`"


def test_cool_down_after_a_fire_is_named() -> None:
    decision = TriggerDecision(
        decision_id=1,
        action="fire",
        reasons=("confirmed",),
        event_ids=(),
        evidence={},
        decided_at=utc_now() - timedelta(hours=1),
        state="succeeded",
    )
    store = store_of(decisions__all=[decision], gates__all=[], events__find_open=[1])
    said = "; ".join(describe_retraining(store, TriggerParams(cool_down_hours=24)))
    assert "1 open drift or calibration events" in said
    over = decision.decided_at + timedelta(hours=24)
    assert f"cool-down until {over:%Y-%m-%d %H:%M} UTC" in said
    assert f"decision 1 of {datetime.now(UTC):%Y}" in said


def test_decisions_that_wait_and_quarantines_are_shown() -> None:
    named = {"quarantine": {"annotator_ids": ["bob", "cat"], "from_seq": 1200}}
    waiting, fired = (
        TriggerDecision(
            decision_id=number,
            action=action,
            reasons=("r",),
            event_ids=(),
            evidence=named,
            remedy=remedy,
            state=state,
        )
        for number, action, remedy, state in (
            (1, "hold", "report_two_tastes", "held"),
            (2, "fire", "quarantine", "succeeded"),
        )
    )
    store = store_of(decisions__all=[waiting, fired], gates__all=[], events__find_open=[])
    said = list(describe_retraining(store, TriggerParams()))
    assert "decision 1 waits for a person (report_two_tastes): `rlhf triggers answer 1`" in said
    assert (
        "decision 2 leaves out votes of 2 annotators from vote 1,200 on: `rlhf triggers lift 2` "
        "undoes it" in said
    )


def test_open_training_jobs_are_shown() -> None:
    orders = [
        TriggerDecision(
            decision_id=number,
            action="fire",
            reasons=("r",),
            event_ids=(),
            evidence={"order": {"stages": {"candidate_model": {"strategy": "kto"}}}},
            actor="ada",
            state=state,
        )
        for number, state in ((3, "submitted"), (4, "failed"))
    ]
    store = store_of(decisions__all=orders, gates__all=[], events__find_open=[])
    shown = [line for line in describe_retraining(store, TriggerParams()) if "job" in line]
    assert shown == ["training job 3 by kto is open: `rlhf policy status 3`"]
