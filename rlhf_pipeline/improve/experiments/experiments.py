"""Starts, changes and ends experiments, and deploys the treatment of one."""

import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from rlhf_pipeline.core.errors import ExperimentConflict, ModelNotFound, ModelRefused
from rlhf_pipeline.core.experiments import (
    MOVES,
    RAMP,
    Experiment,
    ExperimentAct,
    ExperimentChange,
    ExperimentReport,
    ExperimentStatus,
    NewExperiment,
)
from rlhf_pipeline.core.records import Promotion
from rlhf_pipeline.core.releases import ReleaseAct
from rlhf_pipeline.improve.experiments.analysis import Analysis
from rlhf_pipeline.improve.experiments.preferences import read_preferences
from rlhf_pipeline.improve.loop_settings import ExperimentParams, LoopSettings
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.store import ServedAnswer, Store
from rlhf_pipeline.store.audit import joint_transaction

ITSELF = "pipeline"  # actor of what no person ordered
MISS = "miss"  # act: the other version did not answer
NEEDS_TEXTS = "Preference votes need chat texts: set `serving: {keep_texts: true}` in rlhf.yaml."
ACTS: dict[ExperimentStatus, str] = {
    "running": "start",
    "paused": "pause",
    "completed": "end",
    "cancelled": "cancel",
}


@dataclass(frozen=True)
class Experiments:
    """The experiments of one project."""

    releases: Releases

    def create(self, new: NewExperiment, *, actor: str) -> Experiment:
        """Make a draft, or start. Raises ModelNotFound; ModelRefused for a version that the gate
        refused; ReleaseConflict for an archived one; ExperimentConflict for a control that is not
        deployed, for equal versions, where the backend serves one version alone, for a second
        experiment at a time, for a share above one half where deployments need approval, and for
        the metric `preference` without texts of chats.
        """
        settings, champions = self.releases.settings, self.releases.champions
        is_served = settings.completion_backend == "local" or settings.load_adapters
        if not is_served:
            raise ExperimentConflict(
                f"The backend {settings.completion_backend} serves one version. Use the local "
                "backend, or a vLLM server with load_adapters."
            )
        kind, version = champions.find(new.treatment_model_id)
        control = champions.policy().label
        if kind != "policy":
            raise ModelNotFound(f"{version.label} is a reward model; name a policy.")
        if control == version.label or new.control_model_id not in (None, control):
            raise ExperimentConflict(
                f"{control} is deployed, so it is the control. Name another version as treatment."
            )
        self.releases.refuse_archived(version)
        cause = self.releases.find_cause_of_refusal(kind, version.label)
        if cause is not None:
            raise ModelRefused(f"{version.label} was refused: {cause.rstrip('.')}.")
        draft = Experiment(
            experiment_id=0,
            **new.model_dump(include={"name", "traffic_split", "success_metric", "end_date"}),
            control_model_id=control,
            treatment_model_id=version.label,
            status="draft",
            salt=secrets.token_hex(8),
        )
        self._refuse_past(draft)
        self._refuse_unapproved(draft.traffic_split)
        if draft.success_metric == "preference" and not settings.serving.keep_texts:
            raise ExperimentConflict(NEEDS_TEXTS)
        if new.status == "running":
            return self._store.experiments.add(self._move(draft, "running", actor, ""))
        return self._store.experiments.add(self._note(draft, "draft", actor))

    def change(self, experiment_id: int, change: ExperimentChange, *, actor: str) -> Experiment:
        """Move it to another status, raise the share of the treatment, or set another end. Raises
        NotFound; ExperimentConflict for what its status forbids, for a smaller share, and for one
        above one half where deployments need approval.
        """
        before = self._store.experiments.get(experiment_id)
        after = before.model_copy(update=change.fields)
        if change.fields and not MOVES[before.status]:
            raise ExperimentConflict(f"Experiment {experiment_id} is {before.status}.")
        if after.traffic_split < before.traffic_split and before.start_date is not None:
            raise ExperimentConflict(
                f"The treatment answers {before.traffic_split:.0%} of the sessions already, and "
                "they keep it. Give a larger share, or end the experiment."
            )
        self._refuse_past(after)
        if after.traffic_split > before.traffic_split:
            self._refuse_unapproved(after.traffic_split)
        if change.status is not None:
            after = self._move(after, change.status, actor, change.reason)
        elif after != before:
            share = f"to {after.traffic_split:.0%} of the sessions"
            parts = (share * (after.traffic_split != before.traffic_split), change.reason)
            after = self._note(after, "extend", actor, "; ".join(filter(None, parts)))
        return after if after == before else self._replace(before, after)

    def deploy(self, experiment_id: int, *, reason: str, actor: str) -> Promotion | ReleaseAct:
        """Deploy the treatment to everybody as any other version, and end the experiment. Raises
        as `Releases.deploy`, and ExperimentConflict for a draft or a cancelled one.
        """
        experiment = self._store.experiments.get(experiment_id)
        if experiment.status in ("draft", "cancelled"):
            raise ExperimentConflict(
                f"Experiment {experiment_id} is {experiment.status}: deploy "
                f"{experiment.treatment_model_id} by itself."
            )
        result = self.releases.deploy(experiment.treatment_model_id, reason=reason, actor=actor)
        if experiment.is_live:
            self._settle(experiment, "completed", reason, actor)
        return result

    def refresh(self) -> Experiment | None:
        """The running or paused experiment, after ending it at its time or because another version
        was deployed.
        """
        live = self._store.experiments.live()
        if live is None:
            return None
        name = live.control_model_id.rpartition("@")[0]
        champion = self._store.promotions.champion(name)
        label = None if champion is None else champion.label
        if label == live.treatment_model_id:
            self._settle(live, "completed", "its treatment was deployed")
        elif label != live.control_model_id:
            self._settle(live, "cancelled", f"{label} was deployed")
        elif live.end_date is not None and live.end_date <= self._now:
            self._settle(live, "completed", "its time is over")
        else:
            return live
        return None

    def check_guardrails(self, experiment_id: int, answer: ServedAnswer) -> None:
        """After an answer of the treatment that failed or was slow: cancel the experiment if it
        surely has more of either.
        """
        params = self._params
        if answer.error is None and answer.latency_s <= params.slow_s:
            return
        experiment = self._store.experiments.get(experiment_id)
        analysis = Analysis.read(self._store, experiment)
        harm = analysis.find_harm(params.slow_s, params.max_ratio)
        if harm is not None and experiment.status == "running":
            self.cancel(experiment, f"guardrail: the treatment has more {harm}")

    def cancel(self, experiment: Experiment, reason: str) -> None:
        """Give everybody the control again, without a person's order."""
        self._settle(experiment, "cancelled", reason)

    def report(self, experiment: Experiment) -> ExperimentReport:
        """With its present results, or those at its end."""
        is_live, results = experiment.is_live, experiment.results
        return ExperimentReport(
            experiment=experiment,
            results=Analysis.read(self._store, experiment).results if is_live else results,
            preference_note=self._describe_preferences(experiment),
        )

    def note_miss(self, experiment_id: int, cause: str) -> None:
        """Record that the other version did not answer a drawn request, once until the next act."""
        live = self._store.experiments.get(experiment_id)
        if live.is_live and live.acts[-1].act != MISS:
            with suppress(ExperimentConflict):
                self._store.experiments.change(live, self._note(live, MISS, ITSELF, cause))

    @property
    def _store(self) -> Store:
        return self.releases.champions.store

    @property
    def _now(self) -> datetime:
        return self._store.database.clock.now()

    @property
    def _params(self) -> ExperimentParams:
        loop = LoopSettings.read(self.releases.settings, only="experiment")
        return cast(ExperimentParams, loop.params("experiment"))

    def _move(
        self, before: Experiment, status: ExperimentStatus, actor: str, reason: str
    ) -> Experiment:
        """Raises ExperimentConflict for a move that its status does not allow."""
        if status not in MOVES[before.status]:
            allowed = " or ".join(MOVES[before.status]) or "nothing else"
            raise ExperimentConflict(
                f"Experiment {before.experiment_id} is {before.status} and cannot become {status}; "
                f"it can become {allowed}."
            )
        fields: dict[str, Any] = {"status": status}
        act = ACTS[status]
        if status == "running":
            act = "start" if before.start_date is None else "resume"
            champion = self.releases.champions.policy().label
            if champion != before.control_model_id:
                raise ExperimentConflict(
                    f"{champion} is deployed now, not the control {before.control_model_id}. "
                    "Make a new experiment."
                )
            fields["start_date"] = before.start_date or self._now
        elif status in ("completed", "cancelled"):
            fields["end_date"] = self._now
            if before.start_date is not None:
                results = Analysis.read(self._store, before).results
                winner = results.winner if status == "completed" else None
                fields |= {"results": results, "winner": winner}
        return self._note(before.model_copy(update=fields), act, actor, reason)

    def _settle(
        self, live: Experiment, status: ExperimentStatus, reason: str, actor: str = ITSELF
    ) -> None:
        """End it, unless another process was faster."""
        with suppress(ExperimentConflict):
            self._replace(live, self._move(live, status, actor, reason))

    def _replace(self, before: Experiment, after: Experiment) -> Experiment:
        store = self._store
        with joint_transaction(store.database):  # a kill leaves no cards of an ended one
            stored = store.experiments.change(before, after)
            if stored.status != "running":
                pairs = [*store.experiments.pairs(stored)]
                store.cards.withdraw(pairs, actor=stored.acts[-1].actor)
        return stored

    def _describe_preferences(self, experiment: Experiment) -> str | None:
        preferences = read_preferences(self._store, experiment)
        if not preferences:
            return self._explain_missing_votes(experiment) if experiment.is_live else None
        n_of = Counter(name for _, name in preferences if name is not None)
        n, n_ties = n_of.total(), len(preferences) - n_of.total()
        most = max(n_of.values(), default=0) / max(n, 1)
        people = f"{len(n_of)} annotator{'' if len(n_of) == 1 else 's'}"
        return (
            f"Preference: {n} votes of {people}, at most {most:.0%} of one, and {n_ties} ties of "
            "equal or skipped answers."
        )

    def _explain_missing_votes(self, experiment: Experiment) -> str:
        if not self.releases.settings.serving.keep_texts:
            return NEEDS_TEXTS
        sides = self._store.experiments.pairs(experiment).values()
        n_equal = sum(side is None for side in sides)
        return (
            f"No preference votes yet: annotators were given {len(sides) - n_equal} pairs of "
            f"answers that differ; {n_equal} were equal."
        )

    def _note(self, experiment: Experiment, act: str, actor: str, reason: str = "") -> Experiment:
        line = ExperimentAct(at=self._now, act=act, actor=actor, reason=reason)
        return experiment.model_copy(update={"acts": (*experiment.acts, line)})

    def _refuse_unapproved(self, share: float) -> None:
        if share > RAMP[1] and self.releases.params.approval != "none":
            raise ExperimentConflict(
                f"Deployments need approval, so a treatment answers at most {RAMP[1]:.0%} of the "
                "sessions. For more, deploy it."
            )

    def _refuse_past(self, experiment: Experiment) -> None:
        end = experiment.end_date
        if end is not None and MOVES[experiment.status] and end <= self._now:
            raise ExperimentConflict(f"The end {end:%Y-%m-%d %H:%M} UTC is over. Give a later one.")
