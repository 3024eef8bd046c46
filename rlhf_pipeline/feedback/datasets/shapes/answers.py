"""Several answers to a prompt in one row, with the best one, ranks, scores or labels."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

from rlhf_pipeline.feedback.datasets.cells import (
    RowRejected,
    is_missing,
    parse_integer,
    parse_number,
    parse_text,
    write_whole_numbers,
)
from rlhf_pipeline.feedback.datasets.mapping import VOTES, ColumnMapping, Names
from rlhf_pipeline.feedback.datasets.shapes.base import (
    PREFERENCES,
    Cells,
    FileShape,
    RowReading,
    place_sides,
)

LISTS = ("answers", "responses", "completions", "outputs", "generations", "candidates", "summaries")
TEXTS = ("text", "answer", "response", "completion", "output", "content")
SCORES = ("score", "overall_score", "rating", "label")
EQUAL = "answers of equal rank make no pair"
LONE = "a single answer makes no pair"
FROM_ONE = "the best answer counts from 1, as its column never holds 0"


class Answers(FileShape):
    """Each two answers of different rank become a pair; with the index of the best one, it and
    each other. Lists of objects hold their own rank or score, else a list beside them does.
    """

    name: ClassVar[str] = "answers"
    title: ClassVar[str] = "several answers a row with ranks, scores or the best one"
    names: ClassVar[Names] = {
        **{
            name: aliases
            for name, aliases in PREFERENCES.items()
            if name not in ("completion_a", "completion_b", "choice")
        },
        "answers": LISTS[1:],
        "scores": ("ratings", "labels"),
        "ranks": ("rank", "ranking"),
        "best": ("choice", "label", "best_index"),
    }
    required: ClassVar[Sequence[Sequence[str]]] = (("prompt",), ("answers",))

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        """TRL's stepwise supervision has completions and labels too, of steps of one answer."""
        if {"completions", "labels"} <= {*columns}:
            return False
        return any(isinstance(row.get(name), list) for row in sample for name in LISTS)

    def __init__(
        self,
        columns: Sequence[str],
        sample: Sequence[Cells],
        columns_named: ColumnMapping,
        what: str,
        left_out: Collection[str] = (),
    ) -> None:
        super().__init__(columns, sample, columns_named, what, left_out)
        self._first_index = int(self._counts_from_one())

    def _counts_from_one(self) -> bool:
        """Whether the index of the best answer is ever as high as their number, and never 0."""
        column, answers = self.binding.columns.get("best"), self.binding.columns["answers"]
        indices = [
            (write_whole_numbers(str(row.get(column))), self.parse_cell(answers, row.get(answers)))
            for row in self.sample
            if column is not None
        ]
        return any(i == str(len(a)) for i, a in indices if isinstance(a, list)) and not any(
            i == "0" for i, _ in indices
        )

    @property
    def has_pairs(self) -> bool:
        return True

    def read(self, cells: Cells) -> Iterator[RowReading]:
        bound = self.binding.select_cells(cells)
        columns = self.binding.columns
        answers = self.parse_cell(columns["answers"], bound["answers"])
        if not isinstance(answers, list) or not answers:
            raise RowRejected(f"{columns['answers']} is not a list of answers")
        texts = [parse_text(_find(entry, TEXTS), "answer", may_be_empty=True) for entry in answers]
        values = [self._find_value(bound, i, entry, len(texts)) for i, entry in enumerate(answers)]
        prompt = self.build_prompt(bound)
        about = {name: bound[name] for name in VOTES if name in bound}
        has_best = not is_missing(bound.get("best"))
        equal = [EQUAL] if len({*values}) < len(values) and not has_best else []
        equal += [FROM_ONE] if has_best and self._first_index else []
        if len({*values}) == 1:
            yield RowReading(notes=equal if len(values) > 1 else [LONE])
        for i, j in combinations(range(len(texts)), 2):
            if values[i] == values[j] or (has_best and 1 not in (values[i], values[j])):
                continue
            better, worse = (i, j) if values[i] > values[j] else (j, i)
            pair, side = place_sides(prompt, texts[better], texts[worse])
            described = self.describe(bound, pair)
            if identifier := bound.get("source_pair_id"):
                described["source_pair_id"] = f"{identifier}/{better}/{worse}"
            yield RowReading(described, [about | {"choice": side}], notes=equal)
            equal = []

    def _find_value(self, bound: Cells, i: int, answer: Any, n: int) -> float:
        """How good the i-th answer is: higher is better."""
        best = bound.get("best")
        if not is_missing(best):
            first = self._first_index
            number = parse_integer(best, "the best answer", low=first, high=n - 1 + first)
            return float(number == i + first)
        for name, sign in (("ranks", -1), ("scores", 1)):
            values = self.parse_cell(self.binding.columns.get(name), bound.get(name))
            if isinstance(values, list) and len(values) == n:
                return sign * _parse_score(values[i], name)
        if isinstance(answer, Mapping) and not is_missing(answer.get("rank")):
            return -_parse_score(answer["rank"], "rank")
        score = _find(answer, SCORES) if isinstance(answer, Mapping) else None
        return _parse_score(score, "score")


def _find(answer: Any, names: Sequence[str]) -> Any:
    if not isinstance(answer, Mapping):
        return answer
    return next((answer[name] for name in names if name in answer), None)


def _parse_score(value: Any, name: str) -> float:
    number = parse_number(
        float(value) if isinstance(value, bool) else value, name, low=-1e9, high=1e9
    )
    if number is None:
        raise RowRejected(f"an answer has no {name}; expected ranks, scores or the best answer")
    return number
