"""`rlhf policy`: orders are checked before anything starts."""

from pathlib import Path

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.policy import echo_cure
from rlhf_pipeline.cli.training_orders import (
    build_order,
    check_inputs,
    check_pairs,
    list_set_parameters,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ExpectationFailed,
    NotEnoughData,
    NotEnoughVotes,
)
from rlhf_pipeline.core.records import TrainingOrder, utc_now
from rlhf_pipeline.improve.evaluation import GateParams
from rlhf_pipeline.improve.loop_settings import CandidateParams, LoopSettings
from rlhf_pipeline.improve.retraining.jobs import JobState, TrainingJob
from tests.unit.improve.retraining.test_selection import pairs

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
        (None, "epochs=true", r"'epochs=true': epochs must be a number, not True\."),
        (None, "evaluation.min_prompts=no", "min_prompts must be a number, not False"),
        (None, "usd_per_hour=yes", "usd_per_hour must be a number"),
        (None, "evaluaton.n_prompts=5", r"neither a stage nor a section\. .*mean evaluation\?"),
        (None, "sentinel.max_kl=1", r"Did you mean sentinels\?"),
        (None, "params_file=/nowhere.yaml", "/nowhere.yaml cannot be read"),
    ],
)
def test_unusable_order_is_refused(strategy: str | None, change: str, message: str) -> None:
    loop = LoopSettings.parse({"candidate_model": {"batch_size": 6, "gradient_accumulation": 3}})
    with pytest.raises(ConfigurationError, match=message):
        build_order(loop, strategy, [change], None)


def test_order_combines_parameters_of_file_and_command() -> None:
    changes = ["learning_rate=1e-4", "sentinels.max_kl=0.2", "retraining_set.min_pairs=40"]
    order = build_order(LOOP, "kto", changes, "k1")
    assert order.key == "k1"
    candidate = order.stages["candidate_model"]
    chosen = ("strategy", "beta", "learning_rate", "epochs")
    assert [candidate[name] for name in chosen] == ["kto", 0.2, 1e-4, CandidateParams().epochs]
    assert (candidate["sentinels"]["every"], candidate["sentinels"]["max_kl"]) == (5, 0.2)
    assert order.stages["retraining_set"]["min_pairs"] == 40
    assert list(order.stages["gate"]) == list(GateParams.model_fields), "what is at its default too"
    parameters = dict(list_set_parameters(order))
    assert parameters["retraining_set"] == {"min_pairs": 40}
    assert sorted(parameters["candidate_model"]) == [
        "beta",
        "learning_rate",
        "sentinels",
        "strategy",
    ]
    assert build_order(LOOP, None, [], None).strategy == "dpo"
    assert LOOP.given["candidate_model"]["sentinels"] == {"every": 5}, "the settings stay"


def order(*changes: str, strategy: str = "dpo") -> TrainingOrder:
    few = ("retraining_set.min_pairs=4", "min_pairs=4")
    return build_order(LoopSettings(), strategy, [*few, *changes], None)


def test_too_few_rows_are_counted_before_the_start() -> None:
    for n in (0, 1):
        with pytest.raises(NotEnoughVotes, match=f"^{n} of {n} preference pairs.*; 4 are needed"):
            check_pairs(pairs(n), order())
    assert check_pairs(pairs(4), order()) == ["4 of 4 preference pairs can be trained on"]


def test_too_few_evaluation_prompts_are_counted_before_the_start() -> None:
    with pytest.raises(NotEnoughData, match="3 prompts; 30 are needed"):
        check_pairs(pairs(4), order(), ["e1", "e2", "e3"])


def test_rows_with_one_text_are_named_and_can_be_left_out() -> None:
    rows = pairs(5)
    rows.loc[0, ["comparison_id", "rejected"]] = ["123", rows.loc[0, "chosen"]]
    with pytest.raises(ExpectationFailed, match=r"leave_out=\[\"123\"\]'"):
        check_pairs(rows, order())
    lines = check_pairs(rows, order('retraining_set.leave_out=["123", "typo"]'))
    assert lines == [
        "4 of 5 preference pairs can be trained on",
        "leave_out names no current pair: typo",
    ]


def test_training_before_the_first_reward_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="rlhf run learning"):
        check_inputs(Workspace(Settings(home=tmp_path)), order())


@pytest.mark.parametrize(
    ("state", "key", "cure"),
    [
        ("failed", None, "To go on from its last checkpoint, order it again.\n"),
        ("failed", "k1", "order it again with another --key than k1.\n"),
        ("lost", "k1", "`rlhf policy cancel 1`, then order it again with another --key than k1.\n"),
        ("succeeded", None, ""),
    ],
)
def test_job_that_ended_early_says_how_to_resume(
    state: JobState, key: str | None, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ordered = order().model_copy(update={"key": key})
    job = TrainingJob(
        job_id=1, order=ordered, state=state, ordered_at=utc_now(), actor="bob", reason="test"
    )
    echo_cure(job)
    assert capsys.readouterr().out.endswith(cure)
