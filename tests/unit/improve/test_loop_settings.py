"""The section `loop:` of rlhf.yaml: what it accepts, how it refuses, and how versions differ."""

from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.completions import CallParams
from rlhf_pipeline.improve.loop_settings import LoopSettings


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"gat": {}}, "loop.gat is unknown. Did you mean gate?"),
        ({"gate": {"min_win": 1}}, "loop.gate.min_win is unknown. Did you mean min_win_rate?"),
        (
            {"gate": {"min_win_rate": 7}},
            "loop.gate.min_win_rate: Input should be less than or equal to 1, not 7.",
        ),
        (
            {"drift_report": {"calibration": {"slop_rows": 3}}},
            "loop.drift_report.calibration.slop_rows is unknown. Did you mean slope_rows?",
        ),
        (
            {"candidate_model": {"strategy": "dop"}},
            "loop.candidate_model.strategy: Input should be 'dpo', 'grpo', 'kto', ",
        ),
        ({"reward_model": {"kind": "transformer", "folds": 3}}, "folds is a parameter of kind"),
        ({"schedules": {"collection": "25:00"}}, "must be a time of the day as HH:MM, in UTC"),
        ({"prompts": {"n": True}}, "loop.prompts.n must be a number, not True."),
        ({"completions": {"temperatures": [9]}}, "should be less than or equal to 2"),
        ({"completions": {"top_ps": [0]}}, "should be greater than 0"),
        ({"reward_model": {"l2_grid": [-1]}}, "penalties must be above 0"),
        ({"drift_report": {"sequential_test_limit": 1}}, "should be greater than 1"),
        (
            {"drift_report": {"detectors": ["ddm", "adwn"]}},
            "loop.drift_report.detectors.1: Input should be 'sequential_test', 'ddm'",
        ),
        ({"retraining_set": {"max_pairs": 50}}, "min_pairs 100 is above max_pairs 50"),
        ({"gate": 3}, "loop.gate must hold `name: value` lines, not a int."),
        ([1], "loop must hold `name: value` lines, not a list."),
    ],
)
def test_invalid_section_names_field_bound_and_nearest_name(section: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        LoopSettings.parse(section)
    assert message in str(refusal.value)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)gatee.*min_win_ratte.*min_win_rate.*n: "):
        LoopSettings.parse(
            {
                "gatee": {},
                "gate": {"min_win_ratte": 1, "min_win_rate": 7},
                "prompts": {"n": 0},
            }
        )


def test_file_is_read_anew_and_its_path_is_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "rlhf.yaml"
    file.write_text("votes_per_request: 7\n")
    settings = Settings.read({"RLHF_HOME": str(tmp_path / "home")}, tmp_path)
    assert LoopSettings.read(settings) == LoopSettings()
    file.write_text(
        "loop:\n  schedules:\n    collection: '12:30'\n  gate:\n    min_win_rate: 0.6\n"
    )
    loop = LoopSettings.read(settings)
    assert loop.schedules.cron("collection") == "30 12 * * *"
    assert loop.params("gate").min_win_rate == 0.6  # type: ignore[attr-defined]
    file.write_text("loop:\n  gate: {min_win: 1}\n")
    with pytest.raises(ConfigurationError, match=f"{file}: loop.gate.min_win is unknown"):
        LoopSettings.read(settings)


def test_other_calls_inherit_prices_and_daily_budget() -> None:
    shared = {"prompt_price": 1.0, "completion_price": 2.0, "budget_per_day": 3.0}
    own = {"max_attempts": 3, "budget_per_run": 0.5}
    calls = LoopSettings.parse({"completions": shared | own}).calls(concurrency=1)
    assert calls == CallParams(**shared, concurrency=1)
