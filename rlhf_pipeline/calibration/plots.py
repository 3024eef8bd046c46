"""Reliability diagrams as PNG, of all pairs and of each group. Knows a calibration report; knows no
file.
"""

from collections.abc import Sequence
from io import BytesIO
from textwrap import fill
from typing import Any

from rlhf_pipeline.calibration.calibration_windows import new_models
from rlhf_pipeline.calibration.group_calibration import UNKNOWN_CEILING, largest_groups
from rlhf_pipeline.records import (
    CalibrationReport,
    CalibrationWindow,
    GroupCalibration,
    Interval,
    ReliabilityBin,
)
from rlhf_pipeline.votes.plots import shorten

N_COLUMNS, N_PANELS = 3, 12
NAME_WIDTH, LABEL_WIDTH = 30, 42  # characters that fit a panel
LEGEND_BELOW = -0.45
N_DAY_LABELS = 14  # more cannot be read


def reliability_diagram(report: CalibrationReport) -> bytes:
    """Stated confidence against the share that was right, before and after calibration, with
    intervals and counts.
    """
    # Figure without pyplot: no global state, no display, safe in any thread.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    top.plot([0.5, 1], [0.5, 1], color="0.6", linestyle="--", label="perfect")
    raw, calibrated = (m.ece_debiased or m.ece_equal_mass for m in (report.raw, report.calibrated))
    _draw_bins(top, report.raw_bins, "tab:orange", f"raw: ECE {raw}")
    _draw_bins(top, report.calibrated_bins, "tab:blue", f"{report.method}: ECE {calibrated}")
    draw_ceiling(top, report.noise_ceiling)
    top.plot([], [], " ", label=f"accuracy {report.raw.accuracy}")
    top.set(
        ylabel="share predicted right",
        ylim=(0, 1.02),
        title=f"{report.reward_model}: reliability on {report.raw.n} test comparisons",
    )
    top.legend(loc="lower right", fontsize="small")
    for bins, colour, shift in (
        (report.raw_bins, "tab:orange", -0.008),
        (report.calibrated_bins, "tab:blue", 0.008),
    ):
        bottom.bar(
            [(b.low + b.high) / 2 + shift for b in bins],
            [b.n for b in bins],
            width=0.015,
            color=colour,
        )
    bottom.set(xlabel="stated confidence", ylabel="rows", xlim=(0.49, 1.01))
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def reliability_by_group(report: CalibrationReport) -> bytes | None:
    """Small multiples: each group's reliability beside its own noise ceiling, largest first; None
    where nothing was grouped.

    A group of fewer pairs than an interval needs is named with its count and no curve; of more than
    N_PANELS the smallest are left to the report, and the picture says how many.
    """
    from matplotlib.figure import Figure

    if not report.by_group:
        return None
    shown = largest_groups(report.by_group, N_PANELS)
    n_columns = min(N_COLUMNS, len(shown))
    n_rows = -(-len(shown) // n_columns)
    # Wide enough for its title where there is but one.
    figure = Figure(figsize=(max(3.2 * n_columns, 6.4), 3.4 * n_rows + 0.5), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, group in zip(panels, shown, strict=False):
        _draw_group(axes, group)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    for axes in panels[max(0, len(shown) - n_columns) : len(shown)]:
        # the last of its column, whatever stands in the last row
        axes.tick_params(labelbottom=True)
    left_out = len(report.by_group) - len(shown)
    more = f"; {left_out} smaller groups are in the report" if left_out else ""
    figure.suptitle(
        f"{report.reward_model}, {report.method}: reliability by group, 95 % intervals{more}",
        fontsize="medium",
    )
    figure.supxlabel("stated confidence", fontsize="small")
    figure.supylabel("share predicted right", fontsize="small")
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def calibration_series(windows: Sequence[CalibrationWindow]) -> bytes:
    """Share predicted right beside the noise ceiling, ECE without its noise, Brier score and
    counts, window by window, with intervals.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    right, ece, brier, counts = figure.subplots(4, 1, sharex=True, height_ratios=[3, 2, 2, 1])
    x = range(len(windows))
    ceilings = [
        (i, w.noise_ceiling) for i, w in zip(x, windows, strict=True) if w.noise_ceiling is not None
    ]
    right.bar(
        [i for i, _ in ceilings],
        [c.high - c.low for _, c in ceilings],
        1.0,
        [c.low for _, c in ceilings],
        color="tab:red",
        alpha=0.12,
    )
    right.hlines(
        [c.value for _, c in ceilings],
        [i - 0.5 for i, _ in ceilings],
        [i + 0.5 for i, _ in ceilings],
        color="tab:red",
        linewidth=1,
    )
    ceiling = (
        "red: noise ceiling of the same votes" if ceilings else f"noise ceiling {UNKNOWN_CEILING}"
    )
    panels = (
        (right, f"share predicted right; {ceiling}", [w.accuracy for w in windows]),
        (ece, "ECE without its noise", [w.ece for w in windows]),
        (brier, "Brier score; dashed: a coin", [w.brier for w in windows]),
    )
    for axes, name, figures in panels:
        shown = [(i, f) for i, f in zip(x, figures, strict=True) if f is not None]
        errors = [[f.value - f.low for _, f in shown], [f.high - f.value for _, f in shown]]
        axes.errorbar(
            [i for i, _ in shown],
            [f.value for _, f in shown],
            yerr=errors,
            fmt="o",
            markersize=4,
            capsize=2,
            color="tab:blue",
        )
        axes.set_title(name, loc="left", fontsize="small")
        axes.grid(visible=True, axis="y", alpha=0.3)
    brier.axhline(0.25, color="0.6", linestyle="--")
    ece.set_ylim(bottom=0)
    counts.bar(x, [w.n_votes for w in windows], color="tab:blue")
    counts.set_title("votes", loc="left", fontsize="small")
    step = -(-len(windows) // N_DAY_LABELS)
    labelled = [i for i in x if (len(windows) - 1 - i) % step == 0]
    counts.set_xticks(labelled, [windows[i].day[5:] for i in labelled], fontsize="small")
    counts.set(xlabel="last day of the window", xlim=(-0.5, len(windows) - 0.5))
    for i, label in new_models(windows):
        for axes in (right, ece, brier, counts):
            axes.axvline(i - 0.5, color="0.4", linestyle="-.", linewidth=1)
        right.annotate(
            label,
            (i - 0.5, 1),
            (3, -10),
            ("data", "axes fraction"),
            "offset points",
            fontsize=8,
            color="0.3",
        )
    figure.suptitle(
        f"Calibration of {windows[0].day} to {windows[-1].day}, as served, 95 % intervals",
        fontsize="medium",
    )
    png = BytesIO()
    figure.savefig(png, format="png", dpi=95)
    return png.getvalue()


def _draw_group(axes: Any, group: GroupCalibration) -> None:
    axes.set_title(
        f"{group.by}: {shorten(group.group, NAME_WIDTH)}\n{group.n:,} pairs", fontsize="small"
    )
    # Below 0 there is room for the figures, where they cover no interval.
    axes.set(xlim=(0.49, 1.01), ylim=(LEGEND_BELOW, 1.02), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.axhline(0, color="0.8", linewidth=0.6)
    axes.plot([0.5, 1], [0.5, 1], color="0.6", linestyle="--")
    measured = group.calibrated
    if measured is None:
        axes.text(
            0.75, 0.3, f"{group.n} pairs: too few", ha="center", fontsize="small", color="0.4"
        )
        return
    _draw_bins(axes, group.calibrated_bins, "tab:blue", f"accuracy {measured.accuracy}")
    axes.plot([], [], " ", label=f"ECE {measured.ece_debiased}")
    draw_ceiling(axes, group.noise_ceiling)
    handles, labels = axes.get_legend_handles_labels()
    told = [fill(" ".join(label.split()), LABEL_WIDTH) for label in labels]
    axes.legend(
        handles,
        told,
        loc="lower right",
        fontsize=7,
        framealpha=0.8,
        edgecolor="none",
        borderpad=0.2,
    )


def draw_ceiling(axes: Any, ceiling: Interval | None) -> None:
    """The noise ceiling across, with its interval, and in the legend; that it is unknown where it
    is.
    """
    if ceiling is None:
        axes.plot([], [], " ", label=f"noise ceiling {UNKNOWN_CEILING}".replace(", ", ",\n"))
        return
    axes.axhspan(ceiling.low, ceiling.high, color="tab:red", alpha=0.08, linewidth=0)
    axes.axhline(ceiling.value, color="tab:red", linewidth=0.8, label=f"noise ceiling {ceiling}")


def _draw_bins(axes: Any, bins: Sequence[ReliabilityBin], colour: str, label: str) -> None:
    x, y = [b.mean_confidence for b in bins], [b.accuracy for b in bins]
    errors = [
        [max(0.0, b.accuracy - b.accuracy_low) for b in bins],
        [max(0.0, b.accuracy_high - b.accuracy) for b in bins],
    ]
    axes.errorbar(x, y, yerr=errors, color=colour, marker="o", capsize=3, label=label)
