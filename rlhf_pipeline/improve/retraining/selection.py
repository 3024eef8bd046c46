"""Selects the preference pairs for retraining a policy, each with its reason."""

from collections.abc import Collection, Mapping
from typing import Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from rlhf_pipeline.core.errors import FrameError, InvalidScores, NotEnoughVotes
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, REFLECTIONS, RETRAINING_SET, check_frame
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.feedback.votes import NO_CHANGES, TasteChanges
from rlhf_pipeline.generate.completions.answers import split_reasoning
from rlhf_pipeline.generate.prompts.references import is_right

SIDES = ("chosen", "rejected")
SCORES = ("comparison_id", "p_chosen")
COLUMNS = [name for name in RETRAINING_SET.columns if name != "dataset"]


class SelectionParams(Parameters):
    """Parameters for choosing the retraining set."""

    max_pairs: int = Field(1000, description="Most pairs in the retraining set", ge=1)
    min_pairs: int = Field(100, description="Fewer pairs than this are refused", ge=1)
    weight_before_change: float = Field(
        0.2, description="Sampling weight of pairs voted on before the detected change", ge=0, le=1
    )
    relabel_confidence: float = Field(
        0.7,
        description="Calibrated probability from which the refitted reward model's choice replaces "
        "votes from before the change, at full weight; 1 = never",
        ge=0.5,
        le=1,
    )
    separate_votes: bool = Field(
        True,
        description="Label by members fitted on the votes of one half of the prompts; the votes of "
        "the other half judge the candidate and are not trained on. false = all votes do both",
    )
    hard_negatives: int = Field(
        0,
        description="Most further pairs of completions that nobody compared and that the reward "
        "model finds close",
        ge=0,
    )
    dataset: str | None = Field(
        None,
        description="Curated data set to train on whole, as NAME or NAME@VERSION, instead of a "
        "selection; null = select",
    )
    leave_out: list[str] = Field(
        [], description="Ids of comparisons that are never trained on, such as broken imports"
    )
    failing_cluster_weight: float = Field(
        1.0,
        description="Factor of the sampling weight of pairs in clusters that failed when they were "
        "last found; 1 = as any other",
        ge=0,
        le=10,
    )

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.min_pairs > self.max_pairs:
            raise ValueError(f"min_pairs {self.min_pairs} is above max_pairs {self.max_pairs}")
        return self


def drop_reasoning(frame: pd.DataFrame) -> pd.DataFrame:
    """RETRAINING_SET with the answers alone, where annotators were shown reasoning that policies
    are not to learn; pairs whose answers are the same are left out.
    """
    texts = {side: frame[side].map(lambda text: split_reasoning(text).text) for side in SIDES}
    answers = frame.assign(**texts)
    is_pair = answers["chosen"].str.strip() != answers["rejected"].str.strip()
    return check_frame(answers[is_pair].reset_index(drop=True), RETRAINING_SET)


def select_pairs(
    pairs: pd.DataFrame,
    scores: pd.DataFrame,
    reflections: pd.DataFrame | None,
    params: SelectionParams,
    *,
    taste_changes: TasteChanges = NO_CHANGES,
    frozen_prompt_ids: Collection[str] = (),
    failing_ids: Collection[str] = (),
    references: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Select the most informative pairs of the train split as RETRAINING_SET, most informative
    first.

    `pairs` are PREFERENCE_PAIRS; `scores` has comparison_id and p_chosen, the refitted reward
    model's calibrated probability that the majority's choice wins, for every pair, and optionally
    is_reserved: the gate needs the votes on this prompt. `reflections` (REFLECTIONS) are the
    champion's predictions from before the votes. For a comparison without a vote there,
    disagreement depends on p_chosen alone. `references` are the right answers by prompt_id.

    information = 1 - |2 p - 1| + share of votes predicted wrongly. Votes from before the last
    change of their category state a former taste. Where the reward model, refitted since, is as
    sure as `relabel_confidence`, its choice stands instead (origin `relabelled` where it differs)
    and counts like a new vote. Elsewhere the pair is left out if the model contradicts it, else it
    gets the sampling weight `weight_before_change` and ranks by information * weight, so it only
    fills the room that others leave. A reserved pair has the model's choice where the model is
    sure, and is left out elsewhere. Pairs of `failing_ids`, comparisons in failing clusters, have
    their weight multiplied by `failing_cluster_weight`. A pair that prefers a wrong answer to the
    right one is left out. Pairs of calib, test and frozen prompts are never selected. Equal inputs
    in another order give the same rows in the same order.

    Raises NotEnoughVotes below min_pairs, InvalidScores for a probability that is missing, NaN or
    outside 0 to 1.
    """
    checked = check_frame(pairs, PREFERENCE_PAIRS)
    usable = list_usable_pairs(checked, params, frozen_prompt_ids)
    _require_enough_pairs(len(usable), len(checked), params.min_pairs)
    p_chosen, is_reserved = _match_scores(scores, usable["comparison_id"])
    counts = (
        _count_wrong_votes(reflections)
        .reindex(usable["comparison_id"])
        .fillna(0)
        .reset_index(drop=True)
    )
    is_old = pd.Series(~taste_changes.is_current(usable), index=usable.index)
    is_confident = np.maximum(p_chosen, 1 - p_chosen) >= params.relabel_confidence
    is_swapped = (is_old | is_reserved) & is_confident & (p_chosen < 0.5)
    is_relabelled = is_swapped | (is_reserved & is_confident)
    is_current = ~is_old | is_confident
    when = np.where(
        is_old,
        " before the change",
        np.where(taste_changes.first_seq(usable["category"]) > 0, " after the change", ""),
    )
    is_failing = usable["comparison_id"].isin(list(failing_ids))
    if params.failing_cluster_weight != 1:
        when = np.where(is_failing, np.char.add(when, ", in a failing cluster"), when)
    described = usable.assign(
        origin=np.where(is_relabelled, "relabelled", "vote"),
        # votes that a label replaces say nothing of its strength, and may judge the candidate
        margin=usable["margin"].where(~is_relabelled, (2 * p_chosen - 1).abs()),
        weight=np.where(is_current, 1.0, params.weight_before_change)
        * np.where(is_failing, params.failing_cluster_weight, 1.0),
        information=1
        - (2 * p_chosen - 1).abs()
        + _disagreement_shares(counts, p_chosen).mask(is_relabelled, 0.0),
        # people who contradict the model make a pair as hard as one it cannot tell apart
        difficulty=2 * (1 - p_chosen.where(~is_swapped, 1 - p_chosen).clip(lower=0.5)),
        reason=[
            _describe_relabelling(p, after)
            if swapped
            else _describe_label(p, after)
            if relabelled
            else _describe_reason(n_wrong, n_votes, p, after)
            for swapped, relabelled, n_wrong, n_votes, p, after in zip(
                *(is_swapped, is_relabelled, counts["n_wrong"], counts["n_votes"]),
                *(p_chosen, when),
                strict=True,
            )
        ],
    )
    described = _swap(described, is_swapped)
    chosen = described[
        (described["weight"] > 0)
        & (is_confident | ~is_reserved)
        & (is_current | (p_chosen >= 0.5))
        & ~prefers_wrong_answer(described, references or {})
    ]
    _require_enough_pairs(len(chosen), len(checked), params.min_pairs)
    ranked = chosen.assign(_rank=chosen["information"] * chosen["weight"]).sort_values(
        ["_rank", "comparison_id"], ascending=[False, True]
    )
    return check_frame(ranked.head(params.max_pairs)[COLUMNS], RETRAINING_SET)


def take_dataset(
    pairs: pd.DataFrame,
    scores: pd.DataFrame,
    label: str,
    params: SelectionParams,
    *,
    frozen_prompt_ids: Collection[str] = (),
) -> pd.DataFrame:
    """All `pairs` of the curated data set called `label` as RETRAINING_SET, as people wrote and
    chose them, but those on frozen prompts. `scores` as in `select_pairs`, which this raises as.
    """
    whole = params.model_copy(update={"max_pairs": max(len(pairs), params.min_pairs)})
    frame = select_pairs(pairs, scores, None, whole, frozen_prompt_ids=frozen_prompt_ids)
    reasons = f"data set {label}; " + frame["reason"]
    return check_frame(
        frame.assign(origin="dataset", dataset=label, reason=reasons), RETRAINING_SET
    )


def list_usable_pairs(
    pairs: pd.DataFrame, params: SelectionParams, frozen_prompt_ids: Collection[str]
) -> pd.DataFrame:
    """The PREFERENCE_PAIRS that may be trained on, whatever the reward model says of them."""
    # Even splits and pairs with only ties calibrate a reward model's confidence; a policy would
    # learn a preference from them that no annotator has.
    is_preferred = pairs["agreement"] > 0.5
    usable = pairs[
        (pairs["split"] == "train")
        & is_preferred
        & ~pairs["prompt_id"].isin(list(frozen_prompt_ids))
        & ~pairs["comparison_id"].isin(params.leave_out)
    ]
    return usable.sort_values("comparison_id", ignore_index=True)


def _swap(pairs: pd.DataFrame, swapped: "pd.Series[bool]") -> pd.DataFrame:
    return pairs.assign(
        chosen=pairs["rejected"].where(swapped, pairs["chosen"]),
        rejected=pairs["chosen"].where(swapped, pairs["rejected"]),
    )


def prefers_wrong_answer(pairs: pd.DataFrame, references: Mapping[str, str]) -> "pd.Series[bool]":
    """Whether the chosen completion lacks the right answer and the rejected one gives it."""
    answers = [references.get(prompt_id) for prompt_id in pairs["prompt_id"]]
    is_wrong = [
        reference is not None and not is_right(reference, chosen) and is_right(reference, rejected)
        for reference, chosen, rejected in zip(
            answers, pairs["chosen"], pairs["rejected"], strict=True
        )
    ]
    return pd.Series(is_wrong, index=pairs.index, dtype=bool)


def find_set_problems(
    frame: pd.DataFrame, frozen_prompt_ids: Collection[str], min_pairs: int
) -> tuple[str, ...]:
    """List the reasons why `frame` must not be trained on; empty if there is none. This is the
    blocking check of the retraining set.
    """
    problems = []
    if len(frame) < min_pairs:
        problems.append(
            f"{len(frame)} pairs, {min_pairs} are needed. Collect more votes or lower min_pairs."
        )
    leaked = frame[frame["split"] != "train"]
    if len(leaked):
        problems.append(
            f"{len(leaked)} rows of evaluation splits, first comparison "
            f"{leaked['comparison_id'].iloc[0]} ({leaked['split'].iloc[0]})."
        )
    frozen = frame[frame["prompt_id"].isin(list(frozen_prompt_ids))]
    if len(frozen):
        problems.append(
            f"{len(frozen)} rows on frozen evaluation prompts, first prompt "
            f"{frozen['prompt_id'].iloc[0]}."
        )
    return tuple(problems)


def _require_enough_pairs(n_usable: int, n_pairs: int, min_pairs: int) -> None:
    if n_usable < min_pairs:
        raise NotEnoughVotes(
            f"{n_usable} of {n_pairs} preference pairs may be trained on (train split, a majority, "
            f"no frozen prompts, weight above 0); retraining needs {min_pairs}. Collect more votes "
            "or lower min_pairs."
        )


def _match_scores(
    scores: pd.DataFrame, comparison_ids: pd.Series
) -> tuple["pd.Series[float]", "pd.Series[bool]"]:
    missing = [column for column in SCORES if column not in scores.columns]
    if missing:
        raise FrameError(f"scores: missing columns {missing}. Expected: {list(SCORES)}.")
    if scores["comparison_id"].duplicated().any():
        raise FrameError("scores: comparison_id repeats. Give one probability per comparison.")
    matched = scores.set_index("comparison_id").reindex(comparison_ids)
    p = matched["p_chosen"].astype("float64")
    bad = p[~p.between(0, 1)]
    if len(bad):
        raise InvalidScores(
            f"{len(bad)} of {len(p)} pairs have no probability from 0 to 1, first comparison "
            f"{bad.index[0]} ({bad.iloc[0]}). Score every pair with the reward model and its "
            "calibrator."
        )
    if "is_reserved" not in matched:
        matched["is_reserved"] = False
    return p.reset_index(drop=True), matched["is_reserved"].reset_index(drop=True).astype(bool)


def _count_wrong_votes(reflections: pd.DataFrame | None) -> pd.DataFrame:
    """Per comparison_id: n_votes, the votes that chose a side, and n_wrong, those of them that the
    prediction made at the time got wrong.
    """
    if reflections is None:
        return pd.DataFrame(
            {"n_votes": [], "n_wrong": []}, index=pd.Index([], dtype="str", name="comparison_id")
        )
    voted = check_frame(reflections, REFLECTIONS).dropna(subset=["is_error", "vote_id"])
    # A vote is listed with every model that predicted it; the latest model is the champion that
    # people disagreed with.
    latest = voted.sort_values(["predicted_at", "reward_model"]).drop_duplicates(
        "vote_id", keep="last"
    )
    # A comparison judged again on a later day is in the logs of both days: the latest vote counts.
    latest = latest.sort_values("seq").drop_duplicates(
        ["comparison_id", "annotator_id"], keep="last"
    )
    return (
        latest.astype({"is_error": "int64"})
        .groupby("comparison_id")
        .agg(n_votes=("vote_id", "size"), n_wrong=("is_error", "sum"))
    )


def _disagreement_shares(counts: pd.DataFrame, p_chosen: pd.Series) -> pd.Series:
    by_votes = counts["n_wrong"] / counts["n_votes"].where(counts["n_votes"] > 0)
    return by_votes.fillna((p_chosen < 0.5).astype("float64"))


def _describe_relabelling(p_chosen: float, when: str) -> str:
    return f"relabelled: reward model gives {1 - p_chosen:.2f} to what people rejected{when}"


def _describe_label(p_chosen: float, when: str) -> str:
    return (
        f"labelled: reward model gives {p_chosen:.2f} to the chosen completion{when}; the gate "
        "judges by the votes on it"
    )


def _describe_reason(n_wrong: float, n_votes: float, p_chosen: float, when: str) -> str:
    if n_wrong > 0:
        annotators = "annotator" if n_votes == 1 else "annotators"
        return f"champion disagreed with {int(n_wrong)} of {int(n_votes)} {annotators}{when}"
    if p_chosen < 0.5:
        return f"reward model gives the chosen completion only {p_chosen:.2f}{when}"
    if 1 - abs(2 * p_chosen - 1) >= 0.5:
        return f"reward model unsure: {p_chosen:.2f} for the chosen completion{when}"
    return (
        f"reward model agrees with people, {p_chosen:.2f} for the chosen completion{when}; "
        "fills the set"
    )
