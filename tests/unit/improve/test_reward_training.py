"""When the next reward model is fitted: the first, a refit, and another try after a refusal."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import CalibrationReport, NewVote, Promotion, Quarantine, Refusal
from rlhf_pipeline.improve.retraining.triggers import TriggerParams, decide
from rlhf_pipeline.improve.reward_training import find_reason_to_wait, plan_next_fit
from rlhf_pipeline.learn.calibration import calibration_metrics
from rlhf_pipeline.store import Store
from tests.learnt_home import comparisons
from tests.unclear_change import unclear_rise

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
MEASURED = calibration_metrics([0.7, 0.6] * 20, [1.0, 0.0, 1.0, 1.0] * 10)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, min_new_pairs=30, refit_after_pairs=100)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store.open(settings.store_url) as store:
        store.migrate()
        store.comparisons.publish(comparisons(140), published_at=NOON)
        yield store


@pytest.fixture
def vote(store: Store) -> Callable[[int], int]:
    """Votes on so many more comparisons; the seq of the last one."""
    ids = iter(comparisons(140)["comparison_id"])

    def cast(n: int) -> int:
        for _ in range(n):
            name = next(ids)
            vote = NewVote(
                comparison_id=name,
                annotator_id="ann",
                annotator_kind="human",
                choice="a",
                origin="api",
                voted_at=NOON,
                idempotency_key=name,
            )
            store.votes.cast(vote)
        return store.votes.max_seq()

    return cast


def calibrated(
    store: Store,
    version: int,
    data_seq: int,
    *,
    refused: bool,
    hours_later: int = 0,
    n_pairs: int = 9,
) -> None:
    store.calibrations.add(
        CalibrationReport(
            reward_model=f"demo.reward_model@{version}",
            method="none",
            params={},
            raw=MEASURED,
            calibrated=MEASURED,
            candidates={"none": 0.6, "platt": 0.7} if n_pairs else {},
            data_hash="h",
            n_fit=n_pairs,
            fitted_at=NOON + timedelta(minutes=version, hours=hours_later),
            refusal=Refusal(cause="too weak", data_seq=data_seq) if refused else None,
        ),
        {"method": "none"},
    )


def promoted(store: Store, version: int, data_seq: int, last_decision: int | None = None) -> None:
    store.promotions.record(
        Promotion(
            model_name="demo.reward_model",
            version=version,
            previous_version=version - 1 or None,
            data_seq=data_seq,
            reason="better",
            actor="test",
            last_decision=last_decision,
        )
    )


def test_first_refused_model_is_retried_after_a_few_votes(
    settings: Settings, store: Store, vote: Callable[[int], int]
) -> None:
    vote(29)
    assert (
        plan_next_fit(settings, store).shortage
        == "29 of 30 voted comparisons for the first reward model"
    )
    seq = vote(1)
    assert plan_next_fit(settings, store).shortage is None
    calibrated(store, 1, seq, refused=True)
    vote(49)
    assert (
        plan_next_fit(settings, store).shortage
        == "49 of 50 newly voted comparisons since reward model 1, which was refused"
    )
    vote(1)
    due = plan_next_fit(settings, store)
    assert (due.shortage, due.after) == (None, "refused-1")
    assert (
        plan_next_fit(settings, store, up_to_seq=seq).shortage
        == "0 of 50 newly voted comparisons since reward model 1, which was refused"
    )


def test_refused_challenger_is_retried_before_the_next_refit(
    settings: Settings, store: Store, vote: Callable[[int], int]
) -> None:
    seq = vote(30)
    calibrated(store, 1, seq, refused=False)
    promoted(store, 1, seq)
    assert (
        plan_next_fit(settings, store).shortage
        == "0 of 100 newly voted comparisons since reward model 1"
    )
    calibrated(store, 2, vote(5), refused=True)
    vote(50)
    assert plan_next_fit(settings, store).shortage is None
    calibrated(store, 3, store.votes.max_seq(), refused=False)  # not better, but not refused either
    assert (
        plan_next_fit(settings, store).shortage
        == "55 of 100 newly voted comparisons since reward model 1"
    )


def test_uncalibrated_champion_is_refitted_after_a_few_votes(
    settings: Settings, store: Store, vote: Callable[[int], int]
) -> None:
    seq = vote(30)
    calibrated(store, 1, seq, refused=False, n_pairs=0)
    promoted(store, 1, seq)
    vote(49)
    assert (
        plan_next_fit(settings, store).shortage
        == "49 of 50 newly voted comparisons since reward model 1"
    )
    vote(1)
    assert plan_next_fit(settings, store).shortage is None
    calibrated(store, 1, seq, refused=False, hours_later=1)
    assert (
        plan_next_fit(settings, store).shortage
        == "50 of 100 newly voted comparisons since reward model 1"
    )


def test_a_fit_waits_while_the_cause_of_a_change_is_unclear(
    settings: Settings, store: Store, vote: Callable[[int], int]
) -> None:
    def wait(up_to_seq: int | None = None) -> str | None:
        return find_reason_to_wait(settings, store, trigger, now=NOON, up_to_seq=up_to_seq)

    trigger = TriggerParams(max_cause_votes=10, min_new_votes=0)
    seq = vote(30)
    assert wait() is None  # there is no champion
    promoted(store, 1, seq)
    assert wait() is None
    store.events.add([unclear_rise(seq)])
    assert "decided after 10 more votes" in str(wait())
    store.decisions.apply_rule(
        lambda evidence: decide(evidence, trigger), now=NOON, champion="demo.reward_model@1"
    )
    assert "after 10 more votes" in str(wait())  # held, and not yet answered
    vote(9)
    assert "after 1 more votes" in str(wait())
    last = vote(1)
    assert wait() is None
    assert wait(up_to_seq=last - 1)
    assert [each.action for each in store.decisions.all()] == ["hold"]  # asking decides nothing


def test_quarantine_after_a_fit_makes_a_refit_due(
    settings: Settings, store: Store, vote: Callable[[int], int]
) -> None:
    seq = vote(30)
    promoted(store, 1, seq)
    store.decisions.fire_by_hand(
        "spam",
        actor="test",
        now=datetime.now(UTC),
        quarantine=Quarantine(annotator_ids=("ann",), from_seq=seq),
    )
    due = "decision 1 concerns votes that reward model {} learnt from"
    assert plan_next_fit(settings, store).cause == due.format(1)
    promoted(store, 2, seq, last_decision=0)  # fitted before, promoted after
    assert plan_next_fit(settings, store).cause == due.format(2)
    promoted(store, 3, seq, last_decision=1)
    assert not plan_next_fit(settings, store).cause
