"""What every generator must keep, whoever brought it: `keeps_the_promises(make)`, for the shipped
ones and for those of packages alike.
"""

import pandas as pd
import pytest

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.frames import PROMPTS, check_frame
from rlhf_pipeline.prompts import PromptParams, Report, generate_with, quotas
from rlhf_pipeline.prompts.base import prompt_id
from rlhf_pipeline.records import Category, Difficulty

DAY = "2026-01-01"
WORDS = (  # noqa: SIM905
    "amber brook candle desert engine forest garden harbor island jungle kettle lantern meadow "
    "needle orchard pebble"
).split()


def keeps_the_promises(make, *, categories=tuple(Category), levels=True):
    """Holds a generator to the protocol: `make` gives it afresh; `categories` are those it has,
    without `levels` it has one difficulty.
    """
    shares = dict.fromkeys(categories, 1.0)
    params = PromptParams(n=50, categories=shares, seed=3)
    first = generate_with(make(), params, day=DAY)
    pd.testing.assert_frame_equal(check_frame(first, PROMPTS), first)
    assert list(first.columns) == list(PROMPTS.columns)
    assert len(first) == 50
    assert first["category"].value_counts().to_dict() == quotas(50, shares)
    assert set(first["source"]) == {make().name}
    assert first["seed"].nunique() == 1
    assert first["prompt_id"].is_unique
    assert [
        prompt_id(t, None if pd.isna(r) else r)
        for t, r in zip(first["text"], first["reference"], strict=True)
    ] == list(first["prompt_id"])
    pd.testing.assert_frame_equal(generate_with(make(), params, day=DAY), first)
    other = generate_with(make(), params, day="2026-01-02")
    assert other["seed"].iloc[0] != first["seed"].iloc[0]
    some = frozenset(first["prompt_id"][:5])
    report = Report()
    assert not some & set(
        generate_with(
            make(), params.model_copy(update={"n": 24}), day=DAY, exclude=some, report=report
        )["prompt_id"]
    )
    assert report.n_kept == 24
    kept = generate_with(make(), PromptParams(n=5, must_not=["nobody"], max_chars=5000), day=DAY)
    assert len(kept) == 5
    with pytest.raises(
        PromptError, match=r"has 0 unused \w+ prompts, 1 were asked for|no prompt to begin from"
    ):
        generate_with(make(), PromptParams(n=1, must=["antidisestablishment"]), day=DAY)
    if levels:
        each = generate_with(
            make(),
            PromptParams(
                n=6 * len(shares), categories=shares, difficulties=dict.fromkeys(Difficulty, 1.0)
            ),
            day=DAY,
        )
        assert set(each.groupby(["category", "difficulty"]).size()) == {2}
