"""Completes prompts: one engine, one file per backend. `BACKENDS` lists the backends."""

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.generate.completions.anthropic import AnthropicBackend
from rlhf_pipeline.generate.completions.base import (
    ChampionPolicy,
    CompletionBackend,
    CompletionRequest,
    CompletionResult,
    ConfiguredBackend,
    DirectBackend,
    HostedBackend,
    Reply,
)
from rlhf_pipeline.generate.completions.engine import Generation, RequestedBy, generate
from rlhf_pipeline.generate.completions.limits import CallParams
from rlhf_pipeline.generate.completions.local import LocalBackend
from rlhf_pipeline.generate.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.generate.completions.request_plan import CompletionParams
from rlhf_pipeline.generate.completions.template import TemplateBackend

# A new backend: one file with one class that satisfies DirectBackend or HostedBackend of base.py,
# and one line here.
BACKENDS = Members[type[ConfiguredBackend]](
    "completions",
    {
        "template": TemplateBackend,
        "local": LocalBackend,
        "openai_compatible": OpenAICompatibleBackend,
        "anthropic": AnthropicBackend,
    },
)


def open_backend(
    settings: Settings, policy: ChampionPolicy, *, timeout_s: float = 60.0
) -> CompletionBackend:
    """The backend that the settings name. `policy` finds the champion policy if it is needed."""
    return BACKENDS[settings.completion_backend].from_settings(
        settings, policy, timeout_s=timeout_s
    )


__all__ = [
    "BACKENDS",
    "AnthropicBackend",
    "CallParams",
    "ChampionPolicy",
    "CompletionBackend",
    "CompletionParams",
    "CompletionRequest",
    "CompletionResult",
    "ConfiguredBackend",
    "DirectBackend",
    "Generation",
    "HostedBackend",
    "LocalBackend",
    "OpenAICompatibleBackend",
    "Reply",
    "RequestedBy",
    "TemplateBackend",
    "generate",
    "open_backend",
]
