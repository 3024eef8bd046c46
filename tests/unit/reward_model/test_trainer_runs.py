"""What benchmarks/trainer_runs.py says of a training: when it is stopped, what counts until then,
whose memory it is.
"""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import trainer_runs
from benchmarks.trainer_runs import TrainingSpec, train
from rlhf_pipeline.reward_model import TransformerRewardModel
from rlhf_pipeline.reward_model.encoder import Encoder
from tests.unit.reward_model.tiny_networks import save_tiny_bert, word_pairs

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE = 1e-9  # CPU seconds


@pytest.fixture
def spec_of(tmp_path, monkeypatch):
    bert = save_tiny_bert(tmp_path / "bert")
    monkeypatch.setattr(
        trainer_runs,
        "TransformerRewardModel",
        functools.partial(TransformerRewardModel, encoder=Encoder(bert, max_tokens=24)),
    )
    word_pairs().to_parquet(tmp_path / "pairs.parquet")
    pairs = str(tmp_path / "pairs.parquet")
    return lambda *limits: TrainingSpec(
        {"max_tokens": 24, "steps": 5, "precision": "float32"}, pairs, pairs, *limits
    )


@pytest.mark.parametrize(
    ("threshold", "at_most", "n_steps", "reached"),
    [(None, None, 5, False), (0.0, None, 2, True), (1.1, None, 5, False), (1.1, AT_ONCE, 1, False)],
    ids=["to its end", "good enough twice in a row", "never good enough", "out of time"],
)
def test_a_run_ends_when_it_is_good_enough_or_out_of_time(
    spec_of, tmp_path, threshold, at_most, n_steps, reached
):
    done = train(spec_of(threshold, AT_ONCE, at_most), tmp_path)
    assert (done.record["n_steps"], len(done.curve), done.reached) == (n_steps, n_steps, reached)
    assert done.curve[-1][0] <= done.to_quality_s <= done.cpu_s
    assert done.peak_gb > 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
def test_memory_of_a_run_is_not_its_parents():
    ballast = np.ones(75_000_000)  # 0.6 GB, written to
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "from benchmarks.trainer_runs import peak_memory_gb; print(peak_memory_gb())",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0.01 < float(said.stdout) < ballast.nbytes / 2**30
