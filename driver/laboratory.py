"""`rlhf lab run --assets`: the votes of a known world through the real assets and sensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Self

import dagster as dg
import pandas as pd
from rich.console import Console

from driver.demo import tick_time
from driver.runner import Runner, ignore_stage, open_runner
from driver.terminal import make_progress_bars, show_progress
from rlhf_pipeline.config import Settings
from rlhf_pipeline.drift.confirmation import DAY_STREAM
from rlhf_pipeline.drift.stream import scan
from rlhf_pipeline.laboratory import LAB_SCENARIOS
from rlhf_pipeline.laboratory.base import LabClaim, VoteScenario
from rlhf_pipeline.loop_settings import LoopSettings
from rlhf_pipeline.records import DriftEvent, Promotion, TriggerDecision
from rlhf_pipeline.retraining.triggers import REMEDIES
from rlhf_pipeline.simulation.planted_votes import (
    build_comparisons,
    build_predictions,
    build_votes,
    move_days,
)
from rlhf_pipeline.simulation.vote_worlds import VoteWorld, draw_votes


@dataclass
class LivedWorld:
    """A world in a home of its own: each day its comparisons are published with what the model
    predicts, its votes are cast, its feedback runs and the retraining sensor ticks.
    """

    runner: Runner
    world: VoteWorld
    votes: pd.DataFrame

    @classmethod
    def open(cls, runner: Runner, world: VoteWorld, seed: int) -> Self:
        votes = move_days(draw_votes(world, seed), runner.settings.start_day)
        model = runner.settings.reward_model
        runner.store.promotions.record(
            Promotion(
                model_name=model,
                version=1,
                previous_version=None,
                data_seq=None,
                reason="the world's model",
                actor="laboratory",
            )
        )
        return cls(runner, world, votes.assign(reward_model=f"{model}@1"))

    @property
    def label(self) -> str:
        return f"{self.runner.settings.reward_model}@1"

    def live(self) -> TriggerDecision | None:
        """Live day after day up to the first decision on a confirmed change; None without one."""
        for day in self.votes["day"].unique():
            self._cast([day])
            self._run(day)
            for decision in self.runner.store.decisions.all():
                if decision.remedy is not None:
                    return decision
        return None

    def live_at_once(self) -> None:
        """Cast the votes of all days, and run only the last one: its report reads all votes."""
        days = self.votes["day"].unique().tolist()
        self._cast(days)
        self._run(days[-1])

    def _cast(self, days: Sequence[str]) -> None:
        store, per = self.runner.store, self.world.votes_per_comparison
        published = build_comparisons(self.votes, per)
        predictions = build_predictions(self.votes, per, self.label)
        store.comparisons.publish(
            published[published["day"].isin(days)],
            predictions[predictions["day"].isin(days)],
            published_at=tick_time(days[0]) - timedelta(hours=23),
        )
        cast = list(build_votes(self.votes, per))
        chosen = self.votes["day"].isin(days).to_numpy().nonzero()[0]
        store.votes.cast_many([cast[i] for i in chosen])

    def _run(self, day: str) -> None:
        self.runner.run("feedback", day, partition_key=day)
        self.runner.clock = partial(tick_time, day)
        self.runner.tick("retraining")

    def claims(self, decision: TriggerDecision | None) -> tuple[LabClaim, ...]:
        """The decision beside the change, and the stored events beside those of the library."""
        last = int(self.runner.store.detectors.errors_after(None)["seq"].max())
        stored, expected = self.stored_events(), self.library_events(last)
        change = next(iter(self.world.changes), None)
        happened = change is not None and last > change.at
        right_remedy = REMEDIES[change.cause] if change else None
        return (
            LabClaim(
                subject="change",
                truth=f"{change.cause} after vote {change.at:,}" if change else "none",
                claim=f"noticed by vote {last:,}" if decision else "none",
                is_right=(decision is not None) == happened,
            ),
            LabClaim(
                subject="remedy",
                truth=right_remedy or "none",
                claim="none" if decision is None else f"{decision.remedy} ({decision.action})",
                is_right=(decision.remedy if decision else None) == right_remedy,
            ),
            LabClaim(
                subject="detectors",
                truth=f"{len(expected)} events by the library",
                claim=f"{len(stored)} events by the assets",
                is_right=stored == expected,
            ),
        )

    def stored_events(self) -> list[tuple[object, ...]]:
        found = self.runner.store.events.for_model(self.label)
        return _sort_events([e for e in found if e.kind == "drift" and e.stream != DAY_STREAM])

    def library_events(self, last_seq: int) -> list[tuple[object, ...]]:
        params = LoopSettings.read(self.runner.settings).params("drift_report")
        read = self.votes[self.votes["seq"] <= last_seq]
        return _sort_events(list(scan(read, model_version=self.label, params=params).events))


def run_world(
    settings: Settings, scenario: str, seed: int, instance: dg.DagsterInstance, console: Console
) -> tuple[LabClaim, ...]:
    """Live through the world of a scenario, one bar per stage, and return the claims."""
    found = LAB_SCENARIOS[scenario]
    assert isinstance(found, VoteScenario)  # the command refuses others
    with make_progress_bars(console) as bars:
        runner = open_runner(settings, instance, show_progress(bars), ignore_stage)
        lived = LivedWorld.open(runner, found.draw_world(seed), seed)
        return lived.claims(lived.live())


def _sort_events(events: list[DriftEvent]) -> list[tuple[object, ...]]:
    return sorted((e.seq, e.detector, e.stream, e.change_seq) for e in events)
