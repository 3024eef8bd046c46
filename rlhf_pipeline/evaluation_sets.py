"""Freezes the prompts on which policies are compared, from the project's own prompt source."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pandas as pd

from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import NotEnoughData, PromptError
from rlhf_pipeline.evaluation import hold_out, prompts_hash
from rlhf_pipeline.evaluation.prompt_set import DAY, SHARE, SIZE
from rlhf_pipeline.loop_settings import LoopSettings
from rlhf_pipeline.plugins import select_params
from rlhf_pipeline.prompts import GENERATORS, Report, Selection, day_seed, prompt_id
from rlhf_pipeline.prompts.base import to_frame
from rlhf_pipeline.prompts.constraints import Embed
from rlhf_pipeline.prompts.dataset import DatasetParams, read_drafts
from rlhf_pipeline.prompts.parameters import SourceParams
from rlhf_pipeline.prompts.rows import read_rows
from rlhf_pipeline.prompts.templates import TemplateParams
from rlhf_pipeline.protocols import TextGenerator
from rlhf_pipeline.reward_model import Encoder
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.evaluation_sets import EvaluationSet

# Sources that make as many prompts as are requested; of the others a share is held out.
ENDLESS = ("templates", "evolution", "distilabel")
MOST_DRAWN = 1000  # prompts of a finite source that the set is drawn from
LEAST_HELD_OUT = 10  # fewer are left to be voted on: nothing can be concluded from them
IMPORTED = "imported comparisons"


@dataclass(frozen=True)
class PromptSource:
    """Where a project's prompts come from, and what their source needs."""

    params: SourceParams
    writer: TextGenerator | None = None
    embed: Embed | None = None

    @classmethod
    def of_loop(cls, settings: Settings) -> Self:
        """The source that the loop settings name, without a writer."""
        values = (
            LoopSettings.read(settings)
            .params("prompts")
            .model_dump(include=set(SourceParams.model_fields))
        )
        params = SourceParams(**values | {"source": values["source"] or settings.prompt_source})
        return cls(params, embed=Encoder(settings.encoder).encode if params.topic else None)


def freeze(
    settings: Settings,
    store: Store,
    source: PromptSource | None = None,
    pairs: pd.DataFrame | None = None,
) -> EvaluationSet | None:
    """The project's evaluation set; frozen now if there is none from its present origin.

    The origin is the setting `evaluation_file`, else the prompt `source` (default: that of the
    loop settings). A project that has only
    imported comparisons holds out the prompts of the test split of its `pairs`
    (PREFERENCE_PAIRS), which nothing is trained on. Prompts of comparisons are never drawn.

    None where the source has too few unused prompts for a set. Raises PromptError for a file of
    the setting that cannot be used.
    """
    latest, source = store.evaluation_sets.latest(), source or PromptSource.of_loop(settings)
    if settings.evaluation_file is not None:
        origin = f"file {settings.evaluation_file}, {_hash_file(settings.evaluation_file)}"
        draw = _read_file
    elif _has_only_imports(settings, store):
        if pairs is None and latest is not None:
            return latest
        origin, draw = IMPORTED, None
    else:
        params = source.params
        of = select_params(DatasetParams, params).dataset or settings.prompts_file
        if of is None and params.source == "templates":
            of = select_params(TemplateParams, params).library
        origin, draw = f"{params.source} {of or ''}".strip(), _draw
    if latest is not None and latest.origin == origin:
        return latest
    if draw is None:
        assert pairs is not None
        prompts = _hold_out_pairs(pairs)
    else:
        prompts = draw(settings, source, _used_ids(store))
    if len(prompts) < LEAST_HELD_OUT and settings.evaluation_file is None:
        return None
    return store.evaluation_sets.add(prompts, origin=origin, prompts_hash=prompts_hash(prompts))


def require(
    settings: Settings, store: Store, pairs: pd.DataFrame | None = None
) -> tuple[EvaluationSet, pd.DataFrame]:
    """The project's evaluation set with its PROMPTS. Raises NotEnoughData where there is none."""
    frozen = freeze(settings, store, pairs=pairs)
    if frozen is None:
        needed = math.ceil(LEAST_HELD_OUT / SHARE)
        raise NotEnoughData(
            "There is no evaluation set: the prompt source has too few prompts that were not "
            f"compared yet. Give it at least {needed} prompts, or name a file of others "
            "(RLHF_EVALUATION_FILE)."
        )
    return frozen, store.evaluation_sets.prompts(frozen.version)


def _has_only_imports(settings: Settings, store: Store) -> bool:
    is_source_named = {"prompt_source", "prompts_file"} & settings.model_fields_set
    n_imported = store.comparisons.n_imported()
    return not is_source_named and n_imported > 0 and n_imported == store.comparisons.count()


def _draw(settings: Settings, source: PromptSource, used: frozenset[str]) -> pd.DataFrame:
    """From the prompt source: SIZE prompts of an endless one, a share of any other."""
    params = source.params
    is_endless = params.source in ENDLESS or source.writer is not None
    wanted = params.model_copy(
        update={
            "n": SIZE if is_endless else MOST_DRAWN,
            "categories": {},
            "difficulties": {},
            "seed": 0,
        }
    )
    selection = Selection(wanted, exclude=used, embed=source.embed)
    selection.must_be_full = False
    generator = GENERATORS[params.source](
        source_file=settings.prompts_file, text_generator=source.writer
    )
    seed = day_seed(0, DAY)
    generator.generate(wanted, seed=seed, selection=selection)
    drawn = to_frame(
        ((draft.prompt_id, draft) for draft in selection.drafts),
        source=generator.name,
        day=DAY,
        seed=seed,
    )
    n_known = len(drawn) + selection.report.n_excluded
    return drawn if is_endless else hold_out(drawn, of=n_known)


def _read_file(settings: Settings, source: PromptSource, used: frozenset[str]) -> pd.DataFrame:
    path, report = settings.evaluation_file, Report()
    assert path is not None
    drafts = [draft for _, draft in read_drafts(read_rows(path), report)]
    if report.rejections:
        raise PromptError(
            f"{path}: {report.rejections[0]}. Correct the row: an evaluation set is used as a "
            "whole."
        )
    return to_frame(
        ((d.prompt_id, d) for d in drafts if d.prompt_id not in used),
        source="evaluation_file",
        day=DAY,
        seed=0,
    )


def _hold_out_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    held = pairs[pairs["split"] == "test"].drop_duplicates("prompt_id")
    return hold_out(
        pd.DataFrame(
            {
                "day": DAY,
                "prompt_id": held["prompt_id"],
                "text": held["prompt"],
                "category": held["category"].fillna("instruction"),
                "difficulty": "medium",
                "source": "imported",
                "template_id": None,
                "variables": "{}",
                "reference": None,
                "seed": 0,
            }
        ),
        of=pairs["prompt_id"].nunique(),
    )


def _used_ids(store: Store) -> frozenset[str]:
    """Ids of all prompts of comparisons, with and without a reference."""
    known = store.comparisons.prompts()
    return frozenset(known) | {prompt_id(text, None) for text in known.values()}


def _hash_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as cause:
        raise PromptError(
            f"{path}, the file of the evaluation set, cannot be read: {cause}. Correct "
            "RLHF_EVALUATION_FILE, or restore the file."
        ) from cause
