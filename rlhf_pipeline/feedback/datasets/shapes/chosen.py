"""Preference files with a chosen and a rejected completion, as TRL and its relatives write them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rlhf_pipeline.core.conversations import parse_transcript
from rlhf_pipeline.feedback.datasets.cells import RowRejected, is_missing, parse_number, parse_text
from rlhf_pipeline.feedback.datasets.mapping import OWN_COMPARISONS, VOTES, Names
from rlhf_pipeline.feedback.datasets.shapes.base import (
    CURATED,
    PREFERENCES,
    Cells,
    FileShape,
    RowReading,
    find_transcripts,
    place_sides,
    read_messages_of,
    split_dialogues,
)

NAMES: Names = {
    **{
        name: aliases
        for name, aliases in PREFERENCES.items()
        if name not in ("completion_a", "completion_b", "prompt")
    },
    "prompt": ("question", "instruction", "conversations", "messages", "conversation"),
    "chosen": ("chosen_response", "response_j", "better"),
    "rejected": ("rejected_response", "response_k", "worse"),
}
SENTENCE_END = re.compile(r"\n|[.?!:][\"')\]]*\s|[。？！：]")
BLANK = re.compile(r"\s")
MAX_STRENGTH = 4
OPENAI_OUTPUTS = ("input", "preferred_output", "non_preferred_output")
REPEATED = "chosen and rejected begin with the prompt, and are stored so"
IMPLICIT = "the prompt is the common beginning of chosen and rejected"


class Chosen(FileShape):
    """Explicit prompts or, without a prompt, what both texts begin with; texts or messages."""

    name: ClassVar[str] = "trl"
    title: ClassVar[str] = "TRL preference: chosen and rejected"
    metadata: ClassVar[tuple[str, ...]] = ("margin", "chosen_model", "rejected_model")
    names: ClassVar[Names] = NAMES
    required: ClassVar[Sequence[Sequence[str]]] = (("chosen",), ("rejected",))

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return all(
            any(name in columns for name in (side, *NAMES[side])) for side in ("chosen", "rejected")
        ) and not find_transcripts(sample, "chosen")

    @property
    def has_pairs(self) -> bool:
        return True

    def read(self, cells: Cells) -> Iterator[RowReading]:
        bound = self.binding.select_cells(cells)
        prompt, chosen, rejected, notes = self.divide(bound)
        prompt, more = self.choose_prompt(bound, prompt)
        notes = [*notes, *more]
        choice = bound.get("choice")
        pair, side = place_sides(self.build_prompt(bound, prompt), chosen, rejected)
        if not is_missing(choice) and str(choice).strip().lower() not in ("a", "chosen"):
            raise RowRejected(
                f"choice is {choice!r} beside chosen and rejected; expected a or chosen. Leave the "
                f"column out: --leave-out {self.binding.columns['choice']!r}"
            )
        about = {name: bound[name] for name in VOTES if name in bound}
        vote = about | {"choice": side} | self.read_strength(bound)
        yield RowReading(self.describe(bound, pair), [vote], notes=notes)

    def read_strength(self, bound: Cells) -> dict[str, Any]:
        """The strength of the vote where it is not in a column of its own."""
        return {}

    def divide(self, bound: Cells) -> tuple[Any, str, str, Sequence[str]]:
        """Prompt (None for that of its column), chosen and rejected text, and notes on them."""
        chosen, rejected = (
            self.parse_cell(self.binding.columns[name], bound[name])
            for name in ("chosen", "rejected")
        )
        better, worse = read_messages_of(chosen), read_messages_of(rejected)
        if (better is None) != (worse is None):
            raise RowRejected("one of chosen and rejected is a text, the other a list of messages")
        if better is not None and worse is not None:
            return split_dialogues(better, worse)
        chosen, rejected = (
            parse_text(text, name, may_be_empty=True)
            for text, name in ((chosen, "chosen"), (rejected, "rejected"))
        )
        if {"prompt", "context", "input"} & self.binding.columns.keys():
            prompt = bound.get("prompt")
            is_repeated = isinstance(prompt, str) and chosen.startswith(prompt or "\n")
            is_repeated = is_repeated and rejected.startswith(str(prompt))
            return None, chosen, rejected, [REPEATED] if is_repeated else []
        n = len(begin := find_common_prompt(chosen, rejected))
        return begin, chosen[n:].lstrip(), rejected[n:].lstrip(), [IMPLICIT]


class UltraFeedback(Chosen):
    """The prompt stands beside whole dialogues, with scores of both completions."""

    name: ClassVar[str] = "ultrafeedback"
    title: ClassVar[str] = "UltraFeedback: whole dialogues as messages, with scores"
    metadata: ClassVar[tuple[str, ...]] = (
        "prompt_id",
        "score_chosen",
        "score_rejected",
        "chosen_model",
        "rejected_model",
    )
    repeats: ClassVar[tuple[str, ...]] = ("messages",)

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return super().matches(columns, sample) and "score_chosen" in columns


class Alpaca(Chosen):
    """`input`, `system` and `history` are read into the conversation."""

    name: ClassVar[str] = "alpaca"
    title: ClassVar[str] = "Alpaca: instruction with chosen and rejected"

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return super().matches(columns, sample) and "instruction" in columns


class Prepared(Chosen):
    """A file of `rlhf votes prepare`: its margin is the strength, its ids stay with their home."""

    name: ClassVar[str] = "prepared"
    title: ClassVar[str] = "training data of `rlhf votes prepare`"
    names: ClassVar[Names] = NAMES | {"margin": ()}
    metadata: ClassVar[tuple[str, ...]] = (
        *OWN_COMPARISONS,
        *("n_votes", "n_ties", "agreement", "soft_label", "label_seq", "max_seq", "chosen_side"),
        *("chosen_id", "rejected_id", "dimension_votes", "annotator_kind"),
    )

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return {"chosen", "rejected", "margin", "agreement", "max_seq"} <= {*columns}

    def read_strength(self, bound: Cells) -> dict[str, Any]:
        margin = parse_number(bound["margin"], "margin", low=0, high=1)
        return {"strength": None if margin is None else max(1, round(margin * MAX_STRENGTH))}


class CuratedRows(Prepared):
    """Preference rows that `rlhf datasets export` wrote with all columns."""

    name: ClassVar[str] = "data-set"
    title: ClassVar[str] = "preference rows of `rlhf datasets export`"
    names: ClassVar[Names] = {
        **{name: NAMES[name] for name in NAMES if name not in ("choice", "strength")},
        "chosen": ("completion",),
        "margin": ("strength",),
    }
    metadata: ClassVar[tuple[str, ...]] = (*CURATED, "agreement")

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return {"row_id", "completion", "rejected"} <= {*columns} and any(
            not is_missing(row["rejected"]) for row in sample
        )


class OpenAIPreferenceLines(Chosen):
    """Lines of OpenAI's preference fine-tuning: messages of a prompt and of two answers."""

    name: ClassVar[str] = "openai-preference"
    title: ClassVar[str] = "OpenAI preference: input with a preferred and a non-preferred output"
    metadata: ClassVar[tuple[str, ...]] = ("tools",)

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return {"input", "preferred_output", "non_preferred_output"} <= {*columns}

    @classmethod
    def flatten(cls, cells: Cells) -> Iterator[Cells]:
        request = cells["input"]
        if not isinstance(request, dict) or "messages" not in request:
            raise RowRejected("input has no messages")
        others = {name: cells[name] for name in cells if name not in OPENAI_OUTPUTS}
        yield {
            **others,
            "prompt": request["messages"],
            "chosen": cells["preferred_output"],
            "rejected": cells["non_preferred_output"],
            "tools": request.get("tools"),
        }


class HhRlhf(Chosen):
    """Whole dialogues as transcripts: what both begin with is the prompt, as messages."""

    name: ClassVar[str] = "hh-rlhf"
    title: ClassVar[str] = "hh-rlhf: whole dialogues of Human: and Assistant:"

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return {"chosen", "rejected"} <= {*columns} and find_transcripts(sample, "chosen")

    def divide(self, bound: Cells) -> tuple[Any, str, str, Sequence[str]]:
        better, worse = (
            parse_transcript(parse_text(bound[name], name)) for name in ("chosen", "rejected")
        )
        if better is None or worse is None:
            raise RowRejected("not a transcript with lines of Human: and Assistant:")
        return split_dialogues(better, worse)


def find_common_prompt(a: str, b: str) -> str:
    """What both texts begin with, up to its last end of a sentence, or else its last blank. Raises
    RowRejected for texts without a common beginning.
    """
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    ends = [match.end() for match in SENTENCE_END.finditer(a[:n])]
    ends = ends or [match.end() for match in BLANK.finditer(a[:n])]
    prompt = a[: ends[-1]].rstrip() if ends else ""
    if not prompt:
        raise RowRejected(
            "chosen and rejected have no common beginning, which would be the prompt. Give it in a "
            "column `prompt`"
        )
    return prompt
