"""Votes whose truth is known: differences of utility, and annotators with a discrimination, a side
they lean to, and a tie width.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, JUDGEMENTS, VOTES, check_frame
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.feedback.votes.agreement import JUDGING
from rlhf_pipeline.feedback.votes.counting import counting_votes, drop_machine_votes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Simulated:
    """`d` by comparison; discrimination, bias and who is a spammer by annotator, all in the order
    of the ids.
    """

    votes: pd.DataFrame
    comparisons: pd.DataFrame
    d: Floats
    discrimination: Floats
    bias: Floats
    is_spammer: npt.NDArray[np.bool_]


def simulate(
    n_prompts: int = 100,
    *,
    completions: int = 2,
    n_annotators: int = 30,
    votes_each: int = 5,
    spammers: float = 0.0,
    bias: float = 0.0,
    ties: bool = True,
    strengths: bool = False,
    seed: int = 0,
) -> Simulated:
    """All pairs of each prompt's completions, each judged by `votes_each` annotators drawn at
    random; a stood left.
    """
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(completions, 1)
    utilities = rng.normal(0, np.sqrt(0.5), (n_prompts, completions))
    d = (utilities[:, first] - utilities[:, second]).ravel()
    prompt = np.repeat(np.arange(n_prompts), len(first))
    a, b = np.tile(first, n_prompts), np.tile(second, n_prompts)
    discrimination = np.maximum(0.3, rng.normal(2.5, 0.6, n_annotators))
    is_spammer = np.arange(n_annotators) < spammers * n_annotators
    discrimination[is_spammer] = 0.0
    lean = np.full(n_annotators, bias)
    width = 0.3 if ties else 0.0
    c = np.repeat(np.arange(len(d)), votes_each)
    j = np.concatenate([rng.permutation(n_annotators)[:votes_each] for _ in range(len(d))])
    felt = discrimination[j] * d[c] + lean[j] + rng.logistic(size=len(c))
    is_tie = np.abs(felt) < width
    strength = np.where(
        is_tie | (not strengths), 0, np.minimum(4, 1 + (np.abs(felt) - width).astype(int))
    )
    frame = votes_of(
        c,
        j,
        np.where(is_tie, "tie", np.where(felt > 0, "a", "b")),
        prompt=prompt[c],
        strength=strength,
    )
    return Simulated(
        frame.assign(is_swapped=pd.array([False] * len(c), dtype="boolean")),
        comparisons_of(prompt, a, b),
        d,
        discrimination,
        lean,
        is_spammer,
    )


def votes_of(
    comparison: object,
    annotator: object,
    choice: object,
    *,
    prompt: object = 0,
    strength: object = 0,
) -> pd.DataFrame:
    """VOTES from numbers; strength 0 says none, and nobody knows which side stood left."""
    n = len(np.asarray(choice))
    now = utc_now()
    rows = {
        "day": "2026-01-02",
        "seq": np.arange(1, n + 1),
        "vote_id": [f"v{i}" for i in range(n)],
        "comparison_id": [f"c{i:05d}" for i in np.broadcast_to(comparison, n)],
        "prompt_id": [f"p{i}" for i in np.broadcast_to(prompt, n)],
        "annotator_id": [f"ann{i:04d}" for i in np.broadcast_to(annotator, n)],
        "annotator_kind": "human",
        "choice": choice,
        "strength": pd.array([int(s) or None for s in np.broadcast_to(strength, n)], dtype="Int64"),
        "repeat_of": None,
        "voted_at": now,
        "received_at": now,
    }
    return check_frame(pd.DataFrame(rows), VOTES)


def comparisons_of(
    prompt: npt.NDArray[np.int64], a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]
) -> pd.DataFrame:
    n = len(prompt)
    rows = {
        "day": "2026-01-02",
        "comparison_id": [f"c{i:05d}" for i in range(n)],
        "prompt_id": [f"p{i}" for i in prompt],
        "prompt": "?",
        "completion_a_id": [f"x{i}" for i in a],
        "completion_b_id": [f"x{i}" for i in b],
        "completion_a": "a",
        "completion_b": "b",
        "model_version_a": "m@1",
        "model_version_b": "m@1",
        "category": "factual",
        "repeat_of": None,
        "position": range(n),
        "seed": 0,
    }
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def select_judgements(votes: pd.DataFrame) -> pd.DataFrame:
    """JUDGEMENTS of a VOTES frame: counting votes without machine votes, repeats and skips, as
    `Votes.judgements` reads them from the store.
    """
    checked = drop_machine_votes(counting_votes(votes))
    is_judging = checked["repeat_of"].isna() & checked["choice"].isin(JUDGING)
    return check_frame(checked.loc[is_judging, list(JUDGEMENTS.columns)], JUDGEMENTS)
