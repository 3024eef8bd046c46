"""Checks a prompt generator: exact quotas, repeatable days, and its rules."""

from collections.abc import Callable, Iterable

import pandas as pd

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.frames import PROMPTS, check_frame
from rlhf_pipeline.prompts import PromptParams, Report, generate_with, quotas
from rlhf_pipeline.prompts.base import PromptGenerator, prompt_id
from rlhf_pipeline.records import Category, Difficulty
from rlhf_pipeline.testing.members import check_member, expect_error

DAY, NEXT_DAY = "2026-01-01", "2026-01-02"


def check_generator(
    make: Callable[[], PromptGenerator],
    *,
    categories: Iterable[str] = tuple(Category),
    has_difficulties: bool = True,
) -> None:
    """Check a generator against its protocol. `make` returns a new one: a class, or a function.

    `categories` are the generator's categories; it needs about 60 prompts, ten of each. Pass
    `has_difficulties=False` if all its prompts are equally difficult. Raises AssertionError with
    the promise and the actual result.
    """
    name = make().name
    check_member(type(make()))
    shares = dict.fromkeys(categories, 1.0)
    params = PromptParams(n=50, categories=shares, seed=3)
    first = generate_with(make(), params, day=DAY)
    _check_frame(name, first, quotas(50, shares))
    again = generate_with(make(), params, day=DAY)
    assert again.equals(first), f"{name}: the same params and day give other prompts."
    other = generate_with(make(), params, day=NEXT_DAY)
    assert other["seed"].iloc[0] != first["seed"].iloc[0], f"{name}: two days share a seed."
    _check_exclusion(name, make, params, first)
    _check_rules(name, make)
    if has_difficulties:
        _check_difficulties(name, make, shares)


def _check_frame(name: str, frame: pd.DataFrame, wanted: dict[str, int]) -> None:
    assert check_frame(frame, PROMPTS).equals(frame), f"{name}: the frame breaks its schema."
    counts = frame["category"].value_counts().to_dict()
    assert counts == wanted, f"{name}: {counts} prompts by category, not {wanted}."
    sources = sorted(set(frame["source"]))
    assert sources == [name], f"{name}: the column `source` has {sources}."
    assert frame["seed"].nunique() == 1, f"{name}: one day has several seeds."
    assert frame["prompt_id"].is_unique, f"{name}: a prompt comes twice."
    for text, reference, found in frame[["text", "reference", "prompt_id"]].itertuples(index=False):
        expected = prompt_id(text, None if pd.isna(reference) else reference)
        assert found == expected, f"{name}: {text!r} has another id than its text and reference."


def _check_exclusion(
    name: str, make: Callable[[], PromptGenerator], params: PromptParams, first: pd.DataFrame
) -> None:
    excluded, report = frozenset(first["prompt_id"][:5]), Report()
    fewer = params.model_copy(update={"n": 24})
    frame = generate_with(make(), fewer, day=DAY, exclude=excluded, report=report)
    found = excluded & set(frame["prompt_id"])
    assert not found, f"{name}: excluded prompts come all the same: {sorted(found)}"
    assert report.n_kept == 24, f"{name}: the report counts {report.n_kept} kept prompts, not 24."


def _check_rules(name: str, make: Callable[[], PromptGenerator]) -> None:
    loose = PromptParams(n=5, must_not=["nobody"], max_chars=5000)
    assert len(generate_with(make(), loose, day=DAY)) == 5, f"{name}: a loose rule rejects prompts."
    message = expect_error(
        PromptError,
        lambda: generate_with(make(), PromptParams(n=1, must=["antidisestablishment"]), day=DAY),
        f"{name}: gives a prompt without the term that `must` requires.",
    )
    assert "0 unused" in message or "no prompt to begin from" in message, (
        f"{name}: the error for too few prompts does not say so: {message}"
    )


def _check_difficulties(
    name: str, make: Callable[[], PromptGenerator], shares: dict[str, float]
) -> None:
    equally = dict.fromkeys(Difficulty, 1.0)
    params = PromptParams(n=6 * len(shares), categories=shares, difficulties=equally)
    frame = generate_with(make(), params, day=DAY)
    counts = frame.groupby(["category", "difficulty"]).size()
    assert set(counts) == {2}, f"{name}: difficulties are not shared equally:\n{counts}"
