"""Makes new prompts from old ones: in depth (more demanding) or in breadth (another subject).

Follows Evol-Instruct (Xu et al. 2023), by a text generator or offline by rules with the same kinds
of change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml

from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.core.records import Difficulty
from rlhf_pipeline.generate.prompts.base import Draft
from rlhf_pipeline.generate.prompts.constraints import RuleViolation
from rlhf_pipeline.generate.prompts.generated_texts import MAX_CHARS, ask, find_prompt_fault

RULES = Path(__file__).with_name("mutations.yaml")
LEVELS = tuple(Difficulty)
DEPTH_SHARE = 0.6
COMBINED_SHARE = 0.5  # of changes in breadth
# more could not be kept in mind; there are more kinds, so one is always free
MOST_CLAUSES = 3

HOW: dict[str, dict[str, str]] = {
    "depth": {
        "constraint": "add one more constraint or requirement",
        "deepen": "ask more deeply about what it asks",
        "concretise": "replace its general notions by more specific ones",
        "reason": "make it need several steps of reasoning",
        "input": "add data that must be used, such as a short table or a few lines of code",
    },
    "breadth": {"rarer": "a rarer subject of the same field", "neighbour": "a neighboring field"},
}
ASK = {
    "depth": "Rewrite the prompt below so that it is harder: {how}. Add at most thirty words, keep "
    "it reasonable and understandable, and write the prompt alone, on one line.\n\nPrompt: {text}",
    "breadth": "Write one prompt of the same kind and length as the one below, but on {how}. It "
    "must be reasonable and understandable. Write the prompt alone, on one line.\n\nPrompt: {text}",
}


@dataclass(frozen=True, slots=True)
class Parent:
    """The start of a mutation: a draft and, if rules built it, its root draft and the clauses
    added since.
    """

    draft: Draft
    root: Draft
    before: str | None = None
    after: tuple[str, ...] = ()
    is_double: bool = False  # the root already combines two prompts


@dataclass(frozen=True, slots=True)
class Child:
    """A mutated prompt, with the ids of the prompts it comes from."""

    prompt: Parent
    mutation: str
    parents: tuple[str, ...]


class Mutator(Protocol):
    """Make one child of each pair (parent, another of the population to cross with), or give the
    reason.
    """

    def mutate(
        self, pairs: Sequence[tuple[Parent, Parent]], *, seed: int
    ) -> list[Child | RuleViolation]: ...


class RuleMutations:
    """Mutates by clauses of mutations.yaml or combining two prompts; needs no model."""

    def mutate(
        self, pairs: Sequence[tuple[Parent, Parent]], *, seed: int
    ) -> list[Child | RuleViolation]:
        rng = np.random.default_rng(seed)
        return [self._mutate_pair(parent, other, rng) for parent, other in pairs]

    def _mutate_pair(
        self, parent: Parent, other: Parent, rng: np.random.Generator
    ) -> Child | RuleViolation:
        if len(parent.after) < MOST_CLAUSES and rng.random() < DEPTH_SHARE:
            return _add_clause(parent, rng)
        may_combine = not (parent.is_double or other.is_double)
        if may_combine and other.root.text != parent.root.text and rng.random() < COMBINED_SHARE:
            return _combine(parent, other)
        return _change_audience(parent, rng)


class WrittenMutations:
    """Mutates by a text generator; text around or instead of a prompt is no child."""

    def __init__(self, text_generator: TextGenerator) -> None:
        self._generator = text_generator

    def mutate(
        self, pairs: Sequence[tuple[Parent, Parent]], *, seed: int
    ) -> list[Child | RuleViolation]:
        rng = np.random.default_rng(seed)
        kinds = []
        for _ in pairs:
            way = "depth" if rng.random() < DEPTH_SHARE else "breadth"
            kinds.append((way, list(HOW[way])[int(rng.integers(len(HOW[way])))]))
        instructions = [
            ASK[way].format(how=HOW[way][how], text=parent.draft.text)
            for (way, how), (parent, _) in zip(kinds, pairs, strict=True)
        ]
        texts = ask(self._generator, instructions, seed=seed)
        return [
            _parse_written(parent, text, *kind)
            for (parent, _), text, kind in zip(pairs, texts, kinds, strict=True)
        ]


@cache
def _load_rules() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return loaded


def _add_clause(parent: Parent, rng: np.random.Generator) -> Child | RuleViolation:
    kinds = _load_rules()["depth"]
    free = [
        (kind, effect, clause)
        for kind, effects in kinds.items()
        for effect, clauses in effects.items()
        for clause in clauses
        if not set(clauses) & set(parent.after)  # one of a kind: two limits contradict each other
    ]
    kind, effect, clause = free[int(rng.integers(len(free)))]
    root = replace(parent.root, reference=None) if effect == "changes" else parent.root
    return _make_child(
        replace(parent, root=root, after=(*parent.after, clause)),
        f"depth:{kind}",
        (parent,),
        harder=True,
    )


def _change_audience(parent: Parent, rng: np.random.Generator) -> Child | RuleViolation:
    free = [clause for clause in _load_rules()["breadth"]["audience"] if clause != parent.before]
    return _make_child(
        replace(parent, before=free[int(rng.integers(len(free)))]), "breadth:audience", (parent,)
    )


def _combine(parent: Parent, other: Parent) -> Child | RuleViolation:
    """Combine the roots of two prompts; the result has no checkable answer."""
    text = (
        f"Do both, and say what they have in common. First: {parent.root.text} Second: "
        f"{other.root.text}"
    )
    root = Draft(text, parent.draft.category, parent.draft.difficulty)
    return _make_child(
        Parent(root, root, is_double=True), "breadth:combine", (parent, other), harder=True
    )


def _make_child(
    content: Parent, mutation: str, parents: tuple[Parent, ...], *, harder: bool = False
) -> Child | RuleViolation:
    text = " ".join(part for part in (content.before, content.root.text, *content.after) if part)
    if len(text) > MAX_CHARS:
        return RuleViolation(
            "mutation", f"{len(text):,} characters, a mutation may have {MAX_CHARS:,}"
        )
    level = parents[0].draft.difficulty
    level = LEVELS[min(LEVELS.index(Difficulty(level)) + harder, len(LEVELS) - 1)].value
    draft = Draft(
        text,
        content.root.category,
        level,
        content.root.reference,
        content.root.template_id,
        content.root.variables,
    )
    return Child(replace(content, draft=draft), mutation, tuple(p.draft.prompt_id for p in parents))


def _parse_written(parent: Parent, answer: str, way: str, how: str) -> Child | RuleViolation:
    text = " ".join(answer.split()).removeprefix("Prompt:").strip()
    if (why := find_prompt_fault(text)) is not None:
        return RuleViolation("mutation", f"{why} ({way}, {how})")
    if text.casefold() == parent.draft.text.casefold():
        return RuleViolation("mutation", f"the prompt came back unchanged ({way}, {how})")
    root = Draft(text, parent.draft.category, parent.draft.difficulty)
    return _make_child(Parent(root, root), f"{way}:{how}", (parent,), harder=way == "depth")
