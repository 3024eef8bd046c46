"""What is known of each annotator, every figure with an interval. Knows frames of votes; knows no store and no reward model.

    reliability, position_bias   the joint model's
    self_consistency             the same two completions again, the same judgement
    median_seconds               of the votes that say how long they took
    too_fast                     share of them given faster than anybody reads both completions
    same_as_before               share of votes that say what the one before said, as shown: left, right or neither (straight-lining);
                                 of two whose sides, if they took one, are known
    gold_accuracy                first judgements of comparisons whose right choice is known
    mean_confidence, brier       stated confidence against the side that most of the others took, ties left out
    confidence_gap               mean_confidence less the share of those sides that were right; above 0 is too sure

What nobody measured is missing. Ends of shares are Wilson's (1927), which stay wide where little was seen; that of a Brier score is the
same, which is too wide: of values from 0 to 1 none vary more than a share. Ends of a median are order statistics, so of fewer votes than
such ends need (6 at a level of 95 %) no median is given. The votes of one annotator count as independent.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.frames import COMPARISONS, EFFORTS, VOTES, Column, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.agreement import judged_again
from rlhf_pipeline.votes.intervals import wilson_bounds
from rlhf_pipeline.votes.joint_model import JointModel
from rlhf_pipeline.votes.people import by_people

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNIT = {"low": 0.0, "high": 1.0}
TIES = (Choice.TIE, Choice.BOTH_BAD)


def _measure(name: str, what: str, **bounds: float) -> dict[str, Column]:
    ends = {"": what, "_low": "lower end of its interval", "_high": "upper end of its interval"}
    return {f"{name}{end}": number(meaning, nullable=True, **bounds) for end, meaning in ends.items()}


ANNOTATOR_FIGURES = FrameSchema(
    "annotator_figures",
    {
        "annotator_id": text("pseudonym"),
        "n_votes": integer("judgements, skips left out", low=1),
        **_measure("reliability", "chance to take the better side of a typical comparison, if taking one", **UNIT),
        **_measure("position_bias", "chance to take the left of two equally good completions, less one half", low=-0.5, high=0.5),
        "n_again": integer("judgements of two completions that were judged before", low=0),
        **_measure("self_consistency", "share of them that are the same as the first", **UNIT),
        "n_timed": integer("votes that say how long they took", low=0),
        **_measure("median_seconds", "median of these times", low=0.0),
        "n_read": integer("of them those whose completions are known", low=0),
        **_measure("too_fast", "share of them faster than anybody reads both completions", **UNIT),
        "n_followed": integer("votes with one before, sides of both known", low=0),
        **_measure("same_as_before", "share of them that say the same, as shown: left, right or neither", **UNIT),
        "n_gold": integer("first judgements of comparisons with a known right choice", low=0),
        **_measure("gold_accuracy", "share of them that are right", **UNIT),
        "n_sure": integer("votes for a side that say how sure they are, and on which the others lean to one", low=0),
        "mean_confidence": number("mean of what these say", nullable=True, **UNIT),
        **_measure("confidence_gap", "mean confidence less the share that took the others' side", low=-1.0, high=1.0),
        **_measure("brier", "mean squared distance of confidence from being right", **UNIT),
    },
    key=("annotator_id",),
)


class FiguresParams(BaseModel):
    """What counts as too fast, and how sure intervals are."""

    model_config = ConfigDict(extra="forbid")

    fastest_reading: float = Field(
        default=100.0,
        gt=0,
        description="Characters of the two completions a second above which nobody read them; 100 is 1,000 words a minute",
    )
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Level of the intervals that are not the joint model's")


def annotator_figures(
    votes: pd.DataFrame,
    model: JointModel,
    *,
    comparisons: pd.DataFrame | None = None,
    efforts: pd.DataFrame | None = None,
    passes: pd.DataFrame | None = None,
    params: FiguresParams | None = None,
) -> pd.DataFrame:
    """ANNOTATOR_FIGURES of a VOTES frame and the joint model of it, the least reliable first.

    `comparisons` bring gold and the length of what was read, `efforts` (EFFORTS) seconds and stated confidence, `passes` earlier
    judgements as `agreement` takes them; without them the figures that need them are missing. Raises FrameError.
    """
    params = params or FiguresParams()
    judged = by_people(check_frame(votes, VOTES))
    known = model.annotators
    names = known["annotator_id"].to_numpy(dtype=str)
    judged = judged[(judged["choice"] != Choice.SKIP) & judged["annotator_id"].isin(names)]  # who judged flagged ones alone is not known
    tell = _Teller(names, params.level)
    again = judged_again(judged, None if passes is None else passes[passes["annotator_id"].isin(names)])
    told = _with_efforts(judged, efforts)
    timed = told[told["duration_s"].notna()]
    figures = {
        "annotator_id": names,
        "n_votes": known["n_votes"].to_numpy(),
        **{name: known[name].to_numpy() for measure in ("reliability", "position_bias") for name in _ends(measure)},
        **tell.share("self_consistency", "n_again", again["annotator_id"], again["same"]),
        **tell.median("median_seconds", "n_timed", timed),
        **tell.share("too_fast", "n_read", *_too_fast(timed, comparisons, params.fastest_reading)),
        **tell.share("same_as_before", "n_followed", *_same_as_before(judged)),
        **tell.share("gold_accuracy", "n_gold", *_gold(judged, comparisons)),
        **tell.confidence(_beside_the_others(told)),
    }
    frame = check_frame(pd.DataFrame(figures), ANNOTATOR_FIGURES)
    return frame.sort_values(["reliability", "annotator_id"], ignore_index=True)


def _ends(measure: str) -> tuple[str, str, str]:
    return measure, f"{measure}_low", f"{measure}_high"


class _Teller:
    """Figures in the order of the annotators' names."""

    def __init__(self, names: npt.NDArray[Any], level: float):
        self.names, self.level = names, level

    def share(self, measure: str, counted: str, who: pd.Series, what: pd.Series) -> dict[str, Any]:
        code = self._codes(who)
        n = np.bincount(code, minlength=len(self.names))
        k = np.bincount(code, weights=what.to_numpy(dtype=np.float64), minlength=len(self.names))
        return {counted: n, **self._wilson(measure, k, n)}

    def median(self, measure: str, counted: str, timed: pd.DataFrame) -> dict[str, Any]:
        """Order statistics: the ranks that a fair coin, tossed n times, leaves outside with the level's rest."""
        from scipy.stats import binom

        code = self._codes(timed["annotator_id"])
        seconds = timed["duration_s"].to_numpy(dtype=np.float64)
        seconds, n = seconds[np.lexsort((seconds, code))], np.bincount(code, minlength=len(self.names))
        below = binom.ppf((1 - self.level) / 2, n, 0.5).astype(np.int64) - 1
        below -= binom.cdf(below, n, 0.5) > (1 - self.level) / 2
        first = np.cumsum(n) - n
        is_known = below >= 0

        def at(rank: Any) -> Floats:
            found = np.full(len(n), np.nan)
            found[is_known] = seconds[(first + rank)[is_known]]
            return found

        values = ((at((n - 1) // 2) + at(n // 2)) / 2, at(below), at(n - 1 - below))
        return {counted: n, **dict(zip(_ends(measure), values, strict=True))}

    def confidence(self, sure: pd.DataFrame) -> dict[str, Any]:
        code, size = self._codes(sure["annotator_id"]), len(self.names)
        stated, right = sure["stated_confidence"].to_numpy(dtype=np.float64), sure["is_right"].to_numpy(dtype=np.float64)
        n, n_right = np.bincount(code, minlength=size), np.bincount(code, weights=right, minlength=size)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(code, weights=stated, minlength=size) / n
        accuracy = self._wilson("accuracy", n_right, n)
        gap = [mean - accuracy[end] for end in ("accuracy", "accuracy_high", "accuracy_low")]
        squares = np.bincount(code, weights=(stated - right) ** 2, minlength=size)
        return {
            "n_sure": n,
            "mean_confidence": mean,
            **dict(zip(_ends("confidence_gap"), gap, strict=True)),
            **self._wilson("brier", squares, n),
        }

    def _codes(self, who: pd.Series) -> Ints:
        return np.asarray(np.searchsorted(self.names, who.to_numpy(dtype=str)), dtype=np.int64)

    def _wilson(self, measure: str, k: Any, n: Any) -> dict[str, Floats]:
        """Of k of n, (annotators,): the share and its ends, missing where n is 0."""
        is_known = n > 0
        share = np.where(is_known, k / np.maximum(n, 1), np.nan)
        low, high = wilson_bounds(share, np.maximum(n, 1), self.level)
        # Sums of squares can end a last bit beyond what they are sums of.
        ends = (share, np.minimum(low, share), np.maximum(high, share))
        return {name: np.where(is_known, np.clip(end, 0.0, 1.0), np.nan) for name, end in zip(_ends(measure), ends, strict=True)}


def _with_efforts(judged: pd.DataFrame, efforts: pd.DataFrame | None) -> pd.DataFrame:
    told = EFFORTS.empty() if efforts is None else check_frame(efforts, EFFORTS)
    return judged.merge(told, on="vote_id", how="left")


def _too_fast(timed: pd.DataFrame, comparisons: pd.DataFrame | None, fastest: float) -> tuple[pd.Series, pd.Series]:
    shown = COMPARISONS.empty() if comparisons is None else check_frame(comparisons, COMPARISONS)
    length = (shown["completion_a"].str.len() + shown["completion_b"].str.len()).astype("float64")
    characters = timed["comparison_id"].map(dict(zip(shown["comparison_id"], length, strict=True))).astype("float64")
    read = timed[characters.notna()]
    return read["annotator_id"], read["duration_s"] * fastest < characters[characters.notna()]


def _same_as_before(judged: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """In the order of seq; a vote for a side counts only where it is known which stood left."""
    ordered = judged.sort_values(["annotator_id", "seq"])
    side = ordered["choice"].map({Choice.A: 1.0, Choice.B: -1.0}).fillna(0.0)
    is_known = ordered["is_swapped"].notna() | (side == 0)
    shown = side.where(~ordered["is_swapped"].fillna(False).astype(bool), -side).where(is_known)
    before = shown.groupby(ordered["annotator_id"]).shift()
    followed = before.notna() & shown.notna()
    return ordered.loc[followed, "annotator_id"], shown[followed] == before[followed]


def _gold(judged: pd.DataFrame, comparisons: pd.DataFrame | None) -> tuple[pd.Series, pd.Series]:
    shown = COMPARISONS.empty() if comparisons is None else check_frame(comparisons, COMPARISONS)
    known = shown[shown["gold"].notna() & shown["repeat_of"].isna()]
    gold = judged["comparison_id"].map(dict(zip(known["comparison_id"], known["gold"], strict=True)))
    asked = judged[gold.notna()]
    said = asked["choice"].where(~asked["choice"].isin(TIES), Choice.TIE.value)
    return asked["annotator_id"], said == gold[gold.notna()]


def _beside_the_others(told: pd.DataFrame) -> pd.DataFrame:
    """annotator_id, stated_confidence and is_right of votes for a side whose comparison's other votes lean to one."""
    sided = told[told["repeat_of"].isna() & told["choice"].isin([Choice.A, Choice.B])]
    sign = (sided["choice"] == Choice.A).astype("int64") * 2 - 1
    others = sign.groupby(sided["comparison_id"]).transform("sum") - sign
    kept = sided["stated_confidence"].notna() & (others != 0)
    return sided.loc[kept, ["annotator_id", "stated_confidence"]].assign(is_right=(others[kept] > 0) == (sign[kept] > 0))
