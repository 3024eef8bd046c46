"""Freezes the prompts on which policies are compared, from the project's own prompt source."""

import hashlib
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import pandas as pd

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.conversations import prompt_id
from rlhf_pipeline.core.errors import NotEnoughData, PromptError
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts import GENERATORS, Report, Selection, day_seed
from rlhf_pipeline.generate.prompts.base import to_frame
from rlhf_pipeline.generate.prompts.constraints import Embed
from rlhf_pipeline.generate.prompts.dataset import DatasetParams, read_drafts
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.generate.prompts.rows import read_rows
from rlhf_pipeline.generate.prompts.templates import TemplateParams
from rlhf_pipeline.improve.evaluation import hold_out, prompts_hash
from rlhf_pipeline.improve.evaluation.prompt_set import DAY, SHARE, SIZE
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.learn.reward_model import Encoder
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.evaluation_sets import EvaluationSet

# Sources that make as many prompts as are requested; of the others a share is held out.
ENDLESS = ("templates", "evolution", "distilabel")
MOST_DRAWN = 1000  # prompts of a finite source that the set is drawn from
LEAST_HELD_OUT = 10  # fewer are left to be voted on: nothing can be concluded from them
IMPORTED = "imported comparisons"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptSource:
    """Where a project's prompts come from, and what their source needs. `is_named`: by a setting,
    not by default.
    """

    params: SourceParams
    writer: TextGenerator | None = None
    embed: Embed | None = None
    is_named: bool = True

    @classmethod
    def of_loop(cls, settings: Settings, writer: TextGenerator | None = None) -> Self:
        """The source that the settings name."""
        loop = LoopSettings.read(settings)
        values = loop.params("prompts").model_dump(include=set(SourceParams.model_fields))
        params = SourceParams(**values | {"source": values["source"] or settings.prompt_source})
        own_settings = {"prompt_source"} & settings.model_fields_set
        own_settings |= {"source", "dataset", "library"} & loop.given.get("prompts", {}).keys()
        embed = Encoder(settings.encoder).encode if params.topic else None
        return cls(params, writer, embed, is_named=bool(own_settings))

    def describe(self, settings: Settings) -> str:
        """Name and input of the source. A path is relative to the home, so that it stays the same
        when a project moves.
        """
        of = select_params(DatasetParams, self.params).dataset or settings.prompts_file
        if of is None and self.params.source == "templates":
            of = select_params(TemplateParams, self.params).library
        if of is not None and Path(of).is_absolute():
            of = os.path.relpath(of, settings.home)
        return f"{self.params.source} {of or ''}".strip()


def freeze(
    settings: Settings,
    store: Store,
    source: PromptSource | None = None,
    pairs: pd.DataFrame | None = None,
) -> EvaluationSet | None:
    """The project's evaluation set; frozen now if there is none from its present origin.

    The origin is the setting `evaluation_file`, else the prompt `source`; by default that of the
    settings, or where they name none that of the latest set. A project that has only imported
    comparisons holds out the prompts of the test split of its `pairs` (PREFERENCE_PAIRS), which
    nothing is trained on. Prompts of comparisons are never drawn.

    None where the source has too few unused prompts for a set. Raises PromptError for a file of
    the setting that cannot be used.
    """
    draw: Callable[[frozenset[str]], pd.DataFrame]
    latest, prompt_source = store.evaluation_sets.latest(), source or PromptSource.of_loop(settings)
    if settings.evaluation_file is not None:
        file = settings.evaluation_file
        origin = f"file {file.name}, {_hash_file(file)}"
        draw = partial(_read_file, file)
    elif (
        pairs is not None
        and not _names_prompts(settings, prompt_source)
        and _has_only_imports(store)
    ):
        origin, draw = IMPORTED, partial(_hold_out_pairs, pairs)
    elif source is None and latest is not None and not prompt_source.is_named:
        return latest
    else:
        origin, draw = prompt_source.describe(settings), partial(_draw, settings, prompt_source)
    if latest is not None and latest.origin == origin:
        return latest
    prompts = draw(_used_ids(store))
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


def _names_prompts(settings: Settings, source: PromptSource) -> bool:
    return source.is_named or settings.prompts_file is not None


def _has_only_imports(store: Store) -> bool:
    return 0 < store.comparisons.n_imported() == store.comparisons.count()


def _draw(settings: Settings, source: PromptSource, used: frozenset[str]) -> pd.DataFrame:
    """From the prompt source: SIZE prompts of an endless one, a share of any other."""
    params = source.params
    is_endless = params.source in ENDLESS or source.writer is not None
    prompt_params = params.model_copy(
        update={
            "n": SIZE if is_endless else MOST_DRAWN,
            "categories": {},
            "difficulties": {},
            "seed": 0,
        }
    )
    selection = Selection(prompt_params, exclude=used, embed=source.embed)
    selection.must_be_full = False
    generator = GENERATORS[params.source](
        source_file=settings.prompts_file, text_generator=source.writer
    )
    seed = day_seed(0, DAY)
    generator.generate(prompt_params, seed=seed, selection=selection)
    drawn = to_frame(
        ((draft.prompt_id, draft) for draft in selection.drafts),
        source=generator.name,
        day=DAY,
        seed=seed,
    )
    n_known = len(drawn) + selection.report.n_excluded
    return drawn if is_endless else hold_out(drawn, of=n_known)


def _read_file(path: Path, used: frozenset[str]) -> pd.DataFrame:
    report = Report()
    drafts = [draft for _, draft in read_drafts(read_rows(path), report)]
    if report.rejections:
        raise PromptError(
            f"{path}: {report.rejections[0]}. Correct the row: an evaluation set is used as a "
            "whole."
        )
    if not drafts:
        raise PromptError(f"{path} has no prompts. An evaluation set needs at least one.")
    unused = [draft for draft in drafts if draft.prompt_id not in used]
    if not unused:
        raise PromptError(
            f"{path} has no prompt for an evaluation set: {len(drafts):,} of its {len(drafts):,} "
            "prompts were compared already. Give it others."
        )
    if len(unused) < len(drafts):
        logger.warning(
            "%s: %d of %d prompts were compared already and are left out of the evaluation set.",
            path,
            len(drafts) - len(unused),
            len(drafts),
        )
    return to_frame(
        ((draft.prompt_id, draft) for draft in unused),
        source="evaluation_file",
        day=DAY,
        seed=0,
    )


def _hold_out_pairs(pairs: pd.DataFrame, _: frozenset[str]) -> pd.DataFrame:
    """Of the test split, whose prompts are all compared already."""
    test_pairs = pairs[pairs["split"] == "test"].drop_duplicates("prompt_id")
    return hold_out(
        pd.DataFrame(
            {
                "day": DAY,
                "prompt_id": test_pairs["prompt_id"],
                "text": test_pairs["prompt"],
                "category": test_pairs["category"].fillna("instruction"),
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
    prompts = store.comparisons.prompts()
    return frozenset(prompts) | {prompt_id(text) for text in prompts.values()}


def _hash_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as cause:
        raise PromptError(
            f"{path}, the file of the evaluation set, cannot be read: {cause}. Correct "
            "RLHF_EVALUATION_FILE, or restore the file."
        ) from cause
