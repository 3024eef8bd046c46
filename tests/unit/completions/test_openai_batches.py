"""What is read off a batch's files: each reply by its request, a whole file or none, and when a
missing result is lost.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openai import NotFoundError
from openai.types import Batch as Told

from rlhf_pipeline.completions import OpenAICompatibleBackend
from rlhf_pipeline.completions.base import Reply
from rlhf_pipeline.completions.openai_batches import OpenAIBatch, OpenAIBatches
from rlhf_pipeline.completions.responses import UnreadableResponse

NAMES = [f"{i}-0" for i in range(4)]
ALL_MADE = {"total": 4, "completed": 4, "failed": 0}
HOUR, DAY = 3_600, 86_400


class Files:
    """The provider's files, as the OpenAI client reads them."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    async def content(self, file_id: str) -> Any:
        if file_id not in self._files:
            answer = httpx.Response(404, request=httpx.Request("GET", "http://here"))
            raise NotFoundError("no such file", response=answer, body=None)
        return SimpleNamespace(content=self._files[file_id])


def line(name: str, text: str = "fine", **more: Any) -> str:
    body = {
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
    return json.dumps(
        {"custom_id": name, "response": {"status_code": 200, "body": body}, "error": None} | more
    )


def failed(name: str) -> str:
    return line(name, response=None, error={"message": "timed out"})


WHOLE = "\n".join(map(line, NAMES)).encode()


def batches(output: bytes | None = None, errors: bytes | None = None) -> OpenAIBatches:
    files = {
        name: content
        for name, content in (("output", output), ("errors", errors))
        if content is not None
    }
    backend = OpenAICompatibleBackend("stub-model", "http://127.0.0.1:9")
    return OpenAIBatches(
        SimpleNamespace(files=Files(files)), dict, backend._parse_batch_response, "here"
    )  # type: ignore[arg-type]


def batch(*, age_s: float = 60, status: str | None = "completed", **more: Any) -> OpenAIBatch:
    """A batch submitted `age_s` ago, as read off what the provider says of it."""
    now = time.time()
    said: dict[str, Any] = {
        "id": "batch_1",
        "input_file_id": "input",
        "output_file_id": "output",
        "status": status,
        "created_at": int(now - age_s),
        "request_counts": ALL_MADE,
    }
    told = Told.construct(**said | more)
    counts = said["request_counts"] if "request_counts" not in more else more["request_counts"]
    told.request_counts = (  # type: ignore[assignment]
        None if counts is None else SimpleNamespace(**counts)
    )
    return batches()._build_batch(told, now - age_s)


def read(
    output: bytes | None, errors: bytes | None = None, *, is_last: bool = False, **said: Any
) -> dict[str, Reply]:
    found = batch(**({"error_file_id": "errors"} if errors is not None else {}) | said)
    return asyncio.run(batches(output, errors).fetch_replies(found, NAMES, is_last=is_last))


def kinds(replies: Mapping[str, Reply]) -> list[str]:
    return [replies[name].kind or replies[name].outcome for name in NAMES]


def test_each_line_is_the_reply_to_its_request() -> None:
    shuffled = "\n".join(line(name, f"text of {name}") for name in reversed(NAMES)).encode()
    assert [read(shuffled)[name].text for name in NAMES] == [f"text of {name}" for name in NAMES]


def test_line_separators_of_other_alphabets_stay_in_the_text() -> None:
    text = "a\u2028b\u2029c\x85d"
    content = "\n".join(
        line(name, text).replace(json.dumps(text), f'"{text}"') for name in NAMES
    ).encode()
    assert {reply.text for reply in read(content).values()} == {text}


@pytest.mark.parametrize(
    "first",
    [
        line(NAMES[0])[:60],
        None,
        "[]\n7",
        line(NAMES[0]).replace('"status_code": 200', '"status_code": "fine"'),
        line(NAMES[0], response=None, error="lost"),
    ],
    ids=["half", "missing", "no object", "no status", "an error that is a text"],
)
def test_an_unreadable_line_costs_its_own_request_alone(first: str | None) -> None:
    content = "\n".join([*([] if first is None else [first]), *map(line, NAMES[1:])]).encode()
    found = kinds(read(content, is_last=True))
    assert found[0] != "succeeded"
    assert found[1:] == ["succeeded"] * 3


@pytest.mark.parametrize(
    "content",
    [b"<html>One moment</html>\n", b"", WHOLE[:90], b'{"error": {"message": "try again"}}'],
    ids=["page", "empty", "half", "error"],
)
def test_a_result_without_a_readable_line_is_read_again_until_it_is_old(content: bytes) -> None:
    with pytest.raises(UnreadableResponse, match=r"nothing readable in output|and not all"):
        read(content)
    assert set(kinds(read(content, is_last=True, age_s=4 * DAY))) == {"garbled"}


@pytest.mark.parametrize("status", ["completed", "expired"])
@pytest.mark.parametrize(
    "end", [WHOLE.rindex(b"{") - 40, WHOLE.index(b"\n")], ids=["within a line", "after a line"]
)
def test_a_result_that_is_cut_off_is_read_again_however_old_it_is(end: int, status: str) -> None:
    for age_s in (60, 4 * DAY):
        with pytest.raises(UnreadableResponse):
            read(WHOLE[:end], status=status, age_s=age_s)


def test_results_that_a_batch_counts_and_does_not_show_may_be_billed() -> None:
    content = "\n".join(map(line, NAMES[:3])).encode()
    assert kinds(read(content, is_last=True, status="expired")) == ["succeeded"] * 3 + ["garbled"]


def test_a_count_of_zero_beside_a_broken_line_is_not_believed() -> None:
    none_made = {"total": 0, "completed": 0, "failed": 0}
    with pytest.raises(UnreadableResponse):
        read(WHOLE[: WHOLE.rindex(b"{") - 40], status="expired", request_counts=none_made)


def test_requests_that_an_expired_batch_did_not_reach_are_not_billed() -> None:
    content = "\n".join(map(line, NAMES[:3])).encode()
    counts = {"total": 4, "completed": 3, "failed": 0}
    replies = read(content, b"\n", status="expired", request_counts=counts)
    assert kinds(replies) == ["succeeded"] * 3 + ["server_error"]


def test_a_file_of_errors_takes_nothing_back_of_what_was_made() -> None:
    errors = "\n".join(map(failed, NAMES[:2])).encode()
    assert set(kinds(read(WHOLE, errors))) == {"succeeded"}


def test_a_missing_file_of_errors_delays_nothing_where_the_result_is_whole() -> None:
    assert set(kinds(read(WHOLE, error_file_id="not there yet"))) == {"succeeded"}


def test_a_missing_result_is_waited_for_and_lost_once_it_is_old() -> None:
    with pytest.raises(UnreadableResponse, match="does not show output yet"):
        read(None)
    assert set(kinds(read(None, age_s=4 * DAY))) == {"cancelled"}


@pytest.mark.parametrize(
    ("inside", "kind"),
    [(b"\xff", "invalid_utf8"), (b"x" * 1_000_000, "oversized")],
    ids=["no text", "a megabyte"],
)
def test_a_line_is_held_to_the_limits_of_a_single_call(inside: bytes, kind: str) -> None:
    begins = b'"content": "'
    assert (
        kinds(read(WHOLE.replace(begins, begins + inside, 1), is_last=True))
        == [kind] + ["succeeded"] * 3
    )


@pytest.mark.parametrize("status", ["queued", "COMPLETED", None])
def test_a_batch_in_an_unknown_state_without_a_result_is_under_way(status: str | None) -> None:
    assert not batch(status=status, output_file_id=None).is_over


def test_a_batch_in_an_unknown_state_with_an_end_and_a_result_is_over() -> None:
    assert batch(status="finished", completed_at=int(time.time())).is_over
    assert not batch(status="running", output_file_id=None, age_s=4 * DAY).is_over


@pytest.mark.parametrize(
    ("status", "counts"), [("completed", ALL_MADE), ("expired", ALL_MADE), ("completed", None)]
)
def test_a_batch_whose_result_has_no_place_yet_is_under_way(status: str, counts: object) -> None:
    assert not batch(status=status, request_counts=counts, output_file_id=None).is_over


def test_a_batch_that_never_names_its_result_is_over_in_the_end_and_may_be_billed() -> None:
    counts = {"total": 4, "completed": 2, "failed": 0}
    assert batch(
        status="expired", request_counts=counts, output_file_id=None, age_s=4 * DAY
    ).is_over
    lost = read(
        None,
        status="expired",
        request_counts=counts,
        output_file_id=None,
        age_s=4 * DAY,
        is_last=True,
    )
    assert set(kinds(lost)) == {"garbled"}


# In seconds from now: submitted by our clock, created and ended by the provider's.
LOST_AT = [
    (-25 * HOUR, -25 * HOUR, -1 * HOUR, False),
    (-49 * HOUR, -49 * HOUR, -25 * HOUR, True),
    (-2.9 * DAY, -2.9 * DAY, None, False),
    (-3.1 * DAY, -3.1 * DAY, None, True),
    (-3.1 * DAY, None, None, True),
    (-2.9 * DAY, None, None, False),
    # Their clock is ten days ahead of ours, or behind it: only how long the batch took is taken
    # from it.
    (-2 * HOUR, 10 * DAY, 10 * DAY + HOUR, False),
    (-27 * HOUR, 10 * DAY, 10 * DAY + HOUR, True),
    (-2 * HOUR, -10 * DAY, -10 * DAY + HOUR, False),
    # Ours was ten days behind when it was submitted.
    (-10 * DAY, -2 * HOUR, None, False),
    # A slow server.
    (-4 * DAY, -4 * DAY, -1 * HOUR, False),
    # An impossible end counts as none.
    (-2.9 * DAY, -2.9 * DAY, -9 * DAY, False),
    (-3.1 * DAY, -3.1 * DAY, 9 * DAY, True),
]


@pytest.mark.parametrize("unit", [1, 1000], ids=["seconds", "milliseconds"])
def test_a_result_may_be_lost_a_day_after_its_batch_ended(unit: int) -> None:
    def is_old(submitted: float, created: float | None, ended: float | None) -> bool:
        now = time.time()
        told = Told.construct(
            id="b",
            status="completed",
            input_file_id="f",
            created_at=None if created is None else int((now + created) * unit),
            completed_at=None if ended is None else int((now + ended) * unit),
        )
        return batches()._build_batch(told, now + submitted).is_old

    assert [case[:3] for case in LOST_AT if is_old(*case[:3]) is not case[3]] == []
