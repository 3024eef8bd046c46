"""Rows of a small curated data set, and what they are made from."""

import json
from datetime import UTC, datetime

import pandas as pd

from rlhf_pipeline.core.curation import CuratedPair
from rlhf_pipeline.core.frames import DATASET_ROWS, PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.records import Feedback

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def build_dataset_rows(n: int = 2, **columns) -> pd.DataFrame:
    """`n` preference rows with unlike texts; `columns` replace theirs."""
    rows = {
        "row_id": [f"comparison:c{i}" for i in range(n)],
        "sources": [json.dumps([f"comparison:c{i}"]) for i in range(n)],
        "prompt_id": [f"p{i}" for i in range(n)],
        "prompt": [f"Question {i}: where is town {i}?" for i in range(n)],
        "completion": [f"Town {i} lies by river {i}." for i in range(n)],
        "rejected": [f"I do not know {i}." for i in range(n)],
        "label": None,
        "strength": 0.75,
        "agreement": 1.0,
        "category": "factual",
        "day": "2026-03-01",
    }
    return check_frame(pd.DataFrame(rows | columns), DATASET_ROWS)


def build_vote_pairs(**columns) -> pd.DataFrame:
    """Two preference pairs of votes."""
    rows = {
        "day": "2026-03-01",
        "comparison_id": ["c1", "c2"],
        "prompt_id": ["p1", "p2"],
        "prompt": ["Where is Bern?", "Where is Oslo?"],
        "chosen": ["In Switzerland.", "In Norway."],
        "rejected": ["In Austria.", "In Sweden."],
        "margin": [0.5, 1.0],
        "agreement": [0.75, 1.0],
        "n_votes": [4, 1],
        "chosen_side": ["a", "b"],
        "annotator_kind": "human",
        "category": ["factual", "creative"],
        "split": "train",
        "max_seq": [4, 5],
    }
    return check_frame(pd.DataFrame(rows | columns), PREFERENCE_PAIRS)


def build_curated(pair_id: int = 7, **fields) -> CuratedPair:
    values = {
        "prompt": "How do I deploy?",
        "chosen": "Run `make deploy`.",
        "rejected": "Ask someone.",
        "strength": 0.75,
        "context": ("The manual says: make deploy.",),
        "pair_id": pair_id,
        "revision": 2,
        "dataset_id": 1,
        "status": "accepted",
        "edited_by": "u1",
        "edited_at": AT,
    }
    return CuratedPair(**(values | fields))


def build_feedback(feedback_id: int, kind: str, **fields) -> Feedback:
    values = {
        "prompt": "How do I deploy?",
        "completion": "Ask someone.",
        "created_at": AT,
        "created_by": "app",
    }
    return Feedback(feedback_id=feedback_id, kind=kind, **(values | fields))
