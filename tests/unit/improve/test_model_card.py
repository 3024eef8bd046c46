"""The model card: each section has the figures of its records, or says that they are missing."""

from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd

from rlhf_pipeline.core.frames import EXPORTED_VOTES
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    CalibrationReport,
    CategoryComparison,
    ModelVersion,
)
from rlhf_pipeline.core.releases import ReleasedModel, ReleaseEvent
from rlhf_pipeline.improve.evaluation import GateParams, decide_promotion
from rlhf_pipeline.improve.lineage import AnnotatorVotes, ModelTrace
from rlhf_pipeline.improve.model_card import CardEvidence, build_card, write_markdown
from tests.policy_versions import evaluate, interval

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
METRICS = CalibrationMetrics(
    n=200,
    accuracy=interval(0.74, 0.03, 200),
    binned_gap=interval(0.05, 0.01, 200),
    brier=interval(0.2, 0.01, 200),
    log_loss=interval(0.6, 0.01, 200),
    ece=interval(0.04, 0.02, 200),
    slope=None,
)
JUDGE = ModelVersion(
    name="demo.reward_model",
    version=1,
    kind="reward_model",
    uri="",
    content_hash="j",
    data_hash="pairs1",
)


def make_version(version, **more):
    return ReleasedModel(
        name="demo.policy",
        version=version,
        kind="policy",
        uri="",
        content_hash=f"files{version}",
        created_at=NOON,
        semver=f"1.{version - 1}.0",
        deployed_at=None,
        **more,
    )


def trace(version, **more):
    nothing = {
        "parent": None,
        "reward_model": None,
        "dataset": None,
        "data_hash": None,
        "rows": None,
        "n_votes": 0,
        "first_seq": None,
        "last_seq": None,
        "first_day": None,
        "last_day": None,
        "annotators": (),
        "feedback_ids": (),
        "comparison_ids": (),
        "vote_seqs": (),
    }
    label = f"demo.policy@{version}"
    return ModelTrace(model=label, kind="policy", created_at=NOON, **(nothing | more))


def votes_of(kinds, blind):
    columns = {name: None for name in EXPORTED_VOTES.columns}
    return pd.DataFrame(
        [{**columns, "annotator_kind": k, "is_blind": b} for k, b in zip(kinds, blind, strict=True)]
    ).reindex(columns=list(columns))


def evidence_of(model, lineage, **more):
    known = {
        "votes": votes_of([], []),
        "gate": None,
        "judge": None,
        "calibration": None,
        "categories": (),
        "events": (),
        "names": {},
    }
    return CardEvidence(
        project="demo", model=model, base="demo.policy@1", trace=lineage, **(known | more)
    )


def sections_of(evidence):
    """The lines of each section of the Markdown."""
    title, *sections = write_markdown(build_card(evidence)).split("\n## ")
    assert title == f"# Model card: {evidence.model.label}\n"
    return {part.split("\n")[0]: part.strip().split("\n")[2:] for part in sections}


def known_evidence():
    evaluation = evaluate("demo", 2, 0.7).model_copy(
        update={
            "by_category": (
                CategoryComparison(
                    category="coding", win_rate=interval(0.8), reward_difference=interval(0.2)
                ),
            ),
            "judge_agreement": interval(0.75, n=90),
            "shares_votes": True,
        }
    )
    report = CalibrationReport(
        reward_model="demo.reward_model@1",
        method="platt",
        params={},
        raw=METRICS,
        calibrated=METRICS,
        candidates={},
        noise_ceiling=interval(0.85, n=150),
        data_hash="h",
        n_fit=100,
    )
    params = {"strategy": "dpo", "beta": 0.3, "reward_model": "demo.reward_model@1"}
    model = make_version(
        2,
        state="deployed",
        parent="demo.policy@1",
        data_hash="set2",
        code_commit="abc123",
        params=params | {"notices": ["it ends answers with another token"]},
    )
    lineage = trace(
        2,
        parent="demo.policy@1",
        reward_model="demo.reward_model@1",
        dataset="clean@3",
        data_hash="set2",
        rows={"dataset": 3, "hard_negative": 2},
        n_votes=3,
        first_seq=4,
        last_seq=1200,
        first_day="2026-01-01",
        last_day="2026-01-02",
        annotators=(
            AnnotatorVotes(annotator_id="ann-7", group="experts", n_votes=2),
            AnnotatorVotes(annotator_id="bob-8", group=None, n_votes=1),
        ),
        feedback_ids=(5,),
        vote_seqs=(4, 9, 1200),
    )
    about = {"model": "demo.policy@2", "replaces": "demo.policy@1", "request_id": 1}
    return evidence_of(
        model,
        lineage,
        votes=votes_of(["human", "human", "simulated"], [True, False, None]),
        gate=decide_promotion(evaluation, GateParams()),
        judge=JUDGE,
        calibration=report,
        categories=("coding", "poems"),
        events=(
            ReleaseEvent(act="request", at=NOON, actor="run 7", reason="better", **about),
            ReleaseEvent(
                act="approve",
                at=NOON,
                actor="u1",
                reason="read *them* <b>\nall",
                checklist=("read 20", "no regression"),
                **about,
            ),
        ),
        names={"u1": "Ann"},
    )


def test_each_section_shows_the_figures_of_its_records():
    evidence = known_evidence()
    card = sections_of(evidence)
    assert card["Version"] == [
        "- **project**: demo",
        "- **version**: demo.policy@2, 1.1.0",
        "- **state**: deployed",
        "- **registered**: 2026-01-02 12:00 UTC",
        "- **trained from**: demo.policy@1",
        "- **first of its line**: demo.policy@1",
        "- **hash of its files**: files2",
        "- **code commit**: abc123",
    ]
    assert card["Training"] == [
        "- **strategy**: dpo",
        "- **parameters that differ from the defaults**: beta = 0.3",
        "- **training set**: 3 of a curated data set; 2 hard negatives of the reward model",
        "- **hash of the training set**: set2",
        "- **curated data set**: clean@3",
    ]
    assert card["Votes behind it"] == [
        "- **votes**: 3: 2 human, 1 simulated",
        "- **days**: 2026-01-01 to 2026-01-02",
        "- **seq**: 4 to 1,200",
        "- **annotators**: 2: 1 experts, 1 no group",
        "- **cast blind**: 50% of 2 votes for which it is recorded",
        "- **entries of feedback**: 1",
    ]
    assert card["Judge"] == [
        "- **reward model**: demo.reward_model@1",
        "- **test pairs predicted right**: 0.740 (0.710 to 0.770, 95% interval, n = 200)",
        "- **possible: noise ceiling**: 0.850 (0.800 to 0.900, 95% interval, n = 150)",
        "- **calibration error (ECE)**: 0.040 (0.020 to 0.060, 95% interval, n = 200)",
        "- **hash of its training data**: pairs1",
    ]
    evaluation = "\n".join(card["Evaluation"])
    for line in (
        "- **compared with**: demo.policy@1, on 30 frozen prompts",
        "- **win rate by the judge**: 0.700 (0.650 to 0.750, 95% interval, n = 30)",
        "- **win rate at equal length**: 0.650 (0.600 to 0.700, 95% interval, n = 30)",
        "- **win rate in coding**: 0.800 (0.750 to 0.850, 95% interval, n = 30)",
        "- **win rate in poems**: missing: too few prompts",
        "- **facts right, minus the other version's**: missing: no prompt has a checkable answer",
        "- **KL from it, nats per token**: 0.100 (0.080 to 0.120, 95% interval, n = 30)",
        "- **length, characters**: 70 (66 to 74, 95% interval, n = 30)",
    ):
        assert f"{line}\n" in f"{evaluation}\n"
    assert "- **decided by**: the judge alone\n" in evaluation
    assert "- **win rate by people's votes**: missing: nobody voted on it\n" in evaluation
    assert evidence.gate is not None
    assert [line.split("**: ")[0] for line in card["Checks of the gate"]] == [
        f"- **{check.name}" for check in evidence.gate.checks
    ]
    assert card["Releases and approvals"] == [
        "- 2026-01-02 12:00 UTC, request by the gate: better",
        r"- 2026-01-02 12:00 UTC, approve by Ann: read \*them\* \<b\> all (ticked: read 20; "
        "no regression)",
    ]
    limits = "\n".join(card["Known limits"])
    assert "judged on 30 prompts, fewer than 100" in limits
    assert "The judge knows votes that it was trained on" in limits
    assert "Categories without a figure of their own: poems." in limits
    assert "At registration: it ends answers with another token." in limits
    assert "No vote of a person" not in limits


def test_votes_of_people_decide_instead_of_the_judge():
    evidence = known_evidence()
    assert evidence.gate is not None
    gate = evidence.gate.model_copy(update={"people_win_rate": interval(0.62, n=80)})
    card = sections_of(replace(evidence, gate=gate))
    assert "- **decided by**: people's votes on both versions" in card["Evaluation"]
    rate = "0.620 (0.570 to 0.670, 95% interval, n = 80)"
    assert f"- **win rate by people's votes**: {rate}" in card["Evaluation"]
    assert not [line for line in card["Known limits"] if "judge alone" in line]


def test_no_annotator_is_named():
    text = write_markdown(build_card(known_evidence()))
    assert "ann-7" not in text
    assert "bob-8" not in text


def test_card_names_each_missing_figure():
    lineage = trace(3, parent="demo.policy@2", reward_model="demo.reward_model@1")
    card = sections_of(
        evidence_of(make_version(3, state="candidate", parent="demo.policy@2"), lineage)
    )
    assert "- **code commit**: missing: not recorded" in card["Version"]
    assert card["Training"][0] == "- **strategy**: missing: not recorded"
    assert "- **training set**: missing: its file is not kept" in card["Training"]
    assert card["Votes behind it"] == ["- **votes**: missing: its training set is not kept"]
    assert [line.split("**: ")[1] for line in card["Judge"][1:]] == [
        "missing: it was not calibrated",
        "missing: it was not calibrated",
        "missing: it was not calibrated",
        "missing: not recorded",
    ]
    assert card["Evaluation"] == [
        "- **evaluation**: missing: it was not compared with another version"
    ]
    assert card["Checks of the gate"] == ["- missing: the gate did not decide on it"]
    assert card["Releases and approvals"] == ["- none yet"]
    assert card["Known limits"][:3] == [
        "- No evaluation says whether it is better than another version.",
        "- No vote of a person is known to have taught it.",
        "- Its judge was not calibrated.",
    ]


def test_a_failed_and_a_missing_check_are_limits():
    evaluation = evaluate("demo", 3, 0.4).model_copy(update={"n_leaked": None})
    gate = decide_promotion(evaluation, GateParams())
    model, lineage = make_version(3, state="candidate", parent="demo.policy@2"), trace(3)
    card = sections_of(evidence_of(model, lineage, gate=gate))
    verdicts = [line.split("**: ")[1].split(":")[0] for line in card["Checks of the gate"]]
    assert {"fail", "missing", "pass"} <= set(verdicts)
    limits = "\n".join(card["Known limits"])
    assert "Check win_rate, required: fail." in limits
    assert "Check evaluation_prompts, required: missing." in limits
