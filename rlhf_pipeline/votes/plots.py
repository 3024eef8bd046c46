"""The annotators' reliabilities as PNG. Knows ANNOTATOR_FIGURES; knows no file."""

from collections.abc import Sequence
from io import BytesIO

import pandas as pd

MOST_DRAWN = 40
NAME_WIDTH, LONGEST_NAME = 24, 60  # characters; the second where the first leaves names alike


def reliability_plot(figures: pd.DataFrame) -> bytes:
    """Reliability with its interval, a line per annotator, the most doubtful on top; of more than MOST_DRAWN those alone."""
    # Figure without pyplot: no global state, no display, safe in any thread.
    from matplotlib.figure import Figure

    drawn = figures.head(MOST_DRAWN)
    names = told_apart(drawn["annotator_id"].tolist())
    wider = 0.08 * max(0, max(map(len, names), default=0) - NAME_WIDTH)
    figure = Figure(figsize=(7 + wider, 1.6 + 0.24 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    rows, value = range(len(drawn)), drawn["reliability"].to_numpy()
    errors = [value - drawn["reliability_low"].to_numpy(), drawn["reliability_high"].to_numpy() - value]
    axes.errorbar(value, rows, xerr=errors, fmt="o", markersize=4, capsize=2, color="tab:blue")
    axes.axvline(0.5, color="0.6", linestyle="--")
    if not len(drawn):
        axes.text(0.25, 0.0, "nobody judged anything yet", ha="center", va="center", color="0.4")
    axes.text(0.5, 1.0, "a coin", transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize="small", color="0.4")
    told = [f"{name}  n={n:,}" for name, n in zip(names, drawn["n_votes"], strict=True)]
    axes.set_yticks(list(rows), told, fontsize="small")
    axes.set(xlim=(0, 1.02), ylim=(max(len(drawn), 1) - 0.5, -0.5), xlabel="chance to take the better side of a typical comparison")
    left = f", {len(figures) - len(drawn):,} more reliable ones left out" if len(figures) > len(drawn) else ""
    figure.suptitle(f"Reliability of {len(figures):,} annotator{'' if len(figures) == 1 else 's'}{left}")
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def told_apart(names: Sequence[str]) -> list[str]:
    """Names cut in their middle where they are long, less where they would be alike then."""
    cut = [shortened(name, NAME_WIDTH) for name in names]
    return cut if len(set(cut)) == len(set(names)) else [shortened(name, LONGEST_NAME) for name in names]


def shortened(name: str, width: int) -> str:
    """At most `width` characters, from both ends: what names differ in stands at either.

    >>> shortened("annotator", 9), shortened("a-name-with-a-number-17", 9)
    ('annotator', 'a-na…r-17')
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"
