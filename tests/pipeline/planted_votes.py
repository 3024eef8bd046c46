"""Turns the votes of a known world into comparisons, predictions, votes and a reference window."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import pandas as pd

from benchmarks.vote_worlds import FIRST_DAY
from rlhf_pipeline.core.frames import COMPARISONS, PREDICTIONS, check_frame
from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewVote
from rlhf_pipeline.watch.drift.reference import Window, judge_votes, reference_window

SOURCE = "laboratory"
COMPLETIONS = ("One completion.", "Another completion.")
OPENING, OPEN = timedelta(hours=7), timedelta(hours=14)


def move_days(votes: pd.DataFrame, first_day: date) -> pd.DataFrame:
    """The same votes with `first_day` as the world's first day."""
    days = {
        day: (first_day + (date.fromisoformat(day) - FIRST_DAY)).isoformat()
        for day in votes["day"].unique()
    }
    return votes.assign(day=votes["day"].map(days))


def build_comparisons(votes: pd.DataFrame, votes_per_comparison: int) -> pd.DataFrame:
    """One comparison for each run of votes; it repeats an earlier one or is new."""
    first = votes.iloc[::votes_per_comparison]
    own = [f"comparison {i}" for i in range(len(first))]
    original = first["comparison_id"].tolist()
    return check_frame(
        pd.DataFrame(
            {
                "day": first["day"].to_numpy(),
                "comparison_id": own,
                "prompt_id": [f"prompt of {origin}" for origin in original],
                "prompt": [
                    f"Question of {category}: {origin}"
                    for category, origin in zip(first["category"], original, strict=True)
                ],
                "completion_a_id": [f"{origin}, side a" for origin in original],
                "completion_b_id": [f"{origin}, side b" for origin in original],
                "completion_a": COMPLETIONS[0],
                "completion_b": COMPLETIONS[1],
                "model_version_a": "lab.policy@1",
                "model_version_b": "lab.policy@1",
                "category": first["category"].to_numpy(),
                "repeat_of": [
                    None if origin == repeated else repeated
                    for origin, repeated in zip(own, original, strict=True)
                ],
                "position": range(len(first)),
                "seed": 0,
            }
        ),
        COMPARISONS,
    )


def build_predictions(
    votes: pd.DataFrame, votes_per_comparison: int, reward_model: str
) -> pd.DataFrame:
    """What the world's model stated of each comparison, at the beginning of its day."""
    first = votes.iloc[::votes_per_comparison]
    p = first["p"].to_numpy(dtype=float)
    return check_frame(
        pd.DataFrame(
            {
                "day": first["day"].to_numpy(),
                "comparison_id": [f"comparison {i}" for i in range(len(first))],
                "reward_model": reward_model,
                "calibrator": "identity",
                "data_hash": SOURCE,
                "features_hash": SOURCE,
                "score_a": np.log(p / (1 - p)),
                "score_b": 0.0,
                "p_raw": p,
                "p_calibrated": p,
                "predicted_at": [_midnight(day) for day in first["day"]],
            }
        ),
        PREDICTIONS,
    )


def build_reference(votes: pd.DataFrame, reward_model: str) -> Window:
    """The reference window of the world's model, from votes that `draw_reference` drew."""
    first = votes.drop_duplicates("published_id").set_index("published_id")
    on_each = votes.groupby("published_id", sort=False)["error"]
    p = first["p"].to_numpy(dtype=float)
    favours_a = p > 0.5
    sides = np.array(COMPLETIONS, dtype=object)
    pairs = pd.DataFrame(
        {
            "comparison_id": first.index,
            "prompt_id": [f"prompt of {origin}" for origin in first.index],
            "prompt": [
                f"Question of {category}: {origin}"
                for origin, category in zip(first.index, first["category"], strict=True)
            ],
            "chosen": sides[(~favours_a).astype(int)],
            "rejected": sides[favours_a.astype(int)],
            "chosen_side": np.where(favours_a, "a", "b"),
            "split": "calib",
            "n_votes": on_each.size().to_numpy(),
            "agreement": 1 - on_each.mean().to_numpy(),
        }
    )
    score_a = np.log(p / (1 - p))
    scores = (np.where(favours_a, score_a, 0.0), np.where(favours_a, 0.0, score_a))
    chosen = votes["published_id"].map(dict(zip(first.index, favours_a, strict=True)))
    cast = pd.DataFrame(
        {
            "annotator_id": votes["annotator_id"],
            "comparison_id": votes["published_id"],
            "category": votes["category"],
            "choice": np.where(chosen != (votes["error"] == 1), "a", "b"),
        }
    )
    stated = np.maximum(p, 1 - p)
    window = reference_window(pairs, stated, model_version=reward_model, scores=scores)
    return replace(window, votes=judge_votes(cast, window.rows.set_index("comparison_id")["p"]))


def build_votes(votes: pd.DataFrame, votes_per_comparison: int) -> Iterator[NewVote]:
    """The votes in order; one that is an error is for the side that the model did not predict."""
    p = votes["p"].tolist()
    within = votes.groupby("day").cumcount().tolist()
    per_day = max(within) + 1
    for i, row in enumerate(votes.itertuples()):
        predicted = p[i // votes_per_comparison * votes_per_comparison] > 0.5
        yield NewVote(
            comparison_id=f"comparison {i // votes_per_comparison}",
            annotator_id=row.annotator_id,
            annotator_kind=AnnotatorKind.SIMULATED,
            choice=Choice.A if predicted != bool(row.error) else Choice.B,
            strength=2,
            duration_s=row.duration_s,
            is_swapped=row.shown_left == "b",
            # as `hour` has it: from 7 to 21 o'clock
            voted_at=_midnight(row.day) + OPENING + OPEN * within[i] / per_day,
            origin="simulation",
            idempotency_key=f"{SOURCE}:{i}",
        )


def _midnight(day: str) -> datetime:
    return datetime.combine(date.fromisoformat(day), time(), UTC)
