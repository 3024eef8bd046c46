"""The cache of completions never serves a wrong text: each thing that decides a text is in its key,
each value proves itself.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_pipeline.completions.base import CompletionRequest
from rlhf_pipeline.completions.request_plan import cache_key
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import completion_cache

REQUEST = CompletionRequest(
    prompt_id="p0", prompt="Why?", temperature=0.7, top_p=0.9, sample_index=1, seed=5, max_tokens=48
)


class Named:
    """A backend as far as a key knows it."""

    def __init__(self, name: str = "local", model_version: str = "demo.policy@1"):
        self.name = name
        self.model_version = model_version


def poison(store: Store, change: Callable[[str], str], key: str) -> None:
    """Change a stored value behind the cache's back."""
    at = completion_cache.c.cache_key == key
    with store.database.write_transaction() as connection:
        before = connection.execute(completion_cache.select().where(at)).one().value
        connection.execute(completion_cache.update().where(at).values(value=change(before)))


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
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_field_of_a_request_that_decides_its_text_changes_the_key(changed: dict[str, Any]):
    assert cache_key(Named(), REQUEST.model_copy(update=changed)) != cache_key(Named(), REQUEST)


def test_every_field_of_a_request_is_keyed_but_the_prompts_id():
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
    }
    assert cache_key(Named(), REQUEST.model_copy(update={"prompt_id": "p1"})) == cache_key(
        Named(), REQUEST
    )


@pytest.mark.parametrize(
    ("how", "change"),
    [
        ("another text of the same length", lambda value: value.replace("blue", "grey")),
        ("cut off", lambda value: value[:-1]),
        ("lengthened", lambda value: value + " "),
        ("its hash changed", lambda value: ("0" if value[0] != "0" else "1") + value[1:]),
        ("without a hash, as before there were any", lambda value: value[64:]),
        ("empty", lambda value: ""),
    ],
    ids=lambda how: how if isinstance(how, str) else "",
)
def test_a_poisoned_value_is_a_miss_told_of_and_replaced(store, caplog, how, change):
    store.completions_cache.put_many({"k0": "the sky is blue — ü", "k1": "sound"})
    poison(store, change, "k0")
    with caplog.at_level(logging.WARNING, logger="rlhf_pipeline.store.completions_cache"):
        assert store.completions_cache.get_many(["k0", "k1"]) == {"k1": "sound"}, how
    (said,) = caplog.messages
    assert said.startswith("1 cached completions are not what was stored (the first: k0)")
    store.completions_cache.put_many({"k0": "made again", "k1": "another"})
    assert store.completions_cache.get_many(["k0", "k1"]) == {"k0": "made again", "k1": "sound"}


def test_a_value_under_another_key_is_not_served(store):
    store.completions_cache.put_many({"k0": "one", "k1": "two"})
    with store.database.read_transaction() as connection:
        of_k1 = (
            connection.execute(
                completion_cache.select().where(completion_cache.c.cache_key == "k1")
            )
            .one()
            .value
        )
    poison(store, lambda _: of_k1, "k0")
    assert store.completions_cache.get_many(["k0", "k1"]) == {"k1": "two"}
