"""Makes pairs of gold comparisons, and measures how often single votes match their gold choice."""

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS, PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.core.records import AnnotatorKind, Choice, Interval
from rlhf_pipeline.feedback.votes.counting import counting_votes, drop_machine_votes
from rlhf_pipeline.feedback.votes.splits import splits_of

MARGIN = 0.5  # margin of a gold label; equals that of votes without strength


def gold_pairs(comparisons: pd.DataFrame, voted_pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """PREFERENCE_PAIRS of comparisons with gold choice a or b, without flagged ones and repeats.

    If `voted_pairs`, the pairs made from votes, has the same choice for a comparison, its
    agreement, vote count and margin are kept, so that a close call remains one. Otherwise the gold
    label counts as one certain vote at seq 1. Without `voted_pairs` all pairs are such labels; use
    these to evaluate a model. Raises FrameError if a frame breaks its schema.
    """
    comparisons = check_frame(comparisons, COMPARISONS)
    gold_comparisons = comparisons[
        comparisons["gold"].isin(["a", "b"])
        & comparisons["flag"].isna()
        & comparisons["repeat_of"].isna()
    ]
    if gold_comparisons.empty:
        return PREFERENCE_PAIRS.empty_frame()
    is_a = gold_comparisons["gold"] == "a"
    pairs = pd.DataFrame(
        {
            "day": gold_comparisons["day"],
            "comparison_id": gold_comparisons["comparison_id"],
            "prompt_id": gold_comparisons["prompt_id"],
            "prompt": gold_comparisons["prompt"],
            "chosen": gold_comparisons["completion_a"].where(
                is_a, gold_comparisons["completion_b"]
            ),
            "rejected": gold_comparisons["completion_b"].where(
                is_a, gold_comparisons["completion_a"]
            ),
            "margin": MARGIN,
            "agreement": 1.0,
            "n_votes": 1,
            "chosen_side": gold_comparisons["gold"],
            "annotator_kind": AnnotatorKind.HUMAN.value,
            "category": gold_comparisons["category"],
            "split": splits_of(gold_comparisons),
            "max_seq": 1,
        }
    ).sort_values("comparison_id", ignore_index=True)
    return check_frame(
        pairs if voted_pairs is None else _add_vote_counts(pairs, voted_pairs), PREFERENCE_PAIRS
    )


def gold_ceiling(
    votes: pd.DataFrame, comparisons: pd.DataFrame, params: BootstrapParams | None = None
) -> Interval | None:
    """Share of votes for a or b that match the gold choice; None without such votes.

    Compare it with accuracies against gold labels, as `noise_ceiling_or_repeats` with those against
    votes. A gold label rests on several votes, so single votes agree with it more often than with
    each other, and a model can exceed both. The bootstrap resamples prompts. Raises
    UnknownComparison for a vote whose comparison is missing from `comparisons`.
    """
    votes = drop_machine_votes(counting_votes(votes))
    comparisons = check_frame(comparisons, COMPARISONS)
    missing = votes.loc[~votes["comparison_id"].isin(comparisons["comparison_id"]), "comparison_id"]
    if len(missing):
        raise UnknownComparison(
            f"{len(missing)} votes have no comparison in `comparisons`, first {missing.iloc[0]}. "
            "Pass these comparisons as well."
        )
    gold_comparisons = comparisons[
        comparisons["gold"].isin(["a", "b"])
        & comparisons["flag"].isna()
        & comparisons["repeat_of"].isna()
    ]
    side_votes = votes[
        votes["choice"].isin([Choice.A, Choice.B])
        & votes["comparison_id"].isin(gold_comparisons["comparison_id"])
    ]
    if side_votes.empty:
        return None
    gold = side_votes["comparison_id"].map(gold_comparisons.set_index("comparison_id")["gold"])
    right = (side_votes["choice"] == gold).to_numpy(dtype=np.float64)
    return interval_of_mean(
        right, groups=side_votes["prompt_id"].to_numpy(), params=params or BootstrapParams()
    )


def _add_vote_counts(pairs: pd.DataFrame, voted_pairs: pd.DataFrame) -> pd.DataFrame:
    votes = (
        check_frame(voted_pairs, PREFERENCE_PAIRS)
        .drop_duplicates("comparison_id", keep="last")
        .set_index("comparison_id")
    )
    side = pairs["comparison_id"].map(votes["chosen_side"])
    agree = (side == pairs["chosen_side"]).to_numpy(dtype=bool)
    of_votes = votes.reindex(pairs["comparison_id"])
    columns = ["day", "margin", "agreement", "n_votes", "annotator_kind", "max_seq"]
    return pairs.assign(
        **{
            name: np.where(agree, of_votes[name].to_numpy(), pairs[name].to_numpy())
            for name in columns
        }
    )
