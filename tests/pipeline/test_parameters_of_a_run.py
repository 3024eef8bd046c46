"""What a run is given besides data: training parameters from a file, and a scenario that exists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_pipeline.application.assets.candidate_model import CandidateConfig
from rlhf_pipeline.improve.retraining.parameters import StrategyParams


def test_launchpad_parameters_train_without_a_file() -> None:
    assert CandidateConfig(beta=0.3).training_params() == StrategyParams(beta=0.3)


def test_values_of_the_params_file_override_the_launchpad(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("beta: 0.2\nepochs: 3\n")
    config = CandidateConfig(params_file=str(tmp_path / "p.yaml"), beta=0.9, batch_size=4)
    assert config.training_params() == StrategyParams(beta=0.2, epochs=3, batch_size=4)
    (tmp_path / "p.json").write_text(json.dumps({"beta": StrategyParams().beta}))
    file_alone = CandidateConfig(params_file=str(tmp_path / "p.json"), beta=0.9)
    assert file_alone.training_params() == StrategyParams(), (
        "a value of the file counts even where it is the default"
    )


def test_candidate_uses_the_files_parameters_and_logs_them(
    grown: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    project = branch(grown)
    file = tmp_path / "p.yaml"
    file.write_text("epochs: 1\nmin_pairs: 40\nlearning_rate: 0.0003\n")
    stages = {
        "retraining_set": {"min_pairs": 40, "max_pairs": 64},
        "candidate_model": {"params_file": str(file), "epochs": 2},
    }
    project.materialise(
        list(stages), config={"ops": {name: {"config": config} for name, config in stages.items()}}
    )
    candidate = project.registry.get("policy", "candidate")
    assert (candidate.params["epochs"], candidate.params["learning_rate"]) == (1, 0.0003)
    logged = project.registry.tracking.client.get_run(candidate.mlflow_run_id).data.params
    found_out = {"device", "dtype"}  # of `auto`
    same = {name: str(n) for name, n in candidate.params.items() if name not in found_out}
    same["sentinels"] = logged["sentinels"]
    assert logged.items() >= (same | {"params_file": str(file)}).items()
    assert candidate.params["device"] == "cpu"
