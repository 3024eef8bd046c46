"""Prompts from a library of templates with variables."""

import string
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rlhf_pipeline.core.documents import parse_yaml
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.core.records import Difficulty
from rlhf_pipeline.generate.prompts.base import Draft, PromptParams, check_size, parse_category
from rlhf_pipeline.generate.prompts.expressions import compute, names_in
from rlhf_pipeline.generate.prompts.selection import Report, Selection

LIBRARY = Path(__file__).with_name("library.yaml")
# The library that the embedded policy learnt (examples/embedded_answers.yaml) and is judged on is
# separate: to it, all others are noise.
LIBRARIES = {"taught": LIBRARY, "wide": LIBRARY.with_name("library_wide.yaml")}
MAX_TRIES = 200_000
# Refusals in a row after which a template is given up: one whose fixed words break a rule or nearly
# repeat an earlier prompt, would else be filled 200,000 times. Near-duplicates and texts off the
# topic, which take 10 ms each, end at the lower number.
MAX_COSTLY_REFUSALS = 200
MAX_REFUSALS = 2_000
# fields that a level may override, in addition to variables
LEVEL_FIELDS = ("text", "derived", "distinct", "reference")


class Template(BaseModel):
    """One template at one difficulty, its variables already lists of values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    template_id: str
    category: Annotated[str, BeforeValidator(parse_category)]
    difficulty: Difficulty
    text: str
    variables: dict[str, tuple[Any, ...]]
    derived: dict[str, str] = Field(
        {}, description="further variables, each an expression over those before it"
    )
    distinct: tuple[str, ...] = ()
    reference: str | None = Field(None, description="the checkable answer: such an expression")
    tables: dict[str, dict[str, str | int | float]] = Field(
        {}, description="those that the reference reads"
    )

    @property
    def n_combinations(self) -> int:
        return prod(len(values) for values in self.variables.values())

    def fill(self, combination: int) -> Draft | None:
        """The draft of one combination, 0 to n_combinations - 1; None if variables that must differ
        are equal, a derived number is not whole, or the reference is no finite decimal.
        """
        variables: dict[str, Any] = {}
        for name, values in self.variables.items():
            combination, at = divmod(combination, len(values))
            variables[name] = values[at]
        if len({variables[name] for name in self.distinct}) < len(self.distinct):
            return None
        for name, expression in self.derived.items():
            variables[name] = compute(expression, variables, where=f"template {self.template_id}")
            if variables[name] is None:
                return None
        reference = None
        if self.reference is not None:
            where = f"template {self.template_id}"
            reference = compute(
                self.reference, {**self.tables, **variables}, where=where, decimals=True
            )
            if reference is None:
                return None
        return Draft(
            self.text.format(**variables),
            self.category,
            self.difficulty,
            None if reference is None else str(reference),
            self.template_id,
            variables,
        )


class TemplateParams(Parameters):
    """Parameters of the source `templates`."""

    library: Literal["taught", "wide", "all"] = Field(
        "taught",
        description="Of the source templates: taught (what the embedded policy learnt), wide (the "
        "others) or all",
    )


class TemplateGenerator:
    """Fills the templates of a shipped library or a file; needs no key and no download."""

    name: ClassVar[str] = "templates"
    Params: ClassVar[type[BaseModel]] = TemplateParams

    def __init__(
        self, source_file: Path | None = None, text_generator: TextGenerator | None = None
    ) -> None:
        self._path = source_file

    def generate(self, params: PromptParams, *, seed: int, selection: Selection) -> None:
        """See `PromptGenerator`; templates of one category and difficulty take turns."""
        templates = (
            load_templates(self._path)
            if self._path
            else load_shipped_templates(select_params(TemplateParams, params).library)
        )
        categories = sorted({t.category for t in templates})
        for name in params.categories:
            if name not in categories:
                raise PromptError(
                    f"There are no templates of category {name!r}. The known ones are "
                    f"{', '.join(categories)}: "
                    "choose among them, or another source."
                )
        selection.divide_equally(categories)
        rng = np.random.default_rng(seed)
        for (category, difficulty), n in selection.open_cells.items():
            _take_turns(
                [
                    t
                    for t in templates
                    if category in (None, t.category) and difficulty in (None, t.difficulty)
                ],
                n,
                rng,
                selection,
            )
            if selection.must_be_full and (category, difficulty) in selection.open_cells:
                # a quota can no longer be filled, which is an error: filling the other cells would
                # be work for nothing
                return


def load_shipped_templates(library: str) -> tuple[Template, ...]:
    """The templates of LIBRARIES by name, or of `all` of them."""
    return tuple(
        t
        for name, path in LIBRARIES.items()
        if library in (name, "all")
        for t in load_templates(path)
    )


def load_templates(path: Path | None = None) -> tuple[Template, ...]:
    """All templates of a library file, one per difficulty level.

    Raises PromptError naming template and row (its number in the file) for a variable of the text
    that is not defined, an unknown list, table, rule or category, or a template without text; and
    for a file that is not YAML.
    """
    path = LIBRARY if path is None else path
    return _load(path, path.stat().st_mtime_ns if path.exists() else 0)


@cache
def _load(path: Path, modified_at: int) -> tuple[Template, ...]:
    """Read once per version of the file."""
    try:
        library = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise PromptError(
            f"Template library {path} cannot be read ({cause}). Give a UTF-8 YAML file with "
            "`templates:`."
        ) from cause
    if not isinstance(library, dict) or not library.get("templates"):
        raise PromptError(
            f"Template library {path} has no `templates:` list. See {LIBRARY.name} for the form."
        )
    templates = tuple(
        t
        for row, raw in enumerate(library["templates"], start=1)
        for t in _parse(raw, row, library)
    )
    ids = [(t.template_id, t.difficulty) for t in templates]
    if len(set(ids)) < len(ids):
        raise PromptError(
            f"Template library {path} uses a template id twice: "
            f"{sorted({i for i, _ in ids if ids.count((i, _)) > 1})}. Rename one."
        )
    return templates


def _parse(raw: Mapping[str, Any], row: int, library: Mapping[str, Any]) -> Iterator[Template]:
    where = f"template {raw.get('id')!r} (row {row})"
    levels: Mapping[str, Any] = raw.get("levels") or {raw.get("difficulty", Difficulty.MEDIUM): {}}
    tables = library.get("tables") or {}
    for level, overrides in levels.items():
        fields = {**raw, **{key: value for key, value in overrides.items() if key in LEVEL_FIELDS}}
        specs = {
            **(raw.get("variables") or {}),
            **{name: spec for name, spec in overrides.items() if name not in LEVEL_FIELDS},
        }
        variables = {
            name: _parse_values(name, spec, library, where) for name, spec in specs.items()
        }
        reference = fields.get("reference")
        read = set() if reference is None else names_in(str(reference), where=where)
        try:
            template = Template(
                template_id=raw.get("id"),
                category=raw.get("category"),
                difficulty=level,
                text=fields.get("text"),
                variables=variables,
                derived=fields.get("derived", {}),
                distinct=fields.get("distinct", ()),
                reference=reference,
                tables={name: tables[name] for name in read - set(variables) if name in tables},
            )
        except ValidationError as cause:
            problems = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in cause.errors())
            raise PromptError(f"{where}: {problems}.") from cause
        _check_names(template, where)
        yield template


def _parse_values(name: str, spec: Any, library: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    if isinstance(spec, list) and spec:
        return tuple(spec)
    if isinstance(spec, dict) and "range" in spec:
        return _parse_range(name, spec["range"], where)
    kind, key = ("tables", spec.get("table")) if isinstance(spec, dict) else ("lists", spec)
    entries = library.get(kind) or {}
    if key not in entries:
        raise PromptError(
            f"{where}: variable {name!r} names {key!r}, which is not among {kind}. Known: "
            f"{', '.join(entries) or 'none'}."
        )
    return tuple(entries[key])


def _parse_range(name: str, bounds: Any, where: str) -> tuple[int, ...]:
    if isinstance(bounds, list) and len(bounds) in (2, 3) and all(type(b) is int for b in bounds):
        first, last, step = (*bounds, 1)[:3]
        numbers = tuple(range(first, last + 1, step)) if step else ()
        if numbers:
            return numbers
    raise PromptError(
        f"{where}: variable {name!r} has the range {bounds!r}. Write [first, last] or [first, "
        "last, step], both ends included."
    )


def _check_names(template: Template, where: str) -> None:
    in_text = [
        field for _, field, _, _ in string.Formatter().parse(template.text) if field is not None
    ]
    names = set(template.variables)
    read: set[str] = set()
    for name, expression in template.derived.items():
        read |= names_in(expression, where=where) - names
        names.add(name)
    if template.reference is not None:
        read |= names_in(template.reference, where=where) - names - set(template.tables)
    missing = sorted(({*in_text, *template.distinct} - names) | read)
    if missing:
        raise PromptError(
            f"{where}: variables {missing} are not defined. Add them under `variables:` or take "
            "them out of the text."
        )
    check_size(template.text, where)


def _take_turns(
    templates: list[Template], n: int, rng: np.random.Generator, selection: Selection
) -> None:
    """Up to `n` new drafts, one template after the other."""
    streams = [_iterate_fillings(templates[i], rng) for i in rng.permutation(len(templates))]
    while streams and n:
        for stream in list(streams):
            draft = _next_draft(stream, selection)
            if draft is None:
                streams.remove(stream)
            # A full cell lets every template begin, so that the draws of the next do not depend on
            # its size.
            elif n:
                selection.take(draft)
                n -= 1


def _next_draft(stream: Iterator[Draft], selection: Selection) -> Draft | None:
    """The next acceptable draft; None at the end, or after so many refusals in a row that the rest
    is hopeless. A prompt that was used before is no refusal.
    """
    n_costly, n_refused = _count_refusals(selection.report)
    for draft in stream:
        if selection.accepts(draft):
            return draft
        n_costly_now, n_refused_now = _count_refusals(selection.report)
        if (
            n_costly_now - n_costly >= MAX_COSTLY_REFUSALS
            or n_refused_now - n_refused >= MAX_REFUSALS
        ):
            return None
    return None


def _count_refusals(report: Report) -> tuple[int, int]:
    """Costly refusals, and broken rules."""
    return report.n_near_duplicates + report.n_rejected["topic"], report.n_rejected.total()


def _iterate_fillings(template: Template, rng: np.random.Generator) -> Iterator[Draft]:
    """Drafts in seeded order; of very many combinations a large seeded sample, with repeats."""
    n = template.n_combinations
    order = rng.permutation(n) if n <= MAX_TRIES else rng.integers(n, size=MAX_TRIES)
    for combination in order:
        draft = template.fill(int(combination))
        if draft is not None:
            yield draft
