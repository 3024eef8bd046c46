"""What the annotator model says of each comparison, where consensus is asked of it. Knows frames of
votes and labels; fits no model.

A vote weighs what its annotator is worth, and a completion's other comparisons speak too: `p_a` is
the chance that a typical annotator without position bias, who has to choose, takes a. The side with
the greater chance is the choice and that chance the share, with the model's interval.

    open       fewer than `min_votes` people judged it by now, as with every method
    disputed   the interval holds one half, or the share is below `min_share`
    agreed     the rest

The model knows two sides. Where people agree by majority that neither is better, that is kept, with
the share of their votes.
"""

from typing import Protocol

import numpy as np
import pandas as pd

from rlhf_pipeline.errors import ArtefactError, FrameError
from rlhf_pipeline.frames import SOFT_LABELS, check_frame
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.consensus import (
    CONSENSUS,
    MODEL_COLUMNS,
    ConsensusParams,
    consensus,
    judgements,
)

# Where the labels of every judged comparison lie, those of the test split among them: to be looked
# at, not to be learnt from.
LABELS_FRAME = ("annotator_model", "all_votes")


class FrameStorage(Protocol):
    """As much of `Artefacts` as keeps labels."""

    def read_frame(self, stage: str, day: str | None = None) -> pd.DataFrame: ...

    def write_frame(self, stage: str, frame: pd.DataFrame, day: str | None = None) -> object: ...


def consensus_by_model(
    votes: pd.DataFrame, labels: pd.DataFrame, params: ConsensusParams | None = None
) -> pd.DataFrame:
    """CONSENSUS of a VOTES frame by SOFT_LABELS of all votes up to a seq, by comparison id. What
    the labels do not know is left out: it was judged after the fit, or is flagged. `n_since` counts
    the votes that came after the fit.

    Raises FrameError for a frame that breaks its schema, and for labels that do not say up to which
    vote they know.
    """
    params = params or ConsensusParams()
    said = consensus(votes, "majority", params).drop(columns=list(MODEL_COLUMNS))
    known = check_frame(labels, SOFT_LABELS)
    up_to_seq = newest_known_seq(known)
    both = said.merge(
        known[["comparison_id", "p_a", "p_low", "p_high"]], on="comparison_id"
    ).assign(up_to_seq=up_to_seq)
    p, low, high = (both[name].to_numpy(dtype=np.float64) for name in ("p_a", "p_low", "p_high"))
    is_a, is_equal = (
        p > 0.5,
        (both["state"] == "agreed") & both["choice"].isin([Choice.TIE, Choice.BOTH_BAD]),
    )
    share = np.maximum(p, 1 - p)
    is_told_apart = ((low > 0.5) | (high < 0.5)) & (share >= params.min_share - 1e-12)
    state = np.where(
        both["n_votes"] < params.min_votes, "open", np.where(is_told_apart, "agreed", "disputed")
    )
    sides = pd.DataFrame(
        {
            "state": state,
            "choice": pd.Series(np.where(is_a, Choice.A.value, Choice.B.value), dtype="str").where(
                p != 0.5
            ),
            "share": share,
            "low": np.where(is_a, low, 1 - high),
            "high": np.where(is_a, high, 1 - low),
        }
    )
    both[list(sides.columns)] = both[list(sides.columns)].where(is_equal, sides)
    said = judgements(votes)
    since = said.loc[said["seq"] > up_to_seq, "comparison_id"].value_counts()
    return check_frame(both.assign(n_since=both["comparison_id"].map(since).fillna(0)), CONSENSUS)


def newest_known_seq(labels: pd.DataFrame) -> int:
    """The newest vote that these SOFT_LABELS rest on; 0 where there are none. Raises FrameError
    where some do not say.
    """
    if labels["max_seq"].isna().any():
        raise FrameError(
            "These labels do not say up to which vote they know: they are of before that was kept. "
            "Materialise annotator_model."
        )
    return 0 if labels.empty else int(labels["max_seq"].max())


def store_labels(files: FrameStorage, labels: pd.DataFrame, *, newest_seq: int) -> int | None:
    """Leave SOFT_LABELS of all votes for who looks at them; unless those that lie there know of a
    later vote: then its seq, and they stay.

    A replay and a repeated run are fitted to older votes than the last fit was. What cannot be read
    stays for nobody, and neither does what knows of votes above `newest_seq`, which the store has
    not: they were another store's. Raises as `Artefacts.write_frame`.
    """
    stage, part = LABELS_FRAME
    try:
        lying = newest_known_seq(files.read_frame(stage, part))
    except (ArtefactError, FrameError):
        lying = 0
    if newest_known_seq(labels) < lying <= newest_seq:
        return lying
    files.write_frame(stage, labels, part)
    return None
