"""Finds the rows that a training cannot use, before it is started."""

from collections.abc import Callable, Sequence

import pandas as pd

from rlhf_pipeline.records import Record

SHOWN_ROWS = 20


class BadRow(Record):
    """A row that cannot be trained on. One that `stops` is refused with the whole set; any other is
    left out by the training itself.
    """

    comparison_id: str
    cause: str
    cure: str
    stops: bool

    def __str__(self) -> str:
        return f"comparison {self.comparison_id}: {self.cause}. {self.cure}."


def find_bad_rows(
    rows: pd.DataFrame, count_tokens: Callable[[str], int], *, room: int, limit: int, context: int
) -> list[BadRow]:
    """The rows with one text as chosen and rejected, and those whose prompt leaves fewer than
    `room` tokens for a completion. `limit` is max_length, `context` that of the policy.

    `rows` have comparison_id, prompt, chosen and rejected.
    """
    n_tokens = {text: count_tokens(text) for text in rows["prompt"].unique()}
    is_same, found = has_one_text(rows), []
    for comparison_id, prompt, same in zip(
        rows["comparison_id"], rows["prompt"], is_same, strict=True
    ):
        if same:
            found.append(
                BadRow(
                    comparison_id=comparison_id,
                    cause="chosen and rejected are one text, so there is nothing to prefer",
                    cure="Leave it out, or correct the import",
                    stops=True,
                )
            )
        elif (needed := n_tokens[prompt] + room) > min(limit, context):
            fits = needed <= context
            found.append(
                BadRow(
                    comparison_id=comparison_id,
                    cause=f"its prompt has {n_tokens[prompt]} tokens; with {room} for a completion "
                    + f"that exceeds the {min(limit, context)} of "
                    + ("max_length" if limit <= context else "the policy's context"),
                    cure=f"Set max_length={needed}, or shorten the prompt"
                    if fits
                    else "Shorten the prompt",
                    stops=False,
                )
            )
    return found


def has_one_text(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Whether chosen and rejected are the same but for spaces around them."""
    return rows["chosen"].str.strip() == rows["rejected"].str.strip()


def describe_rows(rows: Sequence[BadRow]) -> list[str]:
    """A line for each of the first rows, and how many more there are."""
    more = [f"and {len(rows) - SHOWN_ROWS} more"] if len(rows) > SHOWN_ROWS else []
    return [*map(str, rows[:SHOWN_ROWS]), *more]
