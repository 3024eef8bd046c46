"""The protocol of shapes, which read rows of preference files, and what several of them share."""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from rlhf_pipeline.core.conversations import (
    ConversationError,
    Message,
    normalise_text,
    parse_messages,
    parse_prompt,
    parse_transcript,
    read_messages,
    write_prompt,
)
from rlhf_pipeline.core.documents import parse_json
from rlhf_pipeline.core.records import Choice, content_hash
from rlhf_pipeline.core.row_files import FileRow
from rlhf_pipeline.feedback.datasets import mapping
from rlhf_pipeline.feedback.datasets.cells import (
    RowRejected,
    is_missing,
    parse_number,
    parse_optional_flag,
    parse_text,
    write_whole_numbers,
)
from rlhf_pipeline.feedback.datasets.mapping import Binding, ColumnMapping, Names, bind

Cells = Mapping[str, Any]
PROMPT_DIFFERS = "the prompt column differs from what both dialogues begin with, which is stored"
JOINED = "later turns stand in the completion, after Human: and Assistant:"
MAX_SIGNED = 4
ADJACENT = re.compile(r"""["']\s+["']""")
# Keys of messages that are read
READ = {"role", "from", "content", "value", "name", "tool_calls", "function_call", "tool_call_id"}

# Our names of cells that may hold messages
CONVERSATIONS = (
    *("prompt", "history", "context"),
    *("completion", "completion_a", "completion_b", "chosen", "rejected"),
)

DESCRIPTIONS = (*mapping.COMPARISONS, *mapping.OWN_COMPARISONS)
# What a row may hold beside the columns of comparisons and votes. The first four are read into the
# conversation; the others say which completion is better.
COMPANIONS: Names = {
    "system": ("system_prompt",),
    "history": (),
    "context": (),
    "input": (),
}
VERDICTS: Names = {
    "signed_strength": ("overall_preference", "preference_strength"),
    "winner_a": ("winner_model_a",),
    "winner_b": ("winner_model_b",),
    "winner_tie": (),
    "winner": (),
    "score_a": ("score_0", "rating_a"),
    "score_b": ("score_1", "rating_b"),
}
SIDES: dict[str, str] = {
    # those that count from 0 first, or column 1 would be both sides
    "a": "response_0 response_1 response1 answer_0 answer_1 answer1 output_1 generation_1 "
    "human_ref_A completion_1 conversation_a",
    "b": "response_2 response2 response_1 answer_2 answer2 answer_1 output_2 generation_2 "
    "human_ref_B completion_2 conversation_b",
}
# Columns of the data sets that `rlhf datasets export` writes
CURATED = ("row_id", "sources", "prompt_id", "label", "day")
PREFERENCES: Names = {
    **mapping.COMPARISONS,
    "completion_a": (*mapping.COMPARISONS["completion_a"], *SIDES["a"].split()),
    "completion_b": (*mapping.COMPARISONS["completion_b"], *SIDES["b"].split()),
    "source_pair_id": ("pair_id", "id", "question_id"),
    **{name: aliases for name, aliases in mapping.VOTES.items() if name != "source_pair_id"},
    "choice": (*mapping.VOTES["choice"], "better_response_id"),
    "annotator_id": (*mapping.VOTES["annotator_id"], "judge", "worker"),
    **COMPANIONS,
    **VERDICTS,
}


class RowReading(NamedTuple):
    """What a row says: cells of a comparison and of votes on it by our names, tags, and notes on
    what was left out or changed, which are counted by their text.
    """

    pair: dict[str, Any] | None = None
    votes: Sequence[dict[str, Any]] = ()
    tags: Mapping[str, Any] = {}
    notes: Sequence[str] = ()


class FileShape:
    """Reads the rows of one shape of files. A new one: a file with a class, and a line in SHAPES.

    `names` are our names with the columns that have them in this shape; `metadata` are further
    columns that it is known to have, which become tags; `repeats` are columns that repeat others.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    names: ClassVar[Names] = PREFERENCES
    required: ClassVar[Sequence[Sequence[str]]] = ()
    metadata: ClassVar[tuple[str, ...]] = ()
    repeats: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[Mapping[str, Choice]] = {}
    hidden: ClassVar[tuple[str, ...]] = ()  # cells that `flatten` adds for `read`

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        """Whether a file with these columns and first rows has this shape."""
        raise NotImplementedError

    def __init__(
        self,
        columns: Sequence[str],
        sample: Sequence[Cells],
        columns_named: ColumnMapping,
        what: str,
        left_out: Collection[str] = (),
    ) -> None:
        self.binding: Binding = bind(
            self.names,
            columns_named,
            [column for column in columns if column not in left_out],
            what=what,
            required=self.required,
        )
        self.columns, self.sample = columns, sample
        self.tag_columns: Sequence[str] = ()
        self.choices = {**self.words, **columns_named.choices}
        self.sides = _name_sides(*map(self.binding.columns.get, ("completion_a", "completion_b")))
        self._list_columns = {
            column
            for column in columns
            if 2 * sum(_looks_like_list(row.get(column)) for row in sample)
            > sum(not is_missing(row.get(column)) for row in sample)
        }

    @property
    def has_pairs(self) -> bool:
        """Whether the file has texts; else it holds votes on pairs of other files."""
        return "completion_a" in self.binding

    @property
    def has_verdicts(self) -> bool:
        """Whether rows may say which completion is better; else votes of other files do."""
        return True

    @classmethod
    def flatten(cls, cells: Cells) -> Iterator[Cells]:
        """The rows of flat columns in a nested row. Raises RowRejected."""
        yield cells

    def read(self, cells: Cells) -> Iterator[RowReading]:
        """What one flat row says: by default two completions with a verdict. Raises RowRejected for
        a row that cannot be read.
        """
        bound = self.binding.select_cells(cells)
        if not self.has_pairs:
            yield RowReading(votes=self.judge(bound))
            return
        pair, notes = self.read_pair(bound)
        yield RowReading(self.describe(bound, pair), self.judge(bound), notes=notes)

    def read_pair(self, bound: Cells) -> tuple[dict[str, Any], Sequence[str]]:
        """The texts of a pair, and notes on them."""
        columns = self.binding.columns
        sides = [
            self.parse_cell(columns.get(name), bound.get(name))
            for name in ("completion_a", "completion_b")
        ]
        whole = [read_messages_of(side) for side in sides]
        if whole[0] is None or whole[1] is None:
            return {
                "prompt": self.build_prompt(bound),
                "completion_a": sides[0],
                "completion_b": sides[1],
            }, ()
        begin, a, b, notes = split_dialogues(whole[0], whole[1])
        prompt, more = self.choose_prompt(bound, begin)
        notes = [*notes, *more]
        return {
            "prompt": self.build_prompt(bound, prompt),
            "completion_a": a,
            "completion_b": b,
        }, notes

    def choose_prompt(self, bound: Cells, begin: Any) -> tuple[Any, Sequence[str]]:
        """What both dialogues begin with, or the longer prompt of the column that ends with it; and
        a note where the column says something else.
        """
        cell = self.parse_cell(self.binding.columns.get("prompt"), bound.get("prompt"))
        if begin is None or is_missing(cell):
            return begin, ()
        own = read_messages(cell) if isinstance(cell, str) else parse_messages(cell)
        common = parse_messages(begin)
        if len(own) > len(common) and own[-len(common) :] == common:
            return cell, ()
        contents = {normalise_text(message.content) for message in common}
        is_same = all(normalise_text(message.content) in contents for message in own)
        return begin, () if is_same else [PROMPT_DIFFERS]

    def describe(self, bound: Cells, pair: dict[str, Any]) -> dict[str, Any]:
        """The cells of a comparison: its texts, and what the row says about it."""
        return {name: bound[name] for name in DESCRIPTIONS if name in bound} | pair

    def read_rows(self, rows: Iterable[FileRow]) -> Iterator[tuple[FileRow, RowReading]]:
        """What each row says; a row that cannot be read comes with its fault. Shapes that need
        several rows for one pair override it.
        """
        for row in rows:
            yield from self.guard(row, self.read_nested(row.cells))

    def guard(
        self, row: FileRow, readings: Iterable[RowReading]
    ) -> Iterator[tuple[FileRow, RowReading]]:
        """The readings of a row, or the row with its fault."""
        try:
            if row.fault is not None:
                raise RowRejected(row.fault)
            yield from [(row, reading) for reading in readings]
        except (RowRejected, ConversationError) as cause:
            yield FileRow(row.line, row.cells, str(cause)), RowReading()

    def read_nested(self, cells: Cells) -> Iterator[RowReading]:
        """What each flat row of a nested one says, with its tags."""
        for flat in self.flatten(cells):
            tags = {c: flat[c] for c in self.tag_columns if not _is_blank(flat.get(c))}
            notes = self._describe_unread(flat)
            for reading in self.read(flat):
                notes += reading.notes
                yield reading._replace(tags={**tags, **reading.tags}, notes=notes)
                notes = []

    def _describe_unread(self, flat: Cells) -> list[str]:
        """A note on each key of messages that is not read."""
        bound = self.binding.columns
        columns = (bound[name] for name in CONVERSATIONS if name in bound)
        lists = (self.parse_cell(column, flat.get(column)) for column in columns)
        keys = {
            key: None
            for messages in lists
            if isinstance(messages, list)
            for message in messages
            if isinstance(message, Mapping) and not message.keys().isdisjoint(("role", "from"))
            for key in message.keys() - READ
            if not _is_blank(message[key])
        }
        return [f"{key!r} of messages is left out" for key in keys]

    def parse_cell(self, column: str | None, value: Any) -> Any:
        """The value of a cell that holds a text, or messages as a list. Raises RowRejected for a
        text that looks like a list in a column of lists and is none.
        """
        if column is None or not isinstance(value, str) or column not in self._list_columns:
            return value
        if not _looks_like_list(value):
            return value
        parsed = _parse_list(value)
        if parsed is None:
            raise RowRejected(
                f"{column} looks like a list, but is neither JSON nor Python (NumPy prints no "
                'commas). Write messages as [{"role": "user", "content": "…"}], texts as ["…", "…"]'
            )
        return parsed

    def build_prompt(self, bound: Cells, base: Any = None) -> str:
        """The text of the prompt with its companions: system, history, context and input."""
        names = self.binding.columns
        cells = {name: self.parse_cell(names.get(name), bound.get(name)) for name in COMPANIONS}
        prompt = self.parse_cell(names.get("prompt"), bound.get("prompt")) if base is None else base
        if is_missing(prompt):
            is_context = isinstance(cells["context"], list) or _is_blank(cells["input"])
            prompt = cells.pop("context" if is_context else "input")
        companions = {name: value for name, value in cells.items() if not _is_blank(value)}
        if is_missing(prompt):
            return ""
        if not companions:
            return parse_prompt(prompt)
        messages = read_turns(prompt)
        if "input" in companions:
            added = parse_text(companions["input"], "input")
            text = "\n".join(filter(None, (messages[-1].content, added)))
            messages[-1] = messages[-1].model_copy(update={"content": text})
        context = companions.get("context", [])
        documents = context if isinstance(context, list) else [context]
        return write_prompt(
            [
                *(
                    Message(role="system", content=parse_text(text, "system"))
                    for name, text in companions.items()
                    if name == "system"
                ),
                *_read_history(companions.get("history")),
                *(
                    Message(role="document", content=parse_text(text, "context"))
                    for text in documents
                ),
                *messages,
            ]
        )

    def judge(self, bound: Cells) -> list[dict[str, Any]]:
        """The vote of a row on its pair by the first verdict that the file has; none without."""
        verdict = self._find_verdict(bound)
        if verdict is None:
            return []
        about = {name: bound[name] for name in mapping.VOTES if name in bound}
        return [about | verdict]

    def _find_verdict(self, bound: Cells) -> dict[str, Any] | None:
        if "signed_strength" in self.binding:
            return read_signed(bound["signed_strength"])
        if "winner_a" in self.binding and "winner_b" in self.binding:
            return {"choice": _read_one_hot(bound)}
        if not is_missing(bound.get("winner")):
            return {"choice": self.read_winner(bound["winner"], bound)}
        if "score_a" in self.binding and "score_b" in self.binding and "choice" not in self.binding:
            a, b = (
                parse_number(bound[name], name, low=-1e9, high=1e9)
                for name in ("score_a", "score_b")
            )
            if a is None or b is None:
                raise RowRejected("a score is missing")
            return {"choice": "a" if a > b else "b" if b > a else "tie"}
        if is_missing(bound.get("choice")):
            return None
        return {"choice": self.read_winner(bound["choice"], bound)}

    def read_winner(self, value: Any, bound: Cells) -> Any:
        """The side of a winner that is named by its model or column; else the word as written."""
        word = write_whole_numbers(str(value).strip())
        if word in self.choices:
            return value
        sides = [
            side
            for side in ("a", "b")
            if side == self.sides.get(_fold(word))
            or word == str(bound.get(f"model_version_{side}") or "").strip()
        ]
        if len(sides) > 1:
            raise RowRejected(
                f"the winner {word!r} is the name of both models. Name the side, a or b"
            )
        return sides[0] if sides else value


def _fold(word: str) -> str:
    return "_".join(word.lower().split())


def _name_sides(a: str | None, b: str | None) -> dict[str, str]:
    """The side that words name: a column of completions, or the end by which the two differ, such
    as 1 and 2 of response_1 and response_2.
    """
    if a is None or b is None:
        return {}
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    named = {_fold(w): side for side, name in (("a", a), ("b", b)) for w in (name[n:], name)}
    return {word: side for word, side in named.items() if word not in ("a", "b")}  # our own words


def read_turns(value: Any) -> list[Message]:
    """The messages of a prompt in a cell: a text is one of the user."""
    if isinstance(value, str):
        return [Message(role="user", content=value)]
    return parse_messages(value)


def read_messages_of(value: Any) -> list[Message] | None:
    """The messages of a cell that holds a list of them, or a single one, else None."""
    if isinstance(value, Mapping) and {"role", "from"} & value.keys():
        value = [value]
    return parse_messages(value) if isinstance(value, list | dict) else None


def join_turns(messages: Sequence[Message]) -> tuple[str, Sequence[str]]:
    """The text of a completion, and the note where it has several turns. Raises RowRejected for
    messages that do not begin with the assistant's.
    """
    if not messages or messages[0].role != "assistant":
        raise RowRejected("a completion does not begin with a message of the assistant")
    first, *others = messages
    labels = {"user": "Human", "assistant": "Assistant"}
    texts = [
        first.text if first.tool_calls else first.content,
        *(f"{labels.get(m.role, m.role.capitalize())}: {m.text}" for m in others),
    ]
    return "\n\n".join(texts), [JOINED] if others else []


def divide_dialogues(
    a: Sequence[Message], b: Sequence[Message]
) -> tuple[list[Message], Sequence[Message], Sequence[Message]]:
    """The messages that both begin with, and the others of each; the first of those is the
    assistant's. Raises RowRejected where they share no message.
    """
    n = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)) - 1
    )
    while n > 0 and a[n].role != "assistant":
        n -= 1
    if n <= 0 or n >= min(len(a), len(b)):
        raise RowRejected(
            "the two dialogues do not begin with the same messages (system and user), which would "
            "be the prompt. Give both the same beginning"
        )
    return list(a[:n]), a[n:], b[n:]


def split_dialogues(
    a: Sequence[Message], b: Sequence[Message]
) -> tuple[list[dict[str, Any]] | None, str, str, Sequence[str]]:
    """The common messages of two dialogues, None where both begin with the assistant's; the text
    of what follows in each; and notes on it.
    """
    prompt = None
    if a[0].role != "assistant":
        begin, a, b = divide_dialogues(a, b)
        prompt = [message.to_chat() for message in begin]
    (text_a, notes), (text_b, more) = join_turns(a), join_turns(b)
    return prompt, text_a, text_b, [*dict.fromkeys((*notes, *more))]


def place_sides(
    prompt: Any, chosen: str, rejected: str, models: Sequence[Any] = ()
) -> tuple[dict[str, Any], str]:
    """Cells of the pair, and the chosen side. The order follows from the texts, so that the better
    one is not always a, and the pair is the same for either winner. `models` wrote chosen and
    rejected.
    """
    a, b = sorted((chosen, rejected), key=lambda text: content_hash(normalise_text(text)))
    pair = {"prompt": prompt, "completion_a": a, "completion_b": b}
    side, other = ("a", "b") if a == chosen else ("b", "a")
    versions = zip((side, other), models, strict=False)
    pair |= {f"model_version_{s}": model for s, model in versions if not is_missing(model)}
    return pair, side


def read_signed(value: Any) -> dict[str, Any]:
    """Choice and strength of a signed strength: negative prefers a, positive b, 0 is a tie."""
    number = parse_number(value, "signed_strength", low=-MAX_SIGNED, high=MAX_SIGNED)
    if number is None or number != int(number):
        raise RowRejected(f"signed_strength is {value!r}; expected a whole number from -4 to 4")
    if number == 0:
        return {"choice": "tie", "strength": None}
    return {"choice": "a" if number < 0 else "b", "strength": abs(int(number))}


def find_transcripts(sample: Sequence[Cells], column: str) -> bool:
    """Whether the first texts of a column are transcripts of a human and an assistant."""
    texts = [row.get(column) for row in sample if not is_missing(row.get(column))]
    n = sum(isinstance(text, str) and parse_transcript(text) is not None for text in texts)
    return 2 * n > len(texts)


def _read_one_hot(bound: Cells) -> str:
    names = {"winner_a": "a", "winner_b": "b", "winner_tie": "tie"}
    values = {side: parse_optional_flag(bound.get(name), name) for name, side in names.items()}
    winners = [side for side, value in values.items() if value]
    if len(winners) > 1:
        raise RowRejected(f"the winner columns hold {list(values.values())}; expected one 1")
    if not winners and (bound.get("winner_tie") is not None or None in (values["a"], values["b"])):
        raise RowRejected("no winner column holds a 1")
    return winners[0] if winners else "tie"


def _read_history(value: Any) -> list[Message]:
    """Alpaca's history: pairs of texts of user and assistant, or messages."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise RowRejected("history is a text. Write [[question, answer], …]")
    if not all(isinstance(turn, list) and len(turn) == 2 for turn in value):
        return parse_messages(value)
    return [
        Message(role=role, content=parse_text(text, "history", may_be_empty=True))
        for turn in value
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]


def _is_blank(value: Any) -> bool:
    return is_missing(value) or value == [] or (isinstance(value, str) and not value.strip())


def _looks_like_list(value: Any) -> bool:
    return isinstance(value, str) and value.strip()[:1] == "[" and value.strip()[-1:] == "]"


def _parse_list(text: str) -> list[Any] | None:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text.strip())  # as pandas writes lists to CSV
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        if ADJACENT.search(text) and _has_adjacent_texts(text):
            return None
    return value if isinstance(value, list) else None


def _has_adjacent_texts(text: str) -> bool:
    """Whether texts follow each other without a comma, as NumPy prints them: Python would join
    them.
    """
    tokens = [
        token.type
        for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline)
        if token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)
    ]
    return (tokenize.STRING, tokenize.STRING) in pairwise(tokens)
