"""Writes texts by a completion backend: prompts, judgements, or two completions of one prompt."""

from collections.abc import Sequence

from rlhf_pipeline.core.protocols import WorkLedger
from rlhf_pipeline.core.records import content_hash, content_id
from rlhf_pipeline.generate.completions.base import CompletionBackend, CompletionRequest
from rlhf_pipeline.generate.completions.limits import CallParams
from rlhf_pipeline.generate.completions.results import complete_requests


class BackendTextGenerator:
    """`TextGenerator` by a backend. A text that cannot be completed is "", which is not a prompt;
    `failures_` counts the reasons.

    Requests go through `ledger` under the name `asset`: recorded, made and paid once, within the
    budget of `calls`.
    """

    def __init__(
        self,
        backend: CompletionBackend,
        ledger: WorkLedger,
        *,
        temperature: float = 1.0,
        top_p: float = 0.95,
        max_tokens: int = 400,
        calls: CallParams | None = None,
        asset: str = "prompts",
    ) -> None:
        self._backend = backend
        self._ledger = ledger
        self._calls = calls or CallParams()
        self._asset = asset
        self._temperature = temperature
        self._top_p = top_p
        self._max_tokens = max_tokens
        self.failures_: dict[str, int] = {}

    def generate_texts(self, instructions: Sequence[str], *, seed: int) -> list[str]:
        """One text per instruction, in order. Raises BackendUnavailable if nothing can be
        completed at all.
        """
        return [text or "" for text in self._complete(instructions, seed)]

    def _complete(self, texts: Sequence[str], seed: int) -> list[str | None]:
        requests = [
            CompletionRequest(
                prompt_id=content_id("text", text),
                prompt=text,
                temperature=self._temperature,
                top_p=self._top_p,
                sample_index=i,
                seed=int(content_hash(seed, i)[:7], 16),
                max_tokens=self._max_tokens,
            )
            for i, text in enumerate(texts)
        ]
        completions: list[str | None] = []
        results = complete_requests(
            self._backend, requests, ledger=self._ledger, calls=self._calls, asset=self._asset
        )
        for _, result in results:
            if result.error is not None:
                self.failures_[result.error] = self.failures_.get(result.error, 0) + 1
            completions.append(None if result.error is not None else result.text)
        return completions
