"""Provides the champion policy and the champion reward model with its calibrator.

Only this module combines store, registry and stages. Assets, command line and web get champions
from here, so all three serve the same one.
"""

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from filelock import FileLock

from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.errors import (
    BackendUnavailable,
    InvalidScores,
    ModelError,
    ModelNotFound,
    PipelineError,
)
from rlhf_pipeline.core.parameters import Device, Dtype
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import (
    CalibrationReport,
    Interval,
    ModelVersion,
    Promotion,
    Refusal,
    folder_hash,
)
from rlhf_pipeline.core.releases import ReleaseAct
from rlhf_pipeline.feedback.votes import NO_CHANGES, TasteChanges
from rlhf_pipeline.generate.completions import CompletionBackend, open_backend
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY
from rlhf_pipeline.generate.policy.causal_lm import Policy, load_policy
from rlhf_pipeline.generate.policy.exchange import check_exchange
from rlhf_pipeline.learn.calibration import calibrator_from_json
from rlhf_pipeline.learn.champions.assessment import AcceptanceParams, assess
from rlhf_pipeline.learn.champions.calibrated_model import CalibratedModel
from rlhf_pipeline.learn.champions.encoders import find_encoder
from rlhf_pipeline.learn.champions.serving import serve
from rlhf_pipeline.learn.reward_model import Encoder, RewardModel, load_reward_model
from rlhf_pipeline.registry import Kind, Registry
from rlhf_pipeline.store import Store

NOTICES = "notices"  # parameter of a policy's version

logger = logging.getLogger(__name__)
KINDS: tuple[Kind, ...] = get_args(Kind)


REFERENCE = "models/reference"  # below the home: windows of reward models that drift compares with


@dataclass(frozen=True)
class CalibrationOutcome:
    """Result of a calibration: its report and calibrator as stored, and whether they change what
    serves.
    """

    judge: CalibratedModel
    report: CalibrationReport
    # This version was already champion, so only its calibrator is in question.
    was_champion: bool
    takes_over: bool  # to be promoted
    before: str  # the previous calibrator of a version that was already champion
    reason: str

    @property
    def summary(self) -> str:
        label = self.judge.label
        if self.report.refusal is not None:
            return f"{label} was refused and stays candidate: {self.reason}"
        if not self.was_champion:
            return f"{label} is {'' if self.takes_over else 'not '}champion: {self.reason}"
        serves = (
            f"predicts through {self.judge.calibrator_version} now"
            if self.report.may_serve
            else f"keeps its calibrator {self.before}"
        )
        return f"{label} is champion already and {serves}: {self.reason}"


@dataclass(frozen=True)
class Release:
    """What is known of a promotion beside its version and reason. `expected`: the version that it
    replaces, None for whichever is deployed.
    """

    expected: int | None = None
    rolls_back: bool = False
    approval: ReleaseAct | None = None
    deployment: dict[str, Any] | None = None


NO_DETAILS = Release()


@dataclass(frozen=True)
class Champions:
    """Champions of one project. `cache` holds pretrained models and embeddings, all of which can be
    rebuilt.
    """

    store: Store
    registry: Registry
    cache: Path
    encoder_name: str | None = None
    # registers the first policy where there is none; the web app registers none
    first_policy: Callable[["Champions"], ModelVersion] | None = None
    # where policies compute; `backend` takes the settings'
    device: Device = "cpu"
    dtype: Dtype = "float32"

    def champion(self, kind: Kind) -> ModelVersion | None:
        """The version that was promoted last; None before the first promotion. MLflow's aliases
        follow the store.
        """
        promotion = self.store.promotions.champion(self.registry.model_name(kind))
        if promotion is None:
            return None
        self.registry.follow(kind, promotion)
        return self.registry.get(kind, promotion.version)

    def policy(self) -> ModelVersion:
        """The champion policy; the first one is registered when it is first needed.

        Raises ModelNotFound without one where `first_policy` is not set.
        """
        version = self.champion("policy")
        if version is None and self.first_policy is not None:
            return self.first_policy(self)
        if version is None:
            raise ModelNotFound(
                f"Project {self.registry.project!r} has no policy yet. The first collection "
                "registers it: run `rlhf run collection`."
            )
        return version

    def base_policy(self, version: ModelVersion) -> ModelVersion:
        """The policy that all trainings up to `version` started from: its oldest ancestor, or
        itself. A project whose policy was replaced by one of another family has several.
        """
        while version.parent is not None:
            parent = self.registry.get("policy", version.parent.rpartition("@")[2])
            if parent is None:
                break
            version = parent
        return version

    def policy_folder(self, version: ModelVersion | None = None) -> Path:
        """Return the folder of `version`, or of the champion policy; fetched into the cache if
        needed.
        """
        return self.registry.fetch_folder(version or self.policy(), self.cache)

    def backend(
        self,
        settings: Settings,
        *,
        version: ModelVersion | None = None,
        timeout_s: float = 60.0,
    ) -> CompletionBackend:
        """The backend that completes prompts: the champion policy on this machine, a provider, the
        template null member, or an installed backend. With `version`, that policy; raises
        BackendUnavailable if it cannot be served, ServerUnreachable of a server that should load
        its adapter.
        """

        def champion_policy() -> tuple[Path, str]:
            champion = version or self.policy()
            return self.policy_folder(champion), champion.label

        champion = version or (self.champion("policy") if settings.load_adapters else None)
        if champion is not None and champion != self.base_policy(champion):
            fault = self.serve(settings, champion)
            if fault is None:
                settings = settings.model_copy(update={"api_model": champion.label})
            elif version is not None:
                raise BackendUnavailable(f"{champion.label} is not served: {fault}.")
            else:
                logger.warning("%s is not served: %s.", champion.label, fault)
        return open_backend(settings, champion_policy, timeout_s=timeout_s)

    def serve(self, settings: Settings, version: ModelVersion) -> str | None:
        """Let the backend complete with `version`; returns the reason if it does not, and raises
        ServerUnreachable: see `serving.serve`.
        """
        return serve(settings, version, self.policy_folder(version), self.base_policy(version))

    def version(self, label: str) -> ModelVersion:
        """Return the reward model `name@version`. Raises ModelNotFound."""
        version = self.registry.get("reward_model", label.rpartition("@")[2])
        if version is None:
            raise ModelNotFound(
                f"The registry holds no {label}. `rlhf models list` shows what there is."
            )
        return version

    @property
    def vote_halves(self) -> Path:
        """The folder of the members that label and judge the current retraining."""
        return self.cache / "vote_halves"

    def reference_folder(self, version: ModelVersion) -> Path:
        return self.reference_folder_of(version.label)

    def reference_folder_of(self, label: str) -> Path:
        """The folder of the reference window of a model version, by its label."""
        return self.cache.parent / REFERENCE / label.replace("@", "-")

    def load_policy(self, version: ModelVersion | None = None) -> Policy:
        """Load `version`, or the champion policy. Raises as `load_policy`."""
        return load_policy(self.policy_folder(version), device=self.device, dtype=self.dtype)

    def encoder(self) -> Encoder:
        """The first available encoder of the setting `encoder`. Raises EncoderNotFound."""
        return find_encoder(self.encoder_name, self.cache / "embeddings")

    def judge(self, version: ModelVersion | None = None) -> CalibratedModel | None:
        """Load the champion reward model, or `version`; None before the first one is trained and
        calibrated.

        If a `version` cannot be loaded, it raises (ModelNotFound, ModelHashMismatch, ModelError,
        InvalidScores). If the champion cannot be loaded, because of another encoder or damaged
        files, the answer has a `load_error`. Both raise EncoderNotFound if the setting names none
        that is there.
        """
        model_version = version or self.champion("reward_model")
        if model_version is None:
            return None
        encoder = self.encoder()  # outside the try: not the champion's fault
        loaded: RewardModel | None = None
        error: PipelineError | None = None
        try:
            folder = self.registry.fetch_folder(model_version, self.cache)
            loaded = load_reward_model(folder, encoder=encoder)
        except (ModelError, InvalidScores) as cause:
            if version is not None:
                raise
            error = cause
        return self._build_judge(model_version, loaded, error)

    def _build_judge(
        self, version: ModelVersion, model: RewardModel | None, error: PipelineError | None = None
    ) -> CalibratedModel:
        """Build a CalibratedModel with the calibrator that serves."""
        stored = self.store.calibrations.latest_serving(version.label)
        if stored is None:
            return CalibratedModel(version, model, None, "none", error)
        report, calibrator = stored
        return CalibratedModel(
            version,
            model,
            calibrator_from_json(calibrator),
            f"{report.method}@{report.calibrator_version}",
            error,
        )

    def refusal(self, label: str) -> Refusal | None:
        """The reason why the reward model `name@version` may not become champion; None if it may,
        or if a person has promoted it.
        """
        stored = self.store.calibrations.latest_serving(label)
        champion = self.champion("reward_model")
        return (
            None
            if stored is None or (champion is not None and champion.label == label)
            else stored[0].refusal
        )

    def noise_ceiling(self) -> Interval | None:
        """Noise ceiling of the votes behind the latest calibration, for an accuracy without votes
        of its own at hand; None before the first calibration.
        """
        reports = self.store.calibrations.log()
        return reports[-1].noise_ceiling if reports else None

    def find(self, label: str) -> tuple[Kind, ModelVersion]:
        """Kind and version behind `name@version` or `name@alias`. Raises ModelNotFound naming what
        there is.
        """
        name, _, reference = label.partition("@")
        kinds: dict[str, Kind] = {self.registry.model_name(kind): kind for kind in KINDS}
        if name not in kinds:
            raise ModelNotFound(f"No model is called {name!r}. There are: {', '.join(kinds)}.")
        kind = kinds[name]
        versions = self.registry.list_versions(kind)
        version = next((model for model in versions if str(model.version) == reference), None)
        if version is None and reference and not reference.isdecimal():
            self.champion(kind)  # aliases follow the store
            version = self.registry.get(kind, reference)
        if version is None:
            raise ModelNotFound(
                f"The registry holds no {label!r}. There are: "
                f"{', '.join(model.label for model in versions) or 'none'}."
            )
        return kind, version

    def promote(
        self,
        kind: Kind,
        version: ModelVersion,
        *,
        reason: str,
        actor: str,
        release: Release = NO_DETAILS,
    ) -> Promotion:
        """Record the promotion, then move the aliases; repeating it changes nothing. Returns the
        promotion of the version that is champion now.

        In this order: an alias that the store never promoted is how lost rows are noticed. Raises
        ModelNotFound or ModelHashMismatch if the version's files are missing or damaged,
        ReleaseConflict if another promotion came first.
        """
        # a roll back does not wait for the hash of large files: whoever loads them verifies it
        model = self.registry.require(kind, version.version, is_hashed=not release.rolls_back)
        before = self.store.promotions.champion(model.name)
        deployed = None if before is None else before.version
        promotion = Promotion(
            model_name=model.name,
            version=model.version,
            previous_version=deployed if release.expected is None else release.expected,
            data_seq=model.data_seq,
            reason=reason,
            actor=actor,
            last_decision=model.params.get("last_decision"),
            rolls_back=release.rolls_back,
            deployment=release.deployment,
        )

        def record() -> None:
            # under the lock, because retention may have removed the files since they were verified
            self.registry.refuse_without_files(model)
            self.store.promotions.record(promotion, release.approval)

        self.registry.tracking.write(record)
        self.champion(kind)
        champion = self.store.promotions.champion(model.name)
        assert champion is not None  # the one just promoted
        return champion

    def record_calibration(
        self,
        new: CalibratedModel,
        report: CalibrationReport,
        calib: pd.DataFrame,
        *,
        taste_changes: TasteChanges = NO_CHANGES,
        acceptance: AcceptanceParams | None = None,
        promote: bool = True,
        progress: Progress = ignore_progress,
    ) -> CalibrationOutcome:
        """Store the calibration of the version that `new` predicts with, and decide by its
        PREFERENCE_PAIRS of the calib split what changes.

        Another version's calibrator serves once that version is champion; the caller promotes it if
        `takes_over`. The champion's own calibrator serves immediately if it predicts no worse than
        the current one. Without `promote` nothing that serves changes. The report states why a
        version is refused (`assess`).
        """
        assert new.calibrator is not None
        version = new.version
        serving = self.champion("reward_model")
        was_champion = serving is not None and serving.label == version.label
        champion = self._build_judge(version, new.reward_model) if was_champion else self.judge()
        assessment = assess(
            new,
            champion,
            calib,
            taste_changes=taste_changes,
            ceiling=report.noise_ceiling,
            params=acceptance,
            progress=progress,
        )
        better, reason = assessment.is_accepted, assessment.reason
        if better and not promote:
            better, reason = False, "not asked for"
        refusal = (
            Refusal(cause=reason, data_seq=version.data_seq or 0) if assessment.is_refused else None
        )
        report = report.model_copy(
            update={
                "may_serve": better or not was_champion,
                "refusal": refusal,
                "data_seq": version.data_seq,
            }
        )
        number = self.store.calibrations.add(report, new.calibrator.to_json())
        return CalibrationOutcome(
            judge=replace(new, calibrator_version=f"{report.method}@{number}"),
            report=report.model_copy(update={"calibrator_version": number}),
            was_champion=was_champion,
            takes_over=better and not was_champion,
            before="none" if champion is None else champion.calibrator_version,
            reason=reason,
        )

    def initialise(
        self,
        policy: str | None = None,
        *,
        actor: str = "pipeline",
    ) -> ModelVersion:
        """Register the first policy as champion version 1: `policy` (hub id or folder), or the
        embedded policy.
        """
        current = self.champion("policy")
        if current is not None:
            return current
        if policy is None:
            version = self._register_policy(EMBEDDED_POLICY, {"stage": "first policy"})
        else:
            version = self.register_policy(policy, {"stage": "first policy"})
        self.promote("policy", version, reason="first policy of the project", actor=actor)
        return version

    def register_policy(self, source: str, tags: Mapping[str, str]) -> ModelVersion:
        """Register any causal LM that transformers can load, from a folder or the hub. The same
        files are registered once. `tags` go to the MLflow run, notices of `check_exchange` to the
        version's parameters. Raises as `load_policy` and `check_exchange`.
        """
        policy = load_policy(source)
        notices = check_exchange(policy, source)
        with tempfile.TemporaryDirectory() as folder:
            policy.save(Path(folder) / "policy")
            return self._register_policy(Path(folder) / "policy", tags, notices)

    def _register_policy(
        self, folder: Path, tags: Mapping[str, str], notices: Sequence[str] = ()
    ) -> ModelVersion:
        stage = tags["stage"]
        with self.registry.run(stage, tags, run_key=f"{stage}:{folder_hash(folder)}") as run:
            params = {NOTICES: list(notices)} if notices else {}
            return self.registry.register("policy", folder, run=run, params=params)


def register_first_policy(champions: Champions, settings: Settings) -> ModelVersion:
    """The champion policy; without one, that of the settings or the embedded one.

    Of two processes that need it the second waits for the first.
    """
    with FileLock(settings.home / "first_policy.lock"):
        version = champions.initialise(settings.policy)
    HomeFacts.change(settings.home, has_models=True, policy=None)
    record_notices(settings.home, version)
    return version


def record_notices(home: Path, version: ModelVersion) -> tuple[str, ...]:
    """The notices of a policy's registration, kept for the page home as well."""
    notices = tuple(version.params.get(NOTICES, ()))
    facts = HomeFacts.load(home)
    if notices and facts is not None:
        HomeFacts.change(home, policy_notices={**facts.policy_notices, version.label: notices})
    return notices
