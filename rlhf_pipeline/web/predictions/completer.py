"""Streams one completion by the configured provider."""

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError, PipelineError
from rlhf_pipeline.generate.completions import (
    CallParams,
    CompletionParams,
    HostedBackend,
    RequestedBy,
    generate,
    open_backend,
)
from rlhf_pipeline.generate.prompts.base import Draft, to_frame
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.problems import RETRY_SOON, Problem

ASSET = "web"  # asset name of these calls in the ledger
NO_DAY = (
    "2000-01-01"  # they belong to no day, so that a repeated request is answered from the cache
)
AT_MOST = 8  # concurrent streams: each holds one of the forty threads that all routes share
# between two comments while the provider is silent: proxies drop silent streams
STILL_HERE_S = 15.0


@dataclass(frozen=True)
class CompletionEvent:
    """`piece` of the text, `again` when earlier pieces are void, and finally `completion` or
    `failed`.
    """

    name: str
    data: dict[str, Any]

    def __str__(self) -> str:
        return f"event: {self.name}\ndata: {json.dumps(self.data)}\n\n"


class Completer:
    """Calls the configured provider through the ledger; completions are stored and requested only
    once.
    """

    def __init__(self, settings: Settings, store: Store):
        self._settings = settings
        self._store = store
        self._places = threading.BoundedSemaphore(AT_MOST)

    def stream(self, prompt: str, params: CompletionParams) -> Iterator[str]:
        """Server-sent events. Raises Problem 409 without a provider, 503 with too many streams,
        before the first event.
        """
        try:
            backend = open_backend(self._settings, self._refuse_policy)
            calls = LoopSettings.read(self._settings, only="completions").calls(concurrency=1)
            calls.budget  # noqa: B018 validated before anything is requested
        except ConfigurationError as cause:
            raise Problem(
                409, f"The provider of this server cannot be used: {cause}", kind="no_provider"
            ) from cause
        if not isinstance(backend, HostedBackend):
            self._refuse_policy()
        if not self._places.acquire(blocking=False):
            raise Problem(
                503,
                f"{AT_MOST} completions are already being streamed. Retry in a moment.",
                kind="too_many_streams",
                headers=RETRY_SOON,
            )
        events: queue.SimpleQueue[CompletionEvent | None] = queue.SimpleQueue()
        # In a thread of its own: a client that disconnects does not end a paid call.
        threading.Thread(
            target=self._complete,
            args=(backend, calls, prompt, params, events),
            name="completion-stream",
            daemon=True,
        ).start()
        return _render_events(events)

    def _refuse_policy(self) -> NoReturn:
        raise Problem(
            409,
            f"The completion backend {self._settings.completion_backend!r} runs only in the "
            "asset `completions` and in `rlhf generate`; this server uses hosted providers. "
            "Set RLHF_COMPLETION_BACKEND to openai_compatible or anthropic.",
            kind="no_provider",
        )

    def _complete(
        self,
        backend: HostedBackend,
        calls: CallParams,
        prompt: str,
        params: CompletionParams,
        events: "queue.SimpleQueue[CompletionEvent | None]",
    ) -> None:
        pieces: list[str] = []

        def listen(_: int, piece: str | None) -> None:
            if piece is None:
                pieces.clear()
                events.put(CompletionEvent("again", {}))
            else:
                pieces.append(piece)
                events.put(CompletionEvent("piece", {"text": piece}))

        try:
            # a required column of the frame, which nothing below reads
            draft = Draft(prompt, "factual", "easy")
            frame = to_frame([(draft.prompt_id, draft)], source="dataset", day=NO_DAY, seed=0)
            generation = generate(
                frame,
                backend,
                params,
                ledger=self._store.generation,
                calls=calls,
                requested_by=RequestedBy(ASSET),
                on_text=listen,
            )
            row = generation.frame.iloc[0]
            if not pieces:  # it came from the cache
                events.put(CompletionEvent("piece", {"text": row["text"]}))
            whole = {
                name: row[name]
                for name in ("completion_id", "text", "model_version", "finish_reason")
            }
            events.put(
                CompletionEvent(
                    "completion",
                    whole | {name: int(row[name]) for name in ("n_prompt_tokens", "n_tokens")},
                )
            )
        except PipelineError as cause:
            events.put(CompletionEvent("failed", {"error": str(cause)}))
        except Exception:
            events.put(
                CompletionEvent(
                    "failed", {"error": "The server failed. This is a bug; see its log."}
                )
            )
            raise
        finally:
            events.put(None)
            self._places.release()


def _render_events(events: "queue.SimpleQueue[CompletionEvent | None]") -> Iterator[str]:
    while True:
        try:
            event = events.get(timeout=STILL_HERE_S)
        except queue.Empty:
            yield ": still here\n\n"
            continue
        if event is None:
            return
        yield str(event)
