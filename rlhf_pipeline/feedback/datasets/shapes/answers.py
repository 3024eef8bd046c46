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
MODELS = ("model", "model_name", "policy")
SCORES = ("score", "overall_score", "rating", "label", "fine-grained_score", "pm_score", "reward")
READ = (*TEXTS, *SCORES, *MODELS, "rank")  # keys of answers
POSTS = ("post", "article")
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
        "models": ("generation_models", "model_names"),
        "best": ("choice", "label", "best_index"),
    }
    required: ClassVar[Sequence[Sequence[str]]] = (("prompt",), ("answers",))
    metadata: ClassVar[tuple[str, ...]] = (
        *("correct_answers", "incorrect_answers", "rationales", "model_name"),
    )

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        """TRL's stepwise supervision has completions and labels too, of steps of one answer;
        responses of Argilla's records are those of users.
        """
        if {"completions", "labels"} <= {*columns} or {"fields", "responses"} <= {*columns}:
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
        models = self._find_models(bound, answers)
        prompt = self.build_prompt(bound)
        about = {name: bound[name] for name in VOTES if name in bound}
        has_best = not is_missing(bound.get("best"))
        equal = [EQUAL] if len({*values}) < len(values) and not has_best else []
        equal += [FROM_ONE] if has_best and self._first_index else []
        equal += _describe_others(answers)
        if len({*values}) == 1:
            yield RowReading(notes=equal if len(values) > 1 else [LONE])
        for i, j in combinations(range(len(texts)), 2):
            if values[i] == values[j] or (has_best and 1 not in (values[i], values[j])):
                continue
            better, worse = (i, j) if values[i] > values[j] else (j, i)
            pair, side = place_sides(
                prompt, texts[better], texts[worse], (models[better], models[worse])
            )
            described = self.describe(bound, pair)
            if identifier := bound.get("source_pair_id"):
                described["source_pair_id"] = f"{identifier}/{better}/{worse}"
            yield RowReading(described, [about | {"choice": side}], notes=equal)
            equal = []

    def _find_models(self, bound: Cells, answers: Sequence[Any]) -> list[Any]:
        """The model of each answer, from it or from a list beside them; None without."""
        listed = self.parse_cell(self.binding.columns.get("models"), bound.get("models"))
        if not isinstance(listed, list) or len(listed) != len(answers):
            listed = [None] * len(answers)
        return [
            _find(answer, MODELS) if isinstance(answer, Mapping) else model
            for answer, model in zip(answers, listed, strict=True)
        ]

    def _find_value(self, bound: Cells, i: int, answer: Any, n: int) -> float:
        """How good the i-th answer is: higher is better."""
        best = bound.get("best")
        if not is_missing(best):
            first = self._first_index
            number = parse_integer(best, "the best answer", low=first, high=n - 1 + first)
            return float(number == i + first)
        for name, sign in (("ranks", -1), ("scores", 1)):
            values = self.parse_cell(self.binding.columns.get(name), bound.get(name))
            if isinstance(values, list) and len(values) != n:
                raise RowRejected(f"{len(values)} {name} beside {n} answers; expected one each")
            if isinstance(values, list):
                return sign * _parse_score(values[i], name)
        if isinstance(answer, Mapping) and not is_missing(answer.get("rank")):
            return -_parse_score(answer["rank"], "rank")
        score = _find(answer, SCORES) if isinstance(answer, Mapping) else None
        return _parse_score(score, "score")


class Summaries(Answers):
    """OpenAI's comparisons of two summaries of a post or an article."""

    name: ClassVar[str] = "summaries"
    title: ClassVar[str] = "OpenAI summaries: two summaries of a post with the better one"
    names: ClassVar[Names] = {
        name: aliases
        for name, aliases in Answers.names.items()
        if name not in ("split", "source_pair_id")
    }
    metadata: ClassVar[tuple[str, ...]] = (
        "split",
        "batch",
        "extra",
        "id",
        "title",
        "subreddit",
        "site",
    )

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return "summaries" in columns and bool({"info", "info.post"} & {*columns})

    @classmethod
    def flatten(cls, cells: Cells) -> Iterator[Cells]:
        """What `info` holds becomes columns; one with a dot is of it too."""
        info = cells.get("info") or {}
        if not isinstance(info, Mapping):
            raise RowRejected("info is not an object with the post")
        flat = {n.removeprefix("info."): value for n, value in cells.items() if n != "info"}
        flat.update(info)
        posts = [flat.pop(name, None) for name in POSTS]
        yield flat | {"prompt": next((post for post in posts if not is_missing(post)), None)}


def _describe_others(answers: Sequence[Any]) -> list[str]:
    """A note on each key of answers that is not read."""
    keys = {str(key): None for a in answers if isinstance(a, Mapping) for key in a}
    return [f"{key!r} of answers is left out" for key in keys if key not in READ]


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
