"""Reads frozen conversations from what serves a policy: its tokens and their log probabilities.

vLLM tokenises conversations (`POST /tokenize`) and measures given tokens (`prompt_logprobs` of
`POST /v1/completions`). It computes these without its prefix cache, so the first token of an answer
is read as well. Other servers of OpenAI's API give the log probabilities of that token alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.conversations import build_chat
from rlhf_pipeline.core.errors import BackendUnavailable, CompletionError
from rlhf_pipeline.generate.completions.local import LocalBackend
from rlhf_pipeline.generate.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.generate.completions.server_calls import ServerCalls
from rlhf_pipeline.generate.policy.frozen_exchanges import FrozenExchange, FrozenPolicy

N_TOP = 5  # log probabilities of the first token: some servers give no more
N_ENDS = 2  # conversations whose end token a server is asked about
NO_ADDRESS = (404, 405, 501)


@dataclass(frozen=True)
class ServedReading:
    """What was read of one conversation; None where it could not be. `log_p` is of the frozen
    tokens but the first, in nats, `first_tokens` the log probability of possible first tokens of
    an answer, by id or by text. `ends`: whether an answer ends at the frozen end token.
    """

    prompt_ids: list[int] | None = None
    log_p: npt.NDArray[np.float64] | None = None
    first_tokens: Mapping[int | str, float] | None = None
    ends: bool | None = None
    context_length: int | None = None

    @property
    def says_nothing(self) -> bool:
        return self.prompt_ids is None and self.first_tokens is None


class ServedReader(Protocol):
    """`n_requests` counts what it asked so far."""

    n_requests: int

    def read(self, exchange: FrozenExchange) -> ServedReading:
        """Raises BackendUnavailable if what serves cannot be read."""
        ...


def open_reader(backend: object, frozen: FrozenPolicy) -> ServedReader | None:
    """None for a backend that gives no log probabilities."""
    if isinstance(backend, LocalBackend):
        return LocalReader(backend)
    if isinstance(backend, OpenAICompatibleBackend):
        return ServerReader(backend, frozen)
    return None


class LocalReader:
    """Reads the policy that a backend on this machine answers with, as it does for a chat."""

    def __init__(self, backend: LocalBackend) -> None:
        self._policy = backend.loaded_policy
        self.n_requests = 0

    def read(self, exchange: FrozenExchange) -> ServedReading:
        self.n_requests += 1
        policy = self._policy
        try:
            prompt_ids = policy.tokenize_prompt(exchange.prompt)
        except CompletionError:  # its template refuses the conversation
            prompt_ids = []
        return ServedReading(
            prompt_ids=prompt_ids,
            log_p=policy.measure_log_p([exchange.ids])[0],
            ends=exchange.answer_ids[-1] in policy.stop_ids(),
            context_length=policy.context_length,
        )


class ServerReader:
    """Reads a vLLM, or another server of OpenAI's API."""

    def __init__(self, backend: OpenAICompatibleBackend, frozen: FrozenPolicy) -> None:
        self._calls = ServerCalls(backend.base_url, backend.api_key, backend.timeout_s)
        self._model = backend.model
        self._end_text = frozen.end_text
        self._is_vllm: bool | None = None
        self._context_length: int | None = None
        self._n_ends = 0
        self.n_requests = 0

    def read(self, exchange: FrozenExchange) -> ServedReading:
        messages = build_chat(exchange.prompt)
        if self._is_vllm is not False:
            tokenized = self._ask("/tokenize", {"messages": messages}, of_root=True)
            if tokenized is None and self._is_vllm:  # it refuses this conversation
                return ServedReading(prompt_ids=[], context_length=self._context_length)
            self._is_vllm = tokenized is not None and "tokens" in tokenized
            if self._is_vllm:
                return self._read_vllm(exchange, tokenized)
        answer = self._ask(
            "/chat/completions",
            {
                "messages": messages,
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": N_TOP,
            },
        )
        [choice] = (answer or {}).get("choices") or [{}]
        content = (choice.get("logprobs") or {}).get("content") or [{}]
        top = content[0].get("top_logprobs") or ()
        return ServedReading(
            first_tokens={entry["token"]: entry["logprob"] for entry in top} or None
        )

    def _read_vllm(self, exchange: FrozenExchange, tokenized: dict[str, Any]) -> ServedReading:
        self._context_length = context_length = tokenized["max_model_len"]
        reading = ServedReading(prompt_ids=tokenized["tokens"], context_length=context_length)
        ids = list(exchange.ids)
        if tuple(tokenized["tokens"]) != exchange.prompt_ids or len(ids) >= context_length:
            return reading
        measured = self._complete(ids, prompt_logprobs=0)
        log_p = [
            entry[str(token)]["logprob"]
            for token, entry in zip(ids[1:], measured["prompt_logprobs"][1:], strict=True)
        ]
        first = self._complete(
            list(exchange.prompt_ids), logprobs=1, return_tokens_as_token_ids=True
        )["logprobs"]
        token = int(first["tokens"][0].removeprefix("token_id:"))
        return ServedReading(
            prompt_ids=reading.prompt_ids,
            log_p=np.array(log_p, dtype=np.float64),
            first_tokens={token: first["token_logprobs"][0]},
            ends=self._read_end(ids),
            context_length=context_length,
        )

    def _read_end(self, ids: list[int]) -> bool | None:
        """Let the server write the end token. None for later conversations, and if it wrote
        another one.
        """
        self._n_ends += 1
        if self._n_ends > N_ENDS:
            return None
        choice = self._complete(ids[:-1], allowed_token_ids=[ids[-1]], skip_special_tokens=False)
        if choice["finish_reason"] == "stop":
            return True
        return False if choice["text"] == self._end_text else None

    def _complete(self, ids: list[int], **more: Any) -> dict[str, Any]:
        body = {"prompt": ids, "max_tokens": 1, "temperature": 0}
        answer = self._ask("/completions", body | more)
        if not answer or not answer.get("choices"):
            raise BackendUnavailable(
                f"{self._calls.address} tokenises like a vLLM, but does not complete token ids."
            )
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def _ask(self, path: str, body: dict[str, Any], *, of_root: bool = False) -> Any:
        """The answer, None for an address or parameters that the server does not know. Raises
        BackendUnavailable for other refusals.
        """
        self.n_requests += 1
        answer = self._calls.post(path, {"model": self._model} | body, of_root=of_root)
        is_refused = answer.status_code == 400 and "messages" in body
        if answer.status_code in NO_ADDRESS or is_refused:
            return None
        if not answer.is_success:
            raise BackendUnavailable(
                f"{self._calls.address} answers {answer.status_code}: "
                f"{self._calls.redact(answer.text)}"
            )
        return answer.json()
