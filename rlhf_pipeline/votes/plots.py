"""The annotators' reliabilities, and their figures over time, as PNG. Knows frames of figures;
knows no file.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DRAWN = 40
MOST_OVER_TIME = 12  # people of the small multiples, a row each
NAME_WIDTH, LONGEST_NAME = 24, 60  # characters; the second where the first leaves names alike


def reliability_plot(figures: pd.DataFrame) -> bytes:
    """Reliability with its interval, a line per annotator, the most doubtful on top; of more than
    MOST_DRAWN those alone.
    """
    # Figure without pyplot: no global state, no display, safe in any thread.
    from matplotlib.figure import Figure

    drawn = figures.head(MOST_DRAWN)
    names = distinct_labels(drawn["annotator_id"].tolist())
    wider = 0.08 * max(0, max(map(len, names), default=0) - NAME_WIDTH)
    figure = Figure(figsize=(7 + wider, 1.6 + 0.24 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    rows, value = range(len(drawn)), drawn["reliability"].to_numpy()
    errors = [
        value - drawn["reliability_low"].to_numpy(),
        drawn["reliability_high"].to_numpy() - value,
    ]
    axes.errorbar(value, rows, xerr=errors, fmt="o", markersize=4, capsize=2, color="tab:blue")
    axes.axvline(0.5, color="0.6", linestyle="--")
    if not len(drawn):
        axes.text(0.25, 0.0, "nobody judged anything yet", ha="center", va="center", color="0.4")
    axes.text(
        0.5,
        1.0,
        "a coin",
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        fontsize="small",
        color="0.4",
    )
    told = [f"{name}  n={n:,}" for name, n in zip(names, drawn["n_votes"], strict=True)]
    axes.set_yticks(list(rows), told, fontsize="small")
    axes.set(
        xlim=(0, 1.02),
        ylim=(max(len(drawn), 1) - 0.5, -0.5),
        xlabel="chance to take the better side of a typical comparison",
    )
    left = (
        f", {len(figures) - len(drawn):,} more reliable ones left out"
        if len(figures) > len(drawn)
        else ""
    )
    figure.suptitle(
        f"Reliability of {len(figures):,} annotator{'' if len(figures) == 1 else 's'}{left}"
    )
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


# Column of the small multiples: figure, its words, where nothing is amiss or chance lies, and the
# ends of the axis.
OVER_TIME: tuple[tuple[str, str, float | None, tuple[float | None, float | None]], ...] = (
    ("kappa", "kappa with the others", 0.0, (-1.02, 1.02)),
    ("gold_accuracy", "right on gold", 0.5, (0.0, 1.02)),
    ("median_seconds", "median seconds", None, (0.0, None)),
    ("share_left", "share of left", 0.5, (0.0, 1.02)),
    ("self_consistency", "same again", 0.5, (0.0, 1.02)),
)


def over_time_plot(
    figures: pd.DataFrame, together: pd.DataFrame, first: Sequence[str] = ()
) -> bytes:
    """Small multiples of ANNOTATORS_OVER_TIME: a row per annotator, a column per figure, points
    with intervals by window.

    On top alpha of all, AGREEMENT_OVER_TIME. Of more than MOST_OVER_TIME people those named in
    `first` are drawn, in its order, then those with most votes. Windows without a figure are gaps.
    """
    from matplotlib.figure import Figure

    n_votes = (
        figures.groupby("annotator_id")["n_votes"]
        .sum()
        .sort_index()
        .sort_values(ascending=False, kind="stable")
    )
    drawn = [
        *(name for name in first if name in n_votes.index),
        *(name for name in n_votes.index if name not in set(first)),
    ][:MOST_OVER_TIME]
    words, height = distinct_labels(drawn), 1.6 + 1.15 * (len(drawn) + 1)
    width = 2.6 * len(OVER_TIME)
    # inches of a character of that size
    left = (0.5 + 0.065 * max([NAME_WIDTH // 2, *map(len, words)])) / width
    figure = Figure(figsize=(width, height))  # no layout engine: of so many axes it takes seconds
    grid = figure.subplots(len(drawn) + 1, len(OVER_TIME), squeeze=False)
    figure.subplots_adjust(
        left=left, right=0.99, top=1 - 0.75 / height, bottom=0.8 / height, hspace=0.3, wspace=0.2
    )
    days = sorted(together["first_day"])
    place = (
        {day: i for i, day in enumerate(pd.date_range(days[0], days[-1]).strftime("%Y-%m-%d"))}
        if days
        else {}
    )
    for empty in grid[0, 1:]:
        empty.axis("off")
    _draw_series(grid[0, 0], together, "alpha", place, 0.0, (-1.02, 1.02))
    grid[0, 0].set_title("alpha of all", fontsize="small")
    for name, row, word in zip(drawn, grid[1:], words, strict=True):
        own = figures[figures["annotator_id"] == name].sort_values("first_day")
        for axes, (measure, _, usual, ends) in zip(row, OVER_TIME, strict=True):
            _draw_series(axes, own, measure, place, usual, ends)
        row[0].set_ylabel(
            f"{word}\nn={n_votes[name]:,}", fontsize="x-small", rotation=0, ha="right", va="center"
        )
    for axes, (_, title, _, _) in zip(grid[min(1, len(drawn))], OVER_TIME, strict=True):
        if drawn:
            axes.set_title(title, fontsize="small")
    for axes in grid[:-1].flat:
        axes.set_xticks([])
    for axes in grid[-1]:
        ticks = [days[i] for i in sorted({0, len(days) // 2, len(days) - 1})] if days else []
        axes.set_xticks(
            [place[day] for day in ticks], ticks, fontsize="x-small", rotation=30, ha="right"
        )
    more = f", {len(n_votes) - len(drawn):,} more left out" if len(n_votes) > len(drawn) else ""
    figure.suptitle(
        f"{len(n_votes):,} annotator{'' if len(n_votes) == 1 else 's'} over {len(days):,} "
        f"window{'' if len(days) == 1 else 's'}{more}"
    )
    png = BytesIO()
    figure.savefig(png, format="png", dpi=100)
    return png.getvalue()


def _draw_series(
    axes: "Axes",
    rows: pd.DataFrame,
    measure: str,
    place: dict[str, int],
    usual: float | None,
    ends: tuple[float | None, float | None],
) -> None:
    known = rows[rows[measure].notna()]
    x = [place[day] for day in known["first_day"]]
    value = known[measure].to_numpy()
    errors = np.abs(
        [value - known[f"{measure}_low"].to_numpy(), known[f"{measure}_high"].to_numpy() - value]
    )
    axes.errorbar(
        x, value, yerr=errors, fmt="o", markersize=3, capsize=1.5, linewidth=0.8, color="tab:blue"
    )
    if usual is not None:
        axes.axhline(usual, color="0.6", linestyle="--", linewidth=0.8)
    if known.empty:
        axes.text(
            0.5,
            0.5,
            "not measured",
            transform=axes.transAxes,
            ha="center",
            va="center",
            fontsize="x-small",
            color="0.4",
        )
    axes.set_ylim(*ends)
    axes.set_xlim(-3, max(place.values(), default=0) + 3)
    axes.tick_params(labelsize="x-small")


def distinct_labels(names: Sequence[str]) -> list[str]:
    """Names cut in their middle where they are long, less where they would be alike then."""
    cut = [shorten(name, NAME_WIDTH) for name in names]
    return (
        cut if len(set(cut)) == len(set(names)) else [shorten(name, LONGEST_NAME) for name in names]
    )


def shorten(name: str, width: int) -> str:
    """At most `width` characters, from both ends: what names differ in stands at either.

    >>> shorten("annotator", 9), shorten("a-name-with-a-number-17", 9)
    ('annotator', 'a-na…r-17')
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"
