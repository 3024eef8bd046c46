"""How the day's page says things: verdicts, names, numbers with their intervals. Knows words; knows
no evidence.
"""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import pandas as pd

from rlhf_pipeline.calibration.by_group import UNKNOWN_CEILING
from rlhf_pipeline.drift.markup import el
from rlhf_pipeline.drift.reference import LEFT_OUT
from rlhf_pipeline.records import Interval, Verdict

SIGNS = {Verdict.INSUFFICIENT: "?", Verdict.STABLE: "✓", Verdict.WARNING: "!", Verdict.DRIFT: "✕"}
WORDS = {
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


def missing(words: str) -> Element:
    heading, said = (
        ("Left out. ", words.removeprefix(LEFT_OUT))
        if words.startswith(LEFT_OUT)
        else ("Too little data. ", words)
    )
    return el("p", el("strong", heading), said, class_="missing")


def badge(verdict: str, words: str | None = None) -> Element:
    verdict = Verdict(verdict)
    return el(
        "span",
        el("span", SIGNS[verdict], aria_hidden="true"),
        f" {words or verdict}",
        class_=f"badge {verdict}",
    )


def named(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def listed(names: Sequence[str]) -> str:
    return ", ".join(named(name) for name in names)


def number(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def share(value: float) -> str:
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def value_of(value: float | None) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:.3g}"


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def best_reachable(ceiling: Interval | None) -> str:
    """The noise ceiling as an error rate: what stands beside every share of votes predicted
    wrong.
    """
    if ceiling is None:
        return f"the best reachable is {UNKNOWN_CEILING}"
    return (
        f"best reachable {share(1 - ceiling.value)} ({share(1 - ceiling.high)} to "
        f"{share(1 - ceiling.low)}){basis_of(ceiling)}"
    )


def ceiling_words(ceiling: Interval | None) -> str:
    """The noise ceiling as an accuracy: what stands beside every share of votes predicted right."""
    if ceiling is None:
        return f"Noise ceiling {UNKNOWN_CEILING}."
    reached = (
        f"{share(ceiling.value)} ({share(ceiling.low)} to {share(ceiling.high)}) of single "
        "votes, by whatever model."
    )
    return f"Noise ceiling{basis_of(ceiling)}: {reached}"


def why_ceiling(ceiling: Interval | None) -> str:
    """How the noise ceiling was measured, and what it means for the share of errors."""
    if ceiling is None:
        return f"Noise ceiling {UNKNOWN_CEILING}."
    measured = (
        f"one vote agrees with the majority of the others {share(ceiling.value)} of the time "
        f"({share(ceiling.low)} to {share(ceiling.high)})"
        if ceiling.basis is None
        else "by how often annotators repeat their own choice, one vote is the better side's "
        f"{share(ceiling.value)} of the time ({share(ceiling.low)} to {share(ceiling.high)}); "
        "that tastes differ is not in it"
    )
    return (
        f"Noise ceiling{basis_of(ceiling)}: {measured}, so no model can be expected below "
        f"{share(1 - ceiling.value)} errors."
    )


def basis_of(ceiling: Interval) -> str:
    return "" if ceiling.basis is None else f", from {ceiling.basis}"
