"""One training of a transformer reward model in a process of its own: CPU seconds, peak memory, and
the model in a folder.

    python benchmarks/trainer_runs.py SPEC.json FOLDER

`bench_trainers` writes the spec and reads FOLDER/run.json; a run that is there is not done again,
unless the code that trains has changed since: a figure is of the code that is measured.
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
from rlhf_pipeline.reward_model.base import margins_of  # noqa: E402
from rlhf_pipeline.reward_model.trainers import TrainingContext  # noqa: E402

CONFIRMATIONS = 2  # evaluations that have to pass, one after the other
TRAINING_CODE = ROOT / "rlhf_pipeline" / "reward_model"


def code_hash(folder: Path = TRAINING_CODE) -> str:
    """Of every source file that a training runs through: all of `folder`, and this file. A comment
    counts too: better once too often.
    """
    files = [*sorted(folder.rglob("*.py")), Path(__file__)]
    return content_hash(
        {
            file.name
            if file == Path(__file__)
            else file.relative_to(folder).as_posix(): file.read_text()
            for file in files
        }
    )


@dataclass(frozen=True)
class TrainingSpec:
    """`train` and `calib` are Parquet files of pairs. Every `every_cpu_s` of training the model is
    judged on calib, which does not count; it stops once its accuracy was at least `threshold` twice
    in a row (None: it is trained to its end), or after `at_most_cpu_s`."""

    params: dict[str, Any]
    train: str
    calib: str
    threshold: float | None = None
    every_cpu_s: float = 10.0
    at_most_cpu_s: float | None = None

    def key(self) -> str:
        data = [content_hash(pd.read_parquet(path).to_json()) for path in (self.train, self.calib)]
        # a default that changes makes another run
        params = TransformerParams(**self.params).model_dump(mode="json")
        return content_hash(
            {
                **asdict(self),
                "params": params,
                "train": data[0],
                "calib": data[1],
                "code": code_hash(),
            }
        )[:16]


@dataclass
class TrainingRun:
    """What it cost and how it came along.

    `cpu_s` is of the whole fit, with the scale of the scores; `to_quality_s` and `peak_memory_gb`
    are of the training until it was stopped or had done all its steps. `reached` says whether it
    was stopped because it was good enough. `curve` has (CPU seconds, accuracy, log loss) on calib.
    """

    cpu_s: float
    to_quality_s: float
    reached: bool
    peak_gb: float
    record: dict[str, Any]
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    folder: str = ""


def load_or_run(spec: TrainingSpec, runs: Path) -> TrainingRun:
    """The run of `spec` in its own process on one thread, or what is left of an earlier one in
    `runs`.
    """
    folder = runs / spec.key()
    if not (folder / "run.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spec.json").write_text(json.dumps(asdict(spec)))
        environ = os.environ | {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, __file__, str(folder / "spec.json"), str(folder)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"A training failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return TrainingRun(
        **json.loads((folder / "run.json").read_text()) | {"folder": str(folder / "model")}
    )


def train(spec: TrainingSpec, folder: Path) -> TrainingRun:
    import torch

    torch.set_num_threads(1)
    pairs, calib = pd.read_parquet(spec.train), pd.read_parquet(spec.calib)
    model = TransformerRewardModel(TransformerParams(**spec.params))
    model.reader  # noqa: B018 - the tokenizer's libraries are imported before the clock starts
    curve: list[tuple[float, float, float]] = []
    spent, peak = 0.0, 0.0  # after the latest step
    reached = False
    away = 0.0  # CPU seconds spent judging
    started = time.process_time()

    def watch(step: int, network: Any) -> bool:
        nonlocal away, spent, peak, reached
        spent = time.process_time() - started - away
        before = time.process_time()
        peak = peak_memory_gb()
        if spent >= spec.every_cpu_s * (len(curve) + 1):
            model.networks_ = [network]
            margins = margins_of(model, calib)
            model.networks_ = []
            curve.append(
                (spent, float((margins > 0).mean()), float(np.logaddexp(0, -margins).mean()))
            )
            reached = (
                spec.threshold is not None
                and len(curve) >= CONFIRMATIONS
                and all(at[1] >= spec.threshold for at in curve[-CONFIRMATIONS:])
            )
        away += time.process_time() - before
        return reached or (spec.at_most_cpu_s is not None and spent >= spec.at_most_cpu_s)

    model.around = TrainingContext(watch=watch)
    model.fit(pairs)
    cpu_s = time.process_time() - started - away
    model.save(folder / "model")
    return TrainingRun(
        cpu_s, spent, reached, peak, model.records_[0].model_dump(mode="json"), curve
    )


def peak_memory_gb() -> float:
    """The most memory this process ever held. Not `ru_maxrss` where there is another way: a child's
    starts at its parent's.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    given = TrainingSpec(**json.loads(Path(sys.argv[1]).read_text()))
    finished = train(given, Path(sys.argv[2]))
    (Path(sys.argv[2]) / "run.json").write_text(
        json.dumps({k: v for k, v in asdict(finished).items() if k != "folder"})
    )
