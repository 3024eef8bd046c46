"""Serves predictions of the champion reward model, loaded on demand and after each promotion."""

import threading
from collections.abc import Sequence

from rlhf_pipeline.core.api_types.project import PairPrediction
from rlhf_pipeline.core.errors import ConfigurationError, InvalidScores, ModelError
from rlhf_pipeline.learn.champions import CalibratedModel, Champions, Question
from rlhf_pipeline.web.memory_cache import CachedValue
from rlhf_pipeline.web.problems import RETRY_SOON, Problem

# requests being answered or waiting for it: each holds one of the forty threads that all routes
# share
AT_MOST = 8


class Predictor:
    """Answers one request at a time, because a model uses all its cores. A few requests wait;
    others are refused.
    """

    def __init__(self, champions: Champions, champion_s: float):
        self._champions = champions
        self._serving = CachedValue(self._find_champion_key, champion_s)
        self._places = threading.BoundedSemaphore(AT_MOST)
        self._lock = threading.Lock()
        self._loaded: tuple[tuple[str, int], CalibratedModel] | None = None

    def predict(self, questions: Sequence[Question]) -> list[PairPrediction]:
        """Raises Problem 409 without a champion, 503 if the model fails to load, returns NaN, or
        too many requests wait.
        """
        if not self._places.acquire(blocking=False):
            raise Problem(
                503,
                f"{AT_MOST} prediction requests are already in progress. Retry in a moment, or "
                "send up to fifty pairs in one request.",
                kind="too_many_predictions",
                headers=RETRY_SOON,
            )
        try:
            with self._lock:
                judge = self._load_judge()
                try:
                    return judge.predict(questions)
                except (InvalidScores, ModelError) as cause:
                    # The schema admits only texts, and an intact model scores every text.
                    raise _unavailable_problem(
                        f"The reward model {judge.label} cannot score: {cause}"
                    ) from cause
        finally:
            self._places.release()

    def _load_judge(self) -> CalibratedModel:
        try:
            serving = self._serving()
            if serving is None:
                raise Problem(
                    409,
                    "There is no champion reward model yet. Once enough comparisons are judged, "
                    "the `learning` job fits one, or run `rlhf reward train` and `rlhf reward "
                    "calibrate`.",
                    kind="no_champion",
                )
            if self._loaded is None or self._loaded[0] != serving:
                judge = self._champions.judge(self._champions.version(serving[0]))
                assert judge is not None  # a version was given
                self._loaded = serving, judge
            return self._loaded[1]
        except (ModelError, ConfigurationError, InvalidScores, OSError) as cause:
            raise _unavailable_problem(f"The reward model cannot be loaded: {cause}") from cause

    def _find_champion_key(self) -> tuple[str, int] | None:
        """The labels of the champion and its calibrator, which identify the predictions."""
        store, name = self._champions.store, self._champions.registry.model_name("reward_model")
        champion = store.promotions.champion(name)
        if champion is None:
            return None
        stored = store.calibrations.latest_serving(champion.label)
        return champion.label, stored[0].calibrator_version or 0 if stored else 0


def _unavailable_problem(detail: str) -> Problem:
    return Problem(503, detail, kind="model_unavailable", headers=RETRY_SOON)
