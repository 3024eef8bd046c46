"""OpenAssistant's message trees: ranked replies of the assistant become pairs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

from rlhf_pipeline.core.conversations import Message, write_prompt
from rlhf_pipeline.core.row_files import FileRow
from rlhf_pipeline.feedback.datasets.cells import (
    RowRejected,
    is_missing,
    parse_integer,
    parse_optional_flag,
)
from rlhf_pipeline.feedback.datasets.mapping import Names
from rlhf_pipeline.feedback.datasets.shapes.answers import EQUAL
from rlhf_pipeline.feedback.datasets.shapes.base import Cells, FileShape, RowReading, place_sides

UNRANKED = "replies without a rank or text, or deleted, make no pair"
ORPHAN = "messages whose parent is not in the file are left out"
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
        yield from self.read_tree(cells[self.binding.columns["prompt"]])

    def read_tree(self, tree: Any) -> Iterator[RowReading]:
        """Each two ranked replies to a message."""
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
        ranks = [_read_rank(reply) for reply in answers]
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
            tags = {
                name: better[name]
                for name in ("lang", *self.tag_columns)
                if not is_missing(better.get(name))
            }
            yield RowReading(pair | {"source_pair_id": source_id}, [{"choice": side}], tags)
        for reply in replies:
            if isinstance(reply.get("text"), str):
                yield from self._read_replies(reply, here)


def _read_rank(reply: Mapping[str, Any]) -> int | None:
    """None for a reply without a text, and for a deleted one."""
    if not isinstance(reply.get("text"), str) or parse_optional_flag(
        reply.get("deleted"), "deleted"
    ):
        return None
    return parse_integer(reply.get("rank"), "rank", low=-MAX_RANK, high=MAX_RANK)


class OpenAssistantRows(OpenAssistant):
    """One message a row, which names the one that it answers: the rows are joined to trees."""

    name: ClassVar[str] = "openassistant-rows"
    title: ClassVar[str] = "OpenAssistant: one message a row, with parents and ranks"
    names: ClassVar[Names] = {
        **dict.fromkeys(("message_id", "parent_id", "role", "text", "rank", "deleted"), ()),
        "tree_id": ("message_tree_id",),
    }
    required: ClassVar[Sequence[Sequence[str]]] = tuple(
        (name,) for name in ("message_id", "parent_id", "role", "text", "rank")
    )
    metadata: ClassVar[tuple[str, ...]] = (
        *("tree_state", "lang", "user_id", "created_date", "review_count", "review_result"),
        *("synthetic", "model_name", "detoxify", "emojis", "labels"),
    )

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return {"message_id", "parent_id", "role", "text", "rank"} <= {*columns}

    def read_rows(self, rows: Iterable[FileRow]) -> Iterator[tuple[FileRow, RowReading]]:
        """Reads the whole file before the first pair."""
        messages: dict[str, tuple[FileRow, dict[str, Any]]] = {}
        for row in rows:
            if row.fault is None:
                node = row.cells | self.binding.select_cells(row.cells) | {"replies": []}
                messages[str(node["message_id"])] = row, node
            else:
                yield row, RowReading()
        roots = []
        for row, node in messages.values():
            parent = node["parent_id"]
            if is_missing(parent):
                roots.append((row, node))
            elif str(parent) in messages:
                messages[str(parent)][1]["replies"].append(node)
            else:
                yield row, RowReading(notes=[ORPHAN])
        for row, node in roots:
            yield from self.guard(row, self.read_tree(node))
