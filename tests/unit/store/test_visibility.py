"""What the store returns to a user who may vote: their votes, and all votes on what they have
judged, whatever else is stored.
"""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_pipeline.records import Choice, NewVote, VoteDetails
from rlhf_pipeline.store import Store, judgements
from rlhf_pipeline.store.vote_lists import VoteFilter
from tests.unit.store.conftest import NOON, SetClock

READER, OTHERS = "reader", ("ann", "bob")
COMPARISONS = ("c0", "c1", "c2", "c3")
CHOICES = st.sampled_from(["a", "b", "tie", "skip"])
VOTE = st.tuples(st.sampled_from(OTHERS), st.sampled_from(COMPARISONS), CHOICES)
# What the reader does with a comparison: nothing, a judgement, a skip, or a judgement that is taken
# back.
OWN = st.fixed_dictionaries(
    {c: st.sampled_from(["nothing", "judges", "skips", "undoes"]) for c in COMPARISONS}
)


def cast(store: Store, key: str, who: str, comparison_id: str, choice: str, **more: Any) -> str:
    vote = NewVote(
        comparison_id=comparison_id,
        annotator_id=who,
        annotator_kind="human",
        choice=Choice(choice),
        voted_at=NOON,
        origin="api",
        duration_s=2.0,
        idempotency_key=key,
        **more,
    )
    return store.votes.cast(vote).vote_id


def play(store: Store, own: dict[str, str], others: list[tuple[str, str, str]]) -> None:
    for i, vote in enumerate(others):
        cast(store, f"other{i}", *vote)
    for comparison_id, does in own.items():
        if does == "nothing":
            continue
        mine = cast(
            store, f"own {comparison_id}", READER, comparison_id, "skip" if does == "skips" else "a"
        )
        if does == "undoes":
            undone = VoteDetails(flags=("undone",))
            cast(
                store,
                f"undo {comparison_id}",
                READER,
                comparison_id,
                "skip",
                supersedes=mine,
                details=undone,
            )


def read(store: Store) -> tuple[Any, ...]:
    """All that the store counts or lists for a reader."""
    votes = store.votes
    return (
        votes.search(VoteFilter(), seen_by=READER, limit=100)[0],
        votes.search(VoteFilter(words="x"), seen_by=READER),
        votes.judged_comparisons(seen_by=READER, limit=100),
        sorted(map(repr, votes.tallies("annotator_id", seen_by=READER))),
        sorted(map(repr, votes.tallies("day", seen_by=READER))),
        votes.paces(0, up_to_seq=votes.max_seq(), seen_by=READER),
        votes.signals(up_to_seq=votes.max_seq(), seen_by=READER),
    )


@pytest.fixture(params=[0, judgements.FEW], ids=["many", "few"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to ask: by the reader's few votes, and row by row."""
    monkeypatch.setattr(judgements, "FEW", request.param)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    own=OWN,
    others=st.lists(VOTE, max_size=8),
    redrawn=st.lists(CHOICES, min_size=8, max_size=8),
    data=st.data(),
)
def test_hidden_votes_change_nothing_that_is_read(
    few: None,
    migrated: Path,
    make_comparisons: Callable[..., pd.DataFrame],
    own: dict[str, str],
    others: list[Any],
    redrawn: list[str],
    data: Any,
):
    hidden = [c for c, does in own.items() if does != "judges"]
    moved = [data.draw(st.sampled_from(hidden)) if c in hidden else c for _, c, _ in others]
    other = [
        (who, to, redrawn[i] if c in hidden else choice)
        for i, ((who, c, choice), to) in enumerate(zip(others, moved, strict=True))
    ]
    found = []
    for world in (others, other):
        with TemporaryDirectory() as folder:
            shutil.copy(migrated, f"{folder}/store.db")
            with Store.open(
                f"sqlite:///{folder}/store.db", clock=SetClock(NOON + timedelta(hours=1))
            ) as store:
                store.comparisons.publish(make_comparisons(4), published_at=NOON)
                play(store, own, world)
                found.append(read(store))
    assert repr(found[0]) == repr(found[1])
    seen = {(vote.annotator_id, vote.comparison_id) for vote in found[0][0]}
    assert seen >= {(who, c) for who, c, _ in others if c not in hidden}
    assert not {(who, c) for who, c in seen if who != READER and c in hidden}
