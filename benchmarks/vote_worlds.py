"""Draws streams of predicted votes from worlds whose change, or steadiness, is known."""

from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.records import CauseName, Record

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Generator = np.random.Generator

FIRST_DAY = date(2026, 1, 5)  # a Monday
SECONDS, SPREAD_OF_TIME = 12.0, 0.5  # usual duration of a vote, deviation of its logarithm
UNDISTURBED = 200  # votes before the first careless session
N_TEAMS = 3
REPEAT_WITHIN = 300  # comparisons back that a repeat may come from
LEAST_REFERENCE, MOST_REFERENCE = 200, 400  # comparisons
# Variances of a comparison's log odds, in units of `likeness`, that the model knows and does not.
KNOWN, UNKNOWN = 1.0, 3.0
HARD = "hard"  # the category whose share grows where the mix changes


class Change(Record):
    """What changes in a world, from the vote at index `at` on."""

    cause: CauseName
    at: int = Field(ge=0)
    size: float = Field(
        0.1,
        description="taste: rise of the error rate; newcomers, carelessness: share of the votes "
        "that they cast; category: 1 turns its taste round; mix: share of the hard category; "
        "calibration: factor by which stated log odds grow",
    )
    is_fast: bool = Field(True, description="careless votes take a third of the usual time")
    one_sided: float = Field(
        0.5,
        ge=0.5,
        le=1,
        description="share of careless votes for the displayed side that the careless annotator "
        "favours",
    )


class VoteWorld(Record):
    """A steady world, and the changes that happen in it. Rates are those of single votes."""

    n_votes: int = Field(5000, ge=1)
    error_rate: float = Field(0.25, description="of the model's predictions, before any change")
    votes_per_comparison: int = Field(1, ge=1, description="cast one after the other")
    likeness: float = Field(
        0.3, ge=0, description="a quarter of the variance of the comparisons' log odds of an error"
    )
    repeats: float = Field(0.1, ge=0, lt=1, description="share of comparisons shown again")
    n_categories: int = Field(8, ge=2)
    first_category_share: float = Field(0.2, gt=0, lt=1)
    n_annotators: int = Field(30, ge=2)
    votes_per_day: int = Field(100, ge=1)
    weekend_rise: float = Field(0.0, description="of the error rate on Saturdays and Sundays")
    day_sd: float = Field(0.0, ge=0, description="of the error rate between days")
    team_sd: float = Field(
        0.0, ge=0, description="of the error rate between three teams that take weeks in turn"
    )
    activity_sd: float = Field(0.0, ge=0, description="of the log activity of annotators")
    n_bursts: int = Field(0, ge=0, description="sessions of a few careless, hasty annotators")
    votes_per_burst: int = Field(150, ge=1)
    annotators_per_burst: int = Field(5, ge=1)
    changes: tuple[Change, ...] = ()


def draw_votes(world: VoteWorld, seed: int) -> pd.DataFrame:
    """One row per vote in vote order, with the columns of the error stream, `published_id` (the
    comparison as it was published, repeats included), `expected_error` (one minus the model's
    stated confidence), `p` (its stated probability of side a) and `shown_left` ("a" or "b").
    """
    rng = np.random.default_rng(seed)
    n, per = world.n_votes, world.votes_per_comparison
    n_comparisons = -(-n // per)
    original = _draw_originals(n_comparisons, world.repeats, rng)
    category = _draw_categories(world, n_comparisons, rng)[original]
    known, unknown = (
        rng.normal(0, np.sqrt(part * world.likeness), n_comparisons)[original]
        for part in (KNOWN, UNKNOWN)
    )
    side = rng.integers(0, 2, n_comparisons)[original]
    original, category, known, unknown, side = (
        np.repeat(values, per)[:n] for values in (original, category, known, unknown, side)
    )
    place = np.arange(n)
    day = place // world.votes_per_day
    more = np.random.default_rng([seed, 3])  # so that worlds without these draw as they always did
    team = day // 7 % N_TEAMS
    votes = {
        "annotator": _draw_annotators(world, n, rng),
        "log_seconds": rng.normal(np.log(SECONDS), SPREAD_OF_TIME, n),
        "rate": np.full(n, world.error_rate) + np.where(category == "hard", 0.2, 0.0),
        "stretch": np.ones(n),
        "favours_left": np.full(n, 0.5),
    }
    # the model's stated chance to be wrong, which is right before any change
    odds = _mean_odds(votes["rate"], world.likeness) + known
    stated = _average(odds, UNKNOWN * world.likeness)
    votes["rate"] = votes["rate"] + world.weekend_rise * (day % 7 >= 5)
    votes["rate"] = votes["rate"] + more.normal(0, world.day_sd, day[-1] + 1)[day]
    votes["rate"] = votes["rate"] + more.normal(0, world.team_sd, N_TEAMS)[team]
    if world.team_sd:
        members = world.n_annotators // N_TEAMS
        votes["annotator"] = votes["annotator"] % members + team * members
    for change in world.changes:
        _apply(change, votes, category, world, rng)
    chance = 1 / (1 + np.exp(-_mean_odds(votes["rate"], world.likeness) - known - unknown))
    is_careless = votes.get("careless", np.zeros(n, dtype=bool)) | _add_bursts(world, votes, rng)
    left_is_a = rng.random(n) < 0.5
    favours_a = np.where(left_is_a, votes["favours_left"], 1 - votes["favours_left"])
    careless_chance = np.where(side == 1, 1 - favours_a, favours_a)
    chance = np.where(is_careless, careless_chance, chance)
    stated_odds = np.log(stated / (1 - stated)) * votes["stretch"]
    expected_error = 1 / (1 + np.exp(np.abs(stated_odds)))
    days = [(FIRST_DAY + timedelta(int(d))).isoformat() for d in range(int(day[-1]) + 1)]
    return pd.DataFrame(
        {
            "seq": place + 1,
            "day": np.array(days, dtype=object)[day],
            "error": (rng.random(n) < chance).astype(float),
            "reward_model": "world.reward_model@1",
            "comparison_id": [f"comparison {i}" for i in original],
            "published_id": [f"comparison {i}" for i in place // per],
            "category": category,
            "annotator_id": [f"annotator {i}" for i in votes["annotator"]],
            "duration_s": np.exp(votes["log_seconds"]),
            "hour": (7 + 14 * (place % world.votes_per_day) // world.votes_per_day).astype(int),
            "expected_error": expected_error,
            "p": np.where(side == 1, 1 - expected_error, expected_error),
            "shown_left": np.where(left_is_a, "a", "b"),
        }
    )


def draw_reference(world: VoteWorld, seed: int, number: int = 0) -> pd.DataFrame:
    """The votes on the reference of the world's model, or of the model after `number` retrainings:
    as before any change, with the weekend's errors spread over the week.
    """
    rng = np.random.default_rng([seed, 2, number])
    n = int(rng.integers(LEAST_REFERENCE, MOST_REFERENCE + 1))
    unchanged = world.model_copy(
        update={
            "n_votes": n * world.votes_per_comparison,
            "error_rate": world.error_rate + 2 / 7 * world.weekend_rise,
            "weekend_rise": 0.0,
            "day_sd": 0.0,
            "team_sd": 0.0,
            "repeats": 0.0,
            "n_bursts": 0,
            "changes": (),
        }
    )
    return draw_votes(unchanged, int(rng.integers(2**31)))


def _draw_originals(n: int, repeats: float, rng: Generator) -> Ints:
    """For each comparison the one that it shows: itself, or an earlier one that it repeats."""
    original = np.arange(n)
    for i in np.flatnonzero(rng.random(n) < repeats).tolist():
        if i:
            original[i] = original[rng.integers(max(0, i - REPEAT_WITHIN), i)]
    return original


def _draw_categories(world: VoteWorld, n: int, rng: Generator) -> npt.NDArray[np.object_]:
    names = np.array([*(f"category {i}" for i in range(world.n_categories)), HARD], dtype=object)
    first, others = world.first_category_share, world.n_categories - 1
    share = np.array([first, *[(1 - first) / others] * others])
    drawn = rng.choice(world.n_categories, n, p=share)
    chance_of_hard = np.full(n, 0.05)
    for change in world.changes:
        if change.cause == "mix":
            chance_of_hard[change.at // world.votes_per_comparison :] = change.size
    if any(change.cause == "mix" for change in world.changes):
        drawn = np.where(rng.random(n) < chance_of_hard, world.n_categories, drawn)
    return np.asarray(names[drawn], dtype=object)


def _draw_annotators(world: VoteWorld, n: int, rng: Generator) -> Ints:
    """Different annotators for the votes on one comparison."""
    per = world.votes_per_comparison
    if world.activity_sd:
        activity = np.exp(rng.normal(0, world.activity_sd, world.n_annotators))
        return np.asarray(rng.choice(world.n_annotators, n, p=activity / activity.sum()))
    if per == 1:
        return np.asarray(rng.integers(0, world.n_annotators, n), dtype=np.int64)
    drawn = [rng.permutation(world.n_annotators)[:per] for _ in range(-(-n // per))]
    return np.asarray(np.concatenate(drawn)[:n], dtype=np.int64)


def _apply(
    change: Change,
    votes: dict[str, Any],
    category: npt.NDArray[np.object_],
    world: VoteWorld,
    rng: Generator,
) -> None:
    """Change rates, annotators, times and stated confidence from the change's vote on."""
    n = len(category)
    after = np.arange(n) >= change.at
    if change.cause == "taste":
        votes["rate"] = votes["rate"] + change.size * after
    elif change.cause == "category":
        turned = after & (category == "category 0")
        opposite = 1 - votes["rate"]
        votes["rate"] = np.where(
            turned, votes["rate"] + change.size * (opposite - votes["rate"]), votes["rate"]
        )
    elif change.cause == "newcomers":
        new = after & (rng.random(n) < change.size)
        votes["annotator"] = np.where(
            new, world.n_annotators + rng.integers(0, world.n_annotators, n), votes["annotator"]
        )
        votes["rate"] = np.where(new, 1 - votes["rate"], votes["rate"])
    elif change.cause == "carelessness":
        careless = after & (votes["annotator"] < _count_careless(change, world))
        votes["careless"] = votes.get("careless", np.zeros(n, dtype=bool)) | careless
        favours = np.where(votes["annotator"] % 2, change.one_sided, 1 - change.one_sided)
        votes["favours_left"] = np.where(careless, favours, votes["favours_left"])
        if change.is_fast:
            votes["log_seconds"] = votes["log_seconds"] - np.log(3) * careless
    elif change.cause == "calibration":
        votes["stretch"] = np.where(after, change.size, votes["stretch"])


def _count_careless(change: Change, world: VoteWorld) -> int:
    return max(1, round(change.size * world.n_annotators))


def _add_bursts(world: VoteWorld, votes: dict[str, Any], rng: Generator) -> npt.NDArray[np.bool_]:
    """Sessions in which a few annotators vote at random in a third of the usual time, one at a
    time.
    """
    n, length = world.n_votes, world.votes_per_burst
    in_burst = np.zeros(n, dtype=bool)
    for i in range(world.n_bursts):
        span = (n - UNDISTURBED) // world.n_bursts
        start = UNDISTURBED + i * span + int(rng.integers(0, max(1, span - 2 * length)))
        these = slice(start, start + length)
        team = rng.choice(world.n_annotators, world.annotators_per_burst, replace=False)
        in_burst[these] = True
        votes["annotator"][these] = rng.choice(team, len(votes["annotator"][these]))
        votes["log_seconds"][these] -= np.log(3)
    return in_burst


def _mean_odds(rate: Floats, likeness: float) -> Floats:
    """The log odds around which those of the comparisons lie, so that their mean chance is
    `rate`.
    """
    grid = np.linspace(-8, 8, 801)
    mean = _average(grid, (KNOWN + UNKNOWN) * likeness)
    return np.asarray(np.interp(np.clip(rate, 0.01, 0.99), mean, grid), dtype=float)


def _average(odds: Floats, variance: float) -> Floats:
    """Mean chance where normal noise of the variance is added to the log odds."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    spread = odds[:, None] + np.sqrt(variance) * nodes
    mean: Floats = (1 / (1 + np.exp(-spread))) @ (weights / weights.sum())
    return mean
