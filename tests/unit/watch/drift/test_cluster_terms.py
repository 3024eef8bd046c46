"""Clusters are named by what sets their prompts apart, in any language."""

import pytest

from rlhf_pipeline.watch.drift.cluster_terms import distinctive_terms, term_similarity

SOUP = [f"Wie koche ich die Suppe mit {x} und der Brühe?" for x in ("Linsen", "Lauch", "Reis")]
TRAIN = [f"Wie buche ich die Fahrkarte der Bahn nach {x}?" for x in ("Bonn", "Köln", "Kiel")]


def test_terms_exclude_words_common_elsewhere() -> None:
    soup, train = distinctive_terms([SOUP, TRAIN])
    assert set(soup) == {"koche", "suppe", "mit", "und", "brühe"}
    assert set(train) == {"buche", "fahrkarte", "bahn", "nach"}
    assert sum(weight**2 for weight in soup.values()) == pytest.approx(1, abs=1e-4)


def test_similarity_counts_shared_terms() -> None:
    soup, train = distinctive_terms([SOUP, TRAIN])
    again, _ = distinctive_terms([SOUP[:2], TRAIN])
    assert term_similarity(soup, again) > 0.9
    assert term_similarity(soup, train) == 0
