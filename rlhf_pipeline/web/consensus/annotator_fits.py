"""Reads the soft labels of the newest annotator model, a table with a row for each comparison."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import ArtefactError, FrameError, MissingPartition
from rlhf_pipeline.feedback.votes.model_consensus import LABELS_FRAME, newest_known_seq
from rlhf_pipeline.web.problems import RETRY_SOON, Problem


@dataclass(frozen=True)
class AnnotatorFit:
    """SOFT_LABELS by comparison, and the newest vote behind them."""

    labels: pd.DataFrame
    up_to_seq: int

    def labels_for(self, comparison_ids: Sequence[str]) -> pd.DataFrame:
        """The SOFT_LABELS of the comparisons that the fit covers."""
        places = self.labels.index.get_indexer(
            pd.Index(comparison_ids, dtype=self.labels.index.dtype)
        )
        return self.labels.iloc[places[places >= 0]].reset_index()


def read_fit(files: Artefacts) -> AnnotatorFit | None:
    """The newest fit; None before the first. Raises Problem 503 if it cannot be read."""
    try:
        labels = files.read_frame(*LABELS_FRAME)
    except MissingPartition:
        return None
    except (ArtefactError, FrameError) as cause:
        raise Problem(
            503,
            f"The output of the annotator model cannot be read: {cause}",
            kind="annotator_model_unreadable",
            headers=RETRY_SOON,
        ) from cause
    if labels.empty:
        return None
    return AnnotatorFit(labels.set_index("comparison_id"), newest_known_seq(labels))
