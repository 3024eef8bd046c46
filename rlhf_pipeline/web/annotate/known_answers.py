"""Finds comparisons of checkable prompts in which one completion is right and the other wrong."""

import logging
from typing import NamedTuple

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.prompts import is_right
from rlhf_pipeline.store import Store

log = logging.getLogger(__name__)

DAYS_READ = 7  # the newest ones with prompts: comparisons of today may still wait for votes
MOST_OF_DAY = 20
READ_AGAIN_S = 600.0


class KnownAnswer(NamedTuple):
    """The side that is right, a or b as in the comparison, and the prompt's reference."""

    choice: str
    reference: str


def find_known_answers(store: Store, files: Artefacts) -> dict[str, KnownAnswer]:
    """By comparison id. Gold, flagged and repeated comparisons are left out. Empty if the files
    cannot be read: practice is no reason to keep people from voting.
    """
    try:
        found: dict[str, KnownAnswer] = {}
        for day in files.days("prompts")[::-1][:DAYS_READ]:
            found |= _find_of_day(store, files, day)
        return found
    except PipelineError as fault:
        log.warning("No practice on checkable prompts: %s", fault)
        return {}


def _find_of_day(store: Store, files: Artefacts, day: str) -> dict[str, KnownAnswer]:
    prompts = files.read_days("prompts", [day]).dropna(subset=["reference"])
    references = dict(zip(prompts["prompt_id"], prompts["reference"], strict=True))
    rows = store.comparisons.for_days([day])
    is_plain = rows["repeat_of"].isna() & rows["gold"].isna() & rows["flag"].isna()
    is_plain &= ~rows["comparison_id"].isin(rows["repeat_of"])
    found = {}
    for row in rows[is_plain & rows["prompt_id"].isin(list(references))].itertuples():
        reference = references[row.prompt_id]
        right_a, right_b = (
            is_right(reference, text) for text in (row.completion_a, row.completion_b)
        )
        if right_a != right_b:
            found[row.comparison_id] = KnownAnswer("a" if right_a else "b", reference)
        if len(found) == MOST_OF_DAY:
            break
    return found
