"""Paths below RLHF_HOME of the files that `rlhf reward` writes; reads and writes JSONL.

The file names are those of the vote predictor that this pipeline succeeds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_pipeline.core.conversations import ConversationError
from rlhf_pipeline.core.errors import DatasetError, NotEnoughData
from rlhf_pipeline.core.files import translate_write_errors, write_atomically
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.row_files.json_rows import JsonLines
from rlhf_pipeline.feedback.votes.preference_pairs import read_trl_texts

SHOWN = 5  # invalid lines that a message names


class TrainingFiles:
    """The default paths; every command accepts another one."""

    def __init__(self, home: Path) -> None:
        data, models = home / "data", home / "models"
        self.training_data = data / "vote_predictor_training_data.jsonl"
        self.retraining_data = data / "vote_predictor_retrain_data.jsonl"
        self.predictions = data / "predictions.jsonl"
        self.checkpoint = models / "vote_predictor_checkpoint"
        self.calibration_log = models / "calibration_log.json"
        self.reflection_log = models / "meta_reflection_log.jsonl"
        self.reliability_diagram = models / "reliability_diagram.png"


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object per line atomically; return the number of lines."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append one JSON object per line in one write; return their number. Raises ArtefactError."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    with translate_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def read_lines(path: Path, what: str, cure: str, texts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The objects of a JSONL file, each with these `texts`. Raises NotEnoughData if it is missing
    or empty, DatasetError naming the first invalid lines and how many there are.
    """
    if not path.is_file():
        raise NotEnoughData(f"There is no {what} at {path}. {cure}")
    rows = list(JsonLines(path))
    if not rows:
        raise NotEnoughData(f"{path} is empty. {cure}")
    faults = [
        f"line {row.line}: {fault}"
        for row in rows
        if (fault := row.fault or _find_missing_text(row.cells, texts))
    ]
    if faults:
        more = f"; {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise DatasetError(
            f"{path}, {len(faults)} of {len(rows)} lines are invalid: "
            f"{'; '.join(faults[:SHOWN])}{more}. {cure}"
        )
    return [dict(row.cells) for row in rows]


def _find_missing_text(cells: Mapping[str, Any], texts: Sequence[str]) -> str | None:
    for name in texts:
        if not isinstance(cells.get(name), str):
            fault = f"is {cells[name]!r:.40}, not a text" if name in cells else "is missing"
            return f"{name} {fault}"
    return None


def read_pairs(path: Path) -> pd.DataFrame:
    """PREFERENCE_PAIRS as `rlhf votes prepare` wrote them. Raises NotEnoughData, DatasetError,
    FrameError.
    """
    rows = read_lines(path, "training data", "Run `rlhf votes prepare`.")
    try:
        texts = [read_trl_texts(row) for row in rows]
    except ConversationError as cause:
        raise DatasetError(f"{path}: {cause}.") from cause
    return check_frame(pd.DataFrame(texts), PREFERENCE_PAIRS)
