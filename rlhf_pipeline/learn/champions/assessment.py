"""Decides whether a newly fitted reward model may replace the champion.

A model is refused if it is too weak, or less accurate than the champion on the latest votes. All
rules read pairs of the calib split: the serving model is chosen there, and the test split only
measures the choice.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.feedback.votes import NO_CHANGES, TasteChanges
from rlhf_pipeline.learn.calibration import recalibrated_loss
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.champions.calibrated_model import CalibratedModel
from rlhf_pipeline.learn.reward_model.base import Floats, margins_of
from rlhf_pipeline.learn.reward_model.evaluation import length_gaps, wins

# of a model that cannot be told from a coin yet: what it may turn out to be
SUPPOSED_ACCURACY = 0.65
FEWEST_MISSING = 10  # votes after which it is tested again


class AcceptanceParams(BootstrapParams):
    """The conditions under which a fitted reward model is refused."""

    min_compared_pairs: int = Field(
        default=20,
        ge=1,
        description="Held-out pairs with a majority below which no reward model is refused for its "
        "accuracy",
    )
    window_pairs: int = Field(
        default=200,
        ge=1,
        description="Latest held-out pairs on which a reward model must not be less accurate than "
        "the champion",
    )


def find_weakness(
    pairs: pd.DataFrame, margins: Floats, ceiling: Interval | None, params: AcceptanceParams
) -> str | None:
    """Explain why a model is too weak to serve, or return None.

    It is too weak if the interval of its accuracy minus that of preferring the longer completion,
    on the same pairs, lies below 0, or if the upper bound of its accuracy lies below the midpoint
    of 0.5 and the noise ceiling's lower bound. `margins` are chosen - rejected of `pairs`; without
    a ceiling the second rule does not apply.
    """
    majority_pairs, margins = pairs[_has_majority(pairs)], margins[_has_majority(pairs)]
    if len(majority_pairs) < params.min_compared_pairs:
        return None
    right, longer = wins(margins), wins(length_gaps(majority_pairs))
    accuracy = _mean_interval(right, majority_pairs, params)
    advantage = _mean_interval(right - longer, majority_pairs, params, of_shares=False)
    subject = f"accuracy {accuracy} on {len(majority_pairs)} held-out pairs is"
    weaknesses = []
    if advantage.high < 0:
        weaknesses.append(
            f"{subject} below {longer.mean():.3f} of preferring the longer completion (difference "
            f"{advantage})"
        )
    least = None if ceiling is None else (0.5 + ceiling.low) / 2
    if least is not None and accuracy.high < least:
        weaknesses.append(
            f"{subject} below {least:.3f}, half-way between a coin and the noise ceiling {ceiling}"
        )
    return "; ".join(weaknesses) or None


def accuracy_difference(
    pairs: pd.DataFrame, margins: Floats, champion_margins: Floats, params: AcceptanceParams
) -> Interval | None:
    """Accuracy of a model minus the champion's on the latest `window_pairs` pairs with a majority;
    None for fewer than `min_compared_pairs`.
    """
    order = np.argsort(pairs["max_seq"].to_numpy(), kind="stable")
    latest = order[_has_majority(pairs)[order]][-params.window_pairs :]
    if len(latest) < params.min_compared_pairs:
        return None
    return _mean_interval(
        wins(margins[latest]) - wins(champion_margins[latest]),
        pairs.iloc[latest],
        params,
        of_shares=False,
    )


def _has_majority(pairs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return np.asarray(pairs["agreement"] > 0.5)


def _mean_interval(
    values: Floats, pairs: pd.DataFrame, params: BootstrapParams, *, of_shares: bool = True
) -> Interval:
    """Mean with an interval by bootstrap over prompts, because pairs of one prompt are similar."""
    return interval_of_mean(
        values, groups=pairs["prompt_id"].to_numpy(), params=params, of_shares=of_shares
    )


class ChanceTest(NamedTuple):
    """Whether a reward model prefers what people prefer more often than a coin does."""

    accuracy: Interval | None  # None without a vote
    n_missing: int  # about so many more votes would show it; 0 if it does

    @property
    def message(self) -> str:
        """What is missing, in words."""
        reason = "too few votes since the last change of taste were left out to test it"
        if self.accuracy is not None:
            reason = (
                f"its accuracy {self.accuracy} on {self.accuracy.n} left-out votes since the last "
                "change of taste is not surely above that of a coin"
            )
        return f"{reason}: about {self.n_missing} more votes are missing"


def compare_with_chance(votes: pd.DataFrame, params: BootstrapParams | None = None) -> ChanceTest:
    """By votes on predictions that were made without them: columns comparison_id and error (0 or
    1), as in a model's reference window.
    """
    if votes.empty:
        return ChanceTest(None, _count_votes(SUPPOSED_ACCURACY))
    accuracy = interval_of_mean(
        1 - votes["error"].to_numpy(dtype=float),
        groups=votes["comparison_id"].to_numpy(),
        params=params or BootstrapParams(),
        of_shares=True,
    )
    if accuracy.low > 0.5:
        return ChanceTest(accuracy, 0)
    needed = _count_votes(max(accuracy.value, SUPPOSED_ACCURACY))
    return ChanceTest(accuracy, max(FEWEST_MISSING, needed - len(votes)))


def _count_votes(accuracy: float) -> int:
    """Votes of which a 95 % interval around the accuracy lies above one half."""
    return math.ceil(1.96**2 * accuracy * (1 - accuracy) / (accuracy - 0.5) ** 2)


ROUNDING = 1e-9  # nats: two losses within this distance are equal


@dataclass(frozen=True)
class Assessment:
    """Whether a reward model may replace the champion, and why. A refused model stays a candidate
    until a person promotes it.
    """

    is_accepted: bool
    reason: str
    is_refused: bool = False


def assess(
    new: CalibratedModel,
    champion: CalibratedModel | None,
    calib: pd.DataFrame,
    *,
    taste_changes: TasteChanges = NO_CHANGES,
    ceiling: Interval | None = None,
    params: AcceptanceParams | None = None,
    progress: Progress = ignore_progress,
) -> Assessment:
    """Decide whether `new` may replace the champion, by pairs of the calib split voted on since the
    last of `taste_changes`.

    It is refused if it is too weak and no better than the champion, if it is less accurate than the
    champion on the latest window, or if no pair was voted on since the change; otherwise the log
    loss decides (`compare_with_champion`). For the champion's own version only the calibrators are
    compared.
    """
    current_pairs = calib[taste_changes.is_current(calib)]
    if champion is None or champion.label != new.label:
        cause = _refusal_cause(
            new, champion, calib, current_pairs, ceiling, params or AcceptanceParams(), progress
        )
        if cause is not None:
            return Assessment(is_accepted=False, reason=cause, is_refused=True)
    return Assessment(*compare_with_champion(new, champion, current_pairs, progress=progress))


def _refusal_cause(
    new: CalibratedModel,
    champion: CalibratedModel | None,
    calib: pd.DataFrame,
    current_pairs: pd.DataFrame,
    ceiling: Interval | None,
    params: AcceptanceParams,
    progress: Progress,
) -> str | None:
    rival = None if champion is None or champion.load_error is not None else champion
    if current_pairs.empty:
        is_blind = rival is not None and not calib.empty
        return (
            f"none of {len(calib)} held-out pairs was voted on since the last change of taste"
            if is_blind
            else None
        )
    margins = margins_of(new.reward_model, current_pairs, progress=progress)
    weakness = find_weakness(current_pairs, margins, ceiling, params)
    if rival is None:
        return weakness
    difference = accuracy_difference(
        current_pairs,
        margins,
        margins_of(rival.reward_model, current_pairs, progress=progress),
        params,
    )
    # After a reversal of taste a weak model is better than a wrong one.
    if difference is not None and difference.low > 0:
        return None
    causes = [] if weakness is None else [weakness]
    if difference is not None and difference.high < 0:
        causes.append(
            f"accuracy on the latest {difference.n} held-out pairs is below that of the champion "
            f"(difference {difference})"
        )
    return "; ".join(causes) or None


def compare_with_champion(
    new: CalibratedModel,
    champion: CalibratedModel | None,
    held_out: pd.DataFrame,
    *,
    progress: Progress = ignore_progress,
) -> tuple[bool, str]:
    """Decide whether `new` may replace `champion`, with the reason: its log loss on votes it was
    not fitted on must not be higher.

    `held_out` are pairs of the calib split: the serving model is chosen there, the test split only
    measures the choice. Both models are recalibrated on these pairs with prompts held out, since
    either model's own calibrator may have seen them. If the champion as it serves has a higher loss
    than when recalibrated, that higher loss counts: after a reversal of taste the champion is
    confidently wrong, which a new calibration would hide. A model never loses to itself this way.
    Without any vote to compare, `new` serves, because it learned from more votes; it also serves if
    the champion cannot be loaded.

    If `new` is the champion's own version, the two calibrators are compared in the same way, each
    with its own method.
    """
    if champion is None:
        return True, "first reward model"
    if champion.load_error is not None:
        return (
            True,
            f"{champion.label} cannot be loaded, so that it predicts nothing: "
            f"{champion.load_error}",
        )
    if new.label == champion.label:
        return _compare_calibrators(new, champion, held_out, progress)
    try:
        loss = recalibrated_loss(held_out, new.reward_model, progress=progress)
        to_beat = max(
            recalibrated_loss(held_out, champion.reward_model, progress=progress),
            _loss_as_served(held_out, champion, progress),
        )
    except NotEnoughData:
        return (
            True,
            f"no votes of the calib split to set it beside {champion.label} by; it has learnt from "
            "more",
        )
    is_no_worse = loss <= to_beat + ROUNDING
    return (
        is_no_worse,
        f"log loss {loss:.3f}, {_compare_losses(loss, to_beat)} {to_beat:.3f} of {champion.label} "
        f"on {len(held_out)} unseen pairs",
    )


def _compare_calibrators(
    new: CalibratedModel, champion: CalibratedModel, held_out: pd.DataFrame, progress: Progress
) -> tuple[bool, str]:
    """Compare two calibrators of one model by the larger of two losses: as it serves, and fitted
    anew with prompts held out.
    """
    if champion.calibrator is None:
        return True, "it had no calibrator"
    try:
        loss, to_beat = (
            max(
                recalibrated_loss(
                    held_out,
                    judge.reward_model,
                    method=(judge.calibrator or NoCalibration()).name,
                    progress=progress,
                ),
                _loss_as_served(held_out, judge, progress),
            )
            for judge in (new, champion)
        )
    except NotEnoughData:
        return False, "no votes of the calib split to compare calibrators by"
    is_no_worse = loss <= to_beat + ROUNDING
    comparison = (
        f"log loss {loss:.3f} through {new.calibrator_version}, {_compare_losses(loss, to_beat)} "
        f"{to_beat:.3f} through {champion.calibrator_version}"
    )
    return is_no_worse, f"{comparison} on {len(held_out)} pairs of the calib split"


def _compare_losses(loss: float, to_beat: float) -> str:
    if loss > to_beat + ROUNDING:
        return "worse than"
    return "as good as" if f"{loss:.3f}" == f"{to_beat:.3f}" else "better than"


def _loss_as_served(pairs: pd.DataFrame, judge: CalibratedModel, progress: Progress) -> float:
    """Log loss in nats per vote."""
    p = np.clip(judge.p_chosen(pairs, progress=progress), 1e-12, 1 - 1e-12)
    share, votes = (pairs[name].to_numpy(dtype=np.float64) for name in ("agreement", "n_votes"))
    return float(votes @ -(share * np.log(p) + (1 - share) * np.log1p(-p)) / votes.sum())
