"""Paths below RLHF_HOME of the files that `rlhf reward` writes; reads and writes JSONL.

The file names are those of the vote predictor that this pipeline succeeds.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_pipeline.documents import parse_json
from rlhf_pipeline.errors import DatasetError, NotEnoughData
from rlhf_pipeline.files import translate_write_errors, write_atomically
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame


@dataclass(frozen=True)
class TrainingFiles:
    """The default paths; every command accepts another one."""

    home: Path

    @property
    def training_data(self) -> Path:
        return self.home / "data" / "vote_predictor_training_data.jsonl"

    @property
    def retraining_data(self) -> Path:
        return self.home / "data" / "vote_predictor_retrain_data.jsonl"

    @property
    def predictions(self) -> Path:
        return self.home / "data" / "predictions.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.home / "models" / "vote_predictor_checkpoint"

    @property
    def calibration_log(self) -> Path:
        return self.home / "models" / "calibration_log.json"

    @property
    def reflection_log(self) -> Path:
        return self.home / "models" / "meta_reflection_log.jsonl"

    @property
    def reliability_diagram(self) -> Path:
        return self.home / "models" / "reliability_diagram.png"


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


def read_lines(path: Path, what: str, cure: str) -> list[dict[str, Any]]:
    """The objects of a JSONL file. Raises NotEnoughData if it is missing or empty, DatasetError
    with the number of an invalid line.
    """
    if not path.is_file():
        raise NotEnoughData(f"There is no {what} at {path}. {cure}")
    rows: list[dict[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        raise DatasetError(
            f"{path} cannot be read: {cause}. Give a JSONL file in UTF-8."
        ) from cause
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as cause:
            raise DatasetError(
                f"{path}, line {number}: invalid JSON ({cause}). Write one object per line."
            ) from cause
        if not isinstance(row, dict):
            raise DatasetError(
                f"{path}, line {number}: expected a JSON object, got {type(row).__name__}. Write "
                "one object per line."
            )
        rows.append(row)
    if not rows:
        raise NotEnoughData(f"{path} is empty. {cure}")
    return rows


def read_pairs(path: Path) -> pd.DataFrame:
    """PREFERENCE_PAIRS as `rlhf votes prepare` wrote them. Raises NotEnoughData, DatasetError,
    FrameError.
    """
    return check_frame(
        pd.DataFrame(read_lines(path, "training data", "Run `rlhf votes prepare`.")),
        PREFERENCE_PAIRS,
    )
