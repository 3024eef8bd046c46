"""`rlhf reward`: fit, calibrate, ask and probe the reward model by hand, with the functions the assets use. Knows files and the registry."""

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from rlhf_pipeline.calibration import CalibrationParams, calibrate, calibration_log, ceilings_by_group, groups_of, reliability_diagram
from rlhf_pipeline.champions import Judge, not_worse
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.models import find_version
from rlhf_pipeline.cli.parameters import Changes, parameters
from rlhf_pipeline.cli.predict import predict
from rlhf_pipeline.cli.probe import probe
from rlhf_pipeline.cli.showing import bar, show, show_json
from rlhf_pipeline.cli.training_files import TrainingFiles, read_pairs
from rlhf_pipeline.cli.votes import votes_so_far
from rlhf_pipeline.drift.reference import reference_window
from rlhf_pipeline.errors import ConfigurationError, ModelNotFound
from rlhf_pipeline.evaluation.plots import loss_curve
from rlhf_pipeline.files import write_whole
from rlhf_pipeline.records import CalibrationReport, Interval, ModelVersion, folder_hash
from rlhf_pipeline.registry import CANDIDATE, opening_recorder, openings
from rlhf_pipeline.reward_model import REWARD_MODELS, Encoder, RewardModel, RewardModelParams, fit_reward_model, load_reward_model
from rlhf_pipeline.reward_model.training import RewardModelReport
from rlhf_pipeline.reward_model.transformer import TransformerParams, TransformerRewardModel
from rlhf_pipeline.votes import noise_ceiling

app = typer.Typer(help="The reward model by hand: train, calibrate, predict, probe.", no_args_is_help=True)
Data = Annotated[
    Path | None, typer.Option(help="What `rlhf votes prepare` wrote; default data/vote_predictor_training_data.jsonl below RLHF_HOME.")
]
OF_LOOP = {"weight_before_change", "allow_mixed_annotators", "n_resamples"}  # of RewardModelParams, whatever kind is fitted


@app.callback()
def group() -> None:
    """The reward model by hand: train, calibrate, predict, probe."""


app.command("predict")(predict)
app.command("probe")(probe)


@app.command("train")
def train(
    data: Data = None,
    kind: Annotated[
        str, typer.Option(help="embedding (frozen encoder, minutes), transformer (fine-tuned), or an installed one.")
    ] = "embedding",
    label: Annotated[
        str | None, typer.Option(help="What is learnt: votes, majority, or annotators, the annotator model's soft labels.")
    ] = None,
    retrain: Annotated[bool, typer.Option("--retrain", help="Start from the champion instead of anew.")] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="Start from this folder instead.")] = None,
    change_seq: Annotated[int | None, typer.Option(min=1, help="Vote seq at which taste changed; votes before it count less.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default models/vote_predictor_checkpoint below RLHF_HOME.")] = None,
    changes: Changes = None,
) -> None:
    """Fit on the train split, register as candidate with its lineage. `rlhf reward calibrate` decides whether it becomes champion."""
    workspace = _workspace()
    files = TrainingFiles(workspace.settings.home)
    folder = out or files.checkpoint
    pairs = read_pairs(data or files.training_data)
    params, model = _unfitted(workspace, kind, label, changes, folder)
    start, parent = _start(workspace, retrain=retrain, checkpoint=checkpoint)
    with bar(f"reward model ({kind})") as progress:
        fitted = fit_reward_model(
            pairs,
            params,
            encoder=workspace.champions.encoder(),
            model=model,
            ceiling=noise_ceiling(_votes_of(workspace, pairs)),
            warm_start=start,
            change_seq=change_seq,
            record=opening_recorder(workspace.registry),
            progress=progress,
        )
    report = fitted.report
    fitted.model.save(folder)
    metrics = metrics_of(report)
    with workspace.registry.run("rlhf reward train", {"stage": "reward_model", "data_hash": report.data_hash}) as run:
        version = workspace.registry.register(
            "reward_model",
            folder,
            run=run,
            metrics=metrics,
            params=_told(params, model) | {"kind": kind, "weight_before_change": report.weight_before_change},
            parent=parent,
            data_hash=report.data_hash,
            data_seq=report.max_seq,
        )
        run.log_metrics(metrics)
        run.log_text(report.model_dump_json(indent=1), "report.json")
        run.log_figure(loss_curve(list(enumerate(report.loss_curve)), title=f"Loss of {version.label}"), "loss_curve.png")
    workspace.registry.set_alias("reward_model", CANDIDATE, version.version)
    typer.echo(f"{version.label} from {parent or 'nothing'} on {report.n_train:,} pairs, in {folder}")
    typer.echo(_said(report))


@app.command("calibrate")
def calibrate_model(
    model: Annotated[
        str | None, typer.Option(metavar="NAME@VERSION", help="Which; default the candidate that was trained last, else the champion.")
    ] = None,
    data: Data = None,
    promote: Annotated[bool, typer.Option("--promote/--no-promote", help="Make it champion where it predicts no worse.")] = True,
    change_seq: Annotated[int | None, typer.Option(min=1, help="Vote seq at which taste changed; votes before it count less.")] = None,
    changes: Changes = None,
) -> None:
    """Choose a calibrator on the calib split, or none, measure it on the test split, and append to calibration_log.json."""
    workspace = _workspace()
    files, champions = TrainingFiles(workspace.settings.home), workspace.champions
    params = parameters(CalibrationParams, changes)
    pairs, version = read_pairs(data or files.training_data), _version(workspace, model)
    said, groups = _votes_of(workspace, pairs), groups_of(workspace.store.comparisons.with_ids(pairs["comparison_id"].tolist()))
    judge = champions.judge(version)
    assert judge is not None  # a version was given
    with bar(f"calibration of {version.label}") as progress:
        calibrator, report = calibrate(
            pairs,
            judge.reward_model,
            params,
            reward_model_label=version.label,
            data_hash=version.data_hash or "",
            noise_ceiling=noise_ceiling(said),
            groups=groups,
            group_ceilings=ceilings_by_group(said, groups),
            change_seq=change_seq,
            record=opening_recorder(workspace.registry),
            progress=progress,
        )
    number = workspace.store.calibrations.add(report, calibrator.to_json())
    report = report.model_copy(update={"calibrator_version": number})
    fitted = Judge(version, judge.reward_model, calibrator, f"{report.method}@{number}")
    calib = pairs[pairs["split"] == "calib"]
    if report.candidates and champions.reference_window(version.label) is None:
        window = reference_window(calib, fitted.p_chosen(calib), model_version=version.label, embed=fitted.embed, since_seq=change_seq)
        window.save(champions.reference_folder(version))
    with workspace.registry.run("rlhf reward calibrate", {"stage": "calibration", "reward_model": version.label}) as run:
        run.log_metrics(_measured(report))
        run.log_text(json.dumps(calibrator.to_json()), "calibrator.json")
        run.log_figure(reliability_diagram(report), "reliability_diagram.png")
    log = calibration_log(workspace.store.calibrations.log())
    write_whole(files.calibration_log, (json.dumps(log, indent=1, ensure_ascii=False) + "\n").encode())
    ceiling = report.noise_ceiling or "unknown: nothing overlaps"
    typer.echo(f"{version.label}: {report.method}@{number}, the {len(log)}. entry of {files.calibration_log}")
    typer.echo(f"accuracy {report.raw.accuracy} beside a noise ceiling of {ceiling}")
    typer.echo(
        f"ECE without its noise {report.raw.ece_debiased} -> {report.calibrated.ece_debiased}, "
        f"log loss {report.raw.log_loss} -> {report.calibrated.log_loss}"
    )
    _decide(workspace, fitted, calib, change_seq, promote=promote)


@app.command("openings")
def show_openings(as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False) -> None:
    """Every look at the test split: when, for which model, why, with which code and at how many pairs."""
    workspace = _workspace()
    found = openings(workspace.registry)
    if as_json:
        show_json(found)
        return
    rows = [
        {
            "opened": f"{row.opened_at:%Y-%m-%d %H:%M:%S}",
            "for": str(row.model)[:40],
            "why": str(row.purpose),
            "pairs": f"{row.n_pairs:,}",
            "code": "-" if pd.isna(row.commit) else _short(str(row.commit)),
        }
        for row in found.itertuples()
    ]
    show(rows, title=f"{len(found)} openings of the test split", empty="Nobody has opened the test split yet: no reward model was judged.")


def metrics_of(report: RewardModelReport) -> dict[str, float]:
    """What is frozen with the version, under the names the asset uses."""
    test = report.test
    found: dict[str, float | None] = {"n_train": report.n_train, "weight_before_change": report.weight_before_change}
    if test is not None:
        found |= {
            "test_accuracy": test.accuracy.value,
            "test_vote_accuracy": test.vote_accuracy.value,
            "noise_ceiling": test.ceiling.value if test.ceiling else None,
            "longer_wins": test.longer_wins.value,
            "test_log_loss": test.log_loss.value,
        }
    return {name: float(value) for name, value in found.items() if value is not None}


def _measured(report: CalibrationReport) -> dict[str, float]:
    raw, calibrated = report.raw, report.calibrated
    found: dict[str, Interval | None] = {
        "accuracy": raw.accuracy,
        "noise_ceiling": report.noise_ceiling,
        "ece_debiased_raw": raw.ece_debiased,
        "ece_debiased_calibrated": calibrated.ece_debiased,
        "log_loss_raw": raw.log_loss,
        "log_loss_calibrated": calibrated.log_loss,
    }
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {f"{name}{end}": float(getattr(told, of)) for name, told in found.items() if told is not None for end, of in ends.items()}


def _unfitted(
    workspace: Workspace, kind: str, label: str | None, changes: list[str] | None, folder: Path
) -> tuple[RewardModelParams, RewardModel | None]:
    """Parameters of the fit and, for a kind that has its own, the model with them. Raises ConfigurationError naming the kinds."""
    if kind not in REWARD_MODELS:
        raise ConfigurationError(f"No reward model of kind {kind!r}. Known: {', '.join(REWARD_MODELS)}.")
    if kind == "embedding":
        return parameters(RewardModelParams, changes, label=label), None
    shared = [change for change in changes or () if change.partition("=")[0] in OF_LOOP]
    own = [change for change in changes or () if change not in shared]
    params = parameters(RewardModelParams, shared, label=label)
    if kind != "transformer":
        if own:
            raise ConfigurationError(f"--set {own[0]!r}: the parameters of the installed kind {kind!r} are not known here. Leave them out.")
        return params, REWARD_MODELS[kind]()
    wanted = parameters(TransformerParams, own, label=label)
    encoder = Encoder(workspace.settings.encoder, max_tokens=wanted.max_tokens)
    return params, TransformerRewardModel(wanted, encoder, checkpoints=folder.with_name(f"{folder.name}.training"))


def _told(params: RewardModelParams, model: RewardModel | None) -> dict[str, Any]:
    """What it was fitted with: of a kind with parameters of its own those, and what is of the loop."""
    if model is None:
        return params.model_dump(mode="json")
    own: Any = getattr(model, "params", None)
    return params.model_dump(mode="json", include=OF_LOOP) | ({} if own is None else own.model_dump(mode="json"))


def _start(workspace: Workspace, *, retrain: bool, checkpoint: Path | None) -> tuple[RewardModel | None, str | None]:
    """What a fit starts from, and the label of its parent: that of the version whose files these are, or a hash of them."""
    if checkpoint is not None:
        started = load_reward_model(checkpoint, encoder=workspace.champions.encoder())
        same = [v for v in workspace.registry.history("reward_model") if v.content_hash == folder_hash(checkpoint)]
        return started, same[-1].label if same else f"weights {started.weights_hash[:12]}"
    if not retrain:
        return None, None
    champion = workspace.champions.judge()
    if champion is None:
        raise ModelNotFound("There is no champion to retrain yet. Train the first reward model without --retrain.")
    return champion.reward_model, champion.label


def _votes_of(workspace: Workspace, pairs: pd.DataFrame) -> pd.DataFrame:
    """Those that were there when these pairs were made, for the ceiling to set beside what is measured on them."""
    return votes_so_far(workspace.store, int(pairs["max_seq"].max()))


def _said(report: RewardModelReport) -> str:
    test = report.test
    if test is None:
        return "no test pairs yet: nothing says how good it is"
    ceiling = "unknown, no votes overlap" if test.ceiling is None else str(test.ceiling)
    return (
        f"{test.vote_accuracy} of votes predicted, noise ceiling {ceiling}; accuracy {test.accuracy} on the majorities of {test.n} unseen "
        f"pairs, longer wins {test.longer_wins}"
    )


def _version(workspace: Workspace, label: str | None) -> ModelVersion:
    if label is not None:
        kind, version = find_version(workspace.registry, label)
        if kind != "reward_model":
            raise ConfigurationError(f"{label} is a {kind}; calibrated are reward models. `rlhf models list` shows them.")
        return version
    found = workspace.registry.get("reward_model", CANDIDATE) or workspace.registry.get("reward_model", "champion")
    if found is None:
        raise ModelNotFound("There is no reward model to calibrate yet. Train one: rlhf reward train.")
    return found


def _decide(workspace: Workspace, fitted: Judge, calib: pd.DataFrame, change_seq: int | None, *, promote: bool) -> None:
    """Champion if it predicts no worse than the one there is, which is asked about the same pairs: not those of the test split."""
    label = fitted.label
    better, reason = not_worse(fitted, workspace.champions.judge(), calib, since_seq=change_seq)
    if better and promote:
        workspace.champions.promote("reward_model", fitted.version, reason=reason, actor="rlhf reward calibrate")
        typer.echo(f"{label} is champion: {reason}")
        return
    cure = f'rlhf models promote {label} --reason "…"'
    typer.echo(f"{label} is not champion: {reason if not better else 'not asked for'}; by hand: {cure}")


def _short(commit: str) -> str:
    return commit[:12] + ("-dirty" if commit.endswith("-dirty") else "")


def _workspace() -> Workspace:
    workspace = Workspace.here()
    workspace.require_initialised()
    workspace.store.migrate()
    return workspace
