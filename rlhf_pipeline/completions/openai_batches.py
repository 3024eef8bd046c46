"""Uses OpenAI's Batch API: many requests in a file, answered within a day at half the price."""

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
SUBMISSION = "rlhf_submission"  # key of our own id in a batch's metadata
MOST_REQUESTS = 50_000  # requests in one batch: https://platform.openai.com/docs/guides/batch
# Final states; a batch in an unknown state is over once it has an end time and a result.
OVER = {"completed", "failed", "expired", "cancelled"}
UNDER_WAY = {"validating", "in_progress", "finalizing", "cancelling"}
GONE = (404, 410)  # statuses of a file or batch that does not exist
DAY_S = 86_400.0
KEPT_S = DAY_S  # time after the end of a batch in which a missing result may still appear
# From submitting to the end, if that is not stated: a window of a day, and time to finish.
LONGEST_S = 2 * DAY_S
ODD_S = 7 * DAY_S  # longest duration of a batch, whatever is stated
CROWDED = "token_limit_exceeded"  # the queue had no room; nothing was processed


@dataclass(frozen=True, slots=True)
class OpenAIBatch:
    """A batch as its provider describes it.

    Attributes:
        error: why it failed as a whole.
        is_crowded: whether it failed because the queue had no room.
        n_made: how many requests succeeded; None if that is not stated.
        created_at: by the provider's clock. `submitted_at` is by ours.
        took_s: seconds until it ended; None if that is not known.
    """

    batch_id: str
    status: str
    is_over: bool
    output_file: str | None
    error_file: str | None
    error: str | None
    is_crowded: bool
    n_made: int | None
    created_at: float | None
    submitted_at: float
    took_s: float | None

    @property
    def is_old(self) -> bool:
        """Whether results that are unreadable now will stay so."""
        return is_old(self.submitted_at, self.created_at, self.took_s)

    @property
    def may_lack_lines(self) -> bool:
        """Whether a request without a line may still have been made."""
        return self.status not in OVER - {"completed"} or (
            bool(self.n_made) and self.output_file is None
        )


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a result file by request name, or why a line cannot be used. `is_whole` if
    every line has a name.
    """

    named: Sequence[tuple[str, dict[str, Any] | Reply]]
    is_whole: bool
    is_empty: bool


class OpenAIBatches:
    """The batches of one backend: `body` encodes a request, `read` parses an answer."""

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

    async def upload(self, named: Mapping[str, CompletionRequest]) -> str:
        """Upload a file of these requests and return its id; an upload is not billed."""
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
        return file.id

    async def create(self, file_id: str, submission_id: str, submitted_at: float) -> OpenAIBatch:
        """Submit a file. The batch exists once this returns, and may exist even if this raises."""
        made = await self._client.batches.create(
            input_file_id=file_id,
            endpoint=ENDPOINT,
            completion_window="24h",
            metadata={SUBMISSION: submission_id},
        )
        return self._build_batch(made, submitted_at)

    async def find(self, submission_id: str, submitted_at: float) -> OpenAIBatch | None:
        """The batch whose metadata has this id, from the provider's list (newest first)."""
        async for one in self._client.batches.list(limit=100):
            if (one.metadata or {}).get(SUBMISSION) == submission_id:
                return self._build_batch(one, submitted_at)
            created_at = _parse_moment(one.created_at)
            if created_at is not None and created_at < submitted_at - DAY_S:
                return None
        return None

    async def retrieve(self, batch_id: str, submitted_at: float) -> OpenAIBatch | None:
        """None if the provider does not know it."""
        from openai import APIStatusError

        try:
            found = await self._client.batches.retrieve(batch_id)
        except APIStatusError as cause:
            if cause.status_code in GONE:
                return None
            raise
        return self._build_batch(found, submitted_at)

    async def fetch_replies(
        self, batch: OpenAIBatch, names: Collection[str], *, is_last: bool = False
    ) -> dict[str, Reply]:
        """The replies of a batch that is over, by name: for all `names`, unless it failed as a
        whole. A request without a line in a batch that ended early was not made and is not billed;
        the bill of other unreadable results is unknown. Raises UnreadableResponse if reading again
        may help: lines are missing and this is not the last look in a row, or nothing can be read
        and the batch is not old.
        """
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
                # A file of errors does not replace results.
                if name not in replies or replies[name].outcome != "succeeded":
                    replies[name] = (
                        line if isinstance(line, Reply) else self._parse_reply(batch, line)
                    )
                if _is_made(line):
                    read.add(name)
        if batch.error is not None and not absent:
            return replies
        # The stated number of completed requests shows whether a missing or unreadable line may
        # belong to a completed one. Servers that do not count report none.
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
                    f"shows nothing readable in {spoilt[0]}, a result of {batch.batch_id}",
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
                f"A file of the batch {batch.batch_id} is gone; its results are lost, and their "
                f"bill is unknown.",
            )
        elif batch.may_lack_lines or are_made_missing:
            why = fault("garbled", f"The batch {batch.batch_id} has no readable line for it.")
        else:
            why = fault(
                "server_error",
                f"The batch {batch.batch_id} is {batch.status}, and did not process it.",
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
            f"The batch {batch.batch_id} did not process it: {redact(said, *self._secrets)}",
        )

    async def _fetch_lines(self, file_id: str) -> _Lines | None:
        """None if the file does not exist: deleted, expired, or not written yet."""
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
        """Parse a line and its name, with the checks of every answer."""
        found = parse_answer(line, "", self._where, self._secrets)
        shown: object = found
        if isinstance(found, Reply):  # an error reply may still name the batch
            try:
                shown = json.loads(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                return None, found
        name = shown.get("custom_id") if isinstance(shown, dict) else None
        return name if isinstance(name, str) else None, found

    def _build_batch(self, found: "Told", submitted_at: float) -> OpenAIBatch:
        errors = (
            found.errors.data
            if found.status == "failed" and found.errors is not None and found.errors.data
            else []
        )
        # the client builds an object without it if the server omits it
        n_made = getattr(found.request_counts, "completed", None)
        created_at, ended_at = _parse_moment(found.created_at), _ended_at(found)
        took_s = None if created_at is None or ended_at is None else ended_at - created_at
        batch = OpenAIBatch(
            batch_id=found.id,
            status=found.status,
            is_over=found.status in OVER,
            output_file=found.output_file_id or None,
            error_file=found.error_file_id or None,
            error="; ".join(redact(one.message, *self._secrets) for one in errors)
            if found.status == "failed"
            else None,
            is_crowded=any(one.code == CROWDED for one in errors),
            n_made=n_made if isinstance(n_made, int) else None,
            created_at=created_at,
            submitted_at=submitted_at,
            took_s=took_s if took_s is not None and 0 <= took_s <= ODD_S else None,
        )
        if batch.is_old:
            is_ended = found.status not in UNDER_WAY and bool(
                ended_at or batch.output_file or batch.error_file
            )
            return replace(batch, is_over=batch.is_over or is_ended)
        # Its results exist, although it does not name their file yet.
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


def is_old(
    submitted_at: float, created_at: float | None = None, took_s: float | None = None
) -> bool:
    """Whether a batch ended so long ago that a result missing now never comes. A time in the
    future is a clock error.
    """
    now = time.time()
    known = [at for at in (submitted_at, created_at) if at is not None and at <= now + DAY_S]
    return not known or now > max(known) + (LONGEST_S if took_s is None else took_s) + KEPT_S


def _is_made(line: Mapping[str, Any] | Reply) -> bool:
    """Whether a line is of a request that the batch counts as completed."""
    if isinstance(line, Reply):
        return True
    answer = line.get("response")
    status = answer.get("status_code") or 200 if isinstance(answer, dict) else None
    return isinstance(status, int) and status < 400 and not line.get("error")


def _ended_at(found: "Told") -> float | None:
    """End of a batch as the provider states it; the latest of several such times."""
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
    """Seconds since 1970; some servers send milliseconds. None if `said` is not a time.

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
