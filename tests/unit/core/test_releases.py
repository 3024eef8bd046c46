from datetime import UTC, datetime

import pytest

from rlhf_pipeline.core.records import Promotion
from rlhf_pipeline.core.releases import ReleaseAct, find_archived, find_previous, find_state


def make_history(words):
    """`1 2 <1 3`: deployments, and roll backs by `<`."""
    return [
        Promotion(
            model_name="demo.policy",
            version=int(word.lstrip("<")),
            previous_version=None,
            data_seq=None,
            reason="r",
            actor="a",
            rolls_back=word.startswith("<"),
        )
        for word in words.split()
    ]


@pytest.mark.parametrize(
    ("words", "previous"),
    [
        ("", None),
        ("1", None),
        ("1 2", 1),
        ("1 2 <1", None),  # 2 was rolled back: no toggling
        ("1 2 3 <2", 1),
        ("1 2 3 <2 <1", None),
        ("1 2 3 <2 4", 2),  # 3 is passed over
        ("1 2 3 <2 4 <2", 1),
        ("1 2 3 <1 4", 1),  # when 2 was archived
        ("1 2 1", 2),
        ("1 2 1 <2", None),  # 1 was rolled back, though it was deployed before
        ("1 2 1 2 <1", None),
        ("1 2 3 2 <3", 1),
    ],
)
def test_roll_back_walks_history_and_never_toggles(words, previous):
    assert find_previous(make_history(words)) == previous


def test_roll_back_passes_over_archived_versions():
    assert find_previous(make_history("1 2 3"), {2}) == 1


def test_state_follows_from_promotions_and_archived_versions():
    def act(name, version):
        now = datetime.now(UTC)
        common = {"actor": "a", "reason": "r", "acted_at": now, "model_name": "demo.policy"}
        return ReleaseAct(act=name, version=version, **common)

    archived = find_archived([act("archive", 2), act("archive", 3), act("restore", 3)])
    states = [find_state(version, make_history("1 2 3"), archived) for version in (1, 2, 3, 4)]
    assert states == ["deprecated", "archived", "deployed", "candidate"]
