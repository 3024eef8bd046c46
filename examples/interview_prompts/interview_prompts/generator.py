"""The prompt source `interview`: job-interview questions."""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml
from pydantic import BaseModel, Field

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts import PromptParams, Selection
from rlhf_pipeline.generate.prompts.base import Draft
from rlhf_pipeline.generate.prompts.dataset import read_drafts
from rlhf_pipeline.generate.prompts.rows import read_rows

QUESTIONS = Path(__file__).with_name("questions.yaml")
DOMAIN = "interview"


class InterviewParams(Parameters):
    """Parameters of the source `interview`, settable in the launchpad and by `--set`."""

    interview_role: str = Field(
        "",
        description="Of the source interview: the one role to ask about, such as nurse; "
        "empty = all",
    )


class InterviewGenerator:
    """Job-interview questions for ten roles, or those of a file; the level is the seniority."""

    name: ClassVar[str] = "interview"
    Params: ClassVar[type[BaseModel]] = InterviewParams

    def __init__(
        self, source_file: Path | None = None, text_generator: TextGenerator | None = None
    ) -> None:
        self._path = source_file

    def generate(self, params: PromptParams, *, seed: int, selection: Selection) -> None:
        """Offer all questions in seeded order; the selection takes what it needs."""
        role = select_params(InterviewParams, params).interview_role
        drafts = (
            [("", draft) for draft in questions() if role in ("", draft.variables["role"])]
            if self._path is None
            else list(read_drafts(read_rows(self._path), selection.report, DOMAIN))
        )
        if not drafts and role:
            raise PromptError(f"There are no questions for the role {role!r}. See questions.yaml.")
        order = np.random.default_rng(seed).permutation(len(drafts))
        selection.offer_all((drafts[i][1] for i in order), (drafts[i][0] for i in order))


@cache
def questions() -> tuple[Draft, ...]:
    """Every question of questions.yaml filled in every way."""
    content: dict[str, Any] = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    drafts: dict[str, Draft] = {}
    for (category, levels), (role, of_role) in product(
        content["questions"].items(), content["roles"].items()
    ):
        for (level, texts), skill, thing, team in product(
            levels.items(), of_role["skill"], of_role["thing"], content["team"]
        ):
            for text in texts:
                filled = text.format(role=_with_article(role), skill=skill, thing=thing, team=team)
                filled = filled[0].upper() + filled[1:]
                drafts.setdefault(
                    filled,
                    Draft(
                        filled,
                        category,
                        level,
                        variables={"domain": DOMAIN, "role": role, "skill": skill},
                    ),
                )
    return tuple(drafts.values())


def _with_article(role: str) -> str:
    return f"{'an' if role[0].lower() in 'aeiou' or role.startswith('ML') else 'a'} {role}"
