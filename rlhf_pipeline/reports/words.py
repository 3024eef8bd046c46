"""Names and numbers as pages show them: tests, shares, p-values, noise ceilings."""

import pandas as pd

from rlhf_pipeline.calibration.group_calibration import UNKNOWN_CEILING
from rlhf_pipeline.records import Interval

DISPLAY_NAMES = {
    "adwin": "ADWIN",
    "ddm": "DDM",
    "hddm_a": "HDDM-A",
    "error_rate": "error rate against the reference",
    "ks": "Kolmogorov–Smirnov",
    "psi": "population stability",
    "mmd": "maximum mean discrepancy",
    "calibration_slope_upper": "calibration slope, upper end of the interval",
    "calibration_slope_p_value": "calibration slope below 1, p of the latest votes",
    "ece_lower_bound": "ECE, lower bound",
    "none": "no test was made",
    "prompt_length": "prompt length",
    "completion_length": "completion length",
}


def display_name(name: str) -> str:
    return DISPLAY_NAMES.get(name, name.replace("_", " "))


def format_interval(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def format_share(value: float) -> str:
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def format_value(value: float | None) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:.3g}"


def format_p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def describe_best_error_rate(ceiling: Interval | None) -> str:
    """The noise ceiling as an error rate, beside every share of votes predicted wrong."""
    if ceiling is None:
        return f"the best reachable is {UNKNOWN_CEILING}"
    return (
        f"best reachable {format_share(1 - ceiling.value)} ({format_share(1 - ceiling.high)} to "
        f"{format_share(1 - ceiling.low)}){describe_basis(ceiling)}"
    )


def describe_ceiling(ceiling: Interval | None) -> str:
    """The noise ceiling as an accuracy, beside every share of votes predicted right."""
    if ceiling is None:
        return f"Noise ceiling {UNKNOWN_CEILING}."
    reached = (
        f"{format_share(ceiling.value)} ({format_share(ceiling.low)} to "
        f"{format_share(ceiling.high)}) of single votes, by whatever model."
    )
    return f"Noise ceiling{describe_basis(ceiling)}: {reached}"


def explain_ceiling(ceiling: Interval | None) -> str:
    """How the noise ceiling was measured, and the error rate it implies."""
    if ceiling is None:
        return f"Noise ceiling {UNKNOWN_CEILING}."
    measured = (
        f"one vote agrees with the majority of the others {format_share(ceiling.value)} of the "
        f"time ({format_share(ceiling.low)} to {format_share(ceiling.high)})"
        if ceiling.basis is None
        else "by how often annotators repeat their own choice, one vote is the better side's "
        f"{format_share(ceiling.value)} of the time ({format_share(ceiling.low)} to "
        f"{format_share(ceiling.high)}); that tastes differ is not in it"
    )
    return (
        f"Noise ceiling{describe_basis(ceiling)}: {measured}, so no model can be expected below "
        f"{format_share(1 - ceiling.value)} errors."
    )


def describe_qualifier(interval: Interval) -> str:
    """How few groups the interval rests on, and what a ceiling is from; mostly empty."""
    return str(interval).rpartition("]")[2].strip()


def describe_basis(ceiling: Interval) -> str:
    return "" if ceiling.basis is None else f", from {ceiling.basis}"
