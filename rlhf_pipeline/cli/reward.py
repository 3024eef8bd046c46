"""`rlhf reward`: trains, calibrates, queries and probes reward models by hand."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.models import find_reward_model
from rlhf_pipeline.cli.parameters import Changes, ChangeSeq
from rlhf_pipeline.cli.predict import predict
from rlhf_pipeline.cli.probe import probe
from rlhf_pipeline.cli.tables import echo, progress_bar
from rlhf_pipeline.cli.training_files import TrainingFiles, read_pairs
from rlhf_pipeline.core.errors import ConfigurationError, ModelNotFound
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.parameters import parse_parameters, suggest
from rlhf_pipeline.core.records import ModelVersion, folder_hash
from rlhf_pipeline.feedback.votes import Quarantines, TasteChanges, judged_comparison_ids
from rlhf_pipeline.improve.evaluation.error_memory import ErrorMemory
from rlhf_pipeline.improve.reward_training import (
    CalibrateParams,
    WarmStart,
    calibrate_model,
    register_fit,
)
from rlhf_pipeline.learn.calibration import calibration_figures, calibration_log
from rlhf_pipeline.learn.reward_model import (
    PRESETS,
    REWARD_MODELS,
    LearningData,
    RewardModelParams,
    build_reward_model,
    fit_reward_model,
    load_reward_model,
    params_class,
)
from rlhf_pipeline.registry import CANDIDATE
from rlhf_pipeline.reports.calibration import draw_calibration
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.training import chart_loss

app = typer.Typer(
    help="The reward model by hand: train, calibrate, predict, probe.", no_args_is_help=True
)
Data = Annotated[
    Path | None,
    typer.Option(
        help="What `rlhf votes prepare` wrote; default data/vote_predictor_training_data.jsonl "
        "below RLHF_HOME."
    ),
]


app.command("predict")(predict)
app.command("probe")(probe)


@app.command("train")
def train(
    data: Data = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="embedding (default: frozen encoder, minutes), transformer (fine-tuned), or an "
            "installed "
            "one."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="A named recipe instead of --kind. best: three seeds of a fine-tuned encoder. Of "
            "left-out debates' pairs 0.775 for 65 CPU seconds; default head 0.758 for 23, longer "
            "text 0.732."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="What is learnt: votes, majority, or annotators, the annotator model's soft "
            "labels."
        ),
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Start from the champion instead of from scratch.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="Start from this folder instead.")] = None,
    change_seq: ChangeSeq = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write; default models/vote_predictor_checkpoint below RLHF_HOME."
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Fit on the train split, register as candidate with its lineage. `rlhf reward calibrate`
    decides whether it becomes champion.
    """
    workspace = Workspace.open()
    files = TrainingFiles(workspace.settings.home)
    folder = out or files.checkpoint
    learnt_from = _read_data(workspace, data, change_seq)
    start = _load_start(workspace, retrain=retrain, checkpoint=checkpoint)
    params = _parse_fit(kind, preset, label, changes)
    encoder = workspace.champions.encoder()
    model = build_reward_model(params, encoder)
    with progress_bar(f"reward model ({params.chosen_kind})") as progress:
        fitted = fit_reward_model(
            learnt_from,
            params,
            model=model,
            warm_start=start.model,
            progress=progress,
        )
    report = fitted.report
    with workspace.registry.run(
        "rlhf reward train", {"stage": "reward_model", "data_hash": report.data_hash}
    ) as run:
        version = register_fit(
            workspace.champions, learnt_from, params, fitted, start.label, run=run, folder=folder
        )
        run.log_params(params.to_report())
        run.log_metrics(version.metrics | report.metrics())
        run.log_dataset(
            "preference_pairs",
            digest=report.data_hash,
            source=str(data or files.training_data),
            n_rows=len(learnt_from.pairs),
        )
        for step, loss in enumerate(report.loss_curve, start=1):
            run.log_metrics({"training_loss": loss}, step)
        run.log_file(report.model_dump_json(indent=1).encode(), "report.json")
        if report.loss_curve:
            curve = list(enumerate(report.loss_curve))
            run.log_file(
                draw_png(chart_loss(curve, title=f"Loss of {version.label}")), "loss_curve.png"
            )
    echo(f"{version.label} from {start.label or 'nothing'} on {report.summary}, in {folder}")
    no_test = "no test pairs yet to measure it on"
    echo(report.test.describe() if report.test else no_test)
    for note in (report.weight_note, report.dimension_note):
        if note:
            echo(note)
    memory = ErrorMemory.from_metrics(version.metrics)
    if memory is not None:
        echo(memory.describe())


@app.command("calibrate")
def calibrate(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME@VERSION",
            help="Model to calibrate; default: the candidate that was trained last, else the "
            "champion.",
        ),
    ] = None,
    data: Data = None,
    promote: Annotated[
        bool,
        typer.Option(
            "--promote/--no-promote",
            help="Make it champion if it predicts no worse, or let the serving model stay.",
        ),
    ] = True,
    change_seq: ChangeSeq = None,
    changes: Changes = None,
) -> None:
    """Choose a calibrator on the calib split, or none, measure it on the test split, and append to
    calibration_log.json.
    """
    workspace = Workspace.open()
    files, champions = TrainingFiles(workspace.settings.home), workspace.champions
    params = parse_parameters(CalibrateParams, changes)
    version = _find_reward_model(workspace, model)
    learnt_from = _read_data(workspace, data, change_seq)
    comparisons = workspace.store.comparisons.with_ids(judged_comparison_ids(learnt_from.votes))
    # Only an explicit value: the default was never weighed against the data.
    is_given = "weight_before_change" in params.model_fields_set
    with progress_bar(f"calibration of {version.label}") as progress:
        outcome = calibrate_model(
            champions,
            version,
            learnt_from,
            comparisons,
            params,
            weight_before_change=params.weight_before_change if is_given else None,
            promote=promote,
            progress=progress,
        )
    report, judge = outcome.report, outcome.judge
    assert judge.calibrator is not None
    with workspace.registry.run(
        "rlhf reward calibrate", {"stage": "calibration", "reward_model": version.label}
    ) as run:
        run.log_metrics(
            calibration_figures(report)
            | {"is_champion": float(outcome.was_champion or outcome.takes_over)}
        )
        run.log_file(json.dumps(judge.calibrator.to_json()).encode(), "calibrator.json")
        for name, png in draw_calibration(report).items():
            run.log_file(png, f"{name}.png")
    log = calibration_log(workspace.store.calibrations.whole_log())
    write_atomically(
        files.calibration_log, (json.dumps(log, indent=1, ensure_ascii=False) + "\n").encode()
    )
    ceiling = report.noise_ceiling or "unknown: nothing overlaps or was judged again"
    echo(
        f"{version.label}: {judge.calibrator_version}, the {len(log)}. entry of "
        f"{files.calibration_log}"
    )
    echo(f"accuracy {report.raw.accuracy} beside a noise ceiling of {ceiling}")
    echo(
        f"ECE {report.raw.ece} -> {report.calibrated.ece}, "
        f"log loss {report.raw.log_loss} -> {report.calibrated.log_loss}"
    )
    for head in report.by_dimension:
        echo(f"head of {head}")
    if outcome.takes_over:
        champions.promote(
            "reward_model", version, reason=outcome.reason, actor="rlhf reward calibrate"
        )
    serves = outcome.takes_over or outcome.was_champion
    force = "" if report.refusal is None else "--force "
    echo(
        outcome.summary
        if serves
        else f'{outcome.summary}; by hand: rlhf models promote {version.label} {force}--reason "…"'
    )


def _parse_fit(
    kind: str | None, preset: str | None, label: str | None, changes: list[str] | None
) -> RewardModelParams:
    """How to fit a model of `kind` or by the preset. Raises ConfigurationError naming kinds,
    presets or parameters.
    """
    recipe: dict[str, Any] = {"kind": kind or next(iter(REWARD_MODELS))}
    if preset is not None:
        if preset not in PRESETS:
            raise ConfigurationError(f"No preset {preset!r}. {suggest(preset, PRESETS)}")
        if kind is not None:
            raise ConfigurationError(f"--preset {preset} sets the kind. Leave --kind out.")
        recipe = {"preset": preset, **PRESETS[preset]}
    for change in changes or ():
        name = change.partition("=")[0]
        choices = {"kind": REWARD_MODELS, "preset": PRESETS}.get(name)
        if choices is not None:
            raise ConfigurationError(
                f"--set {change!r}: use --{name} instead; {name}s: {', '.join(choices)}."
            )
    return parse_parameters(params_class(recipe["kind"]), changes, **recipe, label=label)


def _load_start(workspace: Workspace, *, retrain: bool, checkpoint: Path | None) -> WarmStart:
    """Load the start of a fit, labelled by the version with the same files, else by its hash."""
    if checkpoint is not None:
        same = [
            v
            for v in workspace.registry.list_versions("reward_model")
            if v.content_hash == folder_hash(checkpoint)
        ]
        model = load_reward_model(checkpoint, encoder=workspace.champions.encoder())
        return WarmStart(model, same[-1].label if same else f"weights {model.weights_hash[:12]}")
    if not retrain:
        return WarmStart()
    champion = workspace.champions.judge()
    if champion is None:
        raise ModelNotFound(
            "There is no champion to retrain yet. Train the first reward model without --retrain."
        )
    return WarmStart(champion.reward_model, champion.label)


def _read_data(workspace: Workspace, path: Path | None, change_seq: int | None) -> LearningData:
    """The pairs in the file, by default those of `rlhf votes prepare`, with the votes that had been
    cast when they were made. Of a file that was named only the votes on its prompts count: those on
    others say nothing of what its model can reach.
    """
    pairs = read_pairs(path or TrainingFiles(workspace.settings.home).training_data)
    seq = int(pairs["max_seq"].max())
    changes = TasteChanges.from_log(
        workspace.store.taste_changes.all(), up_to_seq=seq, change_seq=change_seq
    )
    votes = Quarantines.from_decisions(workspace.store.decisions.fires()).drop(
        workspace.store.votes.log(up_to_seq=seq)
    )
    if path is not None:
        votes = votes[votes["prompt_id"].isin(pairs["prompt_id"])].reset_index(drop=True)
    return LearningData(pairs, votes, changes)


def _find_reward_model(workspace: Workspace, label: str | None) -> ModelVersion:
    if label is not None:
        return find_reward_model(workspace.champions, label)
    model = workspace.registry.get("reward_model", CANDIDATE)
    model = model or workspace.champions.champion("reward_model")
    if model is None:
        raise ModelNotFound(
            "There is no reward model to calibrate yet. Train one: rlhf reward train."
        )
    return model
