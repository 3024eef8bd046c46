"""`rlhf models`: lists, promotes, exports and registers versions of models."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import require_text
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.learn.champions.champions import record_notices
from rlhf_pipeline.registry import Kind, Registry, ceiling_metric, is_accuracy

app = typer.Typer(help="Models in the registry.", no_args_is_help=True)

# The metrics worth a column, most informative first; those a version does not have are left out.
SHOWN: dict[Kind, tuple[str, ...]] = {
    "policy": (
        "reward_accuracy",
        "noise_ceiling",
        "reward_margin",
        "token_accuracy",
        "final_loss",
        "n_pairs",
        "seconds",
    ),
    "reward_model": (
        "test_accuracy_since_change",
        "test_vote_accuracy_since_change",
        "noise_ceiling_since_change",
        "test_accuracy",
        "test_vote_accuracy",
        "noise_ceiling",
        "longer_wins",
        "test_log_loss",
        "n_train",
    ),
}
# If a version has both metrics, only the first is shown.
STANDS_FOR = (
    ("test_accuracy_since_change", "test_accuracy"),
    ("test_vote_accuracy_since_change", "test_vote_accuracy"),
)


@app.command("list")
def list_models() -> None:
    """List every version with its aliases, its parent and its metrics at registration."""
    workspace = Workspace.open()
    rows = [
        {
            "model": f"{model.name}@{model.version}",
            "aliases": ", ".join(model.aliases),
            "parent": model.parent or "-",
            "registered": f"{model.created_at:%Y-%m-%d %H:%M}",
            "files": "kept" if model.removed_at is None else f"removed {model.removed_at:%Y-%m-%d}",
            "metrics": format_metrics(_find_kind(workspace.registry, model.name), model.metrics),
        }
        for model in workspace.registry.list_models()
    ]
    empty = f"No models yet in {workspace.settings.home}. `rlhf init` registers the first policy."
    show(rows, title=f"models of {workspace.settings.project}", empty=empty)


@app.command("promote")
def promote(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME@VERSION",
            help="A version or an alias, such as demo.policy@1 or demo.policy@previous.",
        ),
    ],
    reason: Annotated[
        str,
        typer.Option(help="Reason, kept in the history of promotions.", callback=require_text),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Promote even a version that was refused, by the gate or as a reward model; the "
            "refusal is kept with the reason.",
        ),
    ] = False,
) -> None:
    """Make a version the champion, in the registry and in the history of promotions. An earlier
    version rolls back.
    """
    workspace = Workspace.open()
    version, before = workspace.champions.promote_by_hand(
        model, reason=reason, actor="rlhf models promote", is_forced=force
    )
    was = before.label if before else "none"
    echo(
        f"{version.label} is champion already"
        if was == version.label
        else f"{version.label} is champion, before it {was}"
    )


@app.command("export")
def export(
    model: Annotated[
        str,
        typer.Argument(metavar="NAME@VERSION", help="A version or an alias, as for `promote`."),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
) -> None:
    """Copy a version's files into a folder; that of a policy is one that transformers loads."""
    workspace = Workspace.open()
    kind, version = workspace.champions.find(model)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is not empty. Name a new folder.")
    source = workspace.registry.fetch_folder(version, workspace.settings.cache / "models")
    # beside it, so that a killed export leaves no folder that looks whole
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    partial.replace(folder)
    how = f'AutoModelForCausalLM.from_pretrained("{folder}")' if kind == "policy" else "its files"
    echo(f"{version.label} in {folder}: {how}")


@app.command("register")
def register(
    kind: Annotated[
        Literal["policy"], typer.Argument(metavar="policy", help="Only policies come from outside.")
    ],
    source: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Folder or hub id of a causal LM for transformers."),
    ],
    reason: Annotated[
        str,
        typer.Option(help="Reason, kept with the version's MLflow run.", callback=require_text),
    ],
) -> None:
    """Register a policy that was made elsewhere. It serves only after `rlhf models promote`."""
    workspace = Workspace.open()
    version = workspace.champions.register_policy(
        source, {"stage": "rlhf models register", "rlhf.reason": reason, "rlhf.source": source}
    )
    for notice in record_notices(workspace.settings.home, version):
        echo(f"Notice: {notice}.", fg=typer.colors.YELLOW)
    echo(
        f"{version.label} is registered. To let it complete prompts: "
        f'rlhf models promote {version.label} --reason "…"'
    )


def format_metrics(kind: Kind, metrics: Mapping[str, float]) -> str:
    """The metrics of `SHOWN` that there are, in its order; beside an accuracy the noise ceiling of
    the same votes, or that it is unknown.
    """
    stood_for = {worse for better, worse in STANDS_FOR if better in metrics}
    present = [key for key in SHOWN[kind] if key in metrics and key not in stood_for]
    ceilings = {ceiling_metric(key) for key in present if is_accuracy(key)}
    keys = [
        key
        for key in SHOWN[kind]
        if key in ceilings or (key in present and not key.startswith("noise_ceiling"))
    ]
    return ", ".join(
        f"{key} {_format_metric(metrics[key]) if key in metrics else 'unknown'}" for key in keys
    )


def _format_metric(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # no powers of ten for counts


def find_reward_model(champions: Champions, label: str) -> ModelVersion:
    """`Champions.find` that refuses a policy."""
    kind, version = champions.find(label)
    if kind != "reward_model":
        raise ConfigurationError(
            f"{label} is a {kind}; name a reward model. `rlhf models list` shows them."
        )
    return version


def _find_kind(registry: Registry, name: str) -> Kind:
    return "policy" if name == registry.model_name("policy") else "reward_model"
