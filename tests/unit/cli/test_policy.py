"""`rlhf policy`: orders are checked before anything starts."""

from pathlib import Path

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.training_orders import build_order, check_inputs, check_pairs
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError, ExpectationFailed, NotEnoughVotes
from rlhf_pipeline.loop_settings import LoopSettings
from rlhf_pipeline.policy.causal_lm import PromptFormat, load_prompt_format
from rlhf_pipeline.records import TrainingOrder
from tests.unit.retraining.test_selection import pairs

LOOP = LoopSettings.parse({"candidate_model": {"beta": 0.2, "sentinels": {"every": 5}}})


@pytest.mark.parametrize(
    ("strategy", "change", "message"),
    [
        ("dop", "epochs=1", r"Unknown strategy 'dop'\. Did you mean dpo\?"),
        (None, "learning_rat=1", r"changes no parameter.*Did you mean learning_rate\?"),
        (None, "learning_rate=2", "learning_rate: Input should be less than or equal to 1"),
        (None, "gate.min_win_rte=1", r"Did you mean min_win_rate\?"),
        (None, "batch_size=5", "gradient_accumulation 3 does not divide batch_size 5"),
        (None, "strategy=best", "strategy: Input should be"),
        (None, "params_file=/nowhere.yaml", "/nowhere.yaml cannot be read"),
    ],
)
def test_unusable_order_is_refused(strategy: str | None, change: str, message: str) -> None:
    loop = LoopSettings.parse({"candidate_model": {"batch_size": 6, "gradient_accumulation": 3}})
    with pytest.raises(ConfigurationError, match=message):
        build_order(loop, strategy, [change], None)


def test_order_holds_what_the_file_and_the_command_set() -> None:
    changes = ["learning_rate=1e-4", "sentinels.max_kl=0.2", "retraining_set.min_pairs=40"]
    order = build_order(LOOP, "kto", changes, "k1")
    assert order == TrainingOrder(
        stages={
            "retraining_set": {"min_pairs": 40},
            "candidate_model": {
                "beta": 0.2,
                "sentinels": {"every": 5, "max_kl": 0.2},
                "strategy": "kto",
                "learning_rate": 1e-4,
            },
        },
        key="k1",
    )
    assert build_order(LOOP, None, [], None).strategy == "dpo"
    assert LOOP.given["candidate_model"]["sentinels"] == {"every": 5}, "the settings stay"


def order(*changes: str) -> TrainingOrder:
    few = ("retraining_set.min_pairs=4", "min_pairs=4")
    return build_order(LoopSettings(), "dpo", [*few, *changes], None)


@pytest.fixture(scope="module")
def policy(tiny_policy: Path) -> PromptFormat:
    return load_prompt_format(tiny_policy)


def test_too_few_rows_are_counted_before_the_start(policy: PromptFormat) -> None:
    for n in (0, 1):
        with pytest.raises(NotEnoughVotes, match=f"^{n} of {n} preference pairs.*; 4 are needed"):
            check_pairs(pairs(n), order(), policy)
    assert check_pairs(pairs(4), order(), policy) == ["4 of 4 preference pairs can be trained on"]


def test_bad_rows_are_named_and_can_be_left_out(policy: PromptFormat) -> None:
    rows = pairs(6)
    rows.loc[0, "rejected"] = rows.loc[0, "chosen"] + " "
    rows.loc[1, "prompt"] = "why " * 200
    same, long = rows["comparison_id"].head(2)
    with pytest.raises(ExpectationFailed, match=rf"comparison {same}: .*\n.*leave_out=\[{same}\]"):
        check_pairs(rows, order(), policy)
    left_out = f"retraining_set.leave_out=[{same}]"
    lines = check_pairs(rows, order(left_out), policy)
    assert lines[0] == "4 of 6 preference pairs can be trained on"
    assert f"comparison {long}: its prompt has 800 tokens" in lines[2]
    with pytest.raises(NotEnoughVotes, match=f"(?s)4 of 6 .*5 are needed.*comparison {long}"):
        check_pairs(rows, order(left_out, "min_pairs=5"), policy)


def test_training_before_the_first_reward_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="rlhf run learning"):
        check_inputs(Workspace(Settings(home=tmp_path)), order())
