"""What a machine answered is counted apart: progress and metrics tell how much was judged."""

from rlhf_pipeline.records import AnnotatorKind, NewVote
from tests.web.conftest import NOON, Web


def test_votes_of_a_machine_are_told_apart(web: Web):
    web.publish(6)
    kinds = [
        AnnotatorKind.HUMAN,
        AnnotatorKind.SIMULATED,
        AnnotatorKind.MACHINE,
        AnnotatorKind.MACHINE,
    ]
    web.store.votes.cast_many(
        [
            NewVote(
                comparison_id=f"c{i:04}",
                annotator_id=f"{kind}",
                annotator_kind=kind,
                choice="a",
                voted_at=NOON,
                origin="api",
                idempotency_key=f"{i}",
            )
            for i, kind in enumerate(kinds)
        ]
    )
    reader = web.client("engineer")
    now, numbers = reader.get("/progress").json(), reader.get("/metrics").json()
    assert (
        (now["votes"], now["machine_votes"])
        == (numbers["votes"], numbers["machine_votes"])
        == (2, 2)
    )
    assert numbers["annotators"] == 2
    assert [day["n"] for day in now["votes_by_day"]] == [2]
    assert {(one["kind"], one["n"]) for one in now["annotators"]} == {
        ("human", 1),
        ("simulated", 1),
        ("machine", 2),
    }
