"""History decided again: ticks, champions, events of other detectors, and scores of the fires."""

from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest

from rlhf_pipeline.records import DriftEvent, Promotion, TriggerDecision
from rlhf_pipeline.retraining.replay import (
    History,
    TrainableVotes,
    TriggerTick,
    known_seq,
    list_ticks,
    redecide,
)
from rlhf_pipeline.retraining.scores import KnownChange, score_fires
from rlhf_pipeline.retraining.triggers import TriggerParams

MORNING = datetime(2026, 1, 1, 8, tzinfo=UTC)
MODEL = "demo.reward_model@1"


def votes_of(days: list[str], received: list[datetime]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "seq": range(1, len(days) + 1),
            "day": days,
            "received_at": pd.to_datetime(pd.Series(received), utc=True),
            "is_trainable": True,
            "replaced_seq": 0,
        }
    )


def live_votes(n: int, n_days: int = 1) -> pd.DataFrame:
    """`n` votes a day, a second apart."""
    at = [MORNING + timedelta(days=d, seconds=i) for d in range(n_days) for i in range(n)]
    return votes_of([f"{t.date()}" for t in at], at)


def promotion(version: int, data_seq: int | None, at: datetime = MORNING) -> Promotion:
    return Promotion(
        model_name="demo.reward_model",
        version=version,
        previous_version=None,
        data_seq=data_seq,
        reason="test",
        actor="test",
        promoted_at=at,
    )


def event(detector: str, seq: int, *, model: str = MODEL, **more: object) -> DriftEvent:
    usual = {
        "kind": "drift",
        "model_version": model,
        "detector": detector,
        "params_hash": "h",
        "stream": "errors",
        "seq": seq,
        "day": date(2026, 1, 1),
        "change_seq": seq - 30,
        "evidence": {},
        "detected_at": MORNING,
    }
    return DriftEvent(**usual | more)


def history(
    ticks: list[TriggerTick],
    *events: DriftEvent,
    n: int = 10_000,
    run_time: timedelta = timedelta(),
) -> History:
    return History(ticks, events, TrainableVotes(live_votes(n)), run_time)


def ticks_every(n: int, hours: float, *, count: int = 20) -> list[TriggerTick]:
    return [
        TriggerTick(i * n, MORNING + timedelta(hours=i * hours), MODEL) for i in range(1, count)
    ]


def test_votes_of_the_day_tick_as_they_come_and_at_its_end() -> None:
    ticks = list_ticks(live_votes(5, n_days=2), [], votes_per_tick=2)
    assert [tick.seq for tick in ticks] == [2, 4, 5, 7, 9, 10]
    assert ticks[1].at == MORNING + timedelta(seconds=3)


def test_votes_received_long_after_their_day_tick_at_its_end() -> None:
    imported = votes_of(
        ["2026-01-01"] * 3 + ["2026-01-02"] * 3, [datetime(2026, 5, 1, tzinfo=UTC)] * 6
    )
    ticks = list_ticks(imported, [], votes_per_tick=1)
    assert [(tick.seq, f"{tick.at:%m-%d %H:%M}") for tick in ticks] == [
        (3, "01-01 23:59"),
        (6, "01-02 23:59"),
    ]


def test_champion_serves_after_the_votes_it_was_fitted_to() -> None:
    promoted = [promotion(1, 2), promotion(2, 4), promotion(1, 2, MORNING + timedelta(seconds=7))]
    ticks = list_ticks(live_votes(10), promoted, votes_per_tick=1)
    # version 1 comes back by hand: 8 votes were received by then
    served = {2: None, 3: "@1", 4: "@1", 5: "@2", 8: "@2", 9: "@1"}
    assert {t.seq: t.champion and t.champion[-2:] for t in ticks if t.seq in served} == served


def test_stored_decisions_are_ticks_with_their_own_champions() -> None:
    def stored(champion: str) -> TriggerDecision:
        looked_at = {"max_seq": 3, "champion": champion}
        return TriggerDecision(
            action="hold", reasons=(), event_ids=(), evidence={"looked_at": looked_at}
        )

    # the second was promoted before the next vote came
    decisions = [stored("demo.reward_model@8"), stored("demo.reward_model@9")]
    ticks = list_ticks(live_votes(10), [promotion(1, 0)], decisions, votes_per_tick=100)
    assert [(tick.seq, tick.champion) for tick in ticks] == [
        (3, "demo.reward_model@8"),
        (3, "demo.reward_model@9"),
        (10, MODEL),
    ]


def test_superseded_votes_are_counted_as_the_store_counts_them() -> None:
    votes = live_votes(6)
    votes.loc[3, "is_trainable"] = False
    votes.loc[4, "replaced_seq"] = 2
    counted = TrainableVotes(votes)
    assert counted.count(0, 4) == 3
    assert counted.count(0, 6) == 4
    assert counted.count(2, 6) == 3  # what was replaced is not among them


def test_change_fires_once_and_claims_its_events() -> None:
    made = redecide(
        history(ticks_every(100, 1), event("ddm", 410), event("adwin", 590), event("hddm_a", 630)),
        TriggerParams(),
    )
    assert [(d.action, known_seq(d)) for d in made] == [("hold", 500), ("fire", 600), ("hold", 700)]
    assert made[1].change_seq == 380


def test_cool_down_new_votes_and_a_running_retraining_delay_a_fire() -> None:
    first = event("ddm", 410), event("adwin", 420)
    second = event("ddm", 610), event("adwin", 620)

    def fires(params: TriggerParams, run_time: timedelta = timedelta()) -> list[int | None]:
        made = redecide(history(ticks_every(100, 1), *first, *second, run_time=run_time), params)
        return [known_seq(d) for d in made if d.action == "fire"]

    quick = TriggerParams(cool_down_hours=0, min_new_votes=0)
    assert fires(quick) == [500, 700]
    assert fires(quick, timedelta(hours=4.5)) == [500, 1000]
    assert fires(TriggerParams(cool_down_hours=6, min_new_votes=0)) == [500, 1100]
    assert fires(TriggerParams(cool_down_hours=0, min_new_votes=400)) == [500, 900]
    assert fires(TriggerParams(confirmations=3)) == []


@pytest.mark.parametrize(
    ("fires", "found", "n_false"),
    [
        ([], {}, 0),
        ([99], {}, 1),
        ([100], {100: 100}, 0),
        ([150, 160], {150: 100}, 1),
        ([600], {600: 100}, 0),
        ([601], {}, 1),
        ([150, 950], {150: 100, 950: 900}, 0),
        ([900], {900: 900}, 0),
    ],
)
def test_first_fire_after_a_change_is_right(
    fires: list[int], found: dict[int, int], n_false: int
) -> None:
    changes = [KnownChange(seq=seq, source="test") for seq in (900, 100)]
    score = score_fires(fires, changes, n_votes=2000, within=500)
    assert (score.found, score.n_false) == (found, n_false)
    assert score.false_per_1000_votes == n_false / 2
    assert score.precision == (len(found) / len(fires) if fires else None)
