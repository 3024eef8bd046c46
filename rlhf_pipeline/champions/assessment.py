"""Whether a newly fitted reward model may take the champion's place."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_pipeline.calibration import recalibrated_loss
from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.champions.judge import Judge
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model import AcceptanceParams
from rlhf_pipeline.reward_model.acceptance import find_regression, find_weakness, is_improvement
from rlhf_pipeline.reward_model.base import margins_of
from rlhf_pipeline.votes import NO_CHANGES, TasteChanges

ROUNDING = 1e-9  # nats: two losses no further apart are the same


@dataclass(frozen=True)
class Assessment:
    """Whether a reward model may take the champion's place, and why. A refused one stays candidate
    until a person promotes it.
    """

    is_accepted: bool
    reason: str
    is_refused: bool = False


def assess(
    new: Judge,
    champion: Judge | None,
    calib: pd.DataFrame,
    *,
    taste_changes: TasteChanges = NO_CHANGES,
    ceiling: Interval | None = None,
    params: AcceptanceParams | None = None,
    progress: Progress = ignore_progress,
) -> Assessment:
    """Whether `new` may take the champion's place, by pairs of the calib split voted on since the
    last of `taste_changes`.

    It is refused if it is too weak and no better than the champion, if it is less accurate than the
    champion on the latest window, or if no pair was voted on since the change; otherwise the log
    loss decides (`compare_with_champion`). Of the champion's own version only calibrators are
    compared.
    """
    counted = calib[taste_changes.is_current(calib)]
    if champion is None or champion.label != new.label:
        cause = _refusal_cause(
            new, champion, calib, counted, ceiling, params or AcceptanceParams(), progress
        )
        if cause is not None:
            return Assessment(is_accepted=False, reason=cause, is_refused=True)
    return Assessment(*compare_with_champion(new, champion, counted, progress=progress))


def _refusal_cause(
    new: Judge,
    champion: Judge | None,
    calib: pd.DataFrame,
    counted: pd.DataFrame,
    ceiling: Interval | None,
    params: AcceptanceParams,
    progress: Progress,
) -> str | None:
    rival = None if champion is None or champion.load_error is not None else champion
    if counted.empty:
        is_blind = rival is not None and not calib.empty
        return (
            f"none of {len(calib)} held-out pairs was voted on since the last change of taste"
            if is_blind
            else None
        )
    margins = margins_of(new.reward_model, counted, progress=progress)
    weakness = find_weakness(counted, margins, ceiling, params)
    if rival is None:
        return weakness
    before = margins_of(rival.reward_model, counted, progress=progress)
    # after a reversal of taste a weak model is better than a wrong one
    if is_improvement(counted, margins, before, params):
        return None
    return (
        "; ".join(
            cause
            for cause in (weakness, find_regression(counted, margins, before, params))
            if cause
        )
        or None
    )


def compare_with_champion(
    new: Judge,
    champion: Judge | None,
    held_out: pd.DataFrame,
    *,
    progress: Progress = ignore_progress,
) -> tuple[bool, str]:
    """Whether `new` may replace `champion`, and why: its log loss on votes it was not fitted to
    must not be higher.

    `held_out` are pairs of the calib split: what serves is chosen there, the test split only says
    how good the choice is. Both models are recalibrated on them with prompts held out, since
    either's own calibrator may have seen them; and where the champion serves worse than that, it is
    taken as it serves: after a reversal of taste it is surely wrong, which a new calibration would
    hide. So no model loses to itself. Without any vote to compare by the new one serves: it has
    learnt from more. So it does where the champion cannot be loaded.

    Where `new` is the champion's own version, the two calibrators are compared in that way, each by
    its own method.
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
    verdict = "no worse than" if is_no_worse else "worse than"
    return (
        is_no_worse,
        f"log loss {loss:.3f}, {verdict} {to_beat:.3f} of {champion.label} on {len(held_out)} "
        "unseen pairs",
    )


def _compare_calibrators(
    new: Judge, champion: Judge, held_out: pd.DataFrame, progress: Progress
) -> tuple[bool, str]:
    """Of two calibrators of one model: the larger of what each loses as it serves and, fitted anew,
    on prompts held out.
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
    verdict = "no worse than" if is_no_worse else "worse than"
    told = (
        f"log loss {loss:.3f} through {new.calibrator_version}, {verdict} {to_beat:.3f} through "
        f"{champion.calibrator_version}"
    )
    return is_no_worse, f"{told} on {len(held_out)} pairs of the calib split"


def _loss_as_served(pairs: pd.DataFrame, judge: Judge, progress: Progress) -> float:
    """Nats per vote."""
    p = np.clip(judge.p_chosen(pairs, progress=progress), 1e-12, 1 - 1e-12)
    share, votes = (pairs[name].to_numpy(dtype=np.float64) for name in ("agreement", "n_votes"))
    return float(votes @ -(share * np.log(p) + (1 - share) * np.log1p(-p)) / votes.sum())
