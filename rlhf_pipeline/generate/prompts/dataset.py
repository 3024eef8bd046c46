"""Prompts from a file or a data set, and the JSONL form of PROMPTS."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field

from rlhf_pipeline.core.conversations import (
    ConversationError,
    parse_messages,
    parse_prompt,
    read_messages,
    write_prompt,
)
from rlhf_pipeline.core.documents import parse_json
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.files import open_atomically
from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.core.records import Category, Difficulty
from rlhf_pipeline.generate.prompts.base import (
    ROWS_AT_ONCE,
    Draft,
    PromptParams,
    parse_category,
)
from rlhf_pipeline.generate.prompts.constraints import find_unstorable, find_unusable
from rlhf_pipeline.generate.prompts.rows import PromptRow, read_hub_rows, read_rows, replace_missing
from rlhf_pipeline.generate.prompts.selection import Report, Selection

TEXT_COLUMNS = ("text", "prompt", "instruction", "question")
# of a whole prompt as messages, and of Alpaca's files, whose instruction alone is half a prompt
MESSAGE_COLUMNS = ("messages", "conversations")
COMPANIONS = ("system", "history", "documents", "context", "input")
DOMAIN_COLUMNS = ("domain", "tag", "topic")


class DatasetParams(Parameters):
    """Parameters of the source `dataset`."""

    dataset: str = Field(
        "",
        description="Of the source dataset: hub id or folder of a data set, instead of the file of "
        "RLHF_PROMPTS_FILE",
    )
    split: str = Field("train", description="Of that data set", min_length=1)
    domain: str = Field(
        "",
        description="Of the source dataset: domain of prompts whose row names none",
    )


class DatasetGenerator:
    """Draws prompts from a JSONL, JSON, CSV or Parquet file, a folder of texts, or a data set of
    the hub or in a folder (`dataset`).

    Rows have a text column and optionally category, difficulty, reference and domain; system,
    history, documents, context and input beside the text become part of the conversation.
    """

    name: ClassVar[str] = "dataset"
    Params: ClassVar[type[BaseModel]] = DatasetParams

    def __init__(
        self, source_file: Path | None = None, text_generator: TextGenerator | None = None
    ) -> None:
        self._path = source_file

    def generate(self, params: PromptParams, *, seed: int, selection: Selection) -> None:
        """See `PromptGenerator`; rows are drawn without replacement in seeded order, duplicates of
        the file once.
        """
        own = select_params(DatasetParams, params)
        places: list[str] = []
        drafts: list[Draft] = []
        for where, draft in read_drafts(self._rows(own), selection.report, own.domain):
            places.append(where)
            drafts.append(draft)
        if not drafts and not selection.report.n_rejected.total():
            raise PromptError(
                f"{own.dataset or self._path} holds no rows. Give one prompt per row, in a "
                f"column {' or '.join(TEXT_COLUMNS)}."
            )
        order = np.random.default_rng(seed).permutation(len(drafts))
        selection.offer_all((drafts[i] for i in order), (places[i] for i in order))

    def _rows(self, params: DatasetParams) -> Iterator[PromptRow]:
        if params.dataset:
            return read_hub_rows(params.dataset, params.split)
        if self._path is None:
            raise PromptError(
                "The dataset source needs a file or a data set. Name a JSONL, JSON, CSV or Parquet "
                "file of prompts (RLHF_PROMPTS_FILE, or --file), or set `dataset` to a hub id or "
                "folder."
            )
        return read_rows(self._path)


def read_drafts(
    rows: Iterator[PromptRow], report: Report, domain: str = ""
) -> Iterator[tuple[str, Draft]]:
    """Yield the draft of each row with the row's place; `domain` is the domain of rows without
    one. Equal prompts come once (`core.conversations.normalise_prompt`). `report` receives
    rows that are not prompts, and counts repeats.
    """
    seen_ids: set[str] = set()
    for row in rows:
        draft = row.fault or parse_draft(row.cells, domain)
        if isinstance(draft, str):
            report.reject("row", draft, where=row.where)
            continue
        name = draft.prompt_id
        if name in seen_ids:
            report.n_duplicates += 1
        else:
            seen_ids.add(name)
            yield row.where, draft


def write_jsonl(frame: pd.DataFrame, path: Path) -> int:
    """PROMPTS as one JSON object a line; returns the number of lines. Never writes a partial file;
    raises ArtefactError if the disk refuses.
    """
    checked = check_frame(frame, PROMPTS)
    with open_atomically(path) as file:
        for start in range(0, len(checked), ROWS_AT_ONCE):
            rows = checked.iloc[start : start + ROWS_AT_ONCE].to_dict("records")
            file.write(
                "".join(
                    f"{json.dumps(replace_missing(row), ensure_ascii=False)}\n" for row in rows
                ).encode()
            )
    return len(checked)


def parse_draft(row: Mapping[str, Any], whole_domain: str) -> Draft | str:
    """The draft of a row, or the fault with its cure."""
    columns = (*TEXT_COLUMNS, *MESSAGE_COLUMNS)
    cell = next((row[c] for c in columns if isinstance(row.get(c), str | list | dict)), None)
    if cell is None and any(c in row and row[c] is None for c in columns):
        cell = ""  # the column is there and its cell is empty
    if cell is None:
        return (
            f"no text. Give a column {' or '.join(TEXT_COLUMNS)}; here are "
            f"{', '.join(map(repr, row)) or 'none'}"
        )
    if isinstance(cell, str) and (violation := find_unusable(cell)) is not None:
        return violation.reason
    try:
        text = _add_companions(parse_prompt(cell), row)
    except ConversationError as cause:
        return str(cause)
    if (violation := find_unusable(text)) is not None:
        return violation.reason
    domain = str(next((row[c] for c in DOMAIN_COLUMNS if row.get(c)), whole_domain))
    category = row.get("category") or (
        domain.lower() if domain.lower() in tuple(Category) else Category.INSTRUCTION.value
    )
    try:
        category = parse_category(category)
    except ValueError as cause:
        return str(cause)
    difficulty = _normalise_word(row.get("difficulty")) or Difficulty.MEDIUM.value
    if difficulty not in tuple(Difficulty):
        return f"difficulty {difficulty!r}; difficulties: {', '.join(Difficulty)}"
    reference = row.get("reference")
    template = row.get("template_id")
    variables = _parse_variables(row.get("variables"), domain)
    for name, value in (
        ("reference", reference),
        ("template_id", template),
        ("domain", domain),
        ("variables", variables),
    ):
        if (why := _find_unstorable(value)) is not None:
            return f"{name} {why}"
    return Draft(
        text,
        category,
        str(difficulty),
        None if reference in (None, "") else str(reference),
        None if template in (None, "") else str(template),
        variables,
    )


def _add_companions(prompt: str, row: Mapping[str, Any]) -> str:
    """The prompt with what stands beside it in COMPANIONS. Raises ConversationError."""
    system, history, documents, context, more = (_parse_cell(row.get(c)) for c in COMPANIONS)
    if not any((system, history, documents, context, more)):
        return prompt
    [*earlier, last] = read_messages(prompt)
    if more:
        last = last.model_copy(update={"content": f"{last.content}\n\n{_require_text(more)}"})
    texts = [*_list_cell(documents), *_list_cell(context)]
    whole = {"messages": [*_list_turns(history), last.to_chat()], "documents": texts}
    if system:
        whole["messages"].insert(0, {"role": "system", "content": _require_text(system)})
    return write_prompt([*earlier, *parse_messages(whole)])


def _parse_cell(value: Any) -> Any:
    """A cell, parsed where it holds a JSON list as CSV files have it."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return parse_json(value)
        except (ValueError, RecursionError):
            return value
    return value


def _list_cell(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _list_turns(history: Any) -> list[Any]:
    """Messages of a history: messages, or pairs of a text of the user and one of the assistant."""
    turns: list[Any] = []
    for turn in _list_cell(history):
        if isinstance(turn, list | tuple) and len(turn) == 2:
            turns += [
                {"role": role, "content": text}
                for role, text in zip(("user", "assistant"), turn, strict=True)
            ]
        else:
            turns.append(turn)
    return turns


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConversationError(f"{value!r:.40} beside the prompt is not a text. Give one")
    return value


def _normalise_word(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _find_unstorable(value: Any) -> str | None:
    """Why a cell other than the text cannot be stored."""
    if isinstance(value, list):
        return "is a list, not a text. Give one"
    if isinstance(value, Mapping):
        # as JSON, where NUL is an escape and can be stored
        value = json.dumps(dict(value), ensure_ascii=False, default=str)
    return find_unstorable(value) if isinstance(value, str) else None


def _parse_variables(value: Any, domain: str) -> Mapping[str, Any]:
    """Variables of a row: JSON in an exported row, else an object or missing."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    return (
        {**value, **_domain_variables(domain)}
        if isinstance(value, Mapping)
        else _domain_variables(domain)
    )


@lru_cache(maxsize=1_000)
def _domain_variables(domain: str) -> Mapping[str, Any]:
    """One for all rows of a domain: a hundred thousand of their own would take 20 MB."""
    return MappingProxyType({"domain": domain} if domain else {})
