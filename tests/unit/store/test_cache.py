"""The cache of completions never serves a wrong text: its key has everything that decides one."""

from typing import Any

import pytest

from rlhf_pipeline.generate.completions.base import CompletionRequest
from rlhf_pipeline.generate.completions.request_plan import cache_key

REQUEST = CompletionRequest(
    prompt_id="p0", prompt="Why?", temperature=0.7, top_p=0.9, sample_index=1, seed=5, max_tokens=48
)


class Named:
    """A backend as far as a key knows it."""

    def __init__(self, name: str = "local", model_version: str = "demo.policy@1"):
        self.name = name
        self.model_version = model_version


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt": "Why not?"},
        {"temperature": 0.8},
        {"top_p": 1.0},
        {"sample_index": 2},
        {"seed": 6},
        {"max_tokens": 49},
        {"system": "Be brief."},
        {"stop": ("\n",)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_every_text_relevant_field_changes_the_cache_key(changed: dict[str, Any]):
    assert cache_key(Named(), REQUEST.model_copy(update=changed)) != cache_key(Named(), REQUEST)


def test_cache_key_covers_all_fields_but_the_prompt_id():
    """A new field has to say here what it is."""
    assert set(CompletionRequest.model_fields) == {
        "prompt_id",
        "prompt",
        "temperature",
        "top_p",
        "sample_index",
        "seed",
        "max_tokens",
        "system",
        "stop",
    }
    assert cache_key(Named(), REQUEST.model_copy(update={"prompt_id": "p1"})) == cache_key(
        Named(), REQUEST
    )
