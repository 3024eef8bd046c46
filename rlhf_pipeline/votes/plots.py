"""The annotators' reliabilities as PNG. Knows ANNOTATOR_FIGURES; knows no file."""

from io import BytesIO

import pandas as pd

MOST_DRAWN = 40


def reliability_plot(figures: pd.DataFrame) -> bytes:
    """Reliability with its interval, a line per annotator, the most doubtful on top; of more than MOST_DRAWN those alone."""
    # Figure without pyplot: no global state, no display, safe in any thread.
    from matplotlib.figure import Figure

    drawn = figures.head(MOST_DRAWN)
    figure = Figure(figsize=(7, 1.6 + 0.24 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    rows, value = range(len(drawn)), drawn["reliability"].to_numpy()
    errors = [value - drawn["reliability_low"].to_numpy(), drawn["reliability_high"].to_numpy() - value]
    axes.errorbar(value, rows, xerr=errors, fmt="o", markersize=4, capsize=2, color="tab:blue")
    axes.axvline(0.5, color="0.6", linestyle="--")
    axes.text(0.5, 1.0, "a coin", transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize="small", color="0.4")
    names = [f"{name[:16]}  n={n}" for name, n in zip(drawn["annotator_id"], drawn["n_votes"], strict=True)]
    axes.set_yticks(list(rows), names, fontsize="small")
    axes.set(xlim=(0, 1.02), ylim=(len(drawn) - 0.5, -0.5), xlabel="chance to take the better side of a typical comparison")
    left = f", {len(figures) - len(drawn)} more reliable ones left out" if len(figures) > len(drawn) else ""
    figure.suptitle(f"Reliability of {len(figures)} annotators{left}")
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()
