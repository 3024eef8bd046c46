"""Builds a day's comparisons from its completions: the pairs, their order and their sides."""

from collections.abc import Iterator
from itertools import combinations, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import COMPARISONS, COMPLETIONS, PROMPTS, check_frame
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import content_hash, content_id


class PairingParams(Parameters):
    """The number of pairs judged per prompt, and the number judged twice."""

    pairs_per_prompt: int = Field(
        default=2,
        ge=1,
        le=100,
        description="Comparisons per prompt, where its completions allow that many",
    )
    repeat_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Repeats with sides swapped, as a share of the day's other comparisons",
    )
    seed: int = Field(
        default=0, ge=0, description="Of the choice of pairs, their sides and their order"
    )
    demand_different_parameters: bool = Field(
        default=False, description="Pair only completions sampled with another temperature or top_p"
    )


class Completion(NamedTuple):
    """The fields of a completion that pairing uses."""

    completion_id: str
    text: str
    model_version: str
    temperature: float
    top_p: float


Pair = tuple[Completion, Completion]


def pair_completions(
    prompts: pd.DataFrame,
    completions: pd.DataFrame,
    params: PairingParams,
    *,
    day: str,
    earlier: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Build the COMPARISONS of `day` from COMPLETIONS of PROMPTS, in display order.

    Completions with equal text, without text or with an error are never paired; the same two texts
    are paired at most once. Pairs use as many different completions as possible. Side and order are
    drawn from `params.seed` and the content, so the order of rows does not matter. Repeats come
    from `earlier` COMPARISONS while there are enough, and then from the day's own, at its end. A
    prompt with fewer than two different texts gives no comparison.

    Raises FrameError naming a completion whose prompt is not in `prompts`.
    """
    prompts, completions = check_frame(prompts, PROMPTS), check_frame(completions, COMPLETIONS)
    earlier = COMPARISONS.empty_frame() if earlier is None else check_frame(earlier, COMPARISONS)
    prompt_details = {
        p: (text, category)
        for p, text, category in zip(
            prompts["prompt_id"], prompts["text"], prompts["category"], strict=True
        )
    }
    orphans = completions[~completions["prompt_id"].isin(list(prompt_details))]
    if len(orphans):
        completion_id, prompt_id = orphans.iloc[0][["completion_id", "prompt_id"]]
        raise FrameError(
            f"Completion {completion_id} is of prompt {prompt_id}, which is not among the prompts. "
            "Pass the prompts it was made from."
        )
    rows = [
        _row(day, params.seed, prompt_id, *prompt_details[prompt_id], pair)
        for prompt_id, candidates in _group_by_prompt(completions)
        for pair in _choose_pairs(
            candidates, params, np.random.default_rng(_seed(params.seed, day, prompt_id))
        )
    ]
    fresh = shuffle_by_seed(pd.DataFrame(rows, columns=list(COMPARISONS.columns)), params.seed)
    repeats = select_repeats(
        fresh, earlier, round(params.repeat_share * len(fresh)), day=day, seed=params.seed
    )
    # Repeats of earlier days may come at any time; those of this day only after all its pairs.
    own = repeats["repeat_of"].isin(fresh["comparison_id"])
    comparisons = pd.concat(
        [
            shuffle_by_seed(pd.concat([fresh, repeats[~own]], ignore_index=True), params.seed),
            repeats[own],
        ],
        ignore_index=True,
    )
    return check_frame(comparisons.assign(position=range(len(comparisons))), COMPARISONS)


def _group_by_prompt(completions: pd.DataFrame) -> Iterator[tuple[str, list[Completion]]]:
    """The completions that can be judged, by prompt, both in the order of their ids."""
    usable = completions[
        completions["error"].isna() & completions["text"].str.strip().ne("")
    ].sort_values(["prompt_id", "completion_id"])
    rows = usable[["prompt_id", *Completion._fields]].itertuples(index=False, name=None)
    for prompt_id, group in groupby(rows, key=itemgetter(0)):
        yield prompt_id, [Completion(*row[1:]) for row in group]


def _choose_pairs(
    candidates: list[Completion], params: PairingParams, rng: np.random.Generator
) -> list[Pair]:
    """Up to `params.pairs_per_prompt` pairs in drawn order; the first member is side a."""
    pairs = _possible_pairs(candidates, params.demand_different_parameters)
    shuffled = [pairs[i] for i in rng.permutation(len(pairs))]
    chosen: list[Pair] = []
    uses = dict.fromkeys((c.completion_id for c in candidates), 0)
    while shuffled and len(chosen) < params.pairs_per_prompt:
        a, b = min(
            shuffled, key=lambda pair: uses[pair[0].completion_id] + uses[pair[1].completion_id]
        )
        texts = {a.text.strip(), b.text.strip()}
        shuffled = [(c, d) for c, d in shuffled if {c.text.strip(), d.text.strip()} != texts]
        uses[a.completion_id] += 1
        uses[b.completion_id] += 1
        chosen.append((a, b) if rng.random() < 0.5 else (b, a))
    return chosen


def _possible_pairs(candidates: list[Completion], different_parameters: bool) -> list[Pair]:
    return [
        (a, b)
        for a, b in combinations(candidates, 2)
        if a.text.strip() != b.text.strip()
        and not (different_parameters and (a.temperature, a.top_p) == (b.temperature, b.top_p))
    ]


def _row(
    day: str, seed: int, prompt_id: str, prompt: str, category: str, pair: Pair
) -> dict[str, object]:
    a, b = pair
    return {
        "day": day,
        "comparison_id": comparison_id(day, prompt_id, a.completion_id, b.completion_id),
        "prompt_id": prompt_id,
        "prompt": prompt,
        "completion_a_id": a.completion_id,
        "completion_b_id": b.completion_id,
        "completion_a": a.text,
        "completion_b": b.text,
        "model_version_a": a.model_version,
        "model_version_b": b.model_version,
        "category": category,
        "repeat_of": None,
        "position": 0,
        "seed": seed,
    }


def _seed(*parts: object) -> int:
    return int(content_hash("pairing", *parts)[:15], 16)


SWAPPED_COLUMNS = {
    "completion_a_id": "completion_b_id",
    "completion_a": "completion_b",
    "model_version_a": "model_version_b",
}


def comparison_id(
    day: str,
    prompt_id: str,
    completion_a_id: str,
    completion_b_id: str,
    repeat_of: str | None = None,
) -> str:
    """Id of a pair on a day. A repeat's id also depends on the comparison it repeats, so it differs
    from the pair's own id and from other repeats'.
    """
    return content_id("comparison", day, prompt_id, completion_a_id, completion_b_id, repeat_of)


def shuffle_by_seed(comparisons: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Shuffle the rows by `seed`; a row's place depends only on its own id, not on its previous
    place.
    """
    order = (
        comparisons["comparison_id"]
        .map(lambda c: content_hash("position", seed, c))
        .sort_values()
        .index
    )
    return comparisons.loc[order].reset_index(drop=True)


def select_repeats(
    fresh: pd.DataFrame, earlier: pd.DataFrame, n: int, *, day: str, seed: int
) -> pd.DataFrame:
    """Select up to `n` repeats: `earlier` comparisons first, while there are enough, then the first
    ones of `fresh`.

    `fresh` is in the order of the day; its repeats come after all of it, so half a day lies between
    a pair and its repeat as long as at most half of the day is repeated. Repeats are never
    repeated, and a comparison is repeated at most once.
    """
    done = set(earlier["repeat_of"].dropna())
    open_ = earlier[
        (earlier["day"] < day) & earlier["repeat_of"].isna() & ~earlier["comparison_id"].isin(done)
    ]
    old = shuffle_by_seed(open_, seed)[:n]
    return pd.concat(
        [_swap_sides(old, day, seed), _swap_sides(fresh[: n - len(old)], day, seed)],
        ignore_index=True,
    )


def _swap_sides(comparisons: pd.DataFrame, day: str, seed: int) -> pd.DataFrame:
    renaming = SWAPPED_COLUMNS | {b: a for a, b in SWAPPED_COLUMNS.items()}
    repeats = comparisons.rename(columns=renaming)[list(COMPARISONS.columns)].reset_index(drop=True)
    repeats = repeats.assign(day=day, seed=seed, repeat_of=comparisons["comparison_id"].to_numpy())
    id_parts = zip(
        repeats["prompt_id"],
        repeats["completion_a_id"],
        repeats["completion_b_id"],
        repeats["repeat_of"],
        strict=True,
    )
    return repeats.assign(comparison_id=[comparison_id(day, *row) for row in id_parts])
