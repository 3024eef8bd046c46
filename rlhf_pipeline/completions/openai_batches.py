"""OpenAI's Batch API: many requests in a file, answered within a day, at half the price. Knows files and batches; knows no ledger."""

import json
from collections.abc import Callable, Mapping, Sequence
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
CROWDED = "token_limit_exceeded"  # the queue has no room for so much: of one that was refused, nothing was done


@dataclass(frozen=True, slots=True)
class Batch:
    """One that was submitted. `error` says why it failed as a whole, `is_crowded` that there was no room for so much beside what is under
    way; `is_marked` that its metadata say whose it is."""

    batch_id: str
    is_over: bool
    input_file: str
    files: Sequence[str]
    error: str | None
    is_crowded: bool
    is_marked: bool
    created_at: int


class OpenAIBatches:
    """Of one backend: `body` says how a request is written there, `read` what an answer comes to."""

    def __init__(
        self,
        client: "AsyncOpenAI",
        body: Callable[[CompletionRequest], dict[str, Any]],
        read: Callable[[int, Mapping[str, Any]], Reply],
    ) -> None:
        self._client = client
        self._body = body
        self._read = read

    async def submit(self, named: Mapping[str, CompletionRequest], run_id: str) -> Batch:
        """One batch of these. It exists, marked with the run, once this returns; killed before, at most a file was left behind."""
        lines = (
            json.dumps({"custom_id": name, "method": "POST", "url": ENDPOINT, "body": self._body(request)})
            for name, request in named.items()
        )
        content = "\n".join(lines).encode()
        file = await self._client.files.create(file=("requests.jsonl", content, "application/jsonl"), purpose="batch")
        made = await self._client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={MARK: run_id})
        return _batch(made, run_id)

    async def of_run(self, run_id: str, made: Sequence[str] = ()) -> list[Batch]:
        """Those listed that were submitted for a run, in whichever process; and those `made` by this one, whatever their metadata say."""
        found = [_batch(one, run_id) async for one in self._client.batches.list(limit=100)]
        return [batch for batch in found if batch.is_marked or batch.batch_id in made]

    async def one(self, batch_id: str, run_id: str) -> Batch:
        """Of which only the id is known."""
        return _batch(await self._client.batches.retrieve(batch_id), run_id)

    async def names(self, batch: Batch) -> set[str]:
        """What it asks for."""
        return set(await self._lines(batch.input_file))

    async def replies(self, batch: Batch) -> dict[str, Reply]:
        """What came of one that is over, by name. What stands in no file of it was not done, and is not billed."""
        replies: dict[str, Reply] = {}
        for name in batch.files:
            for custom_id, line in (await self._lines(name)).items():
                answer = line.get("response")
                if isinstance(answer, dict) and isinstance(answer.get("body"), dict):
                    replies[custom_id] = self._read(int(answer.get("status_code") or 200), answer["body"])
                else:  # expired or cancelled before its turn
                    said = (line.get("error") or {}).get("message") or "no answer"
                    replies[custom_id] = fault("server_error", f"The batch {batch.batch_id} did not come to it: {told(said, '')}")
        return replies

    async def _lines(self, file_id: str) -> dict[str, dict[str, Any]]:
        content = await self._client.files.content(file_id)
        found = (json.loads(line) for line in content.text.splitlines() if line.strip())
        return {str(line["custom_id"]): line for line in found if isinstance(line, dict) and "custom_id" in line}


def _batch(found: "Told", run_id: str) -> Batch:
    errors = found.errors.data if found.status == "failed" and found.errors is not None and found.errors.data else []
    return Batch(
        batch_id=found.id,
        is_over=found.status not in UNDER_WAY,
        input_file=found.input_file_id,
        files=[name for name in (found.output_file_id, found.error_file_id) if name],
        error="; ".join(str(one.message) for one in errors) if found.status == "failed" else None,
        is_crowded=any(one.code == CROWDED for one in errors),
        is_marked=(found.metadata or {}).get(MARK) == run_id,
        created_at=found.created_at or 0,
    )
