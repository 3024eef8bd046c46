"""Formats names and numbers for pages and charts."""

import math
import re
from collections.abc import Sequence

from rlhf_pipeline.core.records import Interval

LABEL_WIDTH, LONGEST_LABEL = 24, 60  # characters; the second if the first gives equal names
DISPLAY_NAMES = {
    "sequential_test": "sequential test",
    "adwin": "ADWIN",
    "ddm": "DDM",
    "hddm_a": "HDDM-A",
    "eddm": "EDDM",
    "rddm": "RDDM",
    "hddm_w": "HDDM-W",
    "ecdd": "ECDD",
    "cusum": "CUSUM",
    "page_hinkley": "Page–Hinkley",
    "stepd": "STEPD",
    "p_chart": "p-chart",
    "ewma": "EWMA chart",
    "western_electric": "Western Electric rules",
    "error_rate": "error rate against the reference",
    "ks": "Kolmogorov–Smirnov",
    "psi": "population stability",
    "mmd": "maximum mean discrepancy",
    "calibration_slope_upper": "calibration slope, upper end of the interval",
    "calibration_slope_p_value": "calibration slope below 1, p of the latest votes",
    "ece_lower_bound": "ECE, lower bound",
    "none": "no test was made",
    "confirmation": "confirming detectors",
    "word_classifier": "classifier of words",
    "chi_squared": "chi-squared",
    "prompt_mix": "kinds of prompts",
}


def display_name(name: str) -> str:
    """The display name of `name`; by default `name` with spaces instead of underscores."""
    return DISPLAY_NAMES.get(name, name.replace("_", " "))


def name_test(space: str, detector: str) -> str:
    """
    >>> name_test("prompt_text", "ks"), name_test("calibration", "calibration_slope_upper")
    ('prompt text: Kolmogorov–Smirnov', 'calibration: slope, upper end of the interval')
    """
    name = display_name(space)
    return f"{name}: {display_name(detector).removeprefix(f'{name} ')}"


# on which side of its threshold a test finds a change; the others find one from the threshold on
SIDES = {"calibration_slope_upper": "<", "calibration_slope_p_value": "<", "ece_lower_bound": ">"}


def format_threshold(detector: str, threshold: float | None) -> str:
    """
    >>> format_threshold("ks", 0.2), format_threshold("calibration_slope_p_value", 0.025)
    ('≥ 0.2', '< 0.025')
    """
    value = format_value(threshold)
    return value if threshold is None else f"{SIDES.get(detector, '≥')} {value}"


LISTED = re.compile(r"(detectors?(?:(?:\(s\))? reported)?) \(([\w, ]+)\)")


def name_detectors(reason: str) -> str:
    """A reason of the trigger with the display names of the detectors that it lists.

    >>> name_detectors("confirmed by 2 detectors (adwin, page_hinkley) between votes 1 and 9")
    'confirmed by 2 detectors (ADWIN, Page–Hinkley) between votes 1 and 9'
    >>> name_detectors("unconfirmed: 1 detector reported (ddm)")
    'unconfirmed: 1 detector reported (DDM)'
    """
    return LISTED.sub(
        lambda match: f"{match[1]} ({', '.join(map(display_name, match[2].split(', ')))})", reason
    )


MODEL_LABEL = re.compile(r"[\w.-]+\.(policy|reward_model)@(\d+)")


def name_models(text: str, *, is_first: bool = False) -> str:
    """The text with the names that people say of a project's models; `is_first`: of a sentence.

    >>> name_models("demo.reward_model@2, refitted"), name_models("none", is_first=True)
    ('reward model 2, refitted', 'None')
    """
    sentence = MODEL_LABEL.sub(lambda match: f"{match[1].replace('_', ' ')} {match[2]}", text)
    return f"{sentence[:1].upper()}{sentence[1:]}" if is_first else sentence


FIGURE_NAMES = {
    "first_seq": "from vote",
    "n_votes": "votes read",
    "n_after": "votes after",
    "error_before": "error rate before",
    "error_after": "error rate after",
    "error_expected": "error rate expected",
    "value": "measured",
}


def name_figure(name: str) -> str:
    """A figure of an event's evidence in words."""
    return FIGURE_NAMES.get(name, name.replace("_", " "))


def name_stream(stream: str) -> str:
    """
    >>> name_stream("category:safety"), name_stream("errors")
    ('errors in safety', 'errors')
    """
    kind, _, category = stream.partition(":")
    if category:
        return f"errors in {category}"
    return {"window": "errors of the latest votes"}.get(kind, kind.replace("_", " "))


def format_interval(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def format_share(value: float) -> str:
    return f"{100 * value:.1f}%"


def format_value(value: float | None) -> str:
    """
    >>> format_value(0.03251), format_value(5158.7), format_value(None)
    ('0.0325', '5,159', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"


def format_p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def describe_qualifier(interval: Interval) -> str:
    """Note on an interval from few groups, or on a ceiling's source; usually empty."""
    return str(interval).rpartition("]")[2].strip()


def shorten(name: str, width: int) -> str:
    """At most `width` characters, from both ends: names may differ at either.

    >>> shorten("annotator", 9), shorten("a-name-with-a-number-17", 9)
    ('annotator', 'a-na…r-17')
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def distinct_labels(names: Sequence[str]) -> list[str]:
    """Shorten each name in its middle, less if that would make two labels equal."""
    short = [shorten(name, LABEL_WIDTH) for name in names]
    is_distinct = len(set(short)) == len(set(names))
    return short if is_distinct else [shorten(name, LONGEST_LABEL) for name in names]


def truncate(text: str, width: int) -> str:
    """One line of at most `width` characters; a longer text ends in an ellipsis.

    >>> truncate("a  long  prompt", 8)
    'a long …'
    """
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1].rstrip()} …"[: width + 1]


def format_count(n: int, noun: str) -> str:
    """
    >>> format_count(1, "vote"), format_count(1200, "vote")
    ('1 vote', '1,200 votes')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
