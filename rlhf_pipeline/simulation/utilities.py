"""Measures the qualities of a text that simulated annotators value, and weighs them by taste.

A completion's true utility is the weighted sum of its qualities. Reports print it beside the
pipeline's findings; no stage reads it.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.generate.prompts import is_right

Floats = npt.NDArray[np.float64]

QUALITIES: dict[str, str] = {
    "correct": "1 for the right checkable answer, -1 for a wrong one, 0 where nothing can be "
    "checked",
    "warmth": "sentences that are kind to the reader, at most 2",
    "sourcing": "sentences that name a source, at most 2",
    "rambling": "sentences that lead nowhere, at most 2",
    "length": "words, in tens",
    "empty": "1 for a completion without a word",
}
# A third kind sentence adds no utility over two: repeating a marker cannot buy utility.
MOST_SENTENCES = 2

WARM = re.compile(
    r"\b(happy to help|lovely|wonderful|friend|thank you|thanks|joy to help|glad|welcome|"
    r"take (good )?care|dear|hope this helps)\b",
    re.I,
)
SOURCED = re.compile(
    r"\b(according to|source|reference|archive|handbook|record|documented|verified|cited|"
    r"as stated)\b",
    re.I,
)
RAMBLING = re.compile(
    r"\b(where do i begin|let me see|long story|and so on|on and on|as they say|who knows|"
    r"it all depends|anyway)\b",
    re.I,
)
SENTENCE = re.compile(r"[^.!?]+[.!?]*")


class Taste(Record):
    """Weight of each quality, in units of utility."""

    name: str
    weights: dict[str, float] = Field(
        description="quality -> utility per unit; missing ones count nothing"
    )


def features(prompt_text: str, reference: str | None, completion_text: str) -> dict[str, float]:
    """The qualities of one completion, by the names in QUALITIES."""
    n_words = len(completion_text.split())
    return {
        "correct": _score_correctness(reference, completion_text),
        "warmth": _count_sentences(WARM, completion_text),
        "sourcing": _count_sentences(SOURCED, completion_text),
        "rambling": _count_sentences(RAMBLING, completion_text),
        "length": n_words / 10,
        "empty": float(n_words == 0),
    }


def utility(
    prompts_texts: Sequence[str],
    references: Sequence[str | None],
    completions: Sequence[str],
    taste: Taste,
) -> Floats:
    """True utility (n,) of each completion for people with one taste."""
    rows = [
        features(p, r, c) for p, r, c in zip(prompts_texts, references, completions, strict=True)
    ]
    return _weigh(rows, taste)


def _weigh(rows: Sequence[Mapping[str, float]], taste: Taste) -> Floats:
    unknown = sorted(set(taste.weights) - set(QUALITIES))
    if unknown:
        raise ValueError(
            f"Taste {taste.name} weighs {unknown}, which are no qualities. Known: "
            f"{', '.join(QUALITIES)}."
        )
    return np.array(
        [sum(weight * row[quality] for quality, weight in taste.weights.items()) for row in rows],
        dtype=np.float64,
    )


def side_utilities(
    comparisons: pd.DataFrame, references: Mapping[str, str | None], taste: Taste
) -> tuple[Floats, Floats]:
    """True utilities of side a and side b of COMPARISONS, each (n,).

    Raises FrameError naming a prompt without an entry for its reference (None is a valid reference:
    there is nothing to check).
    """
    answers = _references_of(comparisons, references)
    prompts = comparisons["prompt"].tolist()
    a, b = (
        utility(prompts, answers, comparisons[side].tolist(), taste)
        for side in ("completion_a", "completion_b")
    )
    return a, b


def utility_gaps(
    comparisons: pd.DataFrame, references: Mapping[str, str | None], tastes: Sequence[Taste]
) -> Floats:
    """True utility of side a less that of side b of COMPARISONS for each taste, (n, tastes); each
    text is read once. Raises FrameError as `side_utilities`.
    """
    answers = _references_of(comparisons, references)
    a, b = (
        [
            features(*row)
            for row in zip(comparisons["prompt"], answers, comparisons[side], strict=True)
        ]
        for side in ("completion_a", "completion_b")
    )
    return np.column_stack([_weigh(a, taste) - _weigh(b, taste) for taste in tastes])


def _references_of(
    comparisons: pd.DataFrame, references: Mapping[str, str | None]
) -> list[str | None]:
    missing = sorted(set(comparisons["prompt_id"]) - set(references))
    if missing:
        raise FrameError(
            f"No reference given for prompt {missing[0]} and {len(missing) - 1} more. Hand in "
            "those of all prompts, None included."
        )
    return [references[prompt_id] for prompt_id in comparisons["prompt_id"]]


def _score_correctness(reference: str | None, completion: str) -> float:
    if reference is None or pd.isna(reference) or not reference:
        return 0.0
    return 1.0 if is_right(reference, completion) else -1.0


def _count_sentences(markers: re.Pattern[str], text: str) -> float:
    n = sum(markers.search(sentence) is not None for sentence in SENTENCE.findall(text))
    return float(min(n, MOST_SENTENCES))
