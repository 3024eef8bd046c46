"""`rlhf trace`: from a model to the votes and feedback that taught it, and from these to models."""

from collections.abc import Mapping
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.core.records import LARGEST, Record
from rlhf_pipeline.feedback.votes import PairParams
from rlhf_pipeline.improve.lineage import LineageReader, TaughtModel
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.registry import KINDS
from rlhf_pipeline.reports.words import format_count

app = typer.Typer(
    help="Lineage: models, the votes and feedback that taught them, and back.", no_args_is_help=True
)
AsJson = Annotated[bool, typer.Option("--json", help="Print all ids as one JSON object.")]
NO_MODEL = "It taught no model."


@app.command("model")
def model(
    label: Annotated[
        str, typer.Argument(metavar="NAME@VERSION", help="A version or an alias, as for `models`.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show a model's parent, reward model, data set, retraining set, votes by annotator and
    feedback.
    """
    workspace = Workspace.open()
    _, version = workspace.champions.find(label)
    trace = _open_reader(workspace).trace_model(version)
    if _shows_json(trace, as_json):
        return
    rows = "not kept any more"
    if trace.rows is not None:
        rows = ", ".join(f"{n:,} {origin}" for origin, n in trace.rows.items())
    seqs = f", seq {trace.first_seq:,} to {trace.last_seq:,}" if trace.first_seq else ""
    days = f", {trace.first_day} to {trace.last_day}" if trace.first_day else ""
    _show_facts(
        {
            "model": f"{trace.model}, {trace.created_at:%Y-%m-%d %H:%M}",
            "parent": trace.parent,
            "reward model": trace.reward_model,
            "data set": trace.dataset,
            "retraining set": f"{trace.data_hash[:12]}: {rows}"
            if trace.kind == "policy" and trace.data_hash
            else None,
            "votes": f"{trace.n_votes:,}{seqs}{days}",
            "feedback": f"{len(trace.feedback_ids):,}",
        }
    )
    show(
        [
            {
                "annotator": annotator_votes.annotator_id,
                "group": annotator_votes.group or "-",
                "votes": f"{annotator_votes.n_votes:,}",
            }
            for annotator_votes in trace.annotators
        ],
        title=format_count(len(trace.annotators), "annotator"),
        empty="No vote taught it.",
    )


@app.command("vote")
def vote(
    vote_id: Annotated[str, typer.Argument(metavar="ID", help="As `rlhf export votes` has it.")],
    as_json: AsJson = False,
) -> None:
    """Show a vote's comparison, whether it teaches, the data sets with it and the models that it
    taught.
    """
    workspace = Workspace.open()
    params = LoopSettings.read(workspace.settings, only="preference_pairs").params(
        "preference_pairs"
    )
    assert isinstance(params, PairParams)
    reader = _open_reader(workspace)
    trace = reader.trace_vote(vote_id)
    if _shows_json(trace, as_json):
        return
    _show_facts(
        {
            "vote": f"{trace.cast} by {trace.annotator_id}, seq {trace.seq:,}",
            "comparison": trace.comparison_id,
            "teaches": f"no: {trace.left_out}" if trace.left_out else "yes",
            "pair": reader.find_pair(trace.comparison_id, params) or "none",
            "data sets": ", ".join(trace.datasets) or "none",
        }
    )
    _show_models(trace.models)


@app.command("annotator")
def annotator(
    annotator_id: Annotated[str, typer.Argument(metavar="ID", help="As votes have it.")],
    as_json: AsJson = False,
) -> None:
    """Show an annotator's votes and the models that they taught."""
    trace = _open_reader(Workspace.open()).trace_annotator(annotator_id)
    if _shows_json(trace, as_json):
        return
    _show_facts(
        {
            "annotator": trace.annotator_id,
            "group": trace.group,
            "votes": f"{trace.n_votes:,}, of which {trace.n_teaching:,} teach now",
        }
    )
    rows = [{"model": label, "their votes": f"{n:,}"} for label, n in trace.models.items()]
    show(rows, title="Models", empty="Their votes taught no model.")


@app.command("feedback")
def feedback(
    feedback_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=LARGEST, help="As its page shows it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show the data sets and models that an entry of feedback went into."""
    trace = _open_reader(Workspace.open()).trace_feedback(feedback_id)
    if _shows_json(trace, as_json):
        return
    _show_facts(
        {
            "feedback": f"{trace.feedback_id}, {trace.kind}",
            "comparison": trace.comparison_id,
            "vote": trace.vote_id,
            "data sets": ", ".join(trace.datasets) or "none",
            "models": ", ".join(trace.models) or "none",
        }
    )


def _open_reader(workspace: Workspace) -> LineageReader:
    models = [model for kind in KINDS for model in workspace.registry.list_versions(kind)]
    return LineageReader(workspace.store, workspace.files, models)


def _shows_json(trace: Record, as_json: bool) -> bool:
    if as_json:
        show_json(trace.model_dump(mode="json"))
    return as_json


def _show_facts(facts: Mapping[str, str | None]) -> None:
    """Those that there are, one a line."""
    for name, value in facts.items():
        if value is not None:
            echo(f"{name + ':':<16}{value}")


def _show_models(models: tuple[TaughtModel, ...]) -> None:
    rows = [
        {
            "model": taught.model,
            "retraining set": (taught.retraining_set or "-")[:12],
            "data set": taught.dataset or "-",
        }
        for taught in models
    ]
    show(rows, title="Models", empty=NO_MODEL)
