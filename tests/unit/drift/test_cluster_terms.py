"""Clusters are named by what sets their prompts apart, in any language."""

import pytest

from rlhf_pipeline.drift.cluster_terms import distinctive_terms, name_cluster, term_similarity

SOUP = [f"Wie koche ich die Suppe mit {x} und der Brühe?" for x in ("Linsen", "Lauch", "Reis")]
TRAIN = [f"Wie buche ich die Fahrkarte der Bahn nach {x}?" for x in ("Bonn", "Köln", "Kiel")]


def test_terms_leave_out_words_that_the_rest_uses_as_often() -> None:
    soup, train = distinctive_terms([SOUP, TRAIN])
    assert set(soup) == {"koche", "suppe", "mit", "und", "brühe"}
    assert set(train) == {"buche", "fahrkarte", "bahn", "nach"}
    assert sum(weight**2 for weight in soup.values()) == pytest.approx(1, abs=1e-4)


def test_terms_do_not_depend_on_the_order_of_prompts() -> None:
    assert distinctive_terms([SOUP[::-1], TRAIN]) == distinctive_terms([SOUP, TRAIN])


def test_a_long_prompt_has_no_more_say_than_others() -> None:
    loud = ["moon " * 500 + "river", "bridge river", "bridge river"]
    assert next(iter(distinctive_terms([loud, TRAIN])[0])) == "river"


def test_clusters_without_texts_have_no_name() -> None:
    assert [name_cluster(terms) for terms in distinctive_terms([[], []])] == [None, None]


def test_similarity_is_of_shared_terms() -> None:
    soup, train = distinctive_terms([SOUP, TRAIN])
    again, _ = distinctive_terms([SOUP[:2], TRAIN])
    assert term_similarity(soup, again) > 0.9
    assert term_similarity(soup, train) == 0
