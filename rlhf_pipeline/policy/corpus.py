"""Generates the embedded policy's instruction corpus: prompts with completions of uneven quality.

Completions are right or wrong; warm, sourced or plain; terse, full or rambling, so samples of one
prompt differ in qualities that people care about.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from pydantic import Field

from rlhf_pipeline.parameters import Parameters
from rlhf_pipeline.prompts.base import Draft
from rlhf_pipeline.prompts.templates import Template, load_templates

ANSWERS = Path(__file__).with_name("answers.yaml")


class CorpusParams(Parameters):
    """The number of texts, and the frequency of each quality."""

    n_texts: int = Field(13_440, description="Prompt and completion pairs", ge=100)
    wrong: float = Field(
        0.25, description="Share of checkable completions with a wrong answer", ge=0, le=1
    )
    terse: float = Field(
        0.35, description="Share of completions that say the least possible", ge=0, le=1
    )
    rambling: float = Field(
        0.12, description="Share with a rambling sentence before or after", ge=0, le=1
    )
    warm: float = Field(
        0.48, description="Chance of a warm sentence before, and again after", ge=0, le=1
    )
    sourced: float = Field(
        0.24, description="Chance of a sourced sentence before, and again after", ge=0, le=1
    )


class TrainingText(NamedTuple):
    """One training text."""

    prompt: str
    completion: str


def make_corpus(params: CorpusParams, seed: int) -> list[TrainingText]:
    """Generate `params.n_texts` texts in seeded order, with every template and level equally often;
    the same seed gives the same texts.
    """
    rng = np.random.default_rng(seed)
    templates = [t for t in load_templates() if t.template_id in _load_answers()["bodies"]]
    turns = np.resize(np.arange(len(templates)), params.n_texts)
    return [_make_text(templates[i], params, rng) for i in rng.permutation(turns)]


def style_sentences() -> dict[str, tuple[str, ...]]:
    """The sentences of each style: warm, sourced, rambling."""
    return {
        style: (*places["before"], *places["after"])
        for style, places in _load_answers()["styles"].items()
    }


@cache
def _load_answers() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml.safe_load(ANSWERS.read_text(encoding="utf-8"))
    return loaded


def _make_text(template: Template, params: CorpusParams, rng: np.random.Generator) -> TrainingText:
    draft = _fill(template, rng)
    body = _draw_body(template, draft, params, rng)
    before, after = _draw_style(params, rng), _draw_style(params, rng)
    if rng.random() < params.rambling:
        before, after = ("rambling", after) if rng.random() < 0.5 else (before, "rambling")
    sentences = [_draw_sentence(before, "before", rng), body, _draw_sentence(after, "after", rng)]
    return TrainingText(draft.text, " ".join(s for s in sentences if s))


def _fill(template: Template, rng: np.random.Generator) -> Draft:
    while True:  # skips combinations whose variables must differ but do not
        draft = template.fill(int(rng.integers(template.n_combinations)))
        if draft is not None:
            return draft


def _draw_style(params: CorpusParams, rng: np.random.Generator) -> str | None:
    draw = rng.random()
    if draw < params.warm:
        return "warm"
    return "sourced" if draw < params.warm + params.sourced else None


def _draw_sentence(style: str | None, place: str, rng: np.random.Generator) -> str:
    return _pick(_load_answers()["styles"][style][place], rng) if style else ""


def _draw_body(
    template: Template, draft: Draft, params: CorpusParams, rng: np.random.Generator
) -> str:
    answer = draft.reference
    if answer is not None and rng.random() < params.wrong:
        answer = _draw_wrong_answer(template, draft, rng)
    forms = _load_answers()["bodies"][template.template_id][
        "terse" if rng.random() < params.terse else "full"
    ]
    text = _pick(forms, rng).format(**_draw_slots(draft, rng), answer=answer)
    return text[0].upper() + text[1:]


def _draw_wrong_answer(template: Template, draft: Draft, rng: np.random.Generator) -> str:
    """The answer to another filling of the template, preferably one that the prompt's own words
    suggest.
    """
    others = [
        str(draft.variables[name])
        for name in template.distinct
        if str(draft.variables[name]) != draft.reference
    ]
    if others:
        return _pick(others, rng)
    while True:
        other = _fill(template, rng).reference
        if other is not None and other != draft.reference:
            return other


def _draw_slots(draft: Draft, rng: np.random.Generator) -> dict[str, Any]:
    slots = _load_answers()["slots"]
    drawn = {name: _pick(values, rng) for name, values in slots.items()}
    if "kind" in draft.variables:
        one, two = rng.permutation(len(slots[draft.variables["kind"]]))[:2]
        drawn |= {
            "one": slots[draft.variables["kind"]][one],
            "two": slots[draft.variables["kind"]][two],
        }
    return drawn | dict(draft.variables)


def _pick(values: Sequence[str], rng: np.random.Generator) -> str:
    return values[int(rng.integers(len(values)))]
