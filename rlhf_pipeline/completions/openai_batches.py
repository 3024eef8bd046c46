"""OpenAI's Batch API: many requests in a file, answered within a day, at half the price. Knows files and batches; knows no ledger."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rlhf_pipeline.completions.base import CompletionRequest, Reply
from rlhf_pipeline.completions.faults import fault, told

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import Batch as Told

ENDPOINT: Final = "/v1/chat/completions"
MARK = "rlhf_run"  # in a batch's metadata: whose it is, so that who was killed after submitting finds it again
MOST_REQUESTS = 50_000  # in one batch: https://platform.openai.com/docs/guides/batch
UNDER_WAY = {"validating", "in_progress", "finalizing", "cancelling"}
GONE = (404, 410)  # statuses of a file that there is no more
KEPT_S = (
    86_400.0  # no result is gone sooner after its batch was made: it is not there yet, or not found, and asking anew would pay for it again
)
CROWDED = "token_limit_exceeded"  # the queue has no room for so much: of one that was refused, nothing was done


@dataclass(frozen=True, slots=True)
class Batch:
    """One that was submitted. `error` says why it failed as a whole, `is_crowded` that there was no room for so much beside what is under
    way; `is_marked` that its metadata say whose it is; `is_complete` that it came to its end, so that each request has a line."""

    batch_id: str
    is_over: bool
    input_file: str
    files: Sequence[str]
    error: str | None
    is_crowded: bool
    is_marked: bool
    is_complete: bool
    created_at: int


@dataclass(frozen=True, slots=True)
class _Lines:
    """Of a file, by the names of the requests; `is_whole` where all of them could be read."""

    by_name: dict[str, dict[str, Any]]
    is_whole: bool


class OpenAIBatches:
    """Of one backend: `body` says how a request is written there, `read` what an answer comes to."""

    def __init__(
        self,
        client: "AsyncOpenAI",
        body: Callable[[CompletionRequest], dict[str, Any]],
        read: Callable[[int, Mapping[str, Any]], Reply],
        secrets: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._body = body
        self._read = read
        self._secrets = secrets

    async def submit(self, named: Mapping[str, CompletionRequest], run_id: str) -> Batch:
        """One batch of these. It exists, marked with the run, once this returns; killed before, at most a file was left behind."""
        lines = (
            json.dumps({"custom_id": name, "method": "POST", "url": ENDPOINT, "body": self._body(request)})
            for name, request in named.items()
        )
        content = "\n".join(lines).encode()
        file = await self._client.files.create(file=("requests.jsonl", content, "application/jsonl"), purpose="batch")
        made = await self._client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={MARK: run_id})
        return self._batch(made, run_id)

    async def of_run(self, run_id: str, made: Sequence[str] = ()) -> list[Batch]:
        """Those listed that were submitted for a run, in whichever process; and those `made` by this one, whatever their metadata say."""
        found = [self._batch(one, run_id) async for one in self._client.batches.list(limit=100)]
        return [batch for batch in found if batch.is_marked or batch.batch_id in made]

    async def one(self, batch_id: str, run_id: str) -> Batch:
        """Of which only the id is known."""
        return self._batch(await self._client.batches.retrieve(batch_id), run_id)

    async def names(self, batch: Batch) -> set[str]:
        """What it asks for; nothing where the file that says so is gone."""
        lines = await self._lines(batch.input_file)
        return set() if lines is None else set(lines.by_name)

    async def replies(self, batch: Batch, names: Iterable[str]) -> dict[str, Reply]:
        """What came of one that is over, by name. What of these `names` stands in no file of one that did not come to its end was not done,
        and is not billed; of all else that cannot be read nobody knows."""
        replies: dict[str, Reply] = {}
        why = fault("garbled", f"The batch {batch.batch_id} has no line for it that can be read.") if batch.is_complete else None
        for file in batch.files:
            lines = await self._lines(file, may_be_gone=time.time() - batch.created_at > KEPT_S)
            if lines is None:
                why = fault(
                    "cancelled", f"A file of the batch {batch.batch_id} is gone; what it made is lost, and whether it is billed not known."
                )
                continue
            if not lines.is_whole:
                why = why or fault("garbled", f"The batch {batch.batch_id} has a line that cannot be read, which may be of this.")
            replies |= {name: self._reply(batch, line) for name, line in lines.by_name.items()}
        return replies if why is None else dict.fromkeys(names, why) | replies

    def _reply(self, batch: Batch, line: Mapping[str, Any]) -> Reply:
        answer, error = line.get("response"), line.get("error")
        if isinstance(answer, dict) and isinstance(answer.get("body"), dict):
            status = answer.get("status_code") or 200
            if isinstance(status, int):
                return self._read(status, answer["body"])
            return fault("garbled", f"The batch {batch.batch_id} has an answer whose status is {told(repr(status), *self._secrets)}.")
        said = (error.get("message") if isinstance(error, dict) else error) or "no answer"  # expired or cancelled before its turn
        return fault("server_error", f"The batch {batch.batch_id} did not come to it: {told(said, *self._secrets)}")

    async def _lines(self, file_id: str, *, may_be_gone: bool = True) -> _Lines | None:
        """None where the file is gone: deleted, or kept no longer."""
        from openai import APIStatusError

        try:
            content = await self._client.files.content(file_id)
        except APIStatusError as cause:
            if may_be_gone and cause.status_code in GONE:
                return None
            raise
        by_name: dict[str, dict[str, Any]] = {}
        is_whole = True
        for text in content.text.split("\n"):  # not splitlines: what Unicode calls a line's end may stand in a JSON string as it is
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            if isinstance(line, dict) and isinstance(line.get("custom_id"), str):
                by_name[line["custom_id"]] = line
            else:
                is_whole = False
        return _Lines(by_name, is_whole)

    def _batch(self, found: "Told", run_id: str) -> Batch:
        errors = found.errors.data if found.status == "failed" and found.errors is not None and found.errors.data else []
        return Batch(
            batch_id=found.id,
            is_over=found.status not in UNDER_WAY,
            input_file=found.input_file_id,
            files=[name for name in (found.output_file_id, found.error_file_id) if name],
            error="; ".join(told(one.message, *self._secrets) for one in errors) if found.status == "failed" else None,
            is_crowded=any(one.code == CROWDED for one in errors),
            is_marked=(found.metadata or {}).get(MARK) == run_id,
            is_complete=found.status == "completed",
            created_at=found.created_at or 0,
        )
