"""`rlhf reward memory`: confident errors of the past, and how each model does on them."""

from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import AsJson
from rlhf_pipeline.cli.tables import show, show_json
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.evaluation.error_memory import (
    ErrorMemory,
    ErrorMemoryParams,
    recall_predictions,
)
from rlhf_pipeline.votes import TasteChanges


def show_memory(
    errors: Annotated[
        bool,
        typer.Option("--errors", help="List the confident errors themselves instead of models."),
    ] = False,
    confidence: Annotated[
        float, typer.Option(min=0.51, max=0.999, help="With --errors: least confidence.")
    ] = 0.9,
    votes: Annotated[
        int, typer.Option(min=1, help="With --errors: least votes for the majority's side.")
    ] = 2,
    as_json: AsJson = False,
) -> None:
    """Show how many confident errors of earlier predictions each reward model fixed, and which hits
    it lost: on pairs that it was not trained on, and on those that it was.
    """
    workspace = Workspace.open()
    workspace.store.migrate()
    if errors:
        _show_errors(workspace, ErrorMemoryParams(confidence=confidence, min_votes=votes), as_json)
        return
    models = [
        (version.label, ErrorMemory.from_metrics(version.metrics))
        for version in workspace.registry.list_versions("reward_model")
    ]
    tested = [(label, memory) for label, memory in models if memory is not None]
    if as_json:
        parts = {"trained", "held_out"}
        show_json(
            [{"model": label, **memory.model_dump(include=parts)} for label, memory in tested]
        )
        return
    show(
        [
            {
                "model": label,
                "on pairs held out": memory.held_out.describe(),
                "on pairs trained on": memory.trained.describe(),
            }
            for label, memory in tested
        ],
        title=f"{len(tested)} of {len(models)} reward models re-tested on confident predictions "
        "of the past",
        empty="No reward model was registered since a prediction of an earlier one was judged by "
        "two people who agree.",
    )


def _show_errors(workspace: Workspace, params: ErrorMemoryParams, as_json: bool) -> None:
    if not workspace.files.path("preference_pairs").exists():
        raise NotEnoughData("There are no preference pairs yet. Run the job `learning` first.")
    pairs = workspace.files.read_frame("preference_pairs")
    memory = recall_predictions(
        pairs,
        workspace.store.predictions.for_comparisons(pairs["comparison_id"].tolist()),
        params,
        taste_changes=TasteChanges.from_log(workspace.store.taste_changes.all()),
    )
    wrong = memory[memory["was_error"]].sort_values(["p_chosen", "comparison_id"])
    columns = ["comparison_id", "reward_model", "p_chosen", "agreement", "n_votes", "category"]
    if as_json:
        show_json(wrong[columns].to_dict("records"))
        return
    show(
        [
            {
                "comparison": str(row.comparison_id),
                "predicted by": str(row.reward_model),
                "for the other side": f"{1 - row.p_chosen:.3f}",
                "votes against it": f"{round(row.agreement * row.n_votes)} of {row.n_votes}",
                "category": str(row.category),
            }
            for row in wrong.itertuples()
        ],
        title=f"{len(wrong)} confident errors among {len(memory)} confident predictions",
        empty=f"None of {len(memory)} confident predictions was an error.",
    )
