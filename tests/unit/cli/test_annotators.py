"""`rlhf votes annotators`: figures over time, days as they were voted on, and verdicts for the
consensus page.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.cli import app
from rlhf_pipeline.records import NewVote
from rlhf_pipeline.votes import (
    TasteChanges,
    joint_model,
    judged_comparison_ids,
    separate_old_completions,
)
from rlhf_pipeline.votes.annotators_over_time import ANNOTATORS_OVER_TIME, annotators_over_time
from rlhf_pipeline.votes.counting import counting
from rlhf_pipeline.votes.model_consensus import LABELS_FRAME
from tests.learnt_home import LearntHome, comparisons, voted_home, votes

STAGE, PART = LABELS_FRAME


@pytest.fixture
def home(tmp_path: Path) -> LearntHome:
    """Votes of 2026-01-02, and ann0's change of the first one a fortnight later."""
    found = voted_home(tmp_path)
    with found.store as store:
        first = store.votes.page(limit=1000, annotator_id="ann0")[-1]
        store.votes.cast(
            NewVote(
                comparison_id=first.comparison_id,
                annotator_id="ann0",
                annotator_kind=first.annotator_kind,
                choice="tie",
                voted_at=datetime(2026, 1, 16, 12, tzinfo=UTC),
                origin="cli",
                idempotency_key="changed",
                supersedes=first.vote_id,
            )
        )
    return found


def read_figures(home: LearntHome, *more: str) -> dict:
    return json.loads(home.rlhf("votes", "annotators", "--over-time", "--json", *more).output)


def test_figures_over_time_are_a_table_json_and_csv(home: LearntHome, tmp_path: Path) -> None:
    found = read_figures(home)
    with home.store as store:
        said = store.votes.log()
        expected = annotators_over_time(
            said, store.comparisons.with_ids(judged_comparison_ids(said))
        )
    assert [
        (one["annotator_id"], one["first_day"], one["n_votes"]) for one in found["annotators"]
    ] == list(expected[["annotator_id", "first_day", "n_votes"]].itertuples(index=False, name=None))
    assert [one["first_day"] for one in found["together"]] == ["2025-12-29", "2026-01-12"]
    assert (
        found["together"][0]["alpha_low"]
        < found["together"][0]["alpha"]
        < found["together"][0]["alpha_high"]
    )
    assert found["window_days"] == 7
    path = tmp_path / "figures.csv"
    table = home.rlhf("votes", "annotators", "--over-time", "--csv", str(path)).output
    assert list(pd.read_csv(path).columns) == list(ANNOTATORS_OVER_TIME.columns)
    assert len(pd.read_csv(path)) == len(expected)
    assert "5 annotators over 2 windows of 7 days" in table
    assert table.index("2026-01-12") < table.index("2025-12-29")
    assert "Krippendorff's alpha" in table


def test_a_vote_that_was_changed_later_counts_where_it_was_cast(home: LearntHome) -> None:
    days = ("--since", "2026-01-02", "--until", "2026-01-02")
    figures = {
        one["annotator_id"]: one["n_votes"]
        for one in json.loads(home.rlhf("votes", "annotators", "--json", *days).output)
    }
    everything = {
        one["annotator_id"]: one["n_votes"]
        for one in json.loads(home.rlhf("votes", "annotators", "--json").output)
    }
    assert sum(figures.values()) == 720
    assert figures == everything  # the changed one is a tie now, and was a side then
    windows = {
        (one["annotator_id"], one["first_day"]): one["n_votes"]
        for one in read_figures(home)["annotators"]
    }
    assert windows["ann0", "2025-12-29"] == figures["ann0"]
    assert windows["ann0", "2026-01-12"] == 1
    assert read_figures(home, "--since", "2026-01-03")["annotators"][0]["n_votes"] == 1
    assert read_figures(home, "--until", "2026-01-01")["annotators"] == []
    assert {one["first_day"] for one in read_figures(home, "--window-days", "1")["annotators"]} == {
        "2026-01-02",
        "2026-01-16",
    }
    empty = home.rlhf("votes", "annotators", "--over-time", "--until", "2026-01-01").output
    assert empty.startswith("There are no votes on these days")


def test_labels_are_published_to_the_consensus_page_on_request(home: LearntHome) -> None:
    files = Artefacts(home.settings.frames)
    home.rlhf("votes", "annotators")
    assert not files.path(STAGE, PART).exists()
    home.rlhf("votes", "annotators", "--publish")
    with home.store as store:
        votes = counting(store.votes.log())
        expected = joint_model(
            votes, store.comparisons.with_ids(judged_comparison_ids(votes))
        ).labels
    left = files.read_frame(STAGE, PART)
    assert left["comparison_id"].tolist() == expected["comparison_id"].tolist(), (
        "those of the test split too"
    )
    assert left["max_seq"].unique().tolist() == [721]
    assert (left["p_a"] - expected["p_a"]).abs().max() < 0.02  # begun elsewhere, the same end


def test_a_fit_to_older_votes_keeps_newer_labels(home: LearntHome) -> None:
    files = Artefacts(home.settings.frames)
    home.rlhf("votes", "annotators", "--publish")
    before = files.read_frame(STAGE, PART)
    assert (
        "already shows votes up to 721"
        in home.rlhf("votes", "annotators", "--publish", "--up-to-seq", "400").output
    )
    pd.testing.assert_frame_equal(files.read_frame(STAGE, PART), before, check_exact=True)
    home.rlhf("votes", "annotators", "--publish", "--up-to-seq", "0")
    assert len(files.read_frame(STAGE, PART)) == len(before)


def test_after_a_change_of_taste_verdicts_rest_on_no_utility_of_before(tmp_path: Path) -> None:
    found = voted_home(tmp_path)
    files = Artefacts(found.settings.frames)
    with found.store as store:
        # the first one's completions, in others that are judged after the change
        shown = comparisons(4).assign(
            comparison_id=[f"d{i}" for i in range(4)],
            prompt_id="p0",
            completion_a_id="x0",
            completion_b_id="y0",
            prompt="What is thing 0?",
        )
        store.comparisons.publish(shown, published_at=datetime(2026, 1, 3, 12, tzinfo=UTC))
        change = store.votes.max_seq() + 1
        store.votes.cast_many(votes(shown))
        said = counting(store.votes.log())
        judged = store.comparisons.with_ids(judged_comparison_ids(said))
    expected = joint_model(
        said, separate_old_completions(judged, said, TasteChanges(change))
    ).labels
    together = joint_model(said, judged).labels
    assert (expected["p_a"] - together["p_a"]).abs().max() > 0.05, "the change makes a difference"
    found.rlhf("votes", "annotators", "--publish", "--change-seq", str(change))
    assert (files.read_frame(STAGE, PART)["p_a"] - expected["p_a"]).abs().max() < 0.02


def test_figures_over_time_know_no_change_of_taste(home: LearntHome) -> None:
    environ = {"RLHF_HOME": str(home.settings.home), "COLUMNS": "200"}
    result = CliRunner().invoke(
        app, ["votes", "annotators", "--over-time", "--change-seq", "3"], env=environ
    )
    assert result.exit_code == 2
    assert "no model" in result.output


@pytest.mark.parametrize(
    "more", [("--over-time",), ("--since", "2026-01-02"), ("--until", "2026-01-02")]
)
def test_only_what_all_votes_say_is_left_for_the_page(
    home: LearntHome, more: tuple[str, ...]
) -> None:
    environ = {"RLHF_HOME": str(home.settings.home), "COLUMNS": "200"}
    result = CliRunner().invoke(app, ["votes", "annotators", "--publish", *more], env=environ)
    assert result.exit_code == 2
    assert "uses all votes" in result.output
