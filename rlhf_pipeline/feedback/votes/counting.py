"""Selects the standing and the counting votes of a log; `store.counting` has the same rules in SQL.

Standing: the last revision of each pass; drift reads these. Counting: the standing vote of an
annotator's last pass over a comparison; preference pairs use those of them that `teaching` keeps.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.core.records import AnnotatorKind

JUDGE = ["comparison_id", "annotator_id"]


def standing_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """The rows of VOTES that no other row supersedes, in seq order. Raises FrameError."""
    checked = check_frame(votes, VOTES)
    superseded = checked["vote_id"].isin(checked["supersedes"].dropna())
    return _in_seq_order(keep_rows(checked, ~superseded))


def counting_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """The row of each annotator's last pass over a comparison in its last revision, in seq order.

    If any of an annotator's votes on a comparison lacks `pass_no`, all of them are ordered by seq.
    Raises FrameError.
    """
    checked = check_frame(votes, VOTES)
    comparisons, _ = pd.factorize(checked["comparison_id"])
    annotators, names = pd.factorize(checked["annotator_id"])
    judge = comparisons * np.int64(len(names)) + annotators
    return _in_seq_order(keep_last_turns(checked, judge))


def keep_last_turns(votes: pd.DataFrame, judge: npt.NDArray[Any]) -> pd.DataFrame:
    """The last turn of each judge among rows of VOTES; `judge` (n,) numbers whose turn a row is."""
    if not pd.Series(judge).duplicated().any():  # as most logs; a million rows are not copied
        return votes
    lacks_pass_no = votes["pass_no"].isna()
    if lacks_pass_no.any():
        lacks_pass_no = lacks_pass_no.groupby(judge).transform("any")
    pass_no, revision_no = (
        votes[name].mask(lacks_pass_no, 0).fillna(0).to_numpy(np.int64)
        for name in ("pass_no", "revision_no")
    )
    return votes.iloc[find_last_turns(judge, pass_no, revision_no, votes["seq"].to_numpy())]


def keep_rows(frame: pd.DataFrame, mask: "pd.Series[bool]") -> pd.DataFrame:
    """`frame[mask]`; the frame itself if that is all of it, because a million votes are 0.5 GB."""
    return frame if bool(mask.all()) else frame[mask]


def _in_seq_order(votes: pd.DataFrame) -> pd.DataFrame:
    if votes["seq"].is_monotonic_increasing:
        return votes.reset_index(drop=True)
    return votes.sort_values("seq", ignore_index=True)


def find_last_turns(judge: npt.NDArray[Any], *turn: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Row numbers of each judge's last turn; a turn is compared by its first number, then the next.

    >>> sorted(find_last_turns(np.array([7, 7, 8]), np.array([2, 1, 1])).tolist())
    [0, 2]
    """
    order = np.lexsort(turn[::-1])  # by its last key first
    last: npt.NDArray[np.intp] = order[~pd.Series(judge[order]).duplicated(keep="last").to_numpy()]
    return last


def repeat_passes(votes: pd.DataFrame) -> pd.DataFrame:
    """Later passes of annotators over a comparison, sides unchanged, beside their first pass.

    Columns prompt_id, comparison_id, annotator_id, pass_no, choice_first and choice. One row per
    standing vote of a later pass whose first pass is also in `votes`, in seq order. Raises
    FrameError.
    """
    current_votes = standing_votes(votes)
    pass_no = current_votes["pass_no"].fillna(1)
    first = current_votes.loc[pass_no == 1, [*JUDGE, "choice"]]
    repeats = current_votes.loc[pass_no > 1, ["prompt_id", *JUDGE, "pass_no", "choice"]]
    both = repeats.merge(first, on=JUDGE, suffixes=("", "_first"))
    return both[["prompt_id", *JUDGE, "pass_no", "choice_first", "choice"]]


def select_changed(votes: pd.DataFrame) -> pd.DataFrame:
    """The rows of VOTES that follow an earlier vote of the same annotator on the same
    comparison.
    """
    return votes[(votes["pass_no"].fillna(1) > 1) | (votes["revision_no"].fillna(0) > 0)]


def add_earlier_votes(votes: pd.DataFrame, stored_votes: pd.DataFrame) -> pd.DataFrame:
    """`votes` and the earlier votes in `stored_votes` that they follow (see `select_changed`), in
    seq order.

    Earlier votes are those of the same annotator on the same comparison, up to the highest seq in
    `votes`.
    """
    judges = pd.MultiIndex.from_frame(select_changed(votes)[JUDGE])
    judge_votes = stored_votes[pd.MultiIndex.from_frame(stored_votes[JUDGE]).isin(judges)]
    earlier = judge_votes[judge_votes["seq"] <= votes["seq"].max()]
    together = pd.concat([earlier, votes]).drop_duplicates("vote_id")
    return together.sort_values("seq", ignore_index=True)


def drop_machine_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """The votes of human and simulated annotators.

    A machine vote is a model's own judgement. It does not measure agreement between annotators or
    the accuracy of a model, and is used for training only on request.
    """
    return keep_rows(votes, votes["annotator_kind"] != AnnotatorKind.MACHINE)


def drop_open_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """The votes without those of people who could read others' votes, as if these had not been
    cast. Votes of which this is not known are kept.
    """
    if "is_blind" not in votes:
        return votes
    return keep_rows(votes, votes["is_blind"].astype("boolean").fillna(True).astype(bool))
