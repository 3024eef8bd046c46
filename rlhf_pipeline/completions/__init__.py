"""Completing prompts: one engine, one file per backend. `BACKENDS` is the list of what there is."""

from collections.abc import Callable

from rlhf_pipeline.completions.base import CompletionBackend, CompletionRequest, CompletionResult
from rlhf_pipeline.completions.engine import CompletionParams, complete_prompts
from rlhf_pipeline.completions.local import LocalBackend
from rlhf_pipeline.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.completions.template import TemplateBackend
from rlhf_pipeline.plugins import Members

# Each is made with arguments of its own: a folder, an address, or nothing. Those of other packages are made with nothing.
_OWN: dict[str, Callable[..., CompletionBackend]] = {
    "template": TemplateBackend,
    "local": LocalBackend,
    "openai_compatible": OpenAICompatibleBackend,
}
BACKENDS = Members("completions", _OWN)

__all__ = [
    "BACKENDS",
    "CompletionBackend",
    "CompletionParams",
    "CompletionRequest",
    "CompletionResult",
    "LocalBackend",
    "OpenAICompatibleBackend",
    "TemplateBackend",
    "complete_prompts",
]
