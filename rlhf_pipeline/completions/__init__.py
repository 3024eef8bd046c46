"""Completing prompts: one engine, one file per backend. `BACKENDS` is the list of what there is."""

from collections.abc import Callable
from typing import Any

from rlhf_pipeline.completions.anthropic import ADDRESS, AnthropicBackend
from rlhf_pipeline.completions.base import (
    CompletionBackend,
    CompletionRequest,
    CompletionResult,
    DirectBackend,
    HostedBackend,
    Reply,
)
from rlhf_pipeline.completions.engine import Generation, generate
from rlhf_pipeline.completions.keys import provider_key
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.completions.local import LocalBackend
from rlhf_pipeline.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.completions.request_plan import CompletionParams
from rlhf_pipeline.completions.template import TemplateBackend
from rlhf_pipeline.config import Settings
from rlhf_pipeline.plugins import Members

# Each is made with arguments of its own: a folder, an address, or nothing. Those of other packages
# are made with nothing.
_OWN: dict[str, Callable[..., CompletionBackend]] = {
    "template": TemplateBackend,
    "local": LocalBackend,
    "openai_compatible": OpenAICompatibleBackend,
    "anthropic": AnthropicBackend,
}
BACKENDS = Members("completions", _OWN)


def hosted_backend(settings: Settings, *, timeout_s: float = 60.0) -> CompletionBackend | None:
    """The provider that the settings name, at its own address unless they name another; None where
    completions are made otherwise.
    """
    if settings.completion_backend == "openai_compatible":
        return OpenAICompatibleBackend(
            settings.api_model, settings.base_url, provider_key(settings), timeout_s=timeout_s
        )
    if settings.completion_backend == "anthropic":
        is_named = settings.base_url != Settings.model_fields["base_url"].default
        address = settings.base_url if is_named else ADDRESS
        return AnthropicBackend(
            settings.api_model, address, provider_key(settings), timeout_s=timeout_s
        )
    return None


def default_call_params(settings: Settings, **more: Any) -> CallParams:
    """How providers are asked where nobody says it for the one time: at the prices and within the
    budget of the settings.
    """
    prices = {
        name: getattr(settings, name)
        for name in ("prompt_price", "completion_price", "budget_per_day")
    }
    return CallParams(**(prices | more))


__all__ = [
    "BACKENDS",
    "AnthropicBackend",
    "CallParams",
    "CompletionBackend",
    "CompletionParams",
    "CompletionRequest",
    "CompletionResult",
    "DirectBackend",
    "Generation",
    "HostedBackend",
    "LocalBackend",
    "OpenAICompatibleBackend",
    "Reply",
    "TemplateBackend",
    "default_call_params",
    "generate",
    "hosted_backend",
]
