"""Prompts evolved from others, generation by generation.

Each generation picks parents by tournament and mutates them. A child is scored if it keeps the
rules and nearly repeats no earlier prompt. The fittest of parents and children survive, each
category by itself, so that none crowds out another.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, Field

from rlhf_pipeline.core.conversations import split_turns
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts.base import Draft, PromptParams
from rlhf_pipeline.generate.prompts.constraints import RuleViolation
from rlhf_pipeline.generate.prompts.dataset import DatasetGenerator, DatasetParams
from rlhf_pipeline.generate.prompts.generated_texts import ask
from rlhf_pipeline.generate.prompts.mutations import (
    Child,
    Mutator,
    Parent,
    RuleMutations,
    WrittenMutations,
)
from rlhf_pipeline.generate.prompts.near_duplicates import NearDuplicates
from rlhf_pipeline.generate.prompts.rows import is_row_file
from rlhf_pipeline.generate.prompts.selection import Selection
from rlhf_pipeline.generate.prompts.templates import (
    TemplateGenerator,
)

CONDITIONS = re.compile(
    r"\b(at (?:most|least)|exactly|without|only|each|every|both|neither|nothing|none|never|must|"
    r"may not|not|no|except|unless|if|until|while|before|after|instead|another|same|first|last|"
    r"then|in (?:which )?order|between)\b",
    re.IGNORECASE,
)
ASKS = re.compile(
    r"\?|\b(?:and|then|also) "
    r"(?:what|which|who|why|how|when|where|whom|say|name|give|explain|list|compare|check|write|"
    r"tell)\b|[;:]",
    re.IGNORECASE,
)
NUMBERS = re.compile(
    r"\b(?:\d+|two|three|four|five|six|seven|eight|nine|ten|hundred|thousand|million)\b",
    re.IGNORECASE,
)
JUDGE = (
    "How hard is it to do what the prompt below asks, and to do it well? 1: anybody can, at once. "
    "10: an expert needs hours. Answer with the number alone.\n\nPrompt: {text}"
)


class Fitness(Protocol):
    """Scores texts; higher is better. None for a text that could not be judged: it is left out,
    never guessed.
    """

    name: str

    def scores(self, texts: Sequence[str], *, seed: int) -> list[float | None]: ...


class Demands:
    """Difficulty counted from the demands of a text, without a judge: the offline counterpart of
    `JudgedDifficulty`.

    The logarithm of its words, and what it asks, sets as a condition and counts. It reads words,
    not sense.
    """

    name = "demands"

    def scores(self, texts: Sequence[str], *, seed: int) -> list[float | None]:
        return [demands(text) for text in texts]


class JudgedDifficulty:
    """Difficulty from 1 to 10 as a text generator judges it."""

    name = "judged_difficulty"

    def __init__(self, text_generator: TextGenerator) -> None:
        self._generator = text_generator

    def scores(self, texts: Sequence[str], *, seed: int) -> list[float | None]:
        answers = ask(self._generator, [JUDGE.format(text=text) for text in texts], seed=seed)
        return [_parse_grade(answer) for answer in answers]


def demands(text: str) -> float:
    """How much a text asks for.

    >>> more = "Name two trees without the letter e, and say why each matters."
    >>> demands("Name a tree.") < demands(more)
    True
    """
    n_words = len(text.split())
    return (
        math.log2(1 + n_words)
        + len(ASKS.findall(text))
        + len(CONDITIONS.findall(text))
        + 0.5 * len(NUMBERS.findall(text))
    )


def _parse_grade(answer: str) -> float | None:
    match = re.fullmatch(r"\D{0,40}?\b(10|[1-9])(?:\s*/\s*10)?\b\D{0,40}", answer.strip())
    return float(match.group(1)) if match else None


TOURNAMENT = 3
# candidates drawn per place of the first generation, because some nearly repeat another
SEEDS_PER_PLACE = 3
MOST_SEEDS = 100_000


class EvolutionParams(Parameters):
    """Parameters of the source `evolution`; seeds obey those of `templates` and `dataset`."""

    generations: int = Field(5, description="Of the source evolution", ge=1, le=50)
    population: int = Field(
        40,
        description="Of the source evolution: prompts of a category that live on from one "
        "generation to the next",
        ge=2,
        le=10_000,
    )
    alike: float = Field(
        0.8,
        description="Of the source evolution: max_similarity among all prompts ever made",
        gt=0,
        le=1,
    )


@dataclass(frozen=True, slots=True)
class Individual:
    """A prompt with its generation (0 for a seed), its parents and mutation, and its fitness."""

    child: Child
    generation: int
    fitness: float

    @property
    def draft(self) -> Draft:
        """The draft with its ancestry among the variables, where PROMPTS stores it."""
        draft = self.child.prompt.draft
        descent = {
            "generation": self.generation,
            "parents": list(self.child.parents),
            "mutation": self.child.mutation,
            "fitness": round(self.fitness, 6),
        }
        return replace(draft, variables={**draft.variables, **descent})


class EvolutionGenerator:
    """Evolves the shipped templates, a template library or a data set, by a text generator or, if
    there is none, by rules.

    After `generate`, `history_` holds every individual in order of birth and `mean_fitness_` the
    mean fitness of each generation's survivors.
    """

    name: ClassVar[str] = "evolution"
    Params: ClassVar[type[BaseModel]] = EvolutionParams

    def __init__(
        self,
        source_file: Path | None = None,
        text_generator: TextGenerator | None = None,
        fitness: Fitness | None = None,
    ) -> None:
        self._path = source_file
        self._generator = text_generator
        self._fitness = fitness or (
            JudgedDifficulty(text_generator) if text_generator else Demands()
        )
        self.history_: list[Individual] = []
        self.mean_fitness_: list[float] = []

    def generate(self, params: PromptParams, *, seed: int, selection: Selection) -> None:
        """See `PromptGenerator`; each cell is filled with the fittest of the last generation, then
        with earlier ones.
        """
        own, rng = select_params(EvolutionParams, params), np.random.default_rng(seed)
        mutator: Mutator = WrittenMutations(self._generator) if self._generator else RuleMutations()
        alike = NearDuplicates(own.alike)
        self.history_, self.mean_fitness_ = [], []
        seeds = self._draw_seeds(params, own.population, seed, selection)
        living = self._admit_children(
            [Child(Parent(d, d), "seed", ()) for d in seeds], 0, selection, alike, seed
        )
        if not living:
            raise PromptError(
                "Evolution has no prompt to start from: no seed can be used. Loosen the "
                "constraints, or give other seeds."
            )
        places = _count_survivors(living, own.population, selection)
        for generation in range(1, own.generations + 1):
            living = _select_fittest(living, places)
            self.mean_fitness_.append(_mean_fitness(living))
            pairs = list(_draw_pairs(living, places, rng))
            children = mutator.mutate(
                [(a.child.prompt, b.child.prompt) for a, b in pairs], seed=int(rng.integers(2**31))
            )
            living = [
                *living,
                *self._admit_children(
                    children, generation, selection, alike, int(rng.integers(2**31))
                ),
            ]
        living = _select_fittest(living, places)
        self.mean_fitness_.append(_mean_fitness(living))
        alive = {id(individual) for individual in living}
        by_rank = sorted(
            self.history_, key=lambda i: (id(i) not in alive, -i.fitness, i.draft.prompt_id)
        )
        selection.offer_all(individual.draft for individual in by_rank)

    def _uses_rows(self, params: PromptParams) -> bool:
        has_rows = self._path is not None and is_row_file(self._path)
        return bool(select_params(DatasetParams, params).dataset) or has_rows

    def _draw_seeds(
        self, params: PromptParams, population: int, seed: int, selection: Selection
    ) -> list[Draft]:
        """Drawn by the requested quotas, so that every cell can be filled even if mutations move
        prompts to other levels.
        """
        source = (
            DatasetGenerator(self._path)
            if self._uses_rows(params)
            else TemplateGenerator(self._path)
        )
        n_categories = len(params.categories) or 6
        n = min(SEEDS_PER_PLACE * max(params.n, population * n_categories), MOST_SEEDS)
        seeds = selection.derive(params.model_copy(update={"n": n, "max_similarity": 1.0}))
        source.generate(params, seed=seed, selection=seeds)
        selection.report.add(seeds.report)
        drafts = []
        for draft in seeds.drafts:
            if split_turns(draft.text):
                why = "a conversation cannot be mutated. Give single texts"
                selection.report.reject("row", why, text=draft.text)
            else:
                drafts.append(draft)
        if not self._uses_rows(params):
            selection.divide_equally(sorted({d.category for d in drafts}))
        return drafts

    def _admit_children(
        self,
        children: Sequence[Child | RuleViolation],
        generation: int,
        selection: Selection,
        alike: NearDuplicates,
        seed: int,
    ) -> list[Individual]:
        """Score the children that keep the rules, reject the others, and remember those scored."""
        report, where = selection.report, f"generation {generation}"
        survivors: list[Child] = []
        for child in children:
            if isinstance(child, RuleViolation):
                report.reject(*child, where=where)
            elif selection.accepts(child.prompt.draft, where):
                if alike.find(child.prompt.draft.text) is not None:
                    report.n_near_duplicates += 1
                    continue
                alike.add(child.prompt.draft.text)
                survivors.append(child)
        scores = self._fitness.scores([child.prompt.draft.text for child in survivors], seed=seed)
        individuals = []
        for child, score in zip(survivors, scores, strict=True):
            if score is None:
                report.reject(
                    "fitness",
                    f"{self._fitness.name} gave no score for it",
                    where=where,
                    text=child.prompt.draft.text,
                )
            else:
                individuals.append(Individual(child, generation, score))
        self.history_ += individuals
        return individuals


def _count_survivors(
    seeds: Iterable[Individual], population: int, selection: Selection
) -> dict[str, int]:
    """How many of each category survive a generation: the population, or as many as are requested
    if that is more.
    """
    categories = sorted({i.draft.category for i in seeds})
    n_open: dict[str, int] = defaultdict(int)
    for (category, _), n in selection.open_cells.items():
        for name in categories if category is None else [category]:
            n_open[name] += n if category is not None else -(-n // len(categories))
    return {category: max(population, n_open[category]) for category in categories}


def _group_by_category(living: Iterable[Individual]) -> dict[str, list[Individual]]:
    groups: dict[str, list[Individual]] = defaultdict(list)
    for individual in living:
        groups[individual.child.prompt.draft.category].append(individual)
    return dict(sorted(groups.items()))


def _select_fittest(living: Iterable[Individual], places: Mapping[str, int]) -> list[Individual]:
    """The fittest of each category; of equals the older, because a child should be better."""
    ranked = (
        (category, sorted(individuals, key=lambda i: -i.fitness))
        for category, individuals in _group_by_category(living).items()
    )
    return [
        individual
        for category, individuals in ranked
        for individual in individuals[: places[category]]
    ]


def _draw_pairs(
    living: Iterable[Individual], places: Mapping[str, int], rng: np.random.Generator
) -> Iterable[tuple[Individual, Individual]]:
    """Draw a parent for each place, the fittest of TOURNAMENT, and a second one of its category."""
    for category, individuals in _group_by_category(living).items():
        for _ in range(places[category]):
            *contenders, other = rng.integers(len(individuals), size=TOURNAMENT + 1)
            yield (
                max((individuals[i] for i in contenders), key=lambda i: i.fitness),
                individuals[other],
            )


def _mean_fitness(living: Sequence[Individual]) -> float:
    return float(np.mean([individual.fitness for individual in living]))
