"""`rlhf reward probe`: the reward model against people, on predictions that were made before their
votes.
"""

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, format_interval, show, show_json
from rlhf_pipeline.cli.training_files import TrainingFiles, write_lines
from rlhf_pipeline.core.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.records import CalibrationMetrics, Interval, ReliabilityBin
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.improve.evaluation.error_memory import ErrorMemory
from rlhf_pipeline.improve.evaluation.probe import probe_model as probed
from rlhf_pipeline.reports.calibration import chart_reliability
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.reflection import reflect, reflection_rows

BARS = 30  # characters of a full bar


def probe(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME@VERSION",
            help="Whose predictions; default those of the model that made the newest.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Picture to write; default models/reliability_diagram.png below RLHF_HOME."
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Accuracy, noise ceiling, ECE and bins as JSON.",
        ),
    ] = False,
) -> None:
    """Stated confidence against the share that was right, with counts and intervals, and how the
    model does on confident predictions of the past; writes the diagram and
    meta_reflection_log.jsonl.
    """
    workspace = Workspace.open_current()
    files = TrainingFiles(workspace.settings.home)
    reflections = read_reflections(workspace.store)
    write_lines(files.reflection_log, reflection_rows(reflections))
    label = _select_model(reflections, model)
    mine = reflections[reflections["reward_model"] == label]
    if mine["is_error"].isna().all():
        n = mine["comparison_id"].nunique()
        raise NotEnoughData(
            f"{label} predicted {format_count(n, 'comparison')}, but no later vote prefers a "
            f"side of one. "
            "Collect votes on them."
        )
    votes = workspace.store.votes.log(comparison_ids=mine["comparison_id"].unique().tolist())
    result = probed(mine, votes)
    metrics, ceiling = result.metrics, result.noise_ceiling
    picture = out or files.reliability_diagram
    chart = chart_reliability(
        {f"ECE {metrics.ece}": result.bins},
        ceiling,
        title=f"{label} against {result.n_votes:,} later votes",
        unit="votes",
    )
    write_atomically(picture, draw_png(chart))
    memory = _read_memory(workspace, label)
    if as_json:
        show_json(build_document(label, metrics, ceiling, result.bins, memory))
        return
    show(
        [_build_bin_row(reliability_bin) for reliability_bin in result.bins],
        title=f"{label} against {format_count(result.n_votes, 'vote')} cast after its predictions",
        empty="",
        caption=f"accuracy {metrics.accuracy} beside a noise ceiling of "
        f"{ceiling or 'unknown: nothing overlaps or was judged again'}; ECE "
        f"{metrics.ece}, Brier {metrics.brier}",
    )
    if memory is not None:
        echo(memory.describe())
    echo(
        f"picture in {picture}, {format_count(len(reflections), 'reflection')} in "
        f"{files.reflection_log}"
    )
    echo("The page *calibration* lists the pairs behind each point of the diagram.")


def build_document(
    label: str,
    metrics: CalibrationMetrics,
    ceiling: Interval | None,
    bins: tuple[ReliabilityBin, ...],
    memory: ErrorMemory | None,
) -> dict[str, Any]:
    """Build the table as JSON: accuracy beside its noise ceiling, null if unknown, and how many
    confident errors of the past the model fixed and how many hits it lost, null without any.
    """
    figures = {
        "accuracy": metrics.accuracy,
        "noise_ceiling": ceiling,
        "ece": metrics.ece,
    }
    return {
        "model": label,
        **{
            name: None if figure is None else figure.model_dump(mode="json")
            for name, figure in figures.items()
        },
        "bins": [reliability_bin.model_dump(mode="json") for reliability_bin in bins],
        "confident_predictions": memory and memory.model_dump(include={"held_out", "trained"}),
    }


def _read_memory(workspace: Workspace, label: str) -> ErrorMemory | None:
    """The re-test of a registered model; None where no confident prediction was judged before."""
    for version in workspace.registry.list_versions("reward_model"):
        if version.label == label:
            return ErrorMemory.from_metrics(version.metrics)
    return None


def read_reflections(store: Store) -> pd.DataFrame:
    """REFLECTIONS of every prediction there is. Raises NotEnoughData before the first one."""
    predictions = store.predictions.for_days(store.predictions.days())
    if predictions.empty:
        raise NotEnoughData(
            "No comparison was predicted before its votes yet: that takes a champion reward model "
            "and comparisons published since. Run the `collection` job, or `rlhf replay` imported "
            "days."
        )
    parts = [
        reflect(
            of_model,
            counting_votes(store.votes.log(comparison_ids=of_model["comparison_id"].tolist())),
            strict=False,
        )
        for _, of_model in predictions.groupby("reward_model", sort=True)
    ]
    return pd.concat(parts, ignore_index=True)


def _select_model(reflections: pd.DataFrame, label: str | None) -> str:
    labels = reflections.sort_values("predicted_at")["reward_model"]
    if label is None:
        return str(labels.iloc[-1])
    if label not in set(labels):
        counts = ", ".join(
            f"{name} ({n:,})" for name, n in labels.value_counts().sort_index().items()
        )
        raise ConfigurationError(
            f"{label!r} predicted nothing here. There are predictions of {counts}."
        )
    return label


def _build_bin_row(reliability_bin: ReliabilityBin) -> dict[str, str]:
    return {
        "confidence": f"{reliability_bin.low:.2f}-{reliability_bin.high:.2f}",
        "votes": f"{reliability_bin.n:,}",
        "stated": f"{reliability_bin.mean_confidence:.3f}",
        "right": format_interval(
            reliability_bin.accuracy, reliability_bin.accuracy_low, reliability_bin.accuracy_high
        ),
        "": "#" * round(BARS * reliability_bin.accuracy),
    }
