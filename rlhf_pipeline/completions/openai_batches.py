"""OpenAI's Batch API: many requests in a file, answered within a day, at half the price. Knows
files and batches; knows no ledger.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rlhf_pipeline.completions.base import CompletionRequest, Reply
from rlhf_pipeline.completions.faults import MOMENTS, fault
from rlhf_pipeline.completions.redaction import redact
from rlhf_pipeline.completions.responses import UnreadableResponse, parse_answer

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import Batch as Told

ENDPOINT: Final = "/v1/chat/completions"
# in a batch's metadata: whose it is, so that who was killed after submitting finds it again
MARK = "rlhf_run"
MOST_REQUESTS = 50_000  # in one batch: https://platform.openai.com/docs/guides/batch
MADE_AT = "rlhf_submitted_at"  # there too: by our clock, which the provider's need not agree with
# and how many there are in its file, which may be read cut off after one of them
N_REQUESTS = "rlhf_n_requests"
OVER = {
    "completed",
    "failed",
    "expired",
    "cancelled",
}  # for good; by another word than these, it ended where it says when and shows a result
UNDER_WAY = {"validating", "in_progress", "finalizing", "cancelling"}
GONE = (404, 410)  # statuses of a file that there is no more
DAY_S = 86_400.0
# from the end of its batch no result is gone: it is not there yet, or not found, and asking anew
# would pay for it again
KEPT_S = DAY_S
# from submitting to the end, where nobody says: a window of a day, and time to finish
LONGEST_S = 2 * DAY_S
ODD_S = 7 * DAY_S  # no batch takes longer, whatever it says
# the queue has no room for so much: of one that was refused, nothing was done
CROWDED = "token_limit_exceeded"


@dataclass(frozen=True, slots=True)
class OpenAIBatch:
    """One that was submitted. `error` says why it failed as a whole, `is_crowded` that there was no
    room for so much beside what is under way; `is_marked` that its metadata say whose it is;
    `n_requests` how many it has at least, `n_made` how many of them succeeded, where that is said.
    `created_at` is the provider's time, `submitted_at` ours, `took_s` how long it was until it
    ended; None where not known."""

    batch_id: str
    status: str
    is_over: bool
    input_file: str
    output_file: str | None
    error_file: str | None
    error: str | None
    is_crowded: bool
    is_marked: bool
    n_requests: int
    n_made: int | None
    created_at: float | None
    submitted_at: float | None
    took_s: float | None

    @property
    def is_old(self) -> bool:
        """Whether what cannot be read of it by now never will be. So is one of which no time is
        known that can be: nobody waits for ever.
        """
        now = time.time()
        begun = max(
            (
                at
                for at in (self.submitted_at, self.created_at)
                if at is not None and at <= now + DAY_S
            ),
            default=None,
        )
        return (
            begun is None
            or now > begun + (LONGEST_S if self.took_s is None else self.took_s) + KEPT_S
        )

    @property
    def may_lack_lines(self) -> bool:
        """Whether a request without a line may have been made all the same."""
        return self.status not in OVER - {"completed"} or (
            bool(self.n_made) and self.output_file is None
        )


@dataclass(frozen=True, slots=True)
class _Lines:
    """Of a file: by the names of the requests what stands there, or why that cannot be taken.
    `is_whole` where every line has a name.
    """

    named: Sequence[tuple[str, dict[str, Any] | Reply]]
    is_whole: bool
    is_empty: bool


class OpenAIBatches:
    """Of one backend: `body` says how a request is written there, `read` what an answer comes
    to.
    """

    def __init__(
        self,
        client: "AsyncOpenAI",
        body: Callable[[CompletionRequest], dict[str, Any]],
        read: Callable[[int, Mapping[str, Any]], Reply],
        where: str,
        secrets: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._body = body
        self._read = read
        self._where = where
        self._secrets = secrets

    async def submit(self, named: Mapping[str, CompletionRequest], run_id: str) -> OpenAIBatch:
        """One batch of these. It exists, marked with the run, once this returns; killed before, at
        most a file was left behind.
        """
        lines = (
            json.dumps(
                {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": self._body(request)}
            )
            for name, request in named.items()
        )
        content = "\n".join(lines).encode()
        file = await self._client.files.create(
            file=("requests.jsonl", content, "application/jsonl"), purpose="batch"
        )
        metadata = {MARK: run_id, MADE_AT: f"{time.time():.0f}", N_REQUESTS: str(len(named))}
        made = await self._client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata=metadata
        )
        return self._build_batch(made, run_id)

    async def list_for_run(self, run_id: str, made: Sequence[str] = ()) -> list[OpenAIBatch]:
        """Those listed that were submitted for a run, in whichever process; and those `made` by
        this one, whatever their metadata say.
        """
        found = [
            self._build_batch(one, run_id) async for one in self._client.batches.list(limit=100)
        ]
        return [batch for batch in found if batch.is_marked or batch.batch_id in made]

    async def retrieve(self, batch_id: str, run_id: str) -> OpenAIBatch:
        """Of which only the id is known."""
        return self._build_batch(await self._client.batches.retrieve(batch_id), run_id)

    async def fetch_names(self, batch: OpenAIBatch) -> set[str]:
        """What it asks for; nothing where the file that says so is gone. Raises Unreadable for a
        file that is not whole: what is missing there would be asked for, and paid, again."""
        lines = await self._fetch_lines(batch.input_file)
        names = set() if lines is None else {name for name, _ in lines.named}
        if lines is None or (names and lines.is_whole and len(names) >= batch.n_requests):
            return names
        if batch.is_old:
            return set()
        raise UnreadableResponse(
            "garbled",
            f"does not show all of {batch.input_file}, which says what {batch.batch_id} asks for",
        )

    async def fetch_replies(
        self, batch: OpenAIBatch, names: Collection[str], *, is_last: bool = False
    ) -> dict[str, Reply]:
        """What came of one that is over, by name: of all these `names`, unless it failed as a
        whole. What stands in no file of one that did not come to its end was not done, and is not
        billed; of all else that cannot be read nobody knows. Raises Unreadable where it is worth
        reading again: where lines are missing, unless this is the last look in a row; where there
        is nothing to read, until it is old."""
        replies: dict[str, Reply] = {}
        absent, spoilt = list[str](), list[str]()
        is_whole, read = True, set[str]()
        for file in (batch.output_file, batch.error_file):
            if file is None:
                continue
            if (lines := await self._fetch_lines(file)) is None:
                absent.append(file)
                continue
            is_whole = is_whole and lines.is_whole
            if not lines.named and not (
                lines.is_empty and (file == batch.error_file or batch.n_made == 0)
            ):
                spoilt.append(file)
            for name, line in lines.named:
                # A file of errors takes nothing back of what was made.
                if name not in replies or replies[name].outcome != "succeeded":
                    replies[name] = (
                        line if isinstance(line, Reply) else self._parse_reply(batch, line)
                    )
                if _is_made(line):
                    read.add(name)
        if batch.error is not None and not absent:
            return replies
        # What it says that it made tells whether a line that is not there, or cannot be read, may
        # be of one that was made. None made is what servers say that do not count.
        are_made_missing = len(read) < batch.n_made if batch.n_made else not is_whole
        is_all = replies.keys() >= set(names) if names else bool(replies) and not are_made_missing
        if not is_all and not batch.is_old:
            if absent:
                raise UnreadableResponse(
                    "garbled", f"does not show {absent[0]} yet, a result of {batch.batch_id}"
                )
            if spoilt:
                raise UnreadableResponse(
                    "garbled",
                    f"shows nothing that can be read in {spoilt[0]}, a result of {batch.batch_id}",
                )
        if not (is_all or is_last or absent or spoilt) and (
            are_made_missing or batch.may_lack_lines
        ):
            raise UnreadableResponse(
                "garbled", f"shows {len(replies)} results of {batch.batch_id}, and not all"
            )
        if absent:
            why = fault(
                "cancelled",
                f"A file of the batch {batch.batch_id} is gone; what it made is lost, and whether "
                "it is billed not known.",
            )
        elif batch.may_lack_lines or are_made_missing:
            why = fault(
                "garbled", f"The batch {batch.batch_id} has no line for it that can be read."
            )
        else:
            why = fault(
                "server_error",
                f"The batch {batch.batch_id} is {batch.status}, and did not come to it.",
            )
        return dict.fromkeys(names, why) | replies

    def _parse_reply(self, batch: OpenAIBatch, line: Mapping[str, Any]) -> Reply:
        answer, error = line.get("response"), line.get("error")
        if isinstance(answer, dict) and isinstance(answer.get("body"), dict):
            status = answer.get("status_code") or 200
            if isinstance(status, int):
                return self._read(status, answer["body"])
            return fault(
                "garbled",
                f"The batch {batch.batch_id} has an answer whose status is "
                f"{redact(repr(status), *self._secrets)}.",
            )
        # expired or cancelled before its turn
        said = (error.get("message") if isinstance(error, dict) else error) or "no answer"
        return fault(
            "server_error",
            f"The batch {batch.batch_id} did not come to it: {redact(said, *self._secrets)}",
        )

    async def _fetch_lines(self, file_id: str) -> _Lines | None:
        """None where there is no such file: it is deleted, kept no longer, or not there yet."""
        from openai import APIStatusError

        try:
            content = (await self._client.files.content(file_id)).content
        except APIStatusError as cause:
            if cause.status_code in GONE:
                return None
            raise
        lines = [line for line in content.split(b"\n") if line.strip()]
        named = [(name, line) for name, line in map(self._parse_line, lines) if name is not None]
        return _Lines(named, len(named) == len(lines), not lines)

    def _parse_line(self, line: bytes) -> tuple[str | None, dict[str, Any] | Reply]:
        """A line and whose it is, held to what any answer is held to."""
        found = parse_answer(line, "", self._where, self._secrets)
        shown: object = found
        if isinstance(found, Reply):  # which may have its name all the same
            try:
                shown = json.loads(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                return None, found
        name = shown.get("custom_id") if isinstance(shown, dict) else None
        return name if isinstance(name, str) else None, found

    def _build_batch(self, found: "Told", run_id: str) -> OpenAIBatch:
        errors = (
            found.errors.data
            if found.status == "failed" and found.errors is not None and found.errors.data
            else []
        )
        metadata = found.metadata or {}
        # of a server that leaves it out the client makes an object without it
        n_made = getattr(found.request_counts, "completed", None)
        total = getattr(found.request_counts, "total", None)
        n_requests = str(metadata.get(N_REQUESTS, total))
        created_at, ended_at = _parse_moment(found.created_at), _ended_at(found)
        took_s = None if created_at is None or ended_at is None else ended_at - created_at
        batch = OpenAIBatch(
            batch_id=found.id,
            status=found.status,
            is_over=found.status in OVER,
            input_file=found.input_file_id,
            output_file=found.output_file_id or None,
            error_file=found.error_file_id or None,
            error="; ".join(redact(one.message, *self._secrets) for one in errors)
            if found.status == "failed"
            else None,
            is_crowded=any(one.code == CROWDED for one in errors),
            is_marked=metadata.get(MARK) == run_id,
            n_requests=int(n_requests) if n_requests.isdecimal() else 1,
            n_made=n_made if isinstance(n_made, int) else None,
            created_at=created_at,
            submitted_at=_parse_moment(metadata.get(MADE_AT)),
            took_s=took_s if took_s is not None and 0 <= took_s <= ODD_S else None,
        )
        if batch.is_old:
            is_ended = found.status not in UNDER_WAY and bool(
                ended_at or batch.output_file or batch.error_file
            )
            return replace(batch, is_over=batch.is_over or is_ended)
        # What it made is somewhere, though it does not say yet where.
        says_where = batch.output_file is not None or (
            batch.error_file is not None and not batch.n_made
        )
        if batch.is_over:
            return (
                batch
                if says_where or not (batch.n_made or found.status == "completed")
                else replace(batch, is_over=False)
            )
        return replace(
            batch, is_over=found.status not in UNDER_WAY and says_where and ended_at is not None
        )


def _is_made(line: Mapping[str, Any] | Reply) -> bool:
    """Whether a line is of a request that the batch counts as completed."""
    if isinstance(line, Reply):
        return True
    answer = line.get("response")
    status = answer.get("status_code") or 200 if isinstance(answer, dict) else None
    return isinstance(status, int) and status < 400 and not line.get("error")


def _ended_at(found: "Told") -> float | None:
    """When a batch ended, as the provider says; the newest of what it calls so."""
    ends = map(
        _parse_moment,
        (
            found.completed_at,
            found.expired_at,
            found.cancelled_at,
            found.failed_at,
            found.finalizing_at,
        ),
    )
    return max((end for end in ends if end is not None), default=None)


def _parse_moment(said: object) -> float | None:
    """Seconds since 1970 as told, by some servers in milliseconds; None for what is no moment.

    >>> _parse_moment(1767268830), _parse_moment(1767268830_000), _parse_moment("1767268830")
    (1767268830.0, 1767268830.0, 1767268830.0)
    >>> _parse_moment(0), _parse_moment("soon")
    (None, None)
    """
    try:
        value = float(said) if isinstance(said, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return next(
        (moment for moment in (value, value / 1000) if MOMENTS[0] <= moment < MOMENTS[1]), None
    )
