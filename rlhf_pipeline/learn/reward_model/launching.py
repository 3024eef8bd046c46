"""Runs a training in the processes that `accelerate launch` starts, one for each GPU."""

import contextlib
import io
import pickle
import re
import shlex
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rlhf_pipeline.core.errors import ConfigurationError, PipelineError, TrainingFailed
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.protocols import Progress

T = TypeVar("T")

TASK, RESULT = "task.pickle", "result.pickle"
MARK = "launched-steps "  # begins a line of progress; all others are of the libraries
LINES_KEPT = 60  # the launcher writes twenty of its own after those of a process


def run_launched(options: str, task: Callable[..., T], progress: Progress) -> T:
    """Call `task(progress=…)` in every process that `accelerate launch` with `options` starts;
    return what it returned in the first of them.

    `task` is sent by pickle: a module's function, or a partial of one. Raises ConfigurationError if
    that is impossible and as `check_launch_options`, the PipelineError that ended a process, and
    TrainingFailed with the last lines of the processes for any other end.
    """
    check_launch_options(options)
    with tempfile.TemporaryDirectory() as folder:
        try:
            (Path(folder) / TASK).write_bytes(pickle.dumps(task))
        except (pickle.PicklingError, AttributeError, TypeError) as cause:
            raise ConfigurationError(
                f"launch: a part of the training cannot be sent to other processes ({cause}). "
                "Define it at the top of a module, or leave launch empty."
            ) from cause
        returncode, lines = _follow(options, folder, progress)
        result = _read_result(Path(folder) / RESULT)
    if isinstance(result, PipelineError):
        raise result
    if returncode or result is None:
        raise TrainingFailed(
            f"`accelerate launch {options}` ended with {returncode}: {_find_cause(lines)}. Its "
            f"last lines:\n{lines}"
        )
    return result[0]  # type: ignore[no-any-return]


def check_launch_options(options: str) -> None:
    """Raise ConfigurationError, with accelerate's own words, where `accelerate launch` does not
    take these options. Importing its parser takes seconds.
    """
    if not options:
        return
    from accelerate.commands.launch import launch_command_parser

    output = io.StringIO()
    try:
        words = shlex.split(options)
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            script = launch_command_parser().parse_args([*words, "-m", __name__]).training_script
    except ValueError as cause:
        problem = f"{cause}"
    except SystemExit:
        problem = output.getvalue().rstrip().rpartition("\n")[2].rpartition("error: ")[2]
    else:
        if script == __name__:
            return
        problem = f"{script!r} is not an option"
    raise ConfigurationError(
        f"launch: `accelerate launch {options}` is refused: {problem.rstrip('.')}. Correct it: "
        "`accelerate launch --help` lists the options."
    )


def use_one_gpu(arguments: Any) -> None:
    """Keep a transformers trainer from splitting each batch among all visible GPUs: a process
    trains on one, and `launch` starts a process for each.
    """
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # the public API has no name for it


def _follow(options: str, folder: str, progress: Progress) -> tuple[int, str]:
    """Start the processes and wait for them; their exit code and last lines."""
    command = [sys.executable, "-m", "accelerate.commands.launch", *shlex.split(options)]
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    with subprocess.Popen(
        [*command, "-m", __name__, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        try:
            for line in launcher.stdout:
                if line.startswith(MARK):
                    done, total, note = line.removeprefix(MARK).rstrip("\n").split(" ", 2)
                    progress(int(done), int(total), note)
                else:
                    lines.append(line)
        except BaseException:
            launcher.terminate()
            raise
    return launcher.returncode, "".join(lines)


def _find_cause(lines: str) -> str:
    """The line that names the error, for the summaries that show one line: the last one that is not
    of the launcher, which reports that a process failed.
    """
    errors = [
        error[0].strip()
        for error in re.finditer(r"^.*?\w(?:Error|Exception|error)\b: .*$", lines, re.MULTILINE)
        if not re.search(r"CalledProcessError|ChildFailedError", error[0])
    ]
    others = lines.strip().splitlines()
    return (errors or others or ["no line was written"])[-1].rstrip(".")


def _read_result(path: Path) -> Any:
    """What a process left: its result in a tuple, or its error; None where none can be read."""
    try:
        return pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError):
        return None


def main(folder: Path) -> None:
    """Run the task in this process, as one of several; the first one keeps the result."""
    task = pickle.loads((folder / TASK).read_bytes())
    try:
        result = (task(progress=_print_progress),)
    except PipelineError as cause:
        write_atomically(folder / RESULT, pickle.dumps(cause))
        raise
    if _is_first():
        write_atomically(folder / RESULT, pickle.dumps(result))


def _is_first() -> bool:
    from accelerate.utils import get_int_from_env

    return bool(get_int_from_env(["RANK"], 0) == 0)


def _print_progress(done: int, total: int, note: str = "") -> None:
    if _is_first():
        print(f"{MARK}{done} {total} {note}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
