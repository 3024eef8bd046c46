"""Which model versions housekeeping may leave without files."""

from datetime import UTC, datetime

from rlhf_pipeline.core.records import Promotion, TriggerDecision
from rlhf_pipeline.registry import ListedModel, needed_versions, removable_versions


def version(
    number: int, *, parent: str | None = None, uri: str | None = None, **of_files: object
) -> ListedModel:
    return ListedModel(
        name="demo.policy",
        version=number,
        kind="policy",
        uri=uri or f"runs:/run{number}/model",
        content_hash=f"{number:064d}",
        parent=parent,
        **of_files,  # type: ignore[arg-type]
    )


def numbers(versions: list[ListedModel]) -> list[int]:
    return [v.version for v in versions]


def test_only_versions_beyond_the_latest_are_removed() -> None:
    versions = [version(n) for n in range(1, 14)]
    assert numbers(removable_versions(versions, needed=set(), n_latest=10)) == [1, 2, 3]
    assert removable_versions(versions[:10], needed=set(), n_latest=10) == []


def test_needed_version_stays_beside_the_latest() -> None:
    versions = [version(n) for n in range(1, 5)]
    assert numbers(
        removable_versions(versions, needed={"demo.policy@1", "demo.policy@4"}, n_latest=1)
    ) == [2]


def test_version_with_an_alias_stays() -> None:
    versions = [version(1, aliases=("candidate",)), version(2), version(3)]
    assert numbers(removable_versions(versions, needed=set(), n_latest=1)) == [2]


def test_files_shared_with_a_kept_version_stay() -> None:
    versions = [version(1, uri="runs:/same/model"), version(2), version(3, uri="runs:/same/model")]
    assert numbers(removable_versions(versions, needed=set(), n_latest=1)) == [2]


def test_removed_version_is_not_removed_again() -> None:
    versions = [version(1, removed_at=datetime(2026, 1, 1, tzinfo=UTC)), version(2), version(3)]
    assert numbers(removable_versions(versions, needed=set(), n_latest=1)) == [2]


def test_past_champions_and_their_parents_are_needed() -> None:
    versions = [
        version(1),
        version(2, parent="demo.policy@1"),
        version(3, parent="demo.policy@2"),
        version(4),
    ]
    promoted = Promotion(
        model_name="demo.policy",
        version=3,
        previous_version=None,
        data_seq=None,
        reason="better",
        actor="gate",
    )
    assert needed_versions(versions, [promoted], []) == {"demo.policy@3", "demo.policy@2"}


def test_version_named_by_an_unfinished_decision_is_needed() -> None:
    decision = TriggerDecision(
        action="fire",
        reasons=("ADWIN on demo.reward_model@7",),
        event_ids=(),
        evidence={"champion": "demo.reward_model@6"},
    )
    assert needed_versions([], [], [decision]) == {"demo.reward_model@6", "demo.reward_model@7"}
