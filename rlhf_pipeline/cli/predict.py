"""`rlhf reward predict`: which of two completions people would prefer, by the champion."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.models import find_reward_model
from rlhf_pipeline.cli.tables import echo, progress_bar
from rlhf_pipeline.cli.training_files import TrainingFiles, append_lines, read_lines
from rlhf_pipeline.core.api_types.project import PairPrediction
from rlhf_pipeline.core.errors import ConfigurationError, ModelNotFound
from rlhf_pipeline.learn.champions import CalibratedModel, Question
from rlhf_pipeline.reports.words import format_count

FIELDS = ("prompt", "completion_a", "completion_b")
CURE = f"Write one JSON object a line with {', '.join(FIELDS)}."
AT_ONCE = 512  # pairs between two writes: what was predicted before a kill stays


def predict(
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", help="Ask for prompt and completions, one pair after another."
        ),
    ] = False,
    input: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file, an object with prompt, completion_a and completion_b a line; other "
            "fields are kept."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME@VERSION", help="Which reward model; default the champion."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to append to; default data/predictions.jsonl below RLHF_HOME."),
    ] = None,
) -> None:
    """Predict how likely people prefer a, raw and calibrated; append it to predictions.jsonl with
    the model, calibrator and data it rests on.
    """
    if interactive == (input is not None):
        raise ConfigurationError(
            "Say what to predict: either --interactive, or --input FILE.jsonl."
        )
    workspace = Workspace.open()
    path = out or TrainingFiles(workspace.settings.home).predictions
    # before a model is loaded for a file that cannot be read
    rows = [] if input is None else read_lines(input, "file of pairs", CURE, FIELDS)
    judge = load_judge(workspace, model)
    n = (
        predict_dialogue(judge, iter(sys.stdin.readline, ""), sys.stdout, path)
        if input is None
        else predict_all(judge, rows, path)
    )
    echo(
        f"{format_count(n, 'prediction')} of {judge.label}, {judge.calibrator_version}, "
        f"appended to {path}"
    )


def load_judge(workspace: Workspace, label: str | None) -> CalibratedModel:
    """The champion, or `name@version`, with its newest calibrator. Raises ModelNotFound,
    ConfigurationError.
    """
    version = None if label is None else find_reward_model(workspace.champions, label)
    judge = workspace.champions.judge(version)
    if judge is None:
        raise ModelNotFound(
            "There is no champion reward model yet. Fit one: rlhf votes prepare, rlhf reward "
            "train, rlhf reward calibrate; or run `learning`."
        )
    return judge


def predict_all(judge: CalibratedModel, rows: list[dict[str, Any]], path: Path) -> int:
    with progress_bar(f"predictions of {judge.label}") as progress:
        score_cache: dict[tuple[str, str], float] = {}
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            answers = judge.predict(
                [Question(**{name: row[name] for name in FIELDS}) for row in some],
                score_cache=score_cache,
            )
            append_lines(
                path, (build_line(row, answer) for row, answer in zip(some, answers, strict=True))
            )
            progress(start + len(some), len(rows))
    return len(rows)


def build_line(question: Mapping[str, Any], answer: PairPrediction) -> dict[str, Any]:
    """The question, and the answer with the model, calibrator and data it rests on."""
    values: dict[str, Any] = json.loads(answer.model_dump_json())
    return {**question, **values}


def ask_pairs(lines: Iterator[str], out: TextIO) -> Iterator[Question]:
    """Take prompt and completions from lines until they end, or a prompt is empty. A line's `\\n`
    is a line break.
    """
    while True:
        texts: list[str] = []
        for what in ("prompt> ", "a> ", "b> "):
            echo(what, nl=False, file=out)
            line = next(lines, None)
            if line is None or not (texts or line.strip("\n")):
                return
            texts.append(line.rstrip("\n").replace("\\n", "\n"))
        prompt, a, b = texts
        yield Question(prompt=prompt, completion_a=a, completion_b=b)


def predict_dialogue(judge: CalibratedModel, lines: Iterator[str], out: TextIO, path: Path) -> int:
    """Answer pairs as they are typed; returns their number."""
    echo(
        f"{judge.label}, {judge.calibrator_version}. An empty prompt ends; \\n in a line is a line "
        "break.",
        file=out,
    )
    n = 0
    for question in ask_pairs(lines, out):
        (answer,) = judge.predict([question])
        append_lines(path, [build_line(question.model_dump(), answer)])
        echo(describe_answer(answer), file=out)
        n += 1
    return n


def describe_answer(answer: PairPrediction) -> str:
    """
    >>> from datetime import UTC, datetime
    >>> rest = dict(data_hash=None, data_seq=None, features_hash="f", score_a=1.0, score_b=0.5)
    >>> rest |= dict(reward_model="demo.reward_model@1", calibrator="platt@2", p_raw=0.62)
    >>> rest |= dict(p_calibrated=0.6, predicted_at=datetime(2026, 1, 1, tzinfo=UTC))
    >>> describe_answer(PairPrediction(**rest))
    'a is preferred with 60.0% (raw 62.0%), margin 0.500'
    """
    p, raw = answer.p_calibrated, answer.p_raw
    if p == 0.5:
        return "neither is preferred: 50%"
    side = "a" if p > 0.5 else "b"
    return (
        f"{side} is preferred with {100 * max(p, 1 - p):.1f}% (raw "
        f"{100 * (raw if side == 'a' else 1 - raw):.1f}%), margin "
        + (f"{abs(answer.score_a - answer.score_b):.3f}")
    )
