"""Caches the newest fit of the annotator model."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ArtefactError, FrameError, MissingPartition
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes.model_consensus import LABELS_FRAME, newest_known_seq
from rlhf_pipeline.web.memory_cache import CachedValue, CacheTimes
from rlhf_pipeline.web.problems import RETRY_SOON, Problem


@dataclass(frozen=True)
class AnnotatorFit:
    """SOFT_LABELS by comparison, the newest vote behind them, and a name unique to this fit."""

    labels: pd.DataFrame
    up_to_seq: int
    name: str

    def labels_for(self, comparison_ids: Sequence[str]) -> pd.DataFrame:
        """The SOFT_LABELS of the comparisons that the fit covers."""
        places = self.labels.index.get_indexer(
            pd.Index(comparison_ids, dtype=self.labels.index.dtype)
        )
        return self.labels.iloc[places[places >= 0]].reset_index()


class AnnotatorFits:
    """The newest fit. Callers get the previous one while a thread reads the next, which takes a
    second for a million votes.
    """

    def __init__(self, settings: Settings, store: Store, cache_times: CacheTimes):
        self._files = Artefacts(settings.frames)
        self._known: tuple[str, AnnotatorFit | None] | None = None  # hash and content of the file
        self._newest = CachedValue(self._read, cache_times.figures_s)

    def get_newest(self) -> AnnotatorFit | None:
        """None without a fit. Raises Problem 503 if the fit cannot be read."""
        found = self._newest()
        if isinstance(found, str):
            raise Problem(503, found, kind="annotator_model_unreadable", headers=RETRY_SOON)
        return found

    def _read(self) -> AnnotatorFit | str | None:
        """Returns errors as text, because a background thread may read and the next caller reports
        them.
        """
        stage, part = LABELS_FRAME
        try:
            held = self._files.hash_days([part], [stage])[part]
            if self._known is None or self._known[0] != held:
                self._known = held, self._load_fit(stage, part, held)
            return self._known[1]
        except (ArtefactError, FrameError) as cause:
            return f"The output of the annotator model cannot be read: {cause}"

    def _load_fit(self, stage: str, part: str, held: str) -> AnnotatorFit | None:
        try:
            labels = self._files.read_frame(stage, part)
        except MissingPartition:
            return None
        return (
            None
            if labels.empty
            else AnnotatorFit(
                labels.set_index("comparison_id"), newest_known_seq(labels), held[:16]
            )
        )
