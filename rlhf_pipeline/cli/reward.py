"""`rlhf reward`: fit, calibrate, ask and probe the reward model by hand, with the functions the
assets use. Knows files and the registry.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from rlhf_pipeline.calibration import (
    CALIBRATORS,
    CalibrationParams,
    calibrate_version,
    calibration_figures,
    calibration_log,
)
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.models import find_version
from rlhf_pipeline.cli.parameters import Changes, parse_parameters
from rlhf_pipeline.cli.predict import predict
from rlhf_pipeline.cli.probe import probe
from rlhf_pipeline.cli.tables import echo, progress_bar, show, show_json
from rlhf_pipeline.cli.training_files import TrainingFiles, read_pairs
from rlhf_pipeline.drift.reference import reference_window
from rlhf_pipeline.errors import ConfigurationError, ModelHashMismatch, ModelNotFound
from rlhf_pipeline.files import write_atomically
from rlhf_pipeline.records import ModelVersion, folder_hash
from rlhf_pipeline.registry import CANDIDATE, list_openings, opening_recorder
from rlhf_pipeline.reports.calibration import draw_calibration
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.training import loss_chart
from rlhf_pipeline.reward_model import (
    REWARD_MODELS,
    AcceptanceParams,
    RewardModel,
    RewardModelParams,
    build_reward_model,
    encoder_params,
    fit_reward_model,
    params_class,
)
from rlhf_pipeline.reward_model.report import RewardModelReport
from rlhf_pipeline.votes import TasteChanges, judged_comparison_ids, noise_ceiling_or_repeats

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


class CalibrateParams(*CALIBRATORS.params(CalibrationParams, AcceptanceParams)):  # type: ignore[misc]
    """How a calibrator is chosen, and when its reward model is refused."""


@app.callback()
def group() -> None:
    """The reward model by hand: train, calibrate, predict, probe."""


app.command("predict")(predict)
app.command("probe")(probe)


@app.command("train")
def train(
    data: Data = None,
    kind: Annotated[
        str,
        typer.Option(
            help="embedding (frozen encoder, minutes), transformer (fine-tuned), or an installed "
            "one."
        ),
    ] = "embedding",
    label: Annotated[
        str | None,
        typer.Option(
            help="What is learnt: votes, majority, or annotators, the annotator model's soft "
            "labels."
        ),
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Start from the champion instead of anew.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="Start from this folder instead.")] = None,
    change_seq: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="First vote of one more change of taste, beside those that `rlhf changes list` "
            "shows.",
        ),
    ] = None,
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
    workspace = _open_workspace()
    files = TrainingFiles(workspace.settings.home)
    folder = out or files.checkpoint
    pairs = read_pairs(data or files.training_data)
    said, seq = _read_votes_behind(workspace, pairs)
    start, parent = _load_start(workspace, retrain=retrain, checkpoint=checkpoint)
    encoder = workspace.champions.encoder(start)
    params = _parse_fit(kind, label, changes)
    unfinished = folder.with_name(f"{folder.name}.training")
    model = build_reward_model(params, encoder, checkpoints=unfinished)
    taste = TasteChanges.from_log(
        workspace.store.taste_changes.all(), up_to_seq=seq, change_seq=change_seq
    )
    since = said[said["seq"] >= taste.latest_seq] if taste else None
    with progress_bar(f"reward model ({kind})") as progress:
        fitted = fit_reward_model(
            pairs,
            params,
            model=model,
            ceiling=noise_ceiling_or_repeats(said),
            ceiling_since_change=None if since is None else noise_ceiling_or_repeats(since),
            warm_start=start,
            taste_changes=taste,
            record=opening_recorder(workspace.registry),
            progress=progress,
        )
    report = fitted.report
    fitted.model.save(folder)
    metrics = report.metrics()
    with workspace.registry.run(
        "rlhf reward train", {"stage": "reward_model", "data_hash": report.data_hash}
    ) as run:
        version = workspace.registry.register(
            "reward_model",
            folder,
            run=run,
            metrics=metrics,
            params=params.to_report()
            | encoder_params(fitted.model)
            | {"weight_before_change": report.weight_before_change}
            | ({"taste_changes": taste.to_json()} if taste else {}),
            parent=parent,
            data_hash=report.data_hash,
            data_seq=report.max_seq,
        )
        run.log_metrics(metrics)
        run.log_text(report.model_dump_json(indent=1), "report.json")
        if report.loss_curve:
            curve = list(enumerate(report.loss_curve))
            run.log_figure(
                draw_png(loss_chart(curve, title=f"Loss of {version.label}")), "loss_curve.png"
            )
    workspace.registry.set_alias("reward_model", CANDIDATE, version.version)
    echo(f"{version.label} from {parent or 'nothing'} on {report.summary}, in {folder}")
    echo(_describe_report(report))
    if report.weight_reason:
        echo(
            f"pairs from before the change count {report.weight_before_change:g}: "
            f"{report.weight_reason}"
        )


@app.command("calibrate")
def calibrate_model(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME@VERSION",
            help="Which; default the candidate that was trained last, else the champion.",
        ),
    ] = None,
    data: Data = None,
    promote: Annotated[
        bool,
        typer.Option(
            "--promote/--no-promote",
            help="Make it champion where it predicts no worse; without, nothing that serves "
            "changes.",
        ),
    ] = True,
    change_seq: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="First vote of one more change of taste, beside those that `rlhf changes list` "
            "shows.",
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Choose a calibrator on the calib split, or none, measure it on the test split, and append to
    calibration_log.json.
    """
    workspace = _open_workspace()
    files, champions = TrainingFiles(workspace.settings.home), workspace.champions
    params = parse_parameters(CalibrateParams, changes)
    pairs, version = read_pairs(data or files.training_data), _find_reward_model(workspace, model)
    said, seq = _read_votes_behind(workspace, pairs)
    taste = TasteChanges.from_log(
        workspace.store.taste_changes.all(), up_to_seq=seq, change_seq=change_seq
    )
    judge = champions.judge(version)
    assert judge is not None  # a version was given
    with progress_bar(f"calibration of {version.label}") as progress:
        calibrator, report = calibrate_version(
            version,
            judge.reward_model,
            pairs,
            said,
            workspace.store.comparisons.with_ids(judged_comparison_ids(said)),
            params,
            # Only where it was asked for: what it is by default was never weighed.
            weight_before_change=params.weight_before_change
            if "weight_before_change" in params.model_fields_set
            else None,
            taste_changes=taste,
            record=opening_recorder(workspace.registry),
            progress=progress,
        )
        calib = pairs[pairs["split"] == "calib"]
        settled = champions.record_calibration(
            version,
            judge.reward_model,
            calibrator,
            report,
            calib,
            taste_changes=taste,
            acceptance=params,
            promote=promote,
            progress=progress,
        )
        report, fitted = settled.report, settled.judge
        if (
            report.candidates
            and report.may_serve
            and champions.reference_window(version.label) is None
        ):
            p_chosen, embed = (
                fitted.p_chosen(calib, progress=progress),
                partial(fitted.embed, progress=progress),
            )
            window = reference_window(
                calib, p_chosen, model_version=version.label, embed=embed, taste_changes=taste
            )
            champions.save_reference_window(version, window)
    with workspace.registry.run(
        "rlhf reward calibrate", {"stage": "calibration", "reward_model": version.label}
    ) as run:
        run.log_metrics(
            calibration_figures(report)
            | {"is_champion": float(settled.was_champion or settled.takes_over)}
        )
        run.log_text(json.dumps(calibrator.to_json()), "calibrator.json")
        for name, png in draw_calibration(report).items():
            run.log_figure(png, f"{name}.png")
    log = calibration_log(workspace.store.calibrations.whole_log())
    write_atomically(
        files.calibration_log, (json.dumps(log, indent=1, ensure_ascii=False) + "\n").encode()
    )
    ceiling = report.noise_ceiling or "unknown: nothing overlaps or was judged again"
    echo(
        f"{version.label}: {fitted.calibrator_version}, the {len(log)}. entry of "
        f"{files.calibration_log}"
    )
    echo(f"accuracy {report.raw.accuracy} beside a noise ceiling of {ceiling}")
    echo(
        f"ECE without its noise {report.raw.ece_debiased} -> {report.calibrated.ece_debiased}, "
        f"log loss {report.raw.log_loss} -> {report.calibrated.log_loss}"
    )
    if settled.takes_over:
        champions.promote(
            "reward_model", version, reason=settled.reason, actor="rlhf reward calibrate"
        )
    serves = settled.takes_over or settled.was_champion
    force = "" if report.refusal is None else "--force "
    echo(
        settled.summary
        if serves
        else f'{settled.summary}; by hand: rlhf models promote {version.label} {force}--reason "…"'
    )


@app.command("openings")
def show_openings(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Every look at the test split: when, for which model, why, with which code and at how many
    pairs.
    """
    workspace = _open_workspace()
    found = list_openings(workspace.registry)
    if as_json:
        show_json(found)
        return
    rows = [
        {
            "opened": f"{row.opened_at:%Y-%m-%d %H:%M:%S}",
            "for": str(row.model)[:40],
            "why": str(row.purpose),
            "pairs": f"{row.n_pairs:,}",
            "code": "-" if pd.isna(row.commit) else _format_commit(str(row.commit)),
        }
        for row in found.itertuples()
    ]
    show(
        rows,
        title=f"{len(found)} openings of the test split",
        empty="Nobody has opened the test split yet: no reward model was judged.",
    )


def _parse_fit(kind: str, label: str | None, changes: list[str] | None) -> RewardModelParams:
    """How to fit a model of `kind`. Raises ConfigurationError naming kinds or parameters."""
    for change in changes or ():
        if change.partition("=")[0] == "kind":
            raise ConfigurationError(
                f"--set {change!r}: say it with --kind, which knows {', '.join(REWARD_MODELS)}."
            )
    return parse_parameters(params_class(kind), changes, label=label)


def _load_start(
    workspace: Workspace, *, retrain: bool, checkpoint: Path | None
) -> tuple[RewardModel | None, str | None]:
    """What a fit starts from, and the label of its parent: that of the version whose files these
    are, or a hash of them.
    """
    if checkpoint is not None:
        same = [
            v
            for v in workspace.registry.list_versions("reward_model")
            if v.content_hash == folder_hash(checkpoint)
        ]
        try:
            started = workspace.champions.encoders.load_model(checkpoint, str(checkpoint))
        except ModelHashMismatch as cause:
            used = same[-1].params.get("encoder_used") if same else None
            if used is None:
                raise
            raise ModelHashMismatch(
                f"{cause} {same[-1].label} was fitted on {used}: to start from it, name that "
                f"encoder, RLHF_ENCODER={used}, or as what to go on with, after a comma."
            ) from cause
        return started, same[-1].label if same else f"weights {started.weights_hash[:12]}"
    if not retrain:
        return None, None
    champion = workspace.champions.judge()
    if champion is None:
        raise ModelNotFound(
            "There is no champion to retrain yet. Train the first reward model without --retrain."
        )
    if champion.load_error is not None:
        raise champion.load_error
    return champion.reward_model, champion.label


def _read_votes_behind(workspace: Workspace, pairs: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Those that were there when these pairs were made, for the ceiling to set beside what is
    measured on them, and the last one's seq.
    """
    seq = int(pairs["max_seq"].max())
    return workspace.store.votes.log(up_to_seq=seq), seq


def _describe_report(report: RewardModelReport) -> str:
    test = report.test
    if test is None:
        return "no test pairs yet: nothing says how good it is"
    ceiling = (
        "unknown, nothing overlaps or was judged again"
        if test.ceiling is None
        else str(test.ceiling)
    )
    return (
        f"{test.vote_accuracy} of votes predicted, noise ceiling {ceiling}; accuracy "
        f"{test.accuracy} on the majorities of {test.n} unseen pairs, longer wins "
        f"{test.longer_wins}"
    )


def _find_reward_model(workspace: Workspace, label: str | None) -> ModelVersion:
    if label is not None:
        kind, version = find_version(workspace.registry, label)
        if kind != "reward_model":
            raise ConfigurationError(
                f"{label} is a {kind}; calibrated are reward models. `rlhf models list` shows them."
            )
        return version
    found = workspace.registry.get("reward_model", CANDIDATE) or workspace.registry.get(
        "reward_model", "champion"
    )
    if found is None:
        raise ModelNotFound(
            "There is no reward model to calibrate yet. Train one: rlhf reward train."
        )
    return found


def _format_commit(commit: str) -> str:
    return commit[:12] + ("-dirty" if commit.endswith("-dirty") else "")


def _open_workspace() -> Workspace:
    workspace = Workspace.from_environment()
    workspace.require_initialised()
    workspace.store.migrate()
    return workspace
