"""Predicts the preferred completion of a pair with the champion reward model."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.api_types.project import PairPrediction
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import ModelVersion, Record, content_hash, utc_now
from rlhf_pipeline.learn.calibration import Calibrator
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.reward_model import RewardModel, preference_probability
from rlhf_pipeline.learn.reward_model.base import both_sides, distinct_texts


class Question(Record):
    """Two completions of a prompt; neither has to come from this project."""

    prompt: str
    completion_a: str
    completion_b: str


@dataclass(frozen=True)
class CalibratedModel:
    """The champion reward model, ready to predict: P(a preferred) = calibrator(score(a) -
    score(b)).

    A champion that cannot be loaded is also one, so that a new model can replace it; its
    predictions raise `load_error`.
    """

    version: ModelVersion
    loaded: RewardModel | None
    calibrator: Calibrator | None
    calibrator_version: str
    load_error: PipelineError | None = None  # the reason why no model is loaded

    @property
    def label(self) -> str:
        return self.version.label

    @property
    def reward_model(self) -> RewardModel:
        """The loaded reward model. Raises `load_error` if it could not be loaded."""
        if self.load_error is not None:
            raise self.load_error
        assert self.loaded is not None
        return self.loaded

    def p_chosen(
        self, pairs: pd.DataFrame, *, progress: Progress = ignore_progress
    ) -> npt.NDArray[np.float64]:
        """Calibrated P(the majority's choice is preferred) for each of PREFERENCE_PAIRS, (n,)."""
        return self.p_of_scores(*self.score_pairs(pairs, progress=progress))

    def score_pairs(
        self, pairs: pd.DataFrame, *, progress: Progress = ignore_progress
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Scores of the chosen and of the rejected completions of PREFERENCE_PAIRS, (n,) each."""
        chosen, rejected = np.split(self._scores(*both_sides(pairs), progress), 2)
        return chosen, rejected

    def p_of_scores(
        self, first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Calibrated P(first preferred) from the scores of two completions each, (n,)."""
        return (self.calibrator or NoCalibration()).transform(first - second)

    def predict(
        self,
        questions: Sequence[Question],
        *,
        progress: Progress = ignore_progress,
        now: datetime | None = None,
        score_cache: dict[tuple[str, str], float] | None = None,
    ) -> list[PairPrediction]:
        """Return a prediction for each question, in order. Exchanging a and b gives exactly 1 - p.

        `score_cache` keeps scores by prompt and completion from call to call, so that a text in
        many questions is scored once. Raises InvalidScores if a score is NaN, and `load_error`.
        """
        n, prompts = len(questions), [q.prompt for q in questions]
        completions = [*(q.completion_a for q in questions), *(q.completion_b for q in questions)]
        scores = self._scores([*prompts, *prompts], completions, progress, score_cache)
        margins = scores[:n] - scores[n:]
        p_raw = preference_probability(margins)
        p_calibrated = (self.calibrator or NoCalibration()).transform(margins)
        version, predicted_at = self.version, now or utc_now()
        return [
            PairPrediction(
                reward_model=version.label,
                calibrator=self.calibrator_version,
                data_hash=version.data_hash,
                data_seq=version.data_seq,
                features_hash=content_hash(q.prompt, q.completion_a, q.completion_b),
                score_a=float(scores[i]),
                score_b=float(scores[n + i]),
                p_raw=float(p_raw[i]),
                p_calibrated=float(p_calibrated[i]),
                predicted_at=predicted_at,
            )
            for i, q in enumerate(questions)
        ]

    def _scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        progress: Progress,
        score_cache: dict[tuple[str, str], float] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Score distinct texts in one order, so no digit depends on a text's side."""
        score_cache = {} if score_cache is None else score_cache
        distinct_prompts, distinct_completions, place = distinct_texts(prompts, completions)
        texts = list(zip(distinct_prompts, distinct_completions, strict=True))
        missing = [text for text in texts if text not in score_cache]
        if missing:
            scores = self.reward_model.score(
                [prompt for prompt, _ in missing],
                [completion for _, completion in missing],
                progress=progress,
            )
            score_cache.update(
                zip(missing, np.asarray(scores, dtype=np.float64).tolist(), strict=True)
            )
        return np.array([score_cache[text] for text in texts], dtype=np.float64)[place]
