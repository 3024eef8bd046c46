"""The reliability diagram as PNG. Knows a calibration report; knows no file."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from rlhf_pipeline.records import CalibrationReport, ReliabilityBin


def reliability_diagram(report: CalibrationReport) -> bytes:
    """Stated confidence against the share that was right, before and after calibration, with intervals and counts."""
    # Figure without pyplot: no global state, no display, safe in any thread.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    top.plot([0.5, 1], [0.5, 1], color="0.6", linestyle="--", label="perfect")
    raw, calibrated = report.raw.ece_equal_mass, report.calibrated.ece_equal_mass
    _draw(top, report.raw_bins, "tab:orange", f"raw: ECE {raw}")
    _draw(top, report.calibrated_bins, "tab:blue", f"{report.method}: ECE {calibrated}")
    if report.noise_ceiling is not None:
        top.axhline(report.noise_ceiling.value, color="tab:red", linewidth=0.8, label=f"noise ceiling {report.noise_ceiling}")
    top.set(ylabel="share predicted right", ylim=(0, 1.02), title=f"{report.reward_model}: reliability on {report.raw.n} test comparisons")
    top.legend(loc="lower right", fontsize="small")
    for bins, colour, shift in ((report.raw_bins, "tab:orange", -0.008), (report.calibrated_bins, "tab:blue", 0.008)):
        bottom.bar([(b.low + b.high) / 2 + shift for b in bins], [b.n for b in bins], width=0.015, color=colour)
    bottom.set(xlabel="stated confidence", ylabel="rows", xlim=(0.49, 1.01))
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def _draw(axes: Any, bins: Sequence[ReliabilityBin], colour: str, label: str) -> None:
    x, y = [b.mean_confidence for b in bins], [b.accuracy for b in bins]
    errors = [[max(0.0, b.accuracy - b.accuracy_low) for b in bins], [max(0.0, b.accuracy_high - b.accuracy) for b in bins]]
    axes.errorbar(x, y, yerr=errors, color=colour, marker="o", capsize=3, label=label)
