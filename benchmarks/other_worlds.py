"""Draws streams of votes that share nothing with `simulation/`: every figure of a bench that reads
them is of worlds that no detector was tuned on.

A world draws its own constants. People differ in activity (heavy-tailed), ability and pace, and
get faster with practice; votes come in sessions, topics in blocks; days, weekdays and teams may
have effects of their own. The model sees the preference through noise and states probabilities
that a held-out fit calibrated, so its errors are stated. A change turns a share of the winners
(of all, of one category, of some people), lets some people answer carelessly, moves the mix of
topics, or spoils the stated probabilities.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import minimize

Floats = npt.NDArray[np.float64]
Change = Literal["taste", "category", "newcomers", "carelessness", "mix", "calibration"]
Careless = Literal["random", "left", "longer"]
DAYS = np.datetime64("2031-01-06")  # a Monday


@dataclass(frozen=True)
class OtherWorld:
    """The constants of one world. Effects are added to the chance of an error."""

    n_votes: int = 5000
    error_rate: float = 0.25
    n_people: int = 30
    votes_per_day: int = 100
    n_reference: int = 300  # comparisons with one held-out vote each
    in_a_row: int = 1  # votes on a comparison, one after the other
    is_shuffled: bool = False  # the votes of a comparison lie apart
    session: int = 1  # mean length of a person's session, in votes
    activity_sd: float = 0.0  # of log activity
    ability_sd: float = 0.0  # of log ability
    busiest: float = 0.0  # share of the votes that one person casts
    worst_weekday: float = 0.0  # added on the worst day of the week
    day_sd: float = 0.0
    team_sd: float = 0.0  # of weekly rotating teams
    n_categories: int = 4
    topic_spread: float = 0.0  # how much the stated error differs between topics (log scale)
    has_topic_days: bool = False  # one topic a day, else blocks
    knows_topics: bool = True  # the model's calibration is right in each topic, else on average
    n_bursts: int = 0  # of 150 careless votes
    burst_pace: float = 1.0  # of the usual time
    change: Change | None = None
    at: int = 0
    rise: float = 0.0  # of the error rate at the change, in all or in the category
    onset: int = 0  # votes over which the change completes
    careless: Careless = "random"
    share_of_people: float = 0.3  # careless or new people


@dataclass(frozen=True)
class DrawnWorld:
    """The votes in seq order, the model's reference, and the truth.

    Columns of both: seq, day, hour, annotator_id, comparison_id, category, p (stated chance of side
    a), expected_error, error (0 or 1), shown_left ("a" or "b"), duration_s, longer ("a" or "b").
    """

    world: OtherWorld
    votes: pd.DataFrame
    reference: pd.DataFrame
    changed_people: frozenset[str]


def draw_world(kind: str, seed: int, **fixed: Any) -> OtherWorld:
    """The world of a row of the bench, its constants drawn from ranges."""
    rng = np.random.default_rng([seed, 77])
    base = OtherWorld(
        error_rate=float(rng.uniform(0.15, 0.35)),
        n_people=int(np.exp(rng.uniform(np.log(8), np.log(120)))),
        votes_per_day=int(rng.integers(60, 260)),
        n_categories=int(rng.integers(3, 9)),
        topic_spread=float(rng.uniform(0, 0.5)),
        ability_sd=float(rng.uniform(0.1, 0.4)),
    )
    sessions = {
        "session": int(rng.integers(8, 60)),
        "activity_sd": float(rng.uniform(0.7, 1.4)),
    }
    kinds: Mapping[str, Mapping[str, Any]] = {
        "independent": {},
        "three in a row": {"in_a_row": 3},
        "five in a row": {"in_a_row": 5},
        "week +.05": {"worst_weekday": 0.05},
        "week +.10": {"worst_weekday": 0.10},
        "sessions": sessions,
        "one casts 40 %": {"busiest": 0.4, "ability_sd": 0.4},
        "topic a day": {"has_topic_days": True, "topic_spread": 1.0},
        "topic a day, unknown": {
            "has_topic_days": True,
            "topic_spread": 1.0,
            "knows_topics": False,
        },
        "teams": {"team_sd": 0.045, **sessions},
        "days sd .02": {"day_sd": 0.02},
        "days sd .04": {"day_sd": 0.04},
        "bursts": {"n_bursts": 10, "burst_pace": float(rng.uniform(0.3, 1.0))},
    }
    return replace(base, **{**kinds[kind], **fixed})


def draw_votes(world: OtherWorld, seed: int) -> DrawnWorld:
    """Votes and reference of a world; the same ones for the same seed."""
    rng = np.random.default_rng([seed, 78])
    ability = np.exp(rng.normal(0, world.ability_sd, world.n_people))
    activity = _draw_activity(world, rng)
    model = _draw_model(world, ability, activity, rng)
    n_compared = -(-world.n_votes // world.in_a_row)
    category = _draw_categories(world, n_compared, rng)
    u, _, m = model.draw(category, rng)
    which = np.repeat(np.arange(n_compared), world.in_a_row)[: world.n_votes]
    if world.is_shuffled:
        which = which[np.argsort(np.arange(world.n_votes) + rng.uniform(0, 300, world.n_votes))]
    day = np.arange(world.n_votes) // world.votes_per_day
    person = _draw_people(world, day, activity, rng)
    rows = _cast(world, u[which], m[which], category[which], person, day, ability, rng)
    changed = _apply_change(world, rows, rng)
    rows["comparison_id"] = [f"c{i}" for i in which]
    if world.change == "newcomers":
        activity = activity * ~np.isin(np.arange(world.n_people), [int(p[1:]) for p in changed])
    reference = _draw_reference(world, model, ability, activity / activity.sum(), rng)
    return DrawnWorld(world, _frame(rows, world), reference, changed)


def _find_scale(world: OtherWorld) -> float:
    """The sd of the preference at which votes err as often as the world says."""
    z = np.random.default_rng(5).normal(0, 1, 4000)
    low, high = 0.05, 60.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        if np.mean(1 / (1 + np.exp(np.abs(z * middle)))) > world.error_rate * 0.93:
            low = middle
        else:
            high = middle
    return float(middle)


def _draw_activity(world: OtherWorld, rng: np.random.Generator) -> Floats:
    activity = np.exp(rng.normal(0, world.activity_sd, world.n_people))
    activity /= activity.sum()
    if world.busiest:
        activity *= 1 - world.busiest
        activity[0] += world.busiest
    return activity


@dataclass(frozen=True)
class _Model:
    """What the model sees of a preference, and the log odds that it states."""

    scale: float
    hardness: Floats
    noise: float
    slopes: Floats  # of each category, or one for all where the model does not know topics
    intercepts: Floats

    def draw(
        self, category: npt.NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[Floats, Floats, Floats]:
        """Preferences of comparisons, what the model sees of them, and what it states."""
        sd = self.scale / self.hardness[category]
        u = rng.normal(0, 1, len(category)) * sd
        noisy = u + rng.normal(0, 1, len(category)) * self.noise * sd
        return u, noisy, self.slopes[category] * noisy + self.intercepts[category]


def _draw_model(
    world: OtherWorld, ability: Floats, activity: Floats, rng: np.random.Generator
) -> _Model:
    """A model whose stated log odds are calibrated on 2,000 held-out votes a category."""
    n = 2000
    hardness = np.exp(rng.normal(0, world.topic_spread, world.n_categories))
    nothing = np.zeros(world.n_categories)
    model = _Model(_find_scale(world), hardness, float(rng.uniform(0.2, 0.5)), nothing + 1, nothing)
    margins, votes = [], []
    for category in range(world.n_categories):
        u, x, _ = model.draw(np.full(n, category), rng)
        k = rng.choice(world.n_people, n, p=activity)
        margins.append(x)
        votes.append(rng.random(n) < 1 / (1 + np.exp(-ability[k] * u)))
    if not world.knows_topics:
        margins = [np.concatenate(margins)] * world.n_categories
        votes = [np.concatenate(votes)] * world.n_categories
    fits = [_fit_logistic(x, y) for x, y in zip(margins, votes, strict=True)]
    slopes, intercepts = np.array(fits).T
    return replace(model, slopes=slopes, intercepts=intercepts)


def _fit_logistic(x: Floats, y: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and intercept, by scipy, since Newton's steps overflow where votes are nearly sure."""
    spread = float(x.std())
    signs = np.where(y, 1.0, -1.0)

    def loss(at: Floats) -> float:
        return float(np.logaddexp(0, -signs * (at[0] * x / spread + at[1])).mean())

    slope, intercept = minimize(loss, np.array([1.0, 0.0]), method="BFGS").x
    return float(slope) / spread, float(intercept)


def _draw_categories(world: OtherWorld, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Topics of comparisons in order: in blocks, or one a day."""
    per_day = max(1, world.votes_per_day // world.in_a_row)
    sizes = rng.dirichlet(np.full(world.n_categories, 2.0))
    if world.has_topic_days:
        of_day = rng.integers(0, world.n_categories, n // per_day + 1)
        return np.asarray(of_day[np.arange(n) // per_day])
    block = int(rng.integers(1, 12))
    drawn = rng.choice(world.n_categories, n // block + 1, p=sizes)
    return np.asarray(np.repeat(drawn, block)[:n])


def _draw_people(
    world: OtherWorld, day: npt.NDArray[np.int64], activity: Floats, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """The annotator of each vote: sessions within a day; with teams, a third of the people work
    in each week.
    """
    person = np.empty(world.n_votes, dtype=np.int64)
    at = 0
    while at < world.n_votes:
        length = 1 if world.session == 1 else int(rng.geometric(1 / world.session))
        weights = activity
        if world.team_sd:
            weights = activity * (np.arange(world.n_people) % 3 == (day[at] // 7) % 3)
            weights = weights / weights.sum()
        end = min(at + length, world.n_votes)
        person[at:end] = rng.choice(world.n_people, p=weights)
        at = end
    return person


def _cast(
    world: OtherWorld,
    u: Floats,
    m: Floats,
    category: npt.NDArray[np.int64],
    person: npt.NDArray[np.int64],
    day: npt.NDArray[np.int64],
    ability: Floats,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """The votes before any change: chances of an error, and the errors drawn from them."""
    n = world.n_votes
    p_a = 1 / (1 + np.exp(-ability[person] * u))
    chance = np.where(m > 0, 1 - p_a, p_a)
    weekday = rng.uniform(0, world.worst_weekday, 7)
    weekday[rng.integers(7)] = world.worst_weekday
    chance = chance + (weekday - weekday.mean())[day % 7]
    chance = chance + rng.normal(0, world.day_sd, day[-1] + 1)[day]
    chance = chance + rng.normal(0, world.team_sd, 3)[(day // 7) % 3]
    pace = np.exp(rng.normal(np.log(25), 0.5, world.n_people))
    n_before = pd.Series(person).groupby(person).cumcount().to_numpy()
    practice = (1 + n_before / 50) ** -float(rng.uniform(0, 0.25))
    duration = pace[person] * practice * np.exp(rng.normal(0, 0.4, n))
    for _ in range(world.n_bursts):
        start = int(rng.integers(0, max(1, n - 150)))
        careless = rng.choice(world.n_people, min(5, world.n_people), replace=False)
        burst = slice(start, start + 150)
        person[burst] = rng.choice(careless, len(person[burst]))
        chance[burst] = 0.5
        duration[burst] *= world.burst_pace
    return {
        "m": m,
        "category": category,
        "person": person,
        "day": day,
        "chance": np.clip(chance, 0.01, 0.99),
        "error": None,
        "left_is_a": rng.random(n) < 0.5,
        "longer_is_a": rng.random(n) < 1 / (1 + np.exp(-0.3 * u)),
        "duration": duration,
    }


def _apply_change(
    world: OtherWorld, rows: dict[str, Any], rng: np.random.Generator
) -> frozenset[str]:
    """Change the chances from vote `at` on, draw the errors; the names of the changed people."""
    n = world.n_votes
    seq = np.arange(1, n + 1)
    full = np.clip((seq - world.at) / max(1, world.onset), 0, 1) if world.onset else seq > world.at
    after = np.where(seq > world.at, full, 0.0) if world.change else np.zeros(n)
    turned = np.zeros(n)
    people: frozenset[int] = frozenset()
    base = rows["chance"].mean()
    size = min(1.0, world.rise / (1 - 2 * base))
    draws = rng.random(n)
    if world.change == "taste":
        turned = after * size
    elif world.change == "category":
        turned = after * (rows["category"] == rows["category"][world.at]) * size
    elif world.change in ("newcomers", "carelessness"):
        n_people = max(1, round(world.share_of_people * world.n_people))
        chosen = rng.choice(world.n_people, n_people, replace=False)
        people = frozenset(chosen.tolist())
    if world.change == "newcomers":  # others cast their votes before, a share of them afterwards
        others = np.setdiff1d(np.arange(world.n_people), chosen)
        is_new = (after > 0) & (rng.random(n) < world.share_of_people)
        is_theirs = np.isin(rows["person"], chosen)
        rows["person"] = np.where(is_theirs, rng.choice(others, n), rows["person"])
        rows["person"] = np.where(is_new, rng.choice(chosen, n), rows["person"])
        turned = is_new * min(1.0, size / world.share_of_people)
    error = draws < np.where(
        turned > 0, rows["chance"] + turned * (1 - 2 * rows["chance"]), rows["chance"]
    )
    if world.change == "carelessness":
        theirs = np.isin(rows["person"], list(people)) & (after > 0)
        predicts_a = rows["m"] > 0
        coin = rng.random(n) < 0.5
        a = {"random": coin, "left": rows["left_is_a"], "longer": rows["longer_is_a"]}
        error = np.where(theirs, a[world.careless] != predicts_a, error)
    if world.change == "calibration":
        rows["m"] = np.where(after > 0, rows["m"] * (1 + 1.5 * after), rows["m"])
    rows["error"] = error.astype(int)
    return frozenset(f"p{i}" for i in people)


def _draw_reference(
    world: OtherWorld,
    model: _Model,
    ability: Floats,
    activity: Floats,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Held-out predictions of the model with one vote each, on ordinary days."""
    n = world.n_reference
    calm = replace(world, n_votes=n, worst_weekday=0, day_sd=0, team_sd=0, n_bursts=0, change=None)
    category = rng.integers(0, world.n_categories, n)
    u, _, m = model.draw(category, rng)
    person = rng.choice(world.n_people, n, p=activity)
    rows = _cast(calm, u, m, category, person, np.zeros(n, dtype=np.int64), ability, rng)
    _apply_change(calm, rows, rng)
    rows["comparison_id"] = [f"r{i}" for i in range(n)]
    return _frame(rows, calm)


def _frame(rows: Mapping[str, Any], world: OtherWorld) -> pd.DataFrame:
    p = np.clip(1 / (1 + np.exp(-rows["m"])), 0.001, 0.999)
    side = {True: "a", False: "b"}
    n = len(p)
    return pd.DataFrame(
        {
            "seq": np.arange(1, n + 1),
            "day": (DAYS + rows["day"]).astype(str),
            "hour": 12,
            "annotator_id": [f"p{i}" for i in rows["person"]],
            "comparison_id": rows["comparison_id"],
            "category": [f"t{i}" for i in rows["category"]],
            "p": p,
            "expected_error": np.minimum(p, 1 - p),
            "error": rows["error"],
            "shown_left": [side[bool(x)] for x in rows["left_is_a"]],
            "longer": [side[bool(x)] for x in rows["longer_is_a"]],
            "duration_s": rows["duration"],
        }
    )
