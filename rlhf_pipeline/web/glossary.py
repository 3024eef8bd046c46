"""The mission's words as labels beside the plain terms; a cookie switches them on."""

import re

COOKIE = "glossary"
# Of terms that a text contains, the first one listed is labelled. docs/vocabulary.md has the same.
LABELS = {
    "error clusters": "damaged tissue",
    "cluster": "damaged tissue",
    "alignment": "attunement",
    "calibration": "homeostatic regulation",
    "retraining": "collective tissue repair",
    "drift": "morphogenetic cancer",
    "reward model": "vote predictor",
    "reflection log": "meta-reflection",
    "prompts": "bioelectric cues",
    "home": "electrophysiological state monitor",
    "the loop": "morphogenesis",
}
HEADING = re.compile(r"(<h[1-3][^>]*>)([^<]+)")  # with the text at its beginning


def find_label(text: str) -> str:
    """The label of a text; with its term unless that is the whole text; empty without a term.

    >>> find_label("Error clusters"), find_label("Drift over time"), find_label("Votes")
    ('= damaged tissue', 'drift = morphogenetic cancer', '')
    """
    plain = " ".join(text.split()).lower()
    terms = [term for term in LABELS if re.search(rf"\b{term}\b", plain)]
    if not terms:
        return ""
    term = terms[0]
    return f"= {LABELS[term]}" if plain == term else f"{term} = {LABELS[term]}"


def add_labels(html: str) -> str:
    """The page with a label in each heading that has a term. Nothing else changes."""
    return HEADING.sub(_add_label, html)


def _add_label(match: re.Match[str]) -> str:
    label = find_label(match[2])
    return f'{match[0]}<small class="gloss"> {label}</small>' if label else match[0]
