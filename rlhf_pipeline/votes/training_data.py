"""Preference pairs as the rows of `vote_predictor_training_data.jsonl`. Knows the frame; knows no
file.
"""

import json
from typing import Any

import pandas as pd

from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.records import content_hash


def training_rows(pairs: pd.DataFrame) -> list[dict[str, Any]]:
    """One JSON-ready mapping per pair, `prompt, chosen, rejected, margin` first as TRL's preference
    type has them.

    Sorted by comparison id, so that the same pairs give the same file byte for byte whatever order
    they came in.
    """
    checked = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id")
    first = ["prompt", "chosen", "rejected", "margin"]
    # An optional column nobody filled says nothing, and would change the hash of what was there
    # before it.
    rest = [
        c
        for c in checked.columns
        if c not in first and not (PREFERENCE_PAIRS.columns[c].optional and checked[c].isna().all())
    ]
    ordered = checked[first + rest]
    rows: list[dict[str, Any]] = json.loads(
        ordered.to_json(orient="records", force_ascii=False, double_precision=15)
    )
    return rows


def training_data_hash(pairs: pd.DataFrame) -> str:
    """What a training file is known by: the same pairs in any order give the same 64 hex
    characters.
    """
    return content_hash(training_rows(pairs))
