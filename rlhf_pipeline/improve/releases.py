"""Deploys versions, by the gate or by hand, with a second person's approval where asked for; rolls
back, archives, and tells what was deployed when.
"""

import hashlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import HomeFacts, ServedCheck, Settings
from rlhf_pipeline.core.errors import ModelNotFound, ModelRefused, NotFound, ReleaseConflict
from rlhf_pipeline.core.frames import EXPORTED_VOTES
from rlhf_pipeline.core.records import Evaluation, ModelVersion, Promotion
from rlhf_pipeline.core.releases import (
    Act,
    ModelState,
    ReleaseAct,
    ReleasedModel,
    ReleaseEvent,
    find_archived,
    find_previous,
    find_state,
    find_waiting,
    number_versions,
)
from rlhf_pipeline.improve.lineage import LineageReader
from rlhf_pipeline.improve.loop_settings import CompletionsParams, LoopSettings, ReleaseParams
from rlhf_pipeline.improve.model_card import CardEvidence, ModelCard, build_card, write_markdown
from rlhf_pipeline.learn.champions import Champions, Release
from rlhf_pipeline.registry import KINDS, Kind

GENERATION = {"temperatures", "top_ps", "max_new_tokens", "system"}


@dataclass(frozen=True)
class Releases:
    """The releases of one project: its champions, and the settings that say how they change."""

    champions: Champions
    settings: Settings

    @cached_property
    def params(self) -> ReleaseParams:
        return cast(
            ReleaseParams, LoopSettings.read(self.settings, only="release").params("release")
        )

    def deploy(
        self,
        label: str,
        *,
        reason: str,
        actor: str,
        is_forced: bool = False,
        expected: int | None = None,
    ) -> Promotion | ReleaseAct:
        """Make a version the champion because a person says so; where the project asks for
        approval, a request that waits for a second person. `expected`: the version that it
        replaces.

        Raises ModelNotFound; ModelRefused for a version that the gate or the acceptance of reward
        models refused, unless `is_forced`: then the refusal is kept with the reason.
        ReleaseConflict for an archived one, or if another than `expected` is deployed.
        """
        kind, version = self.champions.find(label)
        cause = self.find_cause_of_refusal(kind, version.label)
        if cause is not None and not is_forced:
            raise ModelRefused(
                f"{version.label} was refused: {cause.rstrip('.')}. Train another one, or promote "
                "it anyway by overriding the refusal (--force)."
            )
        if cause is not None:
            reason = f"{reason} (forced, although {cause.rstrip('.')})"
        return self.promote(kind, version, reason=reason, actor=actor, expected=expected)

    def promote(
        self,
        kind: Kind,
        version: ModelVersion,
        *,
        reason: str,
        actor: str,
        expected: int | None = None,
    ) -> Promotion | ReleaseAct:
        """Like `deploy`, for a version that the gate let through. Asking again returns the request
        that waits.
        """
        self.refuse_archived(version)
        history = self.champions.store.promotions.history(version.name)
        deployed = history[-1].version if history else None
        if expected not in (None, deployed):
            raise ReleaseConflict(
                f"Version {expected} of {version.name} is not deployed any more, version "
                f"{deployed} is. Look at it, then deploy again."
            )
        if self.params.approval == "none" or deployed in (None, version.version):
            release = Release(
                expected=expected,
                deployment=self._describe_deployment(kind, version) | self._keep_card(version),
            )
            return self.champions.promote(
                kind, version, reason=reason, actor=actor, release=release
            )
        waiting = [act for act in self.list_waiting() if act.label == version.label]
        return next(iter(waiting), None) or self._add(
            "request",
            version,
            reason=reason,
            actor=actor,
            replaces=deployed,
            n_promotions=len(history),
            checklist=self.params.checklist,
        )

    def list_waiting(self) -> list[ReleaseAct]:
        """Requests that wait for an approver, oldest first."""
        store = self.champions.store
        acts = store.release_acts.all()
        names = {act.model_name for act in acts}
        return find_waiting(acts, {name: store.promotions.history(name) for name in names})

    def approve(
        self, request_id: int, *, reason: str, actor: str, ticked: Collection[str]
    ) -> Promotion:
        """Deploy what a request asks for. Raises NotFound; ReleaseConflict if it was answered, if
        another version was deployed since, if a line of the checklist is not ticked, and for its
        author.
        """
        request = self._require_waiting(request_id)
        if actor in self.find_authors(request):
            raise ReleaseConflict(
                f"Release request {request_id} needs a second person: who asked for it, or "
                "ordered the training of its version, cannot approve it."
            )
        missing = [line for line in request.checklist if line not in ticked]
        if missing:
            raise ReleaseConflict(
                f"{len(missing)} of {len(request.checklist)} lines of the checklist are not "
                f"ticked: {'; '.join(missing)}. Check them, or reject the request."
            )
        kind, version = self.champions.find(request.label)
        self.refuse_archived(version)
        approval = self._make("approve", version, reason=reason, actor=actor, request=request)
        release = Release(
            expected=request.replaces,
            approval=approval.model_copy(update={"checklist": request.checklist}),
            deployment=self._describe_deployment(kind, version) | self._keep_card(version),
        )
        return self.champions.promote(
            kind, version, reason=request.reason, actor=actor, release=release
        )

    def reject(self, request_id: int, *, reason: str, actor: str) -> ReleaseAct:
        """End a request. Raises as `approve`; its author may withdraw it so."""
        request = self._require_waiting(request_id)
        version = self.champions.find(request.label)[1]
        act = self._make("reject", version, reason=reason, actor=actor, request=request)
        return self.champions.store.release_acts.add(act)

    def roll_back(
        self, name: str, *, reason: str, actor: str, expected: int | None = None
    ) -> Promotion:
        """Deploy the version that was deployed before the present one, without approval: see
        `find_previous`. Raises ModelNotFound for an unknown name, ReleaseConflict at the start
        of the history or if another than `expected` is deployed.
        """
        kind, target = self._find_kind(name), self.find_target(name)
        history = self.champions.store.promotions.history(name)
        if target is None:
            now = f"before version {history[-1].version}" if history else "yet"
            raise ReleaseConflict(
                f"No other version of {name} was deployed {now}: there is nothing to roll back "
                "to. Deploy one by `rlhf models promote`."
            )
        version = self.champions.find(f"{name}@{target}")[1]
        release = Release(
            expected=history[-1].version if expected is None else expected,
            rolls_back=True,
            deployment=self._describe_deployment(kind, version),
        )
        return self.champions.promote(kind, version, reason=reason, actor=actor, release=release)

    def find_target(self, name: str) -> int | None:
        """The version that a roll back returns to; None at the start of the history."""
        store = self.champions.store
        archived = find_archived(store.release_acts.all(name))
        return find_previous(store.promotions.history(name), archived)

    def find_served_check(self) -> ServedCheck | None:
        """The latest check of what serves, if it is of the deployed policy or rolled one back."""
        facts = HomeFacts.load(self.settings.home)
        check = None if facts is None else facts.served
        name = self.champions.registry.model_name("policy")
        deployed = self.champions.store.promotions.champion(name)
        if check is None or deployed is None:
            return None
        return check if check.rolled_back or check.version == deployed.label else None

    def archive(
        self, label: str, *, reason: str, actor: str, is_restored: bool = False
    ) -> ReleaseAct:
        """End a version's use, or with `is_restored` allow it again. An archived one cannot be
        deployed. Raises ModelNotFound; ReleaseConflict for the deployed one, for the treatment of
        an open experiment, and if there is nothing to change.
        """
        version = self.champions.find(label)[1]
        state = self.find_state(version)
        if state == "deployed":
            raise ReleaseConflict(
                f"{version.label} is deployed. Deploy another version or roll back, then archive "
                "it."
            )
        if (state == "archived") is not is_restored:
            word = "not archived" if is_restored else "archived already"
            raise ReleaseConflict(f"{version.label} is {word}.")
        experiment = self.champions.store.experiments.live()
        if experiment is not None and experiment.treatment_model_id == version.label:
            raise ReleaseConflict(
                f"{version.label} answers chats in experiment {experiment.experiment_id}. End that "
                "first."
            )
        return self._add(
            "restore" if is_restored else "archive", version, reason=reason, actor=actor
        )

    def find_state(self, version: ModelVersion) -> ModelState:
        store = self.champions.store
        archived = find_archived(store.release_acts.all(version.name))
        return find_state(version.version, store.promotions.history(version.name), archived)

    def list_models(self) -> list[ReleasedModel]:
        """Every registered version, oldest first within a name."""
        store, registry = self.champions.store, self.champions.registry
        models = []
        for kind in KINDS:
            listed = registry.list_models(kind)
            history = store.promotions.history(registry.model_name(kind))
            archived = find_archived(store.release_acts.all(registry.model_name(kind)))
            last = {promotion.version: promotion for promotion in history}
            numbers = number_versions(listed)
            for model in listed:
                promotion = last.get(model.version)
                models.append(
                    ReleasedModel(
                        **model.model_dump(),
                        semver=numbers[model.version],
                        state=find_state(model.version, history, archived),
                        deployed_at=promotion and promotion.promoted_at,
                        deployment=promotion and promotion.deployment,
                    )
                )
        return models

    def list_events(self) -> list[ReleaseEvent]:
        """Deployments, roll backs, requests, answers and archived versions, oldest first."""
        store, registry = self.champions.store, self.champions.registry
        events = [
            ReleaseEvent(
                at=promotion.promoted_at,
                act="roll back" if promotion.rolls_back else "deploy",
                model=promotion.label,
                replaces=_label(promotion.model_name, promotion.previous_version),
                **promotion.model_dump(include={"actor", "reason", "request_id", "deployment"}),
            )
            for kind in KINDS
            for promotion in store.promotions.history(registry.model_name(kind))
        ]
        events += [
            ReleaseEvent(
                at=act.acted_at,
                model=act.label,
                replaces=_label(act.model_name, act.replaces),
                request_id=act.act_id if act.act == "request" else act.request_id,
                **act.model_dump(include={"act", "actor", "reason", "checklist"}),
            )
            for act in store.release_acts.all()
        ]
        return sorted(events, key=lambda event: event.at)

    def describe(self, label: str) -> ModelCard:
        """The model card of a policy. Raises ModelNotFound, for a reward model too."""
        kind, version = self.champions.find(label)
        if kind != "policy":
            raise ModelNotFound(
                f"{version.label} is a reward model, and model cards are of policies. Name the "
                "policy that it judged: its card describes the judge."
            )
        store, files = self.champions.store, Artefacts(self.settings.frames)
        models = {model.label: model for model in self.list_models()}
        trace = LineageReader(store, files, []).trace_model(version)
        votes = store.votes.log(comparison_ids=trace.comparison_ids or (), schema=EXPORTED_VOTES)
        gates = [gate for gate in store.gates.all() if gate.candidate == version.label]
        judge = trace.reward_model
        calibrated = store.calibrations.latest_serving(judge) if judge else None
        events = [event for event in self.list_events() if event.model == version.label]
        actors = {event.actor for event in events}
        return build_card(
            CardEvidence(
                project=self.settings.project,
                model=models[version.label],
                base=self.champions.base_policy(version).label,
                trace=trace,
                votes=votes[votes["seq"].isin(trace.vote_seqs or ())],
                gate=gates[-1] if gates else None,
                judge=models.get(judge or ""),
                calibration=calibrated[0] if calibrated else None,
                categories=self._list_categories(gates[-1].evaluation if gates else None),
                events=events,
                names={
                    user.user_id: user.name
                    for user in store.users.all()
                    if user.user_id in actors and user.name != user.email
                },
            )
        )

    def _list_categories(self, evaluation: Evaluation | None) -> tuple[str, ...]:
        """Of the prompts of an evaluation; empty where its set is not known here."""
        with suppress(NotFound):
            if evaluation and evaluation.evaluation_set:
                prompts = self.champions.store.evaluation_sets.prompts(evaluation.evaluation_set)
                return tuple(prompts["category"].dropna().unique())
        return ()

    def _keep_card(self, version: ModelVersion) -> dict[str, str]:
        """Keep the card that a policy is deployed on, under the hash that its deployment names."""
        if version.kind != "policy":
            return {}
        content = write_markdown(self.describe(version.label)).encode()
        digest = hashlib.sha256(content).hexdigest()
        files = Artefacts(self.settings.frames)
        path = files.report_path("model_card", f"{version.label}_{digest[:12]}")
        files.write({path: content})
        return {"model_card": digest}

    def _find_kind(self, name: str) -> Kind:
        names = {self.champions.registry.model_name(kind): kind for kind in KINDS}
        if name not in names:
            raise ModelNotFound(f"No model is called {name!r}. There are: {', '.join(names)}.")
        return names[name]

    def find_cause_of_refusal(self, kind: Kind, label: str) -> str | None:
        """None for a version that may serve, or has served."""
        store = self.champions.store
        if kind == "reward_model":
            refusal = self.champions.refusal(label)
            return None if refusal is None else refusal.cause
        promoted = {
            promotion.label for promotion in store.promotions.history(label.rpartition("@")[0])
        }
        gate = next((g for g in reversed(store.gates.all()) if g.candidate == label), None)
        if gate is None or gate.promoted or label in promoted:
            return None
        return " ".join(check.reason for check in gate.blocking)

    def refuse_archived(self, version: ModelVersion) -> None:
        if self.find_state(version) == "archived":
            raise ReleaseConflict(
                f"{version.label} is archived. Restore it first: `rlhf models archive "
                f"{version.label} --restore`."
            )

    def _require_waiting(self, request_id: int) -> ReleaseAct:
        request = self.champions.store.release_acts.request(request_id)
        if request not in self.list_waiting():
            raise ReleaseConflict(
                f"Release request {request_id} waits no more: it was answered, or another version "
                "was deployed since. Request again what still applies."
            )
        return request

    def find_authors(self, request: ReleaseAct) -> set[str]:
        """Who asked for the release, and who ordered by hand the training of its version."""
        store = self.champions.store
        runs = {gate.run_id for gate in store.gates.all() if gate.candidate == request.label}
        ordered = {
            decision.actor
            for decision in store.decisions.fires()
            if decision.actor is not None and decision.run_id in runs - {None}
        }
        return {request.actor} | ordered

    def _describe_deployment(self, kind: Kind, version: ModelVersion) -> dict[str, Any]:
        settings = self.settings
        semver = number_versions(self.champions.registry.list_versions(kind))[version.version]
        if kind == "reward_model":
            return {"semver": semver, "encoder": settings.encoder}
        completions = LoopSettings.read(settings, only="completions").params("completions")
        served = {"model": settings.api_model, "load_adapters": settings.load_adapters}
        return {
            "semver": semver,
            "backend": settings.completion_backend,
            **({} if settings.completion_backend == "local" else served),
            **cast(CompletionsParams, completions).model_dump(mode="json", include=GENERATION),
        }

    def _make(
        self,
        act: Act,
        version: ModelVersion,
        *,
        reason: str,
        actor: str,
        request: ReleaseAct | None = None,
        **more: Any,
    ) -> ReleaseAct:
        return ReleaseAct(
            act=act,
            model_name=version.name,
            version=version.version,
            actor=actor,
            reason=reason,
            acted_at=self.champions.store.database.clock.now(),
            request_id=None if request is None else request.act_id,
            **more,
        )

    def _add(self, act: Act, version: ModelVersion, **details: Any) -> ReleaseAct:
        return self.champions.store.release_acts.add(self._make(act, version, **details))


def _label(name: str, version: int | None) -> str | None:
    return None if version is None else f"{name}@{version}"
