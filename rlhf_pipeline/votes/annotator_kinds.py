"""Votes of people apart from those of machines. Knows frames of votes; knows no routing.

A machine vote is a model's own answer. It measures no agreement among people, no model, and teaches
none unless somebody asks for it.
"""

import pandas as pd

from rlhf_pipeline.records import AnnotatorKind


def drop_machine_votes(votes: pd.DataFrame) -> pd.DataFrame:
    """The rows that no machine cast: human annotators' and, in a simulation, simulated ones'."""
    return votes[votes["annotator_kind"] != AnnotatorKind.MACHINE]
