import numpy as np
import pytest

from rlhf_pipeline.generate.prompts import Report, generate, near_duplicates
from rlhf_pipeline.generate.prompts.near_duplicates import (
    NearDuplicates,
    jaccard,
    shingles,
)
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.generate.prompts.templates import load_shipped_templates
from tests.unit.generate.prompts.words import WORDS


def sentence(rng, n=30):
    return " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=n))


def changed(rng, text, n):
    words = text.split()
    for i in rng.choice(len(words), size=n, replace=False):
        words[i] = "".join(rng.permutation(list("qxzvwk")))
    return " ".join(words)


@pytest.mark.parametrize("limit", [0.5, 0.7, 0.8, 0.9])
def test_only_near_duplicates_are_found(limit):
    rng = np.random.default_rng(0)
    index, texts = NearDuplicates(limit), [sentence(rng) for _ in range(40)]
    for text in texts:
        index.add(text)
    assert len(index) == 40
    n_near = 0
    known = [shingles(text) for text in texts]
    for text in texts:
        for n in (0, 1, 2, 3, 5, 8):
            other = changed(rng, text, n)
            truth = max(jaccard(shingles(other), t) for t in known)
            match = index.find(other)
            assert (match[0] if match else None) == (truth if truth > limit else None)
            n_near += truth > limit
    assert n_near > 50


def test_case_and_spacing_do_not_distinguish_texts():
    index = NearDuplicates(0.99)
    index.add("Name three  rivers.")
    assert index.find("NAME three\nrivers.") == (1.0, "Name three  rivers.")
    assert index.find("Name three mountains.") is None


def test_earlier_texts_are_not_read_again(monkeypatch):
    index, read = NearDuplicates(0.8), []
    monkeypatch.setattr(
        near_duplicates, "shingles", lambda text: read.append(text) or shingles(text)
    )
    for word in WORDS:
        text = f"Write a short story for children about {word}"
        index.find(text)
        index.add(text)
    assert len(read) == 2 * len(WORDS)


@pytest.mark.parametrize("text", ["", "a", "a b", "\ud800x"])
def test_short_and_broken_texts_are_accepted(text):
    index = NearDuplicates(0.8)
    assert index.find(text) is None
    index.add(text)
    assert index.find(text) == (1.0, text)


def test_similarity_limit_drops_texts_that_differ_in_a_name():
    wide = [
        t
        for t in load_shipped_templates("all")
        if t.category == "safety" and t.difficulty == "hard"
    ]
    report = Report()
    params = SourceParams(
        n=len(wide),
        library="all",
        categories={"safety": 1},
        difficulties={"hard": 1},
        max_similarity=0.7,
    )
    frame = generate(params, day="2026-01-01", report=report)
    texts = [shingles(text) for text in frame["text"]]
    assert max(jaccard(a, b) for i, a in enumerate(texts) for b in texts[:i]) <= 0.7
    several = generate(
        params.model_copy(update={"max_similarity": 1.0, "n": 100}), day="2026-01-01"
    )
    close = [shingles(text) for text in several["text"]]
    assert max(jaccard(a, b) for i, a in enumerate(close) for b in close[:i]) > 0.7
