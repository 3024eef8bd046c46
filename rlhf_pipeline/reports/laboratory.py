"""Builds the laboratory's HTML page: one table per group of worlds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_pipeline.reports.draw import chart_css
from rlhf_pipeline.reports.rendering import render_page


@dataclass(frozen=True)
class LabTable:
    """Rows of texts, all with the same columns; `met` is yes or no."""

    title: str
    rows: Sequence[Mapping[str, str]]


def render_laboratory_page(lead: str, n_missed: int, tables: Sequence[LabTable]) -> str:
    """Render the page as one HTML document."""
    return render_page(
        "laboratory.html", style=chart_css(), lead=lead, n_missed=n_missed, tables=tables
    )
