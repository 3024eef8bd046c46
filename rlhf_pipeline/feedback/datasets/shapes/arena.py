"""Chatbot Arena: two models' answers, with the winner in a word, a model's name or one-hot."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rlhf_pipeline.core.conversations import Message, parse_messages
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.datasets.cells import RowRejected, parse_integer
from rlhf_pipeline.feedback.datasets.mapping import Names
from rlhf_pipeline.feedback.datasets.shapes.base import PREFERENCES, Cells, FileShape, join_turns
from rlhf_pipeline.feedback.datasets.shapes.pairs import has_any, has_sides

MAX_TURN = 1_000
LATER = "turns after the judged one are left out"
EMPTY = "an answer that is missing (null) is stored as an empty text"


class Arena(FileShape):
    """Prompts and answers may be lists with a text for each turn: the first prompt is the prompt,
    and what follows it the completion.
    """

    name: ClassVar[str] = "arena"
    title: ClassVar[str] = "Chatbot Arena: answers of two models with the winner"
    names: ClassVar[Names] = PREFERENCES | {"turn": ()}
    metadata: ClassVar[tuple[str, ...]] = ("language", "anony", "openai_moderation")
    words: ClassVar[Mapping[str, Choice]] = {
        "model_a": Choice.A,
        "model_b": Choice.B,
        "tie": Choice.TIE,
        "tie (bothbad)": Choice.BOTH_BAD,
        "both_bad": Choice.BOTH_BAD,
    }

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return (
            has_sides(columns)
            and {"model_a", "model_b"} <= {*columns}
            and has_any(columns, "winner", "winner_a")
        )

    def read_pair(self, bound: Cells) -> tuple[dict[str, Any], Sequence[str]]:
        texts = [
            self.parse_cell(self.binding.columns.get(name), bound.get(name))
            for name in ("prompt", "completion_a", "completion_b")
        ]
        if not all(isinstance(text, list) for text in texts) or any(
            isinstance(turn, Mapping) for turn in texts[1]
        ):
            return self._read_judged(bound, texts[1:])
        prompts, *answers = texts
        if any(len(turns) != len(prompts) for turns in answers) or not prompts:
            raise RowRejected(
                f"{len(prompts)} prompts with {len(answers[0])} and {len(answers[1])} answers; "
                "expected one answer a turn"
            )
        (a, notes), (b, _) = (
            join_turns([*_read_dialogue(prompts, turns)][1:]) for turns in answers
        )
        if any(text is None for turns in answers for text in turns):
            notes = [*notes, EMPTY]
        prompt = [{"role": "user", "content": prompts[0]}]
        return {
            "prompt": self.build_prompt(bound, prompt),
            "completion_a": a,
            "completion_b": b,
        }, notes

    def _read_judged(
        self, bound: Cells, dialogues: Sequence[Any]
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """The pair of two lists of messages, up to the exchange that was judged."""
        turn = parse_integer(bound.get("turn"), "turn", low=1, high=MAX_TURN)
        until: dict[str, Any] = {}
        for side, messages in zip("ab", dialogues, strict=True):
            if turn is not None and isinstance(messages, list):
                ends = [i for i, m in enumerate(parse_messages(messages)) if m.role == "assistant"]
                if len(ends) > turn:
                    until[f"completion_{side}"] = messages[: ends[turn - 1] + 1]
        pair, notes = super().read_pair({**bound, **until})
        return pair, [*notes, *([LATER] if until else [])]


def _read_dialogue(prompts: Sequence[Any], answers: Sequence[Any]) -> Iterator[Message]:
    for prompt, answer in zip(prompts, answers, strict=True):
        if not isinstance(prompt, str) or not isinstance(answer, str | None):
            raise RowRejected("a turn is not a text. Write a list of texts")
        yield Message(role="user", content=prompt)
        yield Message(role="assistant", content=answer or "")
