"""`rlhf status`: what each stage waits for and what comes next."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from click.testing import Result

from rlhf_pipeline.cli.status import describe_retraining
from rlhf_pipeline.records import TriggerDecision
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
