"""Which pairs are made, on which side, in which order, and which come again."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import COMPARISONS, COMPLETIONS, PROMPTS, check_frame
from rlhf_pipeline.generate.comparisons import PairingParams, pair_completions

DAY = "2026-01-02"


def make_prompts(n: int) -> pd.DataFrame:
    return check_frame(
        pd.DataFrame(
            {
                "day": DAY,
                "prompt_id": [f"p{i:03}" for i in range(n)],
                "text": [f"Prompt {i}" for i in range(n)],
                "category": "factual",
                "difficulty": "easy",
                "source": "templates",
                "template_id": None,
                "variables": "{}",
                "reference": None,
                "seed": 1,
            }
        ),
        PROMPTS,
    )


def make_completions(
    texts: dict[str, list[str]],
    temperatures: list[float] | None = None,
    errors: list[str] | None = None,
) -> pd.DataFrame:
    rows = [(p, i, text) for p, several in texts.items() for i, text in enumerate(several)]
    frame = pd.DataFrame(rows, columns=["prompt_id", "sample_index", "text"])
    return check_frame(
        frame.assign(
            day=DAY,
            completion_id=[f"c-{p}-{i}" for p, i, _ in rows],
            backend="template",
            model_version="demo.policy@1",
            temperature=[(temperatures or [1.0] * 9)[i] for _, i, _ in rows],
            top_p=1.0,
            seed=1,
            n_prompt_tokens=1,
            n_tokens=1,
            latency_ms=0.0,
            finish_reason="stop",
            error=[(errors or [])[i] if errors else None for _, i, _ in rows],
        ),
        COMPLETIONS,
    )


def four_each(n: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    prompts = make_prompts(n)
    return prompts, make_completions(
        {p: [f"{p} {k}" for k in "wxyz"] for p in prompts["prompt_id"]}
    )


def fresh(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["repeat_of"].isna()]


def test_a_day_of_comparisons_follows_the_schema_and_carries_the_texts() -> None:
    prompts, completions = four_each(20)
    frame = pair_completions(prompts, completions, PairingParams(pairs_per_prompt=2), day=DAY)
    pd.testing.assert_frame_equal(frame, check_frame(frame, COMPARISONS))
    assert len(fresh(frame)) == 40
    assert frame["position"].tolist() == list(range(len(frame)))
    texts = completions.set_index("completion_id")["text"]
    for side in ("a", "b"):
        assert (frame[f"completion_{side}_id"].map(texts) == frame[f"completion_{side}"]).all()
    assert (frame["prompt_id"].map(prompts.set_index("prompt_id")["text"]) == frame["prompt"]).all()


def test_two_pairs_of_four_use_all_four() -> None:
    frame = fresh(pair_completions(*four_each(30), PairingParams(pairs_per_prompt=2), day=DAY))
    used = frame.groupby("prompt_id")[["completion_a_id", "completion_b_id"]].apply(
        lambda g: len(set(g.to_numpy().ravel()))
    )
    assert used.eq(4).all()


def test_pairs_are_distinct_and_never_identical_texts() -> None:
    completions = make_completions({"p000": ["same", "same ", "other", "other"]})
    frame = pair_completions(
        make_prompts(1), completions, PairingParams(pairs_per_prompt=6, repeat_share=0), day=DAY
    )
    assert len(frame) == 1
    assert {frame["completion_a"][0].strip(), frame["completion_b"][0].strip()} == {"same", "other"}


def test_prompt_without_two_different_texts_has_no_pair() -> None:
    completions = make_completions({"p000": ["same"] * 4, "p001": ["alone"], "p002": ["a", "b"]})
    frame = pair_completions(make_prompts(4), completions, PairingParams(), day=DAY)
    assert frame["prompt_id"].unique().tolist() == ["p002"]


def test_pairs_can_require_different_parameters() -> None:
    completions = make_completions({"p000": ["a", "b", "c"]}, temperatures=[0.5, 0.5, 1.0])
    params = PairingParams(pairs_per_prompt=9, repeat_share=0, demand_different_parameters=True)
    frame = pair_completions(make_prompts(1), completions, params, day=DAY)
    pairs = {frozenset(pair) for pair in frame[["completion_a", "completion_b"]].to_numpy()}
    assert pairs == {frozenset("ac"), frozenset("bc")}
    none = make_completions({"p000": ["a", "b"]}, temperatures=[0.5, 0.5])
    assert pair_completions(make_prompts(1), none, params, day=DAY).empty


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random) -> None:  # type: ignore[no-untyped-def]
    prompts, completions = four_each(8)
    expected = pair_completions(
        prompts, completions, PairingParams(pairs_per_prompt=3, repeat_share=0.3), day=DAY
    )
    p, c = list(range(len(prompts))), list(range(len(completions)))
    random.shuffle(p)
    random.shuffle(c)
    shuffled = pair_completions(
        prompts.iloc[p],
        completions.iloc[c],
        PairingParams(pairs_per_prompt=3, repeat_share=0.3),
        day=DAY,
    )
    pd.testing.assert_frame_equal(shuffled, expected)


def test_the_seed_decides_pairs_sides_and_order() -> None:
    first, second = (
        pair_completions(*four_each(40), PairingParams(seed=s), day=DAY) for s in (0, 1)
    )
    assert set(first["comparison_id"]) != set(second["comparison_id"])
    assert fresh(first)["prompt_id"].tolist() != fresh(second)["prompt_id"].tolist()
    other_day = pair_completions(*four_each(40), PairingParams(), day="2026-01-03")
    assert set(first["comparison_id"]).isdisjoint(other_day["comparison_id"])


def test_a_repeat_swaps_sides_in_the_second_half_of_the_day() -> None:
    frame = pair_completions(
        *four_each(50), PairingParams(pairs_per_prompt=1, repeat_share=0.2), day=DAY
    ).set_index("comparison_id")
    again = frame[frame["repeat_of"].notna()]
    assert len(again) == 10
    first = frame.loc[again["repeat_of"]]
    for a, b in (
        ("completion_a_id", "completion_b_id"),
        ("completion_a", "completion_b"),
        ("model_version_a", "model_version_b"),
    ):
        assert again[a].tolist() == first[b].tolist()
        assert again[b].tolist() == first[a].tolist()
    assert (again["position"].to_numpy() - first["position"].to_numpy() >= 40).all()


def test_earlier_days_are_repeated_first_and_only_once() -> None:
    earlier = pair_completions(
        *four_each(6), PairingParams(pairs_per_prompt=1, repeat_share=0.34), day="2026-01-01"
    )
    repeated_already = set(earlier["repeat_of"].dropna())
    frame = pair_completions(
        *four_each(50),
        PairingParams(pairs_per_prompt=1, repeat_share=0.2),
        day=DAY,
        earlier=earlier,
    )
    repeated = set(frame["repeat_of"].dropna())
    assert len(repeated) == 10
    assert (
        repeated & set(earlier["comparison_id"])
        == set(fresh(earlier)["comparison_id"]) - repeated_already
    )
    assert len(repeated & set(frame["comparison_id"])) == 10 - 4
    assert frame["day"].eq(DAY).all()


def test_a_completion_of_an_unknown_prompt_is_named() -> None:
    with pytest.raises(FrameError, match="c-p001-0"):
        pair_completions(
            make_prompts(1), make_completions({"p001": ["a", "b"]}), PairingParams(), day=DAY
        )
