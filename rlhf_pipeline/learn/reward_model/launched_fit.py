"""Fits a reward model in the processes that `accelerate launch` starts, one for each GPU."""

import pickle
import shlex
import subprocess
import sys
from collections import deque
from pathlib import Path

import pandas as pd

from rlhf_pipeline.core.errors import TrainingFailed
from rlhf_pipeline.core.protocols import Progress
from rlhf_pipeline.learn.reward_model.base import Floats, RewardModel
from rlhf_pipeline.learn.reward_model.encoder import Encoder

TASK, START, FITTED = "task.pickle", "start", "fitted"
MARK = "fitted-steps "  # begins a line of progress; all others are of the libraries
LINES_KEPT = 20


def launch_fit(
    options: str,
    folder: Path,
    model: RewardModel,
    pairs: pd.DataFrame,
    weights: Floats | None,
    warm_start: RewardModel | None,
    progress: Progress,
) -> Path:
    """Fit a model like the unfitted `model` by `accelerate launch` with `options`, with all files
    in `folder`; return the folder of the fitted one.

    Raises TrainingFailed with the last lines of the processes if one of them fails.
    """
    assert model.encoder is not None
    if warm_start is not None:
        warm_start.save(folder / START)
    task = (type(model), model.params, model.encoder.choice, pairs, weights)  # type: ignore[attr-defined]
    (folder / TASK).write_bytes(pickle.dumps(task))
    command = [sys.executable, "-m", "accelerate.commands.launch", *shlex.split(options)]
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    with subprocess.Popen(
        [*command, "-m", __name__, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        try:
            for line in launcher.stdout:
                if line.startswith(MARK):
                    done, total, note = line.removeprefix(MARK).rstrip().split(" ", 2)
                    progress(int(done), int(total), note)
                else:
                    lines.append(line)
        except BaseException:
            launcher.terminate()
            raise
    if launcher.returncode:
        raise TrainingFailed(
            f"`accelerate launch {options}` ended with {launcher.returncode}. Its last lines:\n"
            + "".join(lines)
        )
    return folder / FITTED


def main(folder: Path) -> None:
    """Fit in this process, as one of several; the first one saves the model."""
    from accelerate import PartialState

    kind, params, choice, pairs, weights = pickle.loads((folder / TASK).read_bytes())
    encoder = Encoder(choice, max_tokens=params.max_tokens)
    start = kind.load(folder / START, encoder=encoder) if (folder / START).exists() else None
    model = kind(params, encoder).fit(
        pairs, weights=weights, warm_start=start, progress=_print_progress
    )
    if PartialState().is_main_process:
        model.save(folder / FITTED)


def _print_progress(done: int, total: int, note: str = "") -> None:
    print(f"{MARK}{done} {total} {note}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
