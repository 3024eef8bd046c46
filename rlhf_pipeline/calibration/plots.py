"""Reliability diagrams as PNG, of all pairs and of each group. Knows a calibration report; knows no file."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from rlhf_pipeline.records import CalibrationReport, GroupCalibration, Interval, ReliabilityBin

N_COLUMNS, N_PANELS = 3, 12


def reliability_diagram(report: CalibrationReport) -> bytes:
    """Stated confidence against the share that was right, before and after calibration, with intervals and counts."""
    # Figure without pyplot: no global state, no display, safe in any thread.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    top.plot([0.5, 1], [0.5, 1], color="0.6", linestyle="--", label="perfect")
    raw, calibrated = (m.ece_debiased or m.ece_equal_mass for m in (report.raw, report.calibrated))
    _draw(top, report.raw_bins, "tab:orange", f"raw: ECE {raw}")
    _draw(top, report.calibrated_bins, "tab:blue", f"{report.method}: ECE {calibrated}")
    _draw_ceiling(top, report.noise_ceiling)
    top.plot([], [], " ", label=f"accuracy {report.raw.accuracy}")
    top.set(ylabel="share predicted right", ylim=(0, 1.02), title=f"{report.reward_model}: reliability on {report.raw.n} test comparisons")
    top.legend(loc="lower right", fontsize="small")
    for bins, colour, shift in ((report.raw_bins, "tab:orange", -0.008), (report.calibrated_bins, "tab:blue", 0.008)):
        bottom.bar([(b.low + b.high) / 2 + shift for b in bins], [b.n for b in bins], width=0.015, color=colour)
    bottom.set(xlabel="stated confidence", ylabel="rows", xlim=(0.49, 1.01))
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def reliability_by_group(report: CalibrationReport) -> bytes | None:
    """Small multiples: each group's reliability beside its own noise ceiling, largest first; None where nothing was grouped.

    A group of fewer pairs than an interval needs is named with its count and no curve; of more than N_PANELS the smallest are left to
    the report, and the picture says how many.
    """
    from matplotlib.figure import Figure

    if not report.by_group:
        return None
    shown = sorted(report.by_group, key=lambda group: (group.by, -group.n, group.group))[:N_PANELS]
    n_rows = -(-len(shown) // N_COLUMNS)
    figure = Figure(figsize=(3.2 * N_COLUMNS, 2.9 * n_rows + 0.5), layout="constrained")
    panels = figure.subplots(n_rows, N_COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, group in zip(panels, shown, strict=False):
        _draw_group(axes, group)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    left_out = len(report.by_group) - len(shown)
    more = f"; {left_out} smaller groups are in the report" if left_out else ""
    figure.suptitle(f"{report.reward_model}, {report.method}: reliability by group, 95 % intervals{more}", fontsize="medium")
    figure.supxlabel("stated confidence", fontsize="small")
    figure.supylabel("share predicted right", fontsize="small")
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def _draw_group(axes: Any, group: GroupCalibration) -> None:
    axes.set_title(f"{group.by}: {group.group}, {group.n} pairs", fontsize="small")
    axes.set(xlim=(0.49, 1.01), ylim=(0, 1.02))
    axes.plot([0.5, 1], [0.5, 1], color="0.6", linestyle="--")
    measured = group.calibrated
    if measured is None:
        axes.text(0.75, 0.3, f"{group.n} pairs: too few", ha="center", fontsize="small", color="0.4")
        return
    _draw(axes, group.calibrated_bins, "tab:blue", f"accuracy {measured.accuracy}")
    axes.plot([], [], " ", label=f"ECE {measured.ece_debiased}")
    _draw_ceiling(axes, group.noise_ceiling)
    axes.legend(loc="lower right", fontsize=6, framealpha=0.8, edgecolor="none")


def _draw_ceiling(axes: Any, ceiling: Interval | None) -> None:
    if ceiling is None:
        axes.plot([], [], " ", label="noise ceiling unknown: no votes overlap")
        return
    axes.axhspan(ceiling.low, ceiling.high, color="tab:red", alpha=0.08, linewidth=0)
    axes.axhline(ceiling.value, color="tab:red", linewidth=0.8, label=f"noise ceiling {ceiling}")


def _draw(axes: Any, bins: Sequence[ReliabilityBin], colour: str, label: str) -> None:
    x, y = [b.mean_confidence for b in bins], [b.accuracy for b in bins]
    errors = [[max(0.0, b.accuracy - b.accuracy_low) for b in bins], [max(0.0, b.accuracy_high - b.accuracy) for b in bins]]
    axes.errorbar(x, y, yerr=errors, color=colour, marker="o", capsize=3, label=label)
