"""One training of a transformer reward model in a process of its own: CPU seconds, peak memory, and the model in a folder.

    python benchmarks/trainer_runs.py SPEC.json FOLDER

`bench_trainers` writes the spec and reads FOLDER/run.json; a run that is there is not done again.
"""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from rlhf_pipeline.records import content_hash  # noqa: E402
from rlhf_pipeline.reward_model import TransformerParams, TransformerRewardModel  # noqa: E402
from rlhf_pipeline.reward_model.trainers import Surroundings  # noqa: E402
from rlhf_pipeline.reward_model.training import margins_of  # noqa: E402

IN_A_ROW = 2  # evaluations that have to pass, one after the other


@dataclass(frozen=True)
class Spec:
    """`train` and `calib` are Parquet files of pairs. Every `every_cpu_s` of training the model is judged on calib, which does not count;
    it stops once its accuracy was at least `threshold` twice in a row (None: it is trained to its end)."""

    params: dict[str, Any]
    train: str
    calib: str
    threshold: float | None = None
    every_cpu_s: float = 10.0

    def key(self) -> str:
        data = [content_hash(pd.read_parquet(path).to_json()) for path in (self.train, self.calib)]
        params = TransformerParams(**self.params).model_dump(mode="json")  # a default that changes makes another run
        return content_hash({**asdict(self), "params": params, "train": data[0], "calib": data[1]})[:16]


@dataclass
class Run:
    """What it cost and how it came along: `curve` has (CPU seconds of training, accuracy, log loss) on calib."""

    cpu_s: float
    peak_gb: float
    record: dict[str, Any]
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    folder: str = ""

    @property
    def to_quality_s(self) -> float:
        """CPU seconds until the evaluation that stopped it; of all of it where none did."""
        return self.curve[-1][0] if self.reached else self.cpu_s

    @property
    def reached(self) -> bool:
        return bool(self.record["was_stopped"])


def run(spec: Spec, runs: Path) -> Run:
    """The run of `spec` in its own process on one thread, or what is left of an earlier one in `runs`."""
    folder = runs / spec.key()
    if not (folder / "run.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spec.json").write_text(json.dumps(asdict(spec)))
        environ = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, __file__, str(folder / "spec.json"), str(folder)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"A training failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return Run(**json.loads((folder / "run.json").read_text()) | {"folder": str(folder / "model")})


def train(spec: Spec, folder: Path) -> Run:
    import torch

    torch.set_num_threads(1)
    pairs, calib = pd.read_parquet(spec.train), pd.read_parquet(spec.calib)
    model = TransformerRewardModel(TransformerParams(**spec.params))
    model.reader  # noqa: B018 - the tokenizer's libraries are imported before the clock starts
    curve: list[tuple[float, float, float]] = []
    away = 0.0  # CPU seconds spent judging
    started = time.process_time()

    def watch(step: int, network: Any) -> bool:
        nonlocal away
        spent = time.process_time() - started - away
        if spent < spec.every_cpu_s * (len(curve) + 1):
            return False
        before = time.process_time()
        model.networks_ = [network]
        margins = margins_of(model, calib)
        model.networks_ = []
        curve.append((spent, float((margins > 0).mean()), float(np.logaddexp(0, -margins).mean())))
        away += time.process_time() - before
        return spec.threshold is not None and len(curve) >= IN_A_ROW and all(at[1] >= spec.threshold for at in curve[-IN_A_ROW:])

    model.around = Surroundings(watch=watch)
    model.fit(pairs)
    cpu_s = time.process_time() - started - away
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    model.save(folder / "model")
    return Run(cpu_s, peak_gb, model.records_[0].model_dump(mode="json"), curve)


if __name__ == "__main__":
    given = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    finished = train(given, Path(sys.argv[2]))
    (Path(sys.argv[2]) / "run.json").write_text(json.dumps({k: v for k, v in asdict(finished).items() if k != "folder"}))
