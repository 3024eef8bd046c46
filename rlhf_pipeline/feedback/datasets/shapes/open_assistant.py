"""OpenAssistant's message trees: ranked replies of the assistant become pairs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

from rlhf_pipeline.core.conversations import Message, write_prompt
from rlhf_pipeline.feedback.datasets.cells import RowRejected, parse_integer
from rlhf_pipeline.feedback.datasets.mapping import Names
from rlhf_pipeline.feedback.datasets.shapes.answers import EQUAL
from rlhf_pipeline.feedback.datasets.shapes.base import Cells, FileShape, RowReading, place_sides

UNRANKED = "replies without a rank or text, or deleted, make no pair"
LONE = "trees without two ranked replies make no pair"
MAX_RANK = 10_000
ROLES: Mapping[str, Any] = {"prompter": "user", "assistant": "assistant"}


class OpenAssistant(FileShape):
    """Of each message the better of two ranked replies is preferred, under the path to them."""

    name: ClassVar[str] = "openassistant"
    title: ClassVar[str] = "OpenAssistant: trees of messages with ranked replies"
    names: ClassVar[Names] = {"prompt": (), "tree_id": ("message_tree_id",)}
    required: ClassVar[Sequence[Sequence[str]]] = (("prompt",),)
    metadata: ClassVar[tuple[str, ...]] = ("tree_state",)

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return any(
            isinstance(row.get("prompt"), Mapping) and "replies" in row["prompt"] for row in sample
        )

    @property
    def has_pairs(self) -> bool:
        return True

    def read(self, cells: Cells) -> Iterator[RowReading]:
        tree = cells[self.binding.columns["prompt"]]
        if not isinstance(tree, Mapping):
            raise RowRejected("prompt is not a message with replies")
        n = 0
        for reading in self._read_replies(tree, []):
            n += reading.pair is not None
            yield reading
        if n == 0:
            yield RowReading(notes=[LONE])

    def _read_replies(self, node: Mapping[str, Any], path: list[Message]) -> Iterator[RowReading]:
        role = ROLES.get(str(node.get("role")))
        if role is None or not isinstance(node.get("text"), str):
            raise RowRejected("a message has no text, or a role that is not prompter or assistant")
        here = [*path, Message(role=role, content=node["text"])]
        replies = node.get("replies") or []
        if not isinstance(replies, list) or not all(isinstance(r, Mapping) for r in replies):
            raise RowRejected("the replies of a message are not a list of messages")
        answers = [reply for reply in replies if reply.get("role") == "assistant"]
        ranks = [
            parse_integer(r.get("rank"), "rank", low=-MAX_RANK, high=MAX_RANK)
            if isinstance(r.get("text"), str) and not r.get("deleted")
            else None
            for r in answers
        ]
        ranked = [(rank, r) for rank, r in zip(ranks, answers, strict=True) if rank is not None]
        if len(ranked) < len(answers):
            yield RowReading(notes=[UNRANKED] * (len(answers) - len(ranked)))
        ranked.sort(key=lambda entry: entry[0])
        for (first, better), (second, worse) in combinations(ranked, 2):
            if first == second:
                yield RowReading(notes=[EQUAL])
                continue
            pair, side = place_sides(write_prompt(here), better["text"], worse["text"])
            source_id = f"{better.get('message_id')}/{worse.get('message_id')}"
            tags = {"lang": better["lang"]} if "lang" in better else {}
            yield RowReading(pair | {"source_pair_id": source_id}, [{"choice": side}], tags)
        for reply in replies:
            if isinstance(reply.get("text"), str):
                yield from self._read_replies(reply, here)
