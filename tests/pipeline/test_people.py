"""Where people vote: a day is routed by the rule, dealt to people, and only their votes teach and
are agreed on.
"""

from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

import pytest

from rlhf_pipeline.core.records import AnnotationRules, AnnotatorKind, NewVote
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.generate.comparisons.routing import n_places

RATIO, THRESHOLD = 0.3, 0.6


@pytest.fixture(scope="module")
def project(branch: Any, grown: Any) -> Any:
    """A fourth day, collected for people, of whom two judged all they were dealt."""
    project = branch(grown, annotators="human")
    project.store.rules.put(AnnotationRules(overlap=2, repeat_share=0), after=0, actor="test")
    project.collect(
        project.day(3),
        comparisons={
            "pairs_per_prompt": 4,
            "human_feedback_ratio": RATIO,
            "confidence_threshold": THRESHOLD,
            "repeat_share": 0.5,
        },
    )
    noon = datetime.fromisoformat(project.day(3)).replace(hour=12, tzinfo=UTC)
    for who in ("u1", "u2"):
        n = 0
        while cards := project.store.cards.deal(
            who, 20, AnnotationRules(overlap=2, repeat_share=0)
        ):
            for card in cards:
                n += 1
                project.store.votes.cast(
                    NewVote(
                        comparison_id=card.comparison_id,
                        annotator_id=who,
                        annotator_kind=AnnotatorKind.HUMAN,
                        choice="a",
                        strength=2,
                        voted_at=noon + timedelta(seconds=n),
                        origin="page",
                        idempotency_key=f"{who}/{n}",
                        card_id=card.card_id,
                        is_swapped=card.is_swapped,
                    )
                )
    return project


def of_day(project: Any) -> Any:
    return project.store.comparisons.for_days([project.day(3)])


def by_kind(project: Any, kind: str) -> set[str]:
    """Comparisons of the fourth day that this kind of annotator voted on."""
    votes = counting_votes(
        project.store.votes.log(comparison_ids=of_day(project)["comparison_id"].tolist())
    )
    return set(votes.loc[votes["annotator_kind"] == kind, "comparison_id"])


def test_least_confident_share_goes_to_people(project: Any) -> None:
    frame = of_day(project)
    predicted = project.store.predictions.for_comparisons(
        frame["comparison_id"].tolist()
    ).set_index("comparison_id")["p_calibrated"]
    confidence = predicted.where(predicted >= 0.5, 1 - predicted)
    people = by_kind(project, "human")
    assert len(people) == n_places(RATIO, len(frame)) == ceil(RATIO * len(frame) - 1e-9)
    unsure = confidence[confidence < THRESHOLD].sort_values()
    assert len(unsure), "the day has nothing the model is unsure of: the test says nothing"
    expected = set(unsure.index[: len(people)])
    assert expected <= people or set(unsure.index) >= people
    machine = by_kind(project, "machine")
    assert machine == set(confidence[confidence >= THRESHOLD].index) - people
    assert set(frame["comparison_id"]) - people - machine == set(unsure.index) - people


def test_recollection_offers_nothing_new(project: Any) -> None:
    before = (project.store.cards.remaining_work(), project.store.votes.count())
    project.collect(
        project.day(3),
        comparisons={
            "pairs_per_prompt": 4,
            "human_feedback_ratio": RATIO,
            "confidence_threshold": THRESHOLD,
        },
    )
    assert (project.store.cards.remaining_work(), project.store.votes.count()) == before


def test_only_human_votes_teach_and_are_compared(project: Any) -> None:
    project.run("feedback", project.day(3))
    project.materialise(["preference_pairs"])
    pairs = project.files.read_frame("preference_pairs")
    pairs = pairs[pairs["day"] == project.day(3)]
    log = project.files.read_frame("reflection_log", project.day(3))
    assert set(pairs["comparison_id"]) == by_kind(project, "human")
    assert set(pairs["annotator_kind"]) == {"human"}
    assert set(log.loc[log["vote_id"].notna(), "annotator_kind"]) == {"human"}


def test_machine_only_day_is_stored_and_teaches_nothing(project: Any) -> None:
    """A machine votes at the moment of its prediction: on the day of the collection, which is
    today.
    """
    (day,) = set(
        counting_votes(project.store.votes.log(comparison_ids=sorted(by_kind(project, "machine"))))[
            "day"
        ]
    )
    project.run("feedback", day)
    project.materialise(["preference_pairs"])
    votes, log = (project.files.read_frame(stage, day) for stage in ("votes", "reflection_log"))
    pairs = project.files.read_frame("preference_pairs")
    assert set(votes["comparison_id"]) == by_kind(project, "machine")
    assert set(votes["annotator_kind"]) == {"machine"}
    assert not set(pairs["comparison_id"]) & set(votes["comparison_id"])
    assert log["vote_id"].isna().all()
