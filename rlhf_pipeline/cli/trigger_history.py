"""Reads what `rlhf triggers replay` decides again, and compares timelines of decisions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from statistics import fmean, median

import pandas as pd

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import DayRange
from rlhf_pipeline.loop_settings import LoopSettings
from rlhf_pipeline.records import DriftEvent, Promotion, Record, TriggerDecision
from rlhf_pipeline.retraining.replay import (
    History,
    TrainableVotes,
    date_votes,
    known_seq,
    list_ticks,
    redecide,
)
from rlhf_pipeline.retraining.scores import KnownChange, TriggerScore, score_fires
from rlhf_pipeline.retraining.triggers import RECOMPUTING_REMEDIES, TriggerParams

TRIGGER = "the trigger"


class Timeline(Record):
    """Decisions in vote order under one set of parameters, and how well they did."""

    name: str
    decisions: tuple[TriggerDecision, ...]
    score: TriggerScore


@dataclass(frozen=True)
class StoredHistory:
    """The stored history of a project's trigger, each part read once."""

    workspace: Workspace

    @cached_property
    def current(self) -> TriggerParams:
        """The conditions that the loop settings set now."""
        loop = LoopSettings.read(self.workspace.settings)
        return TriggerParams(**loop.trigger.model_dump(include=set(TriggerParams.model_fields)))

    @cached_property
    def votes(self) -> pd.DataFrame:
        """Every vote, with the UTC day on which the trigger could know it as `known_on`."""
        votes = self.workspace.store.decision_history.votes()
        return votes.assign(known_on=date_votes(votes).dt.strftime("%Y-%m-%d"))

    @cached_property
    def decisions(self) -> list[TriggerDecision]:
        """Those of the trigger; decisions by hand are not its."""
        return [d for d in self.workspace.store.decisions.all() if d.actor is None]

    @cached_property
    def run_times(self) -> Mapping[int, timedelta]:
        """Of the decisions that trained."""
        store = self.workspace.store
        trained = {each.decision_id for each in store.decisions.fires() if _is_scored(each)}
        took = store.decision_history.run_times()
        return {number: time for number, time in took.items() if number in trained}

    @property
    def mean_run_s(self) -> float | None:
        """Mean duration of a retraining; None if none has succeeded."""
        seconds = [time.total_seconds() for time in self.run_times.values()]
        return fmean(seconds) if seconds else None

    def redecide(self, params: TriggerParams) -> list[TriggerDecision]:
        """Decide the whole history again, on the stored events."""
        events = (e for label in self._champion_labels for e in self._store_events(label))
        history = History(
            ticks=list_ticks(
                self.votes,
                self._promotions,
                self.decisions,
                votes_per_tick=self.workspace.settings.votes_per_request,
            ),
            events=sorted(events, key=lambda event: (event.seq, event.event_id)),
            votes=TrainableVotes(self.votes),
            run_time=timedelta(seconds=self.mean_run_s or 0),
        )
        return redecide(history, params)

    def compare(
        self, wanted: Mapping[str, TriggerParams], days: DayRange, within: int
    ) -> list[Timeline]:
        """The timeline as it was decided, and one for each of `wanted`, all of these days."""
        made = {name: self.redecide(params) for name, params in wanted.items()}
        seqs = self.seqs_of(days)
        known = [change for change in self.known_changes if change.seq in seqs]
        timelines = []
        for name, decisions in {"as decided": self.decisions, **made}.items():
            chosen = [d for d in decisions if known_seq(d) in seqs]
            fires = [known_seq(d) or 0 for d in chosen if _is_scored(d)]
            score = score_fires(fires, known, n_votes=len(seqs), within=within)
            timelines.append(Timeline(name=name, decisions=tuple(chosen), score=score))
        return timelines

    def seqs_of(self, days: DayRange) -> set[int]:
        """The votes that the trigger could know on one of these days, not before."""
        return set(self.votes.loc[self.votes["known_on"].map(days.__contains__), "seq"])

    @cached_property
    def known_changes(self) -> list[KnownChange]:
        """The changes that are recorded and not retracted."""
        return [
            KnownChange(
                seq=change.change_seq,
                source=f"change {change.change_id}, recorded by "
                f"{change.actor if change.decision_id is None else TRIGGER}",
            )
            for change in self.workspace.store.taste_changes.all()
            if change.retracted_at is None
        ]

    def describe_limits(self, known: Sequence[KnownChange]) -> Iterator[str]:
        """What the comparison cannot know."""
        yield (
            "After another fire another champion would serve, with other errors. Here each vote is "
            "judged by the champion that really served, so figures after the first fire that "
            "differs are estimates."
        )
        if any(change.source.endswith(TRIGGER) for change in known):
            yield (
                "A change that the trigger recorded counts as true until it is retracted, so the "
                "precision as decided is an upper bound, and changes it missed are not counted: "
                "`rlhf changes retract` and `rlhf changes add` correct both."
            )

    def _store_events(self, label: str) -> list[DriftEvent]:
        found = self.workspace.store.events.for_model(label)
        return [event for event in found if not event.is_replayed]

    @cached_property
    def _champion_labels(self) -> list[str]:
        """Each once, in the order of their first promotions."""
        return list(dict.fromkeys(promotion.label for promotion in self._promotions))

    @cached_property
    def _promotions(self) -> list[Promotion]:
        return self.workspace.store.promotions.history(self.workspace.settings.reward_model)


def build_rows(timelines: Sequence[Timeline], history: StoredHistory) -> Iterator[dict[str, str]]:
    """One row per figure, one column per timeline."""
    columns = {timeline.name: _format_figures(timeline, history) for timeline in timelines}
    for figure in next(iter(columns.values())):
        yield {"": figure, **{name: figures[figure] for name, figures in columns.items()}}


def build_fires(timelines: Sequence[Timeline]) -> Iterator[dict[str, str]]:
    """One row per fire of each timeline."""
    for timeline in timelines:
        for fire in timeline.decisions:
            if _is_scored(fire):
                seq = known_seq(fire) or 0
                change = timeline.score.found.get(seq)
                yield {
                    "timeline": timeline.name,
                    "vote": f"{seq:,}",
                    "time": f"{fire.decided_at:%Y-%m-%d %H:%M}",
                    "champion": str(fire.evidence["looked_at"].get("champion")),
                    "verdict": "false" if change is None else f"finds the change at {change:,}",
                    "reasons": "; ".join(fire.reasons),
                }


def _is_scored(decision: TriggerDecision) -> bool:
    """Whether it is a fire that a change of taste makes right; a quarantine trains nothing."""
    is_response = decision.action == "fire" and decision.order is None
    return is_response and decision.remedy not in RECOMPUTING_REMEDIES


def _format_figures(timeline: Timeline, history: StoredHistory) -> dict[str, str]:
    score, run_s = timeline.score, history.mean_run_s
    rate, delays = score.false_per_1000_votes, score.delays
    return {
        "decisions that fire": f"{score.n_fires}",
        "decisions that hold": f"{sum(d.action == 'hold' for d in timeline.decisions)}",
        "quarantines": f"{sum(d.remedy == 'quarantine' for d in timeline.decisions)}",
        "changes found": f"{len(score.found)} of {score.n_changes}",
        "precision": "-" if score.precision is None else f"{score.precision:.2f}",
        "delay in votes (median)": f"{median(delays):,.0f}" if delays else "-",
        "false fires": f"{score.n_false}",
        "false fires per 1,000 votes": "-" if rate is None else f"{rate:.3f}",
        "time of retrainings": "unknown: none was measured"
        if run_s is None
        else f"{timedelta(seconds=round(run_s * score.n_fires))} h",
    }
