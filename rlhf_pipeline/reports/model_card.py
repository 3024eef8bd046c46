"""Builds a model card as one HTML page to read and to print."""

from rlhf_pipeline.improve.model_card import ModelCard
from rlhf_pipeline.reports.draw import chart_css
from rlhf_pipeline.reports.rendering import render_page


def render_model_card(card: ModelCard) -> str:
    """Render the page as one HTML document; the same card gives the same bytes."""
    return render_page("model_card.html", card=card, style=chart_css())
