"""What backends of HTTP providers share: address and key, and answers turned into replies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel, SecretStr

from rlhf_pipeline.completions.base import CompletionRequest, OnText, Reply
from rlhf_pipeline.completions.faults import fault, provider_fault, seconds_until_quota_resets
from rlhf_pipeline.completions.redaction import address_of, check_address, provider_of, secrets_of
from rlhf_pipeline.completions.responses import (
    billing_of,
    build_reply,
    find_error,
    parse_answer,
    parse_count,
    transport_errors,
    transport_fault,
)
from rlhf_pipeline.plugins import NoParams
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.secret_files import clean_key


class HTTPBackend:
    """One call is one request: nothing is retried here. The key appears in no error and no `repr`.

    A subclass makes the client, encodes requests and parses messages; it satisfies HostedBackend.
    """

    Params: ClassVar[type[BaseModel]] = NoParams
    # names of the tokens of the prompt and of the completion in the provider's `usage`
    counts: ClassVar[tuple[str, str]]

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: SecretStr | None = None,
        *,
        model_version: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.model = model
        self.base_url = check_address(base_url)
        self.api_key = clean_key(api_key)
        self.model_version = model_version or model
        self.timeout_s = timeout_s
        self.has_answered = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, {self.provider!r})"

    @property
    def provider(self) -> str:
        return provider_of(self.base_url)

    async def call(self, request: CompletionRequest, on_text: OnText | None = None) -> Reply:
        partial: list[str] = []
        try:
            return await (
                self._fetch_whole(request)
                if on_text is None
                else self._stream(request, on_text, partial)
            )
        except self.error_types() as cause:
            return await self.classify_error(cause, partial)

    def error_types(self) -> tuple[type[Exception], ...]:
        """Errors that a call to this provider can raise; see `classify_error`."""
        return (ValueError, *transport_errors())

    async def classify_error(self, cause: BaseException, partial: Sequence[str] = ()) -> Reply:
        """The Reply that such an error means. `partial`: the pieces that were received before."""
        return transport_fault(
            cause,
            self._public_address,
            self._secrets,
            partial="".join(partial) if partial else None,
        )

    async def _fetch_whole(self, request: CompletionRequest) -> Reply:
        raise NotImplementedError

    async def _stream(
        self, request: CompletionRequest, on_text: OnText, partial: list[str]
    ) -> Reply:
        """Read the stream; `partial` keeps the received pieces even if an error ends it. A stream
        without a reason for its end is incomplete.
        """
        raise NotImplementedError

    def _parse_message(
        self, found: dict[str, Any], status: int, headers: Mapping[str, str]
    ) -> Reply:
        raise NotImplementedError

    def _parse_whole(self, content: bytes, status: int, headers: Mapping[str, str]) -> Reply:
        kind = headers.get("content-type", "")
        found = parse_answer(content, kind, self._public_address, self._secrets)
        return found if isinstance(found, Reply) else self._parse_message(found, status, headers)

    def _build_reply(
        self,
        text: str,
        refusal: str | None,
        reason: str,
        usage: object,
        status: int,
        headers: Mapping[str, str],
    ) -> Reply:
        """The completion, or the provider's `refusal` in its own words."""
        if refusal is not None:
            said = f"{self.model} refused: {refusal}"
            reply = fault("refusal", said, status=status, **self._usage_fields(usage))
        else:
            n_prompt, n = self._count_tokens(usage)
            is_told = isinstance(usage, dict) and bool(usage)
            reply = build_reply(text, reason, n_prompt, n, status, self.model, is_told=is_told)
        wait_s = seconds_until_quota_resets(headers, utc_now())
        return reply if wait_s is None else replace(reply, wait_s=wait_s)

    def _usage_fields(self, usage: object) -> dict[str, Any]:
        n_prompt, n = self._count_tokens(usage)
        return {"n_prompt_tokens": n_prompt, "n_tokens": n, "billing": billing_of(usage)}

    def _count_tokens(self, usage: object) -> tuple[int, int]:
        counted = usage if isinstance(usage, dict) else {}
        n_prompt, n = (parse_count(counted.get(name)) for name in self.counts)
        return n_prompt, n

    def _parse_refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> Reply:
        found = parse_answer(content, "", self._public_address, self._secrets)
        return self._build_failure(
            status, headers, find_error(found) or {"message": content.decode("utf-8", "replace")}
        )

    def _build_failure(
        self, status: int, headers: Mapping[str, str], error: Mapping[str, Any], **begun: Any
    ) -> Reply:
        return provider_fault(
            self.model, self._public_address, status, headers, error, self._secrets, **begun
        )

    @property
    def _public_address(self) -> str:
        return address_of(self.base_url)

    @property
    def _key(self) -> str:
        return self.api_key.get_secret_value() if self.api_key else ""

    @property
    def _secrets(self) -> Sequence[str]:
        return (self._key, *secrets_of(self.base_url))
