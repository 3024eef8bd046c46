"""Runs the votes of a known world through the real assets and sensors of a project."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Self, cast

import pandas as pd

from benchmarks.trigger_runs import find_day_events
from benchmarks.vote_worlds import VoteWorld, draw_reference, draw_votes
from rlhf_pipeline.application.driver.demo import tick_time
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.core.records import DriftEvent, Promotion, TriggerDecision
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.watch.drift.reference import Window
from rlhf_pipeline.watch.drift.stream import scan
from tests.pipeline.planted_votes import (
    build_comparisons,
    build_predictions,
    build_reference,
    build_votes,
    move_days,
)


@dataclass
class WorldRun:
    """A world in a home of its own: each day its comparisons are published with what the model
    predicts, its votes are cast, its feedback runs and the retraining sensor ticks.
    """

    runner: Runner
    world: VoteWorld
    votes: pd.DataFrame
    reference: Window
    report_seqs: list[int] = field(default_factory=list)  # the last vote that each report knew

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
        label = f"{model}@1"
        reference = build_reference(draw_reference(world, seed), label)
        champions = cast(Champions, (runner.defs.resources or {})["champions"])
        reference.save(champions.reference_folder_of(label))
        return cls(runner, world, votes.assign(reward_model=label), reference)

    @property
    def label(self) -> str:
        return f"{self.runner.settings.reward_model}@1"

    def run_days(self) -> TriggerDecision | None:
        """Run day after day up to the first decision on a confirmed change; None without one."""
        for day in self.votes["day"].unique():
            self._cast([day])
            self._run(day)
            for decision in self.runner.store.decisions.all():
                if decision.remedy not in (None, "dismiss"):
                    return decision
        return None

    def run_last_day(self) -> None:
        """Cast the votes of all days, and run only the last one: its detectors read all votes."""
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
        self.report_seqs.append(int(self.votes.loc[self.votes["day"] == day, "seq"].max()))

    def stored_events(self) -> list[tuple[object, ...]]:
        return _list_facts(self.runner.store.events.for_model(self.label))

    def library_events(self) -> list[tuple[object, ...]]:
        """The events that the library finds in the votes up to the last report."""
        params = LoopSettings.read(self.runner.settings).params("drift_report")
        votes = self.votes[self.votes["seq"] <= self.report_seqs[-1]]
        result = scan(
            votes, model_version=self.label, params=params, reference=self.reference.votes
        )
        of_days = find_day_events(votes, self.report_seqs, self.label)
        return _list_facts([*result.events, *of_days])


def _list_facts(events: Sequence[DriftEvent]) -> list[tuple[object, ...]]:
    return sorted((e.seq, e.detector, e.stream, e.change_seq) for e in events)
