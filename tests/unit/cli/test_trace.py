"""`rlhf trace` in tables and as JSON."""

import json

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.records import NewFeedback
from tests.learnt_home import LearntHome

SEQ = 300


@pytest.fixture(scope="module")
def traced(voted: LearntHome, tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    """The voted home with a reward model of its first votes, and a correction."""
    home = voted.copied(tmp_path_factory.mktemp("traced") / "home")
    registry = Workspace(home.settings).registry
    (home.settings.home / "model").mkdir()
    (home.settings.home / "model" / "weights").write_text("w")
    with registry.run("fit") as run:
        registry.register("reward_model", home.settings.home / "model", run=run, data_seq=SEQ)
    texts = {"prompt": "p", "completion": "c", "correction": "better"}
    with home.store as store:
        store.annotator_groups.assign({"ann0": "staff"}, actor="test")
        store.feedback.add(NewFeedback(kind="correction", **texts), created_by="ann1")
    return home


def test_a_model_leads_to_its_votes(traced: LearntHome) -> None:
    table = traced.rlhf("trace", "model", "demo.reward_model@1").output
    assert f"{SEQ:,}, seq 1 to {SEQ}, 2026-01-02 to" in table
    assert "staff" in table
    trace = json.loads(traced.rlhf("trace", "model", "demo.reward_model@1", "--json").output)
    assert sum(each["n_votes"] for each in trace["annotators"]) == trace["n_votes"] == SEQ
    assert (trace["feedback_ids"], trace["vote_seqs"]) == ([], None)


def test_votes_annotators_and_feedback_lead_to_models(traced: LearntHome) -> None:
    with traced.store as store:
        early, late = (store.votes.with_seqs([seq])[0].vote_id for seq in (SEQ, SEQ + 1))
    output = traced.rlhf("trace", "vote", early).output
    assert "teaches:        yes" in output
    assert "preferred, agreement" in output
    assert "demo.reward_model@1" in output
    assert "It taught no model." in traced.rlhf("trace", "vote", late).output
    trace = json.loads(traced.rlhf("trace", "annotator", "ann0", "--json").output)
    assert 0 < trace["models"]["demo.reward_model@1"] < trace["n_votes"] == trace["n_teaching"]
    assert "which" in traced.rlhf("trace", "annotator", "ann0").output
    assert "models:         none" in traced.rlhf("trace", "feedback", "1").output
    with pytest.raises(NotFound, match="no vote 'x'"):
        traced.rlhf("trace", "vote", "x")
