"""Comparisons whose right choice is known: pairs labelled by it, and how often one vote finds it.
Knows frames; knows no model.
"""

import numpy as np
import pandas as pd

from rlhf_pipeline.errors import UnknownComparison
from rlhf_pipeline.frames import COMPARISONS, PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.records import AnnotatorKind, Choice, Interval
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.splits import splits_of

MARGIN = 0.5  # of a label without votes: that of votes without strength


def gold_pairs(comparisons: pd.DataFrame, voted: pd.DataFrame | None = None) -> pd.DataFrame:
    """PREFERENCE_PAIRS of the comparisons with a known right choice of a or b, chosen by that;
    flagged ones and repeats are left out.

    Where `voted`, the pairs that votes made, has the comparison on the same side, its agreement,
    votes and margin are kept: a close call stays one. Elsewhere the label counts as one certain
    vote at seq 1. Without `voted` all are such labels, which is what a model is to be judged on.
    Raises FrameError for frames that break their schema.
    """
    comparisons = check_frame(comparisons, COMPARISONS)
    known = comparisons[
        comparisons["gold"].isin(["a", "b"])
        & comparisons["flag"].isna()
        & comparisons["repeat_of"].isna()
    ]
    if known.empty:
        return PREFERENCE_PAIRS.empty_frame()
    is_a = known["gold"] == "a"
    pairs = pd.DataFrame(
        {
            "day": known["day"],
            "comparison_id": known["comparison_id"],
            "prompt_id": known["prompt_id"],
            "prompt": known["prompt"],
            "chosen": known["completion_a"].where(is_a, known["completion_b"]),
            "rejected": known["completion_b"].where(is_a, known["completion_a"]),
            "margin": MARGIN,
            "agreement": 1.0,
            "n_votes": 1,
            "chosen_side": known["gold"],
            "annotator_kind": AnnotatorKind.HUMAN.value,
            "category": known["category"],
            "split": splits_of(known),
            "max_seq": 1,
        }
    ).sort_values("comparison_id", ignore_index=True)
    return check_frame(pairs if voted is None else _add_vote_counts(pairs, voted), PREFERENCE_PAIRS)


def gold_ceiling(
    votes: pd.DataFrame, comparisons: pd.DataFrame, params: BootstrapParams | None = None
) -> Interval | None:
    """How often one person's vote for a or b is the known right choice; None where no such vote
    meets one.

    This stands beside an accuracy against gold labels, as `noise_ceiling` beside one against votes:
    a label rests on several votes, so single votes agree with it more often than with each other,
    and a model can do better than either. The bootstrap draws prompts. Raises UnknownComparison for
    a vote whose comparison is not given.
    """
    votes, comparisons = (
        drop_machine_votes(counting(votes)),
        check_frame(comparisons, COMPARISONS),
    )
    lost = votes.loc[~votes["comparison_id"].isin(comparisons["comparison_id"]), "comparison_id"]
    if len(lost):
        raise UnknownComparison(
            f"{len(lost)} votes judge comparisons that are not given, first {lost.iloc[0]}. Hand "
            "in those as well."
        )
    known = comparisons[
        comparisons["gold"].isin(["a", "b"])
        & comparisons["flag"].isna()
        & comparisons["repeat_of"].isna()
    ]
    sided = votes[
        votes["choice"].isin([Choice.A, Choice.B])
        & votes["comparison_id"].isin(known["comparison_id"])
    ]
    if sided.empty:
        return None
    gold = sided["comparison_id"].map(known.set_index("comparison_id")["gold"])
    right = (sided["choice"] == gold).to_numpy(dtype=np.float64)
    return interval_of_mean(
        right, groups=sided["prompt_id"].to_numpy(), params=params or BootstrapParams()
    )


def _add_vote_counts(pairs: pd.DataFrame, voted: pd.DataFrame) -> pd.DataFrame:
    votes = (
        check_frame(voted, PREFERENCE_PAIRS)
        .drop_duplicates("comparison_id", keep="last")
        .set_index("comparison_id")
    )
    side = pairs["comparison_id"].map(votes["chosen_side"])
    agree = (side == pairs["chosen_side"]).to_numpy(dtype=bool)
    of_votes = votes.reindex(pairs["comparison_id"])
    kept = ["day", "margin", "agreement", "n_votes", "annotator_kind", "max_seq"]
    return pairs.assign(
        **{
            name: np.where(agree, of_votes[name].to_numpy(), pairs[name].to_numpy())
            for name in kept
        }
    )
