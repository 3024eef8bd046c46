"""Prompts from a library of templates with variables. Knows YAML and seeds; knows no policy."""

import string
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.prompts.base import Draft, PromptParams, cells, check_size, shortage, to_frame
from rlhf_pipeline.prompts.references import RULES, compute_reference
from rlhf_pipeline.protocols import TextGenerator
from rlhf_pipeline.records import Category, Difficulty

LIBRARY = Path(__file__).with_name("library.yaml")
MAX_TRIES = 200_000


class Reference(BaseModel):
    """How the checkable answer is computed: a rule of RULES over the named variables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    of: tuple[str, ...]
    table: str | None = None


class Template(BaseModel):
    """One template at one difficulty, its variables already lists of values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    template_id: str
    category: Category
    difficulty: Difficulty
    text: str
    variables: dict[str, tuple[Any, ...]]
    distinct: tuple[str, ...] = ()
    reference: Reference | None = None
    table: dict[str, str | int | float] = Field({}, description="of the reference's rule")

    @property
    def n_combinations(self) -> int:
        return prod(len(values) for values in self.variables.values())

    def fill(self, combination: int) -> Draft | None:
        """The draft of one combination, 0 to n_combinations - 1; None where variables are equal that must differ."""
        drawn: dict[str, Any] = {}
        for name, values in self.variables.items():
            combination, at = divmod(combination, len(values))
            drawn[name] = values[at]
        if len({drawn[name] for name in self.distinct}) < len(self.distinct):
            return None
        return Draft(self.text.format(**drawn), self.category, self.difficulty, self._reference(drawn), self.template_id, drawn)

    def _reference(self, drawn: Mapping[str, Any]) -> str | None:
        if self.reference is None:
            return None
        values = [drawn[name] for name in self.reference.of]
        return compute_reference(self.reference.rule, values, self.table, where=f"template {self.template_id}")


class TemplateGenerator:
    """Fills the templates of a library, the shipped one by default: no key, no download."""

    name = "templates"

    def __init__(self, source_file: Path | None = None, text_generator: TextGenerator | None = None) -> None:
        self._path = source_file

    def generate(self, params: PromptParams, *, day: str, seed: int, exclude: frozenset[str]) -> pd.DataFrame:
        """See `PromptGenerator`; templates of one category and difficulty take turns."""
        templates = load_templates(self._path)
        if not params.categories:
            params = params.model_copy(update={"categories": dict.fromkeys(sorted({t.category.value for t in templates}), 1.0)})
        rng = np.random.default_rng(seed)
        taken = set(exclude)
        drafts: list[Draft] = []
        for n, category, difficulty in cells(params):
            fitting = [t for t in templates if category in (None, t.category) and difficulty in (None, t.difficulty)]
            found = _take_turns(fitting, n, rng, taken)
            if len(found) < n:
                raise PromptError(shortage("The template library", n, len(found), category, difficulty))
            drafts += found
        return to_frame(drafts, source=self.name, day=day, seed=seed)


def load_templates(path: Path | None = None) -> tuple[Template, ...]:
    """All templates of a library file, one per difficulty level.

    Raises PromptError naming template and row (its number in the file) for a variable of the text that is not
    defined, an unknown list, table, rule or category, or a template without text; and for a file that is no YAML.
    """
    path = LIBRARY if path is None else path
    return _load(path, path.stat().st_mtime_ns if path.exists() else 0)


@cache
def _load(path: Path, modified_at: int) -> tuple[Template, ...]:
    """Read once per version of the file."""
    try:
        library = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise PromptError(f"Template library {path} cannot be read ({cause}). Give a UTF-8 YAML file with `templates:`.") from cause
    if not isinstance(library, dict) or not library.get("templates"):
        raise PromptError(f"Template library {path} has no `templates:` list. See {LIBRARY.name} for the form.")
    templates = tuple(t for row, raw in enumerate(library["templates"], start=1) for t in _parse(raw, row, library))
    ids = [(t.template_id, t.difficulty) for t in templates]
    if len(set(ids)) < len(ids):
        raise PromptError(
            f"Template library {path} uses a template id twice: {sorted({i for i, _ in ids if ids.count((i, _)) > 1})}. Rename one."
        )
    return templates


def _parse(raw: Mapping[str, Any], row: int, library: Mapping[str, Any]) -> Iterator[Template]:
    where = f"template {raw.get('id')!r} (row {row})"
    levels: Mapping[str, Any] = raw.get("levels") or {raw.get("difficulty", Difficulty.MEDIUM): {}}
    reference = raw.get("reference") or {}
    tables = library.get("tables") or {}
    if reference.get("table") is not None and reference["table"] not in tables:
        raise PromptError(f"{where}: unknown table {reference['table']!r}. Known: {', '.join(tables)}.")
    for level, overrides in levels.items():
        variables = {name: _values(name, spec, library, where) for name, spec in {**(raw.get("variables") or {}), **overrides}.items()}
        try:
            template = Template(
                template_id=raw.get("id"), category=raw.get("category"), difficulty=level, text=raw.get("text"), variables=variables,
                distinct=raw.get("distinct", ()), reference=reference or None, table=tables.get(reference.get("table"), {}),
            )  # fmt: skip
        except ValidationError as cause:
            problems = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in cause.errors())
            raise PromptError(f"{where}: {problems}.") from cause
        _check_names(template, where)
        yield template


def _values(name: str, spec: Any, library: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    if isinstance(spec, list) and spec:
        return tuple(spec)
    kind, key = ("tables", spec.get("table")) if isinstance(spec, dict) else ("lists", spec)
    known = library.get(kind) or {}
    if key not in known:
        raise PromptError(f"{where}: variable {name!r} names {key!r}, which is not among {kind}. Known: {', '.join(known) or 'none'}.")
    return tuple(known[key])


def _check_names(template: Template, where: str) -> None:
    in_text = [field for _, field, _, _ in string.Formatter().parse(template.text) if field is not None]
    used = [*in_text, *template.distinct, *(template.reference.of if template.reference else ())]
    missing = sorted(set(used) - set(template.variables))
    if missing:
        raise PromptError(f"{where}: variables {missing} are not defined. Add them under `variables:` or take them out of the text.")
    if template.reference and template.reference.rule not in RULES:
        raise PromptError(f"{where}: unknown reference rule {template.reference.rule!r}. Known: {', '.join(RULES)}.")
    check_size(template.text, where)


def _take_turns(templates: list[Template], n: int, rng: np.random.Generator, taken: set[str]) -> list[Draft]:
    """Up to `n` new drafts, one template after the other; their ids are added to `taken`."""
    streams = [_fillings(templates[i], rng) for i in rng.permutation(len(templates))]
    found: list[Draft] = []
    while streams and len(found) < n:
        for stream in list(streams):
            draft = next((d for d in stream if d.prompt_id not in taken), None)
            if draft is None:
                streams.remove(stream)
            elif len(found) < n:
                check_size(draft.text, f"template {draft.template_id}, variables {dict(draft.variables)}")
                taken.add(draft.prompt_id)
                found.append(draft)
    return found


def _fillings(template: Template, rng: np.random.Generator) -> Iterator[Draft]:
    """Drafts in seeded order; of very many combinations a large seeded sample, with repeats."""
    n = template.n_combinations
    order = rng.permutation(n) if n <= MAX_TRIES else rng.integers(n, size=MAX_TRIES)
    for combination in order:
        draft = template.fill(int(combination))
        if draft is not None:
            yield draft
