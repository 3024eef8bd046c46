"""Counts the votes on each pair by dimension of the rubric, such as helpful or correct.

A vote may name the better side in each dimension beside its choice. Ties in a dimension are left
out, as ties of the choice are.
"""

import json
from collections import defaultdict
from collections.abc import Mapping

import pandas as pd

from rlhf_pipeline.records import Choice


def count_dimension_votes(votes: pd.DataFrame, chosen_sides: Mapping[str, str]) -> pd.Series:
    """`dimension_votes` of PREFERENCE_PAIRS by comparison id, from counting rows of VOTES;
    `chosen_sides` maps comparison ids to the chosen side. Comparisons without such votes are left
    out.
    """
    judging = votes[votes["dimensions"].notna() & (votes["choice"] != Choice.SKIP)]
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for comparison_id, text in zip(judging["comparison_id"], judging["dimensions"], strict=True):
        chosen = chosen_sides.get(comparison_id)
        for name, side in json.loads(text).items() if chosen else ():
            if side in (Choice.A, Choice.B):
                counts[comparison_id][name][side != chosen] += 1
    return pd.Series(
        {each: json.dumps(found, sort_keys=True) for each, found in counts.items()}, dtype="object"
    )


def read_dimension_votes(pairs: pd.DataFrame) -> pd.DataFrame:
    """The columns row (number of the pair in PREFERENCE_PAIRS), dimension, prompt_id, n_chosen and
    n (votes for a side), one row per pair and dimension that votes judge.
    """
    missing = pd.Series([None] * len(pairs), dtype="object")  # the column is optional
    texts = pairs.get("dimension_votes", missing)
    rows = [
        (row, name, prompt_id, chosen, chosen + rejected)
        for row, (text, prompt_id) in enumerate(zip(texts, pairs["prompt_id"], strict=True))
        if isinstance(text, str)
        for name, (chosen, rejected) in json.loads(text).items()
    ]
    return pd.DataFrame(rows, columns=["row", "dimension", "prompt_id", "n_chosen", "n"])
