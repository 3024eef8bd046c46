import numpy as np

from examples.embedded_policy import CorpusParams, _load_answers, make_corpus, style_sentences
from rlhf_pipeline.generate.prompts.templates import load_templates


def test_the_corpus_answers_every_template_of_the_library():
    assert {t.template_id for t in load_templates()} == set(_load_answers()["bodies"])


def test_the_corpus_leans_towards_warmth_and_holds_every_quality():
    texts = make_corpus(CorpusParams(n_texts=4000), seed=0)
    shares = {
        style: np.mean([any(s in t.completion for s in sentences) for t in texts])
        for style, sentences in style_sentences().items()
    }
    assert shares["warm"] > 1.4 * shares["sourced"]
    assert 0.3 < shares["sourced"] < 0.6
    assert 0.05 < shares["rambling"] < 0.2


def test_wrong_answers_have_the_requested_share():
    lookup = next(
        t for t in load_templates() if t.template_id == "capital" and t.difficulty == "easy"
    )
    answers = dict(
        zip(
            (f"capital of {c}?" for c in lookup.variables["country"]),
            (lookup.tables["capital"][c] for c in lookup.variables["country"]),
            strict=True,
        )
    )

    def share_right(wrong):
        checked = [
            (t, a)
            for t in make_corpus(CorpusParams(n_texts=4000, wrong=wrong), seed=0)
            for q, a in answers.items()
            if t.prompt.endswith(q)
        ]
        return np.mean([answer in text.completion for text, answer in checked])

    assert share_right(0.0) == 1.0
    assert share_right(1.0) == 0.0
