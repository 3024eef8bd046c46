"""Puts what speaks for each cause of a change into numbers, names and one sentence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.drift.cause_model import CauseWeights
from rlhf_pipeline.drift.changed_votes import UNKNOWN, Bools, ChangedVotes
from rlhf_pipeline.drift.expected_errors import GROUPINGS
from rlhf_pipeline.intervals import format_estimate, interval_of_share
from rlhf_pipeline.records import Cause, CauseName, Interval

MAX_NAMED = 200  # annotators in evidence
LIKELY = 0.5  # probability from which an annotator counts as careless
MIN_SECOND_SHARE = 0.2  # share from which a second cause is named
Evidence = dict[str, Any]
Names = Mapping[CauseName, Evidence]


def measure_rise(before: float, n_before: int, after: "pd.Series[float]") -> Interval:
    """The error rate of the votes after the change less that before it, with Newcombe's interval
    (1998); a level without votes is taken as exact.
    """
    late = interval_of_share(float(after.mean()), len(after))
    early = interval_of_share(before, n_before) if n_before else None
    below, above = (early.value - early.low, early.high - early.value) if early else (0.0, 0.0)
    value = late.value - before
    return Interval(
        value=value,
        low=value - float(np.hypot(late.value - late.low, above)),
        high=value + float(np.hypot(late.high - late.value, below)),
        n=len(after),
    )


def collect_evidence(
    settled: pd.DataFrame, around: pd.DataFrame, votes: ChangedVotes, weights: CauseWeights
) -> Names:
    """What speaks for each cause: the `settled` votes beside those of `around` that are likely to
    be after the change. `votes` describes the rows of `around`.
    """
    is_after = np.arange(len(around)) >= round(weights.start)
    category = votes.categories[int(np.argmax(weights.category))]
    in_category = np.array(votes.categories)[votes.category] == category
    is_new = votes.is_new[votes.annotator]
    is_careless = (weights.careless > LIKELY)[votes.annotator]
    outside = settled
    if category != UNKNOWN and "category" in settled.columns:
        is_inside = settled["category"].astype(str) == category
        outside, inside = settled[~is_inside], settled[is_inside]
    else:
        in_category, inside = np.zeros(len(around), dtype=bool), settled.iloc[:0]
    remaining = is_after & ~in_category & ~is_new & ~is_careless
    late = around[is_after]
    return {
        "taste": _compare_rates(outside["error"], around["error"][remaining])
        | {"annotators": "established, not careless", "without_category": category or None},
        "category": {"category": category or None}
        | _compare_rates(inside["error"], around["error"][is_after & in_category])
        | {"probability": round(float(weights.category.max()), 3)},
        "newcomers": _describe_annotators(votes, is_after, votes.is_new)
        | {"each": list(_list_figures(votes, is_after, votes.is_new))}
        | {"error_of_others": _rate(around["error"][is_after & ~is_new])},
        "carelessness": _describe_careless(votes, is_after, weights),
        "mix": _describe_mix(settled, late)
        | {"expected_before": _rate_of(weights.before)}
        | {"expected_after": _rate_of(float(votes.expected[1.0][is_after].mean()))},
        "calibration": {"stretch": round(weights.stretch, 2)}
        | {"gap_before": _gap(settled), "gap_after": _gap(late)},
    }


def summarise(causes: Sequence[Cause], rise: Interval) -> str:
    """One sentence: the likeliest cause, and the second one if it explains a good part."""
    first, second = causes[:2]
    if first.name == "calibration":
        text = f"Stated confidence changed, not the error rate: {_phrase(first)}"
    elif rise.value <= 0:
        return f"The error rate did not rise ({rise.value:+.2f})."
    else:
        text = f"{format_estimate(first.share)} of the rise of {rise.value:+.2f} is explained by "
        text += _phrase(first)
    if second.share >= MIN_SECOND_SHARE:
        text += f"; {format_estimate(second.share)} by {_phrase(second)}"
    return f"{text}."


def _phrase(cause: Cause) -> str:
    e = cause.evidence
    if cause.name == "taste":
        return (
            "a change in everybody's taste (established annotators, other categories: "
            f"errors {_change(e, 'error_before', 'error_after')})"
        )
    if cause.name == "category":
        return f"category {e['category']} (errors {_change(e, 'error_before', 'error_after')})"
    if cause.name == "newcomers":
        return (
            f"{e['n_annotators']} newcomers with another taste (errors {_number(e['error'])}, "
            f"others {_number(e['error_of_others'])})"
        )
    if cause.name == "carelessness":
        pace = e["time_over_usual"]
        fast = "" if pace is None else f", {pace:.2f} times their usual time"
        return f"{e['n_annotators']} careless annotators (errors {_number(e['error'])}{fast})"
    if cause.name == "mix":
        named = f", {e['grouping']} {e['name']}" if "name" in e else ""
        shares = f": {_change(e, 'share_before', 'share_after')} of the votes" if named else ""
        return (
            f"a changed mix{named}{shares} (expected errors "
            f"{_change(e, 'expected_before', 'expected_after')})"
        )
    return (
        f"log odds are {e['stretch']:.1f} times as large (errors less stated errors "
        f"{_change(e, 'gap_before', 'gap_after')})"
    )


def _change(evidence: Evidence, before: str, after: str) -> str:
    return f"{_number(evidence[before])} → {_number(evidence[after])}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _compare_rates(before: "pd.Series[float]", after: "pd.Series[float]") -> Evidence:
    return {
        "n_before": len(before),
        "error_before": _rate(before),
        "n_after": len(after),
        "error_after": _rate(after),
    }


def _describe_annotators(votes: ChangedVotes, is_after: Bools, chosen: Bools) -> Evidence:
    own = is_after & chosen[votes.annotator]
    names = [name for name, is_one in zip(votes.annotators, chosen, strict=True) if is_one]
    return {
        "annotator_ids": names[:MAX_NAMED],
        "n_annotators": len(names),
        "n_votes": int(own.sum()),
        "share_of_votes": _rate_of(float(own.sum() / max(1, is_after.sum()))),
        "error": _rate(votes.error[own]),
    }


def _list_figures(votes: ChangedVotes, is_after: Bools, chosen: Bools) -> Iterator[Evidence]:
    """Votes and errors of each chosen annotator after the change, and the votes before it."""
    for index in np.flatnonzero(chosen)[:MAX_NAMED]:
        own = is_after & (votes.annotator == index)
        yield {
            "annotator_id": votes.annotators[index],
            "n_votes": int(own.sum()),
            "n_votes_before": int(votes.count_before(is_after)[index]),
            "error": _rate(votes.error[own]),
            "expected_error": _rate(votes.usual_error[own]),
        }


def _describe_careless(votes: ChangedVotes, is_after: Bools, weights: CauseWeights) -> Evidence:
    chosen = weights.careless > LIKELY
    own = is_after & chosen[votes.annotator]
    pace = votes.pace[own & np.isfinite(votes.pace)]
    return _describe_annotators(votes, is_after, chosen) | {
        "each": [
            figures | {"probability": round(float(p), 3)}
            for figures, p in zip(
                _list_figures(votes, is_after, chosen), weights.careless[chosen], strict=False
            )
        ],
        # in a burst, hardly anybody else votes
        "n_active": len(np.unique(votes.annotator)),
        "n_votes_of_all_before": int(votes.count_before(is_after).sum()),
        "expected_error": _rate(votes.usual_error[own]),
        "time_over_usual": round(float(np.exp(np.median(pace))), 3) if len(pace) else None,
        "share_for_side_a": _rate(votes.side_a[own & np.isfinite(votes.side_a)]),
    }


def _describe_mix(settled: pd.DataFrame, late: pd.DataFrame) -> Evidence:
    """The group whose share of the votes grew most."""
    grown = [
        (float(share - early.get(name, 0.0)), by, str(name), early.get(name, 0.0), float(share))
        for by in GROUPINGS
        if by in settled.columns and len(settled)
        for early in [settled[by].value_counts(normalize=True).to_dict()]
        for name, share in late[by].value_counts(normalize=True).items()
    ]
    if not grown:
        return {}
    _, by, name, before, after = max(grown)
    return {
        "grouping": by,
        "name": name,
        "share_before": _rate_of(float(before)),
        "share_after": _rate_of(after),
    }


def _gap(rows: pd.DataFrame) -> float | None:
    """Mean error less mean stated error; None where nothing is stated."""
    if "expected_error" not in rows.columns:
        return None
    known = rows[rows["expected_error"].notna()]
    return _rate(known["error"].astype(float) - known["expected_error"])


def _rate(values: Any) -> float | None:
    return _rate_of(float(np.mean(values))) if len(values) else None


def _rate_of(value: float) -> float:
    return round(value, 4)
