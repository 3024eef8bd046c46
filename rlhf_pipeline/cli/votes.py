"""`rlhf votes`: prepares training data."""

from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import Changes, ChangeSeq
from rlhf_pipeline.cli.tables import (
    echo,
    progress_bar,
)
from rlhf_pipeline.cli.training_files import TrainingFiles, write_lines
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.parameters import parse_parameters
from rlhf_pipeline.core.records import LARGEST
from rlhf_pipeline.feedback.votes import (
    PairParams,
    TasteChanges,
    TeachingRule,
    judged_comparison_ids,
    make_pairs,
    prompts_in_several_splits,
    separate_old_completions,
    training_labels,
)
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.feedback.votes.preference_pairs import training_rows
from rlhf_pipeline.feedback.votes.teaching import decide_labels
from rlhf_pipeline.learn.reward_model.losses import join_soft_labels
from rlhf_pipeline.reports.words import format_count

app = typer.Typer(help="Votes of people and of the reward model.", no_args_is_help=True)


UpTo = Annotated[
    int | None,
    typer.Option(min=0, max=LARGEST, help="Highest vote seq to learn from; default: all votes."),
]


@app.command("prepare")
def prepare(
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; default data/vote_predictor_training_data.jsonl below RLHF_HOME."
        ),
    ] = None,
    up_to_seq: UpTo = None,
    soft_labels: Annotated[
        bool,
        typer.Option(
            "--soft-labels/--no-soft-labels",
            help="With the annotator model's P(chosen preferred), which knows who voted; not for "
            "pairs of the test split, nor from their votes.",
        ),
    ] = True,
    change_seq: ChangeSeq = None,
    changes: Changes = None,
) -> None:
    """Votes into training data: prompt, chosen, rejected, margin, agreement and soft label of each
    pair, one JSON object a line.
    """
    workspace = Workspace.open_current()
    params = parse_parameters(PairParams, changes)
    with progress_bar("votes") as progress:
        log = workspace.store.votes.log(up_to_seq=up_to_seq)
        progress(1, 3, f"{format_count(len(log), 'vote')}")
        ids = judged_comparison_ids(log)
        comparisons = workspace.store.comparisons.with_ids(ids)
        rule = TeachingRule.of(
            workspace.store.decisions.fires(),
            workspace.store.adjudications.standing(ids, up_to_seq=up_to_seq),
        )
        pairs, dropped = make_pairs(log, comparisons, params, rule)
        progress(2, 3, f"{len(pairs):,} pairs, annotator model")
        if soft_labels and len(pairs):
            taste = TasteChanges.from_log(
                workspace.store.taste_changes.all(), up_to_seq=up_to_seq, change_seq=change_seq
            )
            votes = counting_votes(rule.quarantines.drop(log))
            labels = training_labels(votes, separate_old_completions(comparisons, votes, taste))
            pairs = join_soft_labels(pairs, decide_labels(labels, rule.decided))
    if pairs.empty:
        raise NotEnoughData(
            f"{format_count(dropped.n_votes, 'vote')} on "
            f"{format_count(dropped.n_comparisons, 'comparison')} make no pair: "
            f"{dropped.n_only_ties} have only ties, {dropped.n_without_majority} no majority. "
            "Collect more votes, or lower min_votes and min_agreement with --set."
        )
    path = out or TrainingFiles(workspace.settings.home).training_data
    n = write_lines(path, training_rows(pairs))
    splits = ", ".join(
        f"{name} {count:,}" for name, count in pairs["split"].value_counts().sort_index().items()
    )
    echo(
        f"{format_count(n, 'pair')} ({splits}) from {format_count(dropped.n_votes, 'vote')} "
        f"in {path}; left out: "
        f"{format_count(dropped.n_only_ties, 'comparison')} with only ties, "
        f"{dropped.n_without_majority} without a "
        f"majority, {format_count(dropped.n_flagged, 'vote')} on flagged ones, "
        f"{dropped.n_machine} machine votes"
    )
    if divided := prompts_in_several_splits(pairs):
        echo(
            f"{len(divided):,} prompts have pairs in several splits, first {divided[0]}: a model "
            f"would be judged on prompts that it learnt from",
            err=True,
        )
