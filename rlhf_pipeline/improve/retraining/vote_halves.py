"""Fits members on one half of the votes to label pairs, and on the other half to judge candidates.

A candidate that is trained on a reward model's labels and judged by the same model is rewarded for
that model's errors (Gao et al. 2023). So every prompt belongs to one half, by its id: the members
that judge a candidate have seen none of the votes behind the labels it was trained with.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.frames import frame_hash
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import DimensionHead, ModelVersion, content_hash
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.improve.evaluation import CompletionJudge
from rlhf_pipeline.learn.calibration import Calibrator, calibrator_from_json, fit_calibrator
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.reward_model import RewardModel, load_reward_model
from rlhf_pipeline.learn.reward_model.base import both_sides
from rlhf_pipeline.learn.reward_model.dimensions import measure_dimension_heads
from rlhf_pipeline.learn.reward_model.training import change_weights

Half = Literal["labelling", "judging"]
N_MEMBERS = 4  # of each half; where they disagree, a label is unreliable


def is_for_judging(prompt_ids: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Whether the votes on each prompt are for judging candidates, (n,); the others are for
    labels.
    """
    numbers = [
        int(content_hash("half of the votes", prompt_id)[:8], 16) for prompt_id in prompt_ids
    ]
    return np.asarray(np.array(numbers, dtype=np.int64) % 2 == 1)


def label_reserved(pairs: pd.DataFrame, judge: CompletionJudge) -> pd.DataFrame:
    """The scores that `select_pairs` reads, with the pairs whose votes are for judging marked."""
    return score_pairs(pairs, judge).assign(is_reserved=is_for_judging(pairs["prompt_id"]))


def score_pairs(pairs: pd.DataFrame, judge: CompletionJudge) -> pd.DataFrame:
    """comparison_id and p_chosen, the calibrated P(chosen preferred), of pairs."""
    chosen, rejected = np.split(np.asarray(judge.reward_model.score(*both_sides(pairs))), 2)
    calibrator = judge.calibrator or NoCalibration()
    return pd.DataFrame(
        {
            "comparison_id": pairs["comparison_id"],
            "p_chosen": calibrator.transform(chosen - rejected),
        }
    )


def measure_heads(
    judge: CompletionJudge, version: ModelVersion, pairs: pd.DataFrame
) -> CompletionJudge:
    """`judge`, which is `version`, with the accuracy of its heads of the rubric's dimensions on the
    calib split of `pairs`, as far as it was voted on since the last change. That split chose the
    calibrator alone, so to the heads it is unseen.
    """
    changes = TasteChanges.from_json(version.params.get("taste_changes", {}))
    train, calib = (pairs[pairs["split"] == name] for name in ("train", "calib"))
    heads = measure_dimension_heads(judge.reward_model, train, calib[changes.is_current(calib)])
    return replace(judge, heads=heads)


def has_votes_for_judging(retraining_set: pd.DataFrame) -> bool:
    """Whether a RETRAINING_SET has rows whose label is a vote for judging."""
    is_vote = retraining_set["origin"].fillna("vote").isin(["vote", "dataset"])
    return bool((is_vote & is_for_judging(retraining_set["prompt_id"])).any())


@dataclass(frozen=True)
class VoteHalves:
    """The members of both halves, each with its calibrator."""

    labelling: CompletionJudge
    judging: CompletionJudge

    @classmethod
    def behind(
        cls,
        retraining_set: pd.DataFrame,
        judge: CompletionJudge,
        version: ModelVersion,
        pairs: pd.DataFrame,
        *,
        cache: Path | None = None,
    ) -> Self:
        """The halves by which a RETRAINING_SET was made of `pairs`. Raises NotEnoughData as `fit`,
        and for a set that all votes label.
        """
        if has_votes_for_judging(retraining_set):
            raise NotEnoughData("The retraining set has rows that votes for judging label.")
        return cls.fit(judge, version, pairs, cache=cache)

    @classmethod
    def fit(
        cls,
        judge: CompletionJudge,
        version: ModelVersion,
        pairs: pd.DataFrame,
        *,
        cache: Path | None = None,
        progress: Progress = ignore_progress,
    ) -> Self:
        """Fit both halves of the train split of `pairs` (PREFERENCE_PAIRS), as `version`, the model
        of `judge`, was fitted on all of it.

        Both are calibrated on the calib split, as far as it was voted on since the last change.
        Equal arguments give equal members, so those last fitted are read from the folder `cache`:
        one retraining needs them for its set, its reward and its judge. Raises NotEnoughData for a
        kind that is slow to fit, and for too few pairs in a half.
        """
        changes = TasteChanges.from_json(version.params.get("taste_changes", {}))
        weight = float(version.params.get("weight_before_change", 1.0))
        if cache is not None:
            cached_halves = cache / content_hash(
                judge.reward_model.weights_hash, version.label, version.params, frame_hash(pairs)
            )
            if cached_halves.is_dir():
                read = partial(_read_half, cached_halves, judge)
                return cls(labelling=read("labelling"), judging=read("judging"))
        fit = partial(_fit_half, judge, version.label, pairs, changes, weight, progress)
        halves = cls(labelling=fit("labelling"), judging=fit("judging"))
        if cache is not None:
            shutil.rmtree(cache, ignore_errors=True)
            half_done = cache / "writing"
            _write_half(half_done / "labelling", halves.labelling)
            _write_half(half_done / "judging", halves.judging)
            half_done.rename(cached_halves)
        return halves


def _write_half(folder: Path, half: CompletionJudge) -> None:
    half.reward_model.save(folder / "model")
    values = {
        "label": half.label,
        "calibrator": (half.calibrator or NoCalibration()).to_json(),
        "heads": [head.model_dump(mode="json") for head in half.heads],
    }
    write_atomically(folder / "half.json", json.dumps(values).encode())


def _read_half(folder: Path, judge: CompletionJudge, half: Half) -> CompletionJudge:
    values = json.loads((folder / half / "half.json").read_text(encoding="utf-8"))
    model = load_reward_model(folder / half / "model", encoder=judge.reward_model.encoder)
    heads = tuple(DimensionHead.model_validate(head) for head in values["heads"])
    return CompletionJudge(
        model, values["label"], calibrator_from_json(values["calibrator"]), heads
    )


def _fit_half(
    judge: CompletionJudge,
    version: str,
    pairs: pd.DataFrame,
    taste_changes: TasteChanges,
    weight_before_change: float,
    progress: Progress,
    half: Half,
) -> CompletionJudge:
    # The annotator model's soft labels rest on all votes.
    members: RewardModel | None = judge.reward_model.quick(n_members=N_MEMBERS, label="votes")
    if members is None:
        raise NotEnoughData(
            f"A {judge.reward_model.name} takes too long to be fitted on each half of the votes."
        )
    is_in_half = is_for_judging(pairs["prompt_id"]) == (half == "judging")
    train = pairs[(pairs["split"] == "train") & is_in_half].reset_index(drop=True)
    weights = change_weights(train, taste_changes, weight_before_change)
    members.fit(train, weights=weights, progress=progress)
    calib = pairs[(pairs["split"] == "calib") & taste_changes.is_current(pairs)]
    try:
        calibrator: Calibrator = fit_calibrator(calib, members, progress=progress)[0]
    except NotEnoughData:
        calibrator = NoCalibration()
    label = f"{version}, refitted on the votes kept for {half}"
    heads = measure_dimension_heads(members, train, calib) if half == "judging" else ()
    return CompletionJudge(members, label, calibrator, heads)
