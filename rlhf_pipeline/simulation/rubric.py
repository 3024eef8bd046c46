"""Simulates what annotators answer in the dimensions of the rubric, beside their choice.

In each dimension an annotator feels the difference of the qualities that make it, a halo of the
overall difference, and noise of their own. Nothing in a simulated text can be harmful, so nobody
judges `harmless`. All draws have generators of their own: votes with and without answers are the
same votes.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from rlhf_pipeline.core.records import Choice, NewVote, VoteDetails
from rlhf_pipeline.simulation.annotators import AnnotatorPool, random_generator
from rlhf_pipeline.simulation.utilities import Taste, utility_gaps

RUBRIC = {
    name: Taste(name=name, weights=weights)
    for name, weights in {
        "correct": {"correct": 1.2},
        "helpful": {"warmth": 1.0, "empty": -2.0},
        "style": {"sourcing": 1.0, "rambling": -1.0},
    }.items()
}
HALO = 0.3  # of the overall difference, in each dimension


def judge_rubric(
    votes: Sequence[NewVote],
    comparisons: pd.DataFrame,
    references: Mapping[str, str | None],
    taste: Taste,
    pool: AnnotatorPool,
    *,
    seed: int = 0,
) -> list[NewVote]:
    """`votes` of `pool` on COMPARISONS, with answers in each dimension of RUBRIC; skips have none.
    Raises FrameError as `utility_gaps`.
    """
    gaps = utility_gaps(comparisons, references, [taste, *RUBRIC.values()])
    felt = gaps[:, 1:] + HALO * gaps[:, :1]
    of_comparison = dict(zip(comparisons["comparison_id"], felt, strict=True))
    annotators = {annotator.annotator_id: annotator for annotator in pool.annotators}

    def answer(vote: NewVote) -> NewVote:
        truth = of_comparison.get(vote.comparison_id)
        if truth is None or vote.choice == Choice.SKIP:
            return vote
        annotator = annotators[vote.annotator_id]
        rng = random_generator("rubric vote", seed, vote.idempotency_key)
        sizes = truth + rng.logistic(scale=annotator.noise, size=len(truth))
        sides = {
            name: "tie" if abs(size) < annotator.tie_width else "a" if size > 0 else "b"
            for name, size in zip(RUBRIC, sizes, strict=True)
        }
        return vote.model_copy(
            update={"details": VoteDetails.model_validate({"dimensions": sides})}
        )

    return [answer(vote) for vote in votes]
