"""Any two policies are compared on the evaluation set by the champion reward model."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.improve.evaluation.judge import EvaluationSamples
from rlhf_pipeline.improve.policy_comparison import compare_versions


def register_noisy(project: Any, folder: Path) -> ModelVersion:
    """The first policy with noise on its weights."""
    shutil.copytree(project.champions.policy_folder(), folder)
    rng, file = np.random.default_rng(0), folder / "model.safetensors"
    weights = load_file(file)
    noisy = {
        name: value + rng.normal(0, 0.1, value.shape).astype(value.dtype)
        for name, value in weights.items()
    }
    save_file(noisy, file, metadata={"format": "pt"})
    with project.registry.run("candidate_model", {}, run_key="noisy") as run:
        return project.registry.register("policy", folder, run=run, parent="demo.policy@1")


def test_any_two_policies_have_figures_with_intervals(
    grown: Any, branch: Callable[..., Any], few_prompts: Path, tmp_path: Path
) -> None:
    config = tmp_path / "rlhf.yaml"
    config.write_text("loop:\n  evaluation: {max_new_tokens: 8}\n")
    project = branch(grown, evaluation_file=few_prompts, config=config)
    first, second = project.champions.policy(), register_noisy(project, tmp_path / "noisy")
    result = compare_versions(project.champions, project.settings, first, second)
    assert result.reward_model.startswith(project.judge)
    assert result.win_rate.low < result.win_rate.value < result.win_rate.high
    (category,) = result.by_category
    assert category.reward_difference.low < category.reward_difference.high
    assert all(each.win_rate for each in result.by_dimension if each.head.has_head)
    (stored,) = project.files.read_reports(
        "samples", ["demo.policy@2_demo.policy@1"], EvaluationSamples
    ).values()
    assert len(stored.rows) == 40
    again = compare_versions(project.champions, project.settings, first, second)
    assert (again.samples_hash, again.win_rate) == (result.samples_hash, result.win_rate)
    with pytest.raises(NotEnoughData, match="two versions"):
        compare_versions(project.champions, project.settings, first, first)
