"""What serves now: the champion policy and the champion reward model with its calibrator.

The one place of the library where store, registry and stages meet; assets, command line and web ask
it, so that all three see the same champion. Knows nothing of how a champion is chosen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.calibration import Calibrator, calibrator_from_json, recalibrated_loss
from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.completions import CompletionBackend, open_backend
from rlhf_pipeline.config import Settings
from rlhf_pipeline.drift.reference import FOLDER, Window
from rlhf_pipeline.errors import (
    EncoderNotFound,
    InvalidScores,
    ModelError,
    ModelHashMismatch,
    ModelNotFound,
    NotEnoughData,
    PipelineError,
)
from rlhf_pipeline.policy.causal_lm import Policy, load_policy
from rlhf_pipeline.policy.pretraining import PretrainingParams, pretrain
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import (
    CalibrationReport,
    Interval,
    ModelVersion,
    Record,
    Refusal,
    content_hash,
    folder_hash,
    utc_now,
)
from rlhf_pipeline.registry import Kind, Registry
from rlhf_pipeline.reward_model import (
    AcceptanceParams,
    EmbeddingCache,
    Encoder,
    RewardModel,
    load_reward_model,
    preference_probability,
)
from rlhf_pipeline.reward_model.acceptance import find_regression, find_weakness, is_improvement
from rlhf_pipeline.reward_model.base import distinct_texts
from rlhf_pipeline.reward_model.encoder import EncoderChoice
from rlhf_pipeline.reward_model.held_out_evaluation import margins_of
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import NO_CHANGES, TasteChanges

ROUNDING = 1e-9  # nats: two losses no further apart are the same


class Question(Record):
    """Two completions of a prompt, neither of which has to be of this project."""

    prompt: str
    completion_a: str
    completion_b: str


class PairPrediction(Record):
    """Which of two completions people would prefer, and what the answer rests on."""

    reward_model: str = Field(description="name@version")
    calibrator: str = Field(
        description="calibrator version of that reward model; none before it was calibrated"
    )
    data_hash: str | None = Field(description="of the pairs the reward model was fitted on")
    data_seq: int | None = Field(description="highest vote seq these rest on")
    features_hash: str = Field(description="of the texts as scored")
    score_a: float
    score_b: float
    p_raw: float = Field(description="P(a preferred) by the reward model")
    p_calibrated: float = Field(description="P(a preferred) after calibration")
    predicted_at: datetime


class UnloadableRewardModel:
    """What stands for a champion that cannot be loaded: whatever is asked of it raises `cause`.

    So whoever wants its predictions is told what is wrong, and whoever only wants to do better can:
    the next fit starts anew, and what it makes takes the champion's place.
    """

    name = "lost"

    def __init__(self, cause: PipelineError) -> None:
        self.cause = cause

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else self.cause


@dataclass(frozen=True)
class Judge:
    """The champion reward model, ready to predict: P(a preferred) = calibrator(score(a) -
    score(b)).
    """

    version: ModelVersion
    reward_model: RewardModel
    calibrator: Calibrator | None
    calibrator_version: str

    @property
    def label(self) -> str:
        return self.version.label

    @property
    def load_error(self) -> PipelineError | None:
        """Why the model cannot be loaded; None where it is."""
        return (
            self.reward_model.cause
            if isinstance(self.reward_model, UnloadableRewardModel)
            else None
        )

    def p_chosen(
        self, pairs: pd.DataFrame, *, progress: Progress = ignore_progress
    ) -> npt.NDArray[np.float64]:
        """Calibrated P(the majority's choice is preferred) of each of PREFERENCE_PAIRS, (n,)."""
        prompts, n = pairs["prompt"].tolist(), len(pairs)
        scores = self._scores(
            [*prompts, *prompts], [*pairs["chosen"], *pairs["rejected"]], progress
        )
        return (self.calibrator or NoCalibration()).transform(scores[:n] - scores[n:])

    def predict(
        self,
        questions: Sequence[Question],
        *,
        progress: Progress = ignore_progress,
        now: datetime | None = None,
    ) -> list[PairPrediction]:
        """An answer to each, in order; of one with its sides exchanged p and 1 - p, which sum to
        1.0. Command line and web answer by this alone.

        Raises InvalidScores where a score is NaN, and what kept a champion from being loaded.
        """
        n, prompts = len(questions), [q.prompt for q in questions]
        completions = [*(q.completion_a for q in questions), *(q.completion_b for q in questions)]
        scores = self._scores([*prompts, *prompts], completions, progress)
        margins = scores[:n] - scores[n:]
        p_raw, p_calibrated = (
            preference_probability(margins),
            (self.calibrator or NoCalibration()).transform(margins),
        )
        version, predicted_at = self.version, now or utc_now()
        return [
            PairPrediction(
                reward_model=version.label,
                calibrator=self.calibrator_version,
                data_hash=version.data_hash,
                data_seq=version.data_seq,
                features_hash=content_hash(q.prompt, q.completion_a, q.completion_b),
                score_a=float(scores[i]),
                score_b=float(scores[n + i]),
                p_raw=float(p_raw[i]),
                p_calibrated=float(p_calibrated[i]),
                predicted_at=predicted_at,
            )
            for i, q in enumerate(questions)
        ]

    def _scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        progress: Progress = ignore_progress,
    ) -> npt.NDArray[np.float64]:
        """Of distinct texts in one order, whatever kind of model it is: which side a text stands on
        then shows in no digit.
        """
        *texts, place = distinct_texts(prompts, completions)
        return np.asarray(self.reward_model.score(*texts, progress=progress), dtype=np.float64)[
            place
        ]

    def embed(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> npt.NDArray[np.float64]:
        """The reward model's own features (n, d), so that drift of the texts is seen as the model
        sees them.
        """
        return np.asarray(
            self.reward_model.features(prompts, completions, progress=progress), dtype=np.float64
        )


@dataclass(frozen=True)
class Assessment:
    """Whether a reward model may take the champion's place, and why. A refused one stays candidate
    until a person promotes it.
    """

    is_accepted: bool
    reason: str
    is_refused: bool = False


@dataclass(frozen=True)
class CalibrationOutcome:
    """What a calibration came to: its report and calibrator as stored, and whether they change what
    serves.
    """

    judge: Judge
    report: CalibrationReport
    # this version was champion already, so that its calibrator alone was in question
    was_champion: bool
    takes_over: bool  # to be promoted
    before: str  # calibrator of a version that was champion
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
class Champions:
    """Champions of one project. `cache` holds pretrained models and embeddings; all of it can be
    rebuilt.
    """

    store: Store
    registry: Registry
    cache: Path
    encoder_name: str | None = None

    def policy(self) -> ModelVersion:
        """Raises ModelNotFound before `rlhf init` has registered a first policy."""
        version = self.registry.get("policy", "champion")
        if version is None:
            raise ModelNotFound(
                f"Project {self.registry.project!r} has no champion policy. Run `rlhf init` first."
            )
        return version

    def policy_folder(self, version: ModelVersion | None = None) -> Path:
        return self.registry.fetch_folder(version or self.policy(), self.cache)

    def backend(self, settings: Settings, *, timeout_s: float = 60.0) -> CompletionBackend:
        """What completes prompts: the champion policy on this machine, a provider, the template
        null member, or an installed backend.
        """
        return open_backend(settings, self._champion_policy, timeout_s=timeout_s)

    def _champion_policy(self) -> tuple[Path, str]:
        champion = self.policy()
        return self.policy_folder(champion), champion.label

    def version(self, label: str) -> ModelVersion:
        """The reward model `name@version`. Raises ModelNotFound."""
        found = self.registry.get("reward_model", label.rpartition("@")[2])
        if found is None:
            raise ModelNotFound(
                f"The registry holds no {label}. `rlhf models list` shows what there is."
            )
        return found

    def reference_folder(self, version: ModelVersion) -> Path:
        return self.cache.parent / FOLDER / version.label.replace("@", "-")

    def save_reference_window(self, version: ModelVersion, window: Window) -> None:
        window.save(self.reference_folder(version), self.store.file_hashes)

    def reference_window(self, label: str) -> Window | None:
        """The champion's out-of-sample predictions, frozen at registration; None for a model that
        never was calibrated.
        """
        folder = self.reference_folder(self.version(label))
        return Window.load(folder, self.store.file_hashes) if folder.exists() else None

    def load_policy(self, version: ModelVersion | None = None) -> Policy:
        return load_policy(self.policy_folder(version))

    def encoder(self, start: RewardModel | None = None) -> Encoder:
        """The first that is there of those that the settings name; for a fit from the weights of
        `start` the one that those were fitted on.

        Raises EncoderNotFound where that may be one which is not there now, ModelHashMismatch where
        no name in the settings is its own.
        """
        encoder = _find_encoder(self.encoder_name, self.cache / "embeddings")
        before: Any = getattr(start, "encoder", None)
        if start is None or before is None:
            return encoder
        there, missing = [], [] if encoder.choice.instead is None else [encoder.choice.instead]
        for one in self._available_encoders(encoder, missing):
            if one.hash_with(before.max_tokens) == before.hash:
                return (
                    one
                    if one is encoder
                    else _load_encoder(
                        _mark_continuation(one.choice, encoder.choice), self.cache / "embeddings"
                    )
                )
            there.append(one.choice.used)
        said = (
            f"The model to start from was fitted on encoder {before.hash[:12]}, not on "
            f"{' or '.join(there)}"
        )
        if missing:
            raise EncoderNotFound(
                f"{said}; it may be one that is missing: {'; '.join(missing)}",
                "Go on once that one is there again, or fit anew.",
            )
        raise ModelHashMismatch(
            f"{said}. Name it in the setting `encoder`, after a comma where it is not the first, "
            "or fit anew."
        )

    def _available_encoders(self, encoder: Encoder, missing: list[str]) -> Iterator[Encoder]:
        """`encoder`, and those named after it in the settings that are there; `missing` is told why
        others are not.
        """
        yield encoder
        for name in encoder.choice.rest:
            try:
                yield _find_encoder(name, self.cache / "embeddings")
            except (EncoderNotFound, ModelHashMismatch) as absent:  # or damaged
                missing.append(getattr(absent, "why", str(absent)))

    def judge(self, version: ModelVersion | None = None) -> Judge | None:
        """The champion reward model, or `version`; None before the first one is trained and
        calibrated.

        A `version` that cannot be loaded raises (ModelNotFound, ModelHashMismatch, ModelError,
        InvalidScores). A champion that cannot, of another encoder or with damaged files, is a Judge
        all the same, that raises once it is asked: see `UnloadableRewardModel`. It loads on
        whichever of the encoders that the settings name it was fitted on; EncoderNotFound where
        that may be one which is not there now, for then it is not lost.
        """
        wanted = version or self.registry.get("reward_model", "champion")
        if wanted is None:
            return None
        encoder = self.encoder()  # one that is not there is no fault of the champion's
        try:
            model: Any = self.load(
                self.registry.fetch_folder(wanted, self.cache), wanted.label, encoder
            )
        except EncoderNotFound:
            raise
        except (ModelError, InvalidScores) as cause:
            if version is not None:
                raise
            model = UnloadableRewardModel(cause)
        return self._build_judge(wanted, model)

    def load(self, folder: Path, label: str, encoder: Encoder | None = None) -> RewardModel:
        """The reward model in `folder`, called `label`, on whichever of the encoders that the
        settings name it was fitted on.

        Raises as `load_reward_model`, and EncoderNotFound where that may be one which is not there
        now.
        """
        encoder = encoder or self.encoder()
        there: list[str] = []
        missing = [] if encoder.choice.instead is None else [encoder.choice.instead]
        first: ModelHashMismatch | None = None
        for one in self._available_encoders(encoder, missing):
            try:
                return load_reward_model(folder, encoder=one)
            except ModelHashMismatch as cause:
                first = first or cause
                there.append(one.choice.used)
        assert first is not None  # `encoder` was tried
        if not missing:
            raise first
        raise EncoderNotFound(
            f"{label} does not load on the encoder {' or '.join(there)}, and the one it was fitted "
            f"on may be missing: {'; '.join(missing)}",
            "Go on once that one is there again, or take its name out of the setting `encoder`: "
            "the next fit then starts anew.",
        ) from first

    def _build_judge(self, version: ModelVersion, model: RewardModel) -> Judge:
        """With the calibrator that serves."""
        stored = self.store.calibrations.latest_serving(version.label)
        if stored is None:
            return Judge(version, model, None, "none")
        report, calibrator = stored
        return Judge(
            version,
            model,
            calibrator_from_json(calibrator),
            f"{report.method}@{report.calibrator_version}",
        )

    def refusal(self, label: str) -> Refusal | None:
        """Why the reward model `name@version` may not become champion; None where it may, or where
        a person has promoted it.
        """
        stored, champion = (
            self.store.calibrations.latest_serving(label),
            self.registry.get("reward_model", "champion"),
        )
        return (
            None
            if stored is None or (champion is not None and champion.label == label)
            else stored[0].refusal
        )

    def noise_ceiling(self) -> Interval | None:
        """Of the votes behind the latest calibration: what stands beside an accuracy for which no
        votes are at hand; None before it.
        """
        reports = self.store.calibrations.log()
        return reports[-1].noise_ceiling if reports else None

    def promote(self, kind: Kind, version: ModelVersion, *, reason: str, actor: str) -> None:
        """Move the alias, then record it; repeating it changes nothing."""
        self.store.promotions.record(
            self.registry.promote(kind, version.version, reason=reason, actor=actor)
        )

    def record_calibration(
        self,
        version: ModelVersion,
        reward_model: RewardModel,
        calibrator: Calibrator,
        report: CalibrationReport,
        calib: pd.DataFrame,
        *,
        taste_changes: TasteChanges = NO_CHANGES,
        acceptance: AcceptanceParams | None = None,
        promote: bool = True,
        progress: Progress = ignore_progress,
    ) -> CalibrationOutcome:
        """Store a calibration of `version`, and decide by its PREFERENCE_PAIRS of the calib split
        what it changes.

        Another version's calibrator serves once that version is champion, which is the caller's to
        do where `takes_over`; the champion's own serves from here on, if it predicts no worse than
        the one there is. Without `promote` nothing that serves changes. Why a version is refused
        (`assess`) stands in the report.
        """
        serving = self.registry.get("reward_model", "champion")
        was_champion = serving is not None and serving.label == version.label
        champion = self._build_judge(version, reward_model) if was_champion else self.judge()
        new = Judge(version, reward_model, calibrator, report.method)
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
            update={"may_serve": better or not was_champion, "refusal": refusal}
        )
        number = self.store.calibrations.add(report, calibrator.to_json())
        return CalibrationOutcome(
            judge=Judge(version, reward_model, calibrator, f"{report.method}@{number}"),
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
        progress: Progress = ignore_progress,
        actor: str = "rlhf init",
    ) -> ModelVersion:
        """Register the first policy as champion version 1: `policy` (hub id or folder), or the
        embedded one, trained here once.
        """
        current = self.registry.get("policy", "champion")
        if current is not None:
            return current
        folder = self.cache / "embedded_policy"
        metrics: dict[str, float] = {}
        if policy is None:
            report = pretrain(folder, PretrainingParams(), progress=progress)
            metrics = {k: float(v) for k, v in report.items() if isinstance(v, int | float)}
        else:
            folder = self.cache / "imported_policy"
            load_policy(policy).save(folder)
        with self.registry.run(
            "first policy", {"stage": "init"}, run_key=f"init:{folder_hash(folder)}"
        ) as run:
            version = self.registry.register(
                "policy",
                folder,
                run=run,
                metrics=metrics,
                params={},
                parent=None,
                data_hash=None,
                data_seq=None,
            )
        self.promote("policy", version, reason="first policy of the project", actor=actor)
        return version


def assess(
    new: Judge,
    champion: Judge | None,
    calib: pd.DataFrame,
    *,
    taste_changes: TasteChanges = NO_CHANGES,
    ceiling: Interval | None = None,
    params: AcceptanceParams | None = None,
    progress: Progress = ignore_progress,
) -> Assessment:
    """Whether `new` may take the champion's place, by pairs of the calib split voted on since the
    last of `taste_changes`.

    It is refused if it is too weak and no better than the champion, if it is less accurate than the
    champion on the latest window, or if no pair was voted on since the change; otherwise the log
    loss decides (`compare_with_champion`). Of the champion's own version only calibrators are
    compared.
    """
    counted = calib[taste_changes.is_current(calib)]
    if champion is None or champion.label != new.label:
        cause = _refusal_cause(
            new, champion, calib, counted, ceiling, params or AcceptanceParams(), progress
        )
        if cause is not None:
            return Assessment(is_accepted=False, reason=cause, is_refused=True)
    return Assessment(*compare_with_champion(new, champion, counted, progress=progress))


def _refusal_cause(
    new: Judge,
    champion: Judge | None,
    calib: pd.DataFrame,
    counted: pd.DataFrame,
    ceiling: Interval | None,
    params: AcceptanceParams,
    progress: Progress,
) -> str | None:
    rival = None if champion is None or champion.load_error is not None else champion
    if counted.empty:
        is_blind = rival is not None and not calib.empty
        return (
            f"none of {len(calib)} held-out pairs was voted on since the last change of taste"
            if is_blind
            else None
        )
    margins = margins_of(new.reward_model, counted, progress=progress)
    weakness = find_weakness(counted, margins, ceiling, params)
    if rival is None:
        return weakness
    before = margins_of(rival.reward_model, counted, progress=progress)
    # after a reversal of taste a weak model is better than a wrong one
    if is_improvement(counted, margins, before, params):
        return None
    return (
        "; ".join(
            cause
            for cause in (weakness, find_regression(counted, margins, before, params))
            if cause
        )
        or None
    )


def compare_with_champion(
    new: Judge,
    champion: Judge | None,
    held_out: pd.DataFrame,
    *,
    progress: Progress = ignore_progress,
) -> tuple[bool, str]:
    """Whether `new` may replace `champion`, and why: its log loss on votes it was not fitted to
    must not be higher.

    `held_out` are pairs of the calib split: what serves is chosen there, the test split only says
    how good the choice is. Both models are recalibrated on them with prompts held out, since
    either's own calibrator may have seen them; and where the champion serves worse than that, it is
    taken as it serves: after a reversal of taste it is surely wrong, which a new calibration would
    hide. So no model loses to itself. Without any vote to compare by the new one serves: it has
    learnt from more. So it does where the champion cannot be loaded.

    Where `new` is the champion's own version, the two calibrators are compared in that way, each by
    its own method.
    """
    if champion is None:
        return True, "first reward model"
    if champion.load_error is not None:
        return (
            True,
            f"{champion.label} cannot be loaded, so that it predicts nothing: "
            f"{champion.load_error}",
        )
    if new.label == champion.label:
        return _compare_calibrators(new, champion, held_out, progress)
    try:
        loss = recalibrated_loss(held_out, new.reward_model, progress=progress)
        to_beat = max(
            recalibrated_loss(held_out, champion.reward_model, progress=progress),
            _loss_as_served(held_out, champion, progress),
        )
    except NotEnoughData:
        return (
            True,
            f"no votes of the calib split to set it beside {champion.label} by; it has learnt from "
            "more",
        )
    is_no_worse = loss <= to_beat + ROUNDING
    verdict = "no worse than" if is_no_worse else "worse than"
    return (
        is_no_worse,
        f"log loss {loss:.3f}, {verdict} {to_beat:.3f} of {champion.label} on {len(held_out)} "
        "unseen pairs",
    )


def _compare_calibrators(
    new: Judge, champion: Judge, held_out: pd.DataFrame, progress: Progress
) -> tuple[bool, str]:
    """Of two calibrators of one model: the larger of what each loses as it serves and, fitted anew,
    on prompts held out.
    """
    if champion.calibrator is None:
        return True, "it had no calibrator"
    try:
        loss, to_beat = (
            max(
                recalibrated_loss(
                    held_out,
                    judge.reward_model,
                    method=(judge.calibrator or NoCalibration()).name,
                    progress=progress,
                ),
                _loss_as_served(held_out, judge, progress),
            )
            for judge in (new, champion)
        )
    except NotEnoughData:
        return False, "no votes of the calib split to compare calibrators by"
    is_no_worse = loss <= to_beat + ROUNDING
    verdict = "no worse than" if is_no_worse else "worse than"
    told = (
        f"log loss {loss:.3f} through {new.calibrator_version}, {verdict} {to_beat:.3f} through "
        f"{champion.calibrator_version}"
    )
    return is_no_worse, f"{told} on {len(held_out)} pairs of the calib split"


def _loss_as_served(pairs: pd.DataFrame, judge: Judge, progress: Progress) -> float:
    """Nats per vote."""
    p = np.clip(judge.p_chosen(pairs, progress=progress), 1e-12, 1 - 1e-12)
    share, votes = (pairs[name].to_numpy(dtype=np.float64) for name in ("agreement", "n_votes"))
    return float(votes @ -(share * np.log(p) + (1 - share) * np.log1p(-p)) / votes.sum())


# by setting: the encoders that were there when first asked for
_FOUND_ENCODERS: dict[str | Path | None, EncoderChoice] = {}


def _find_encoder(name: str | Path | None, cache: Path) -> Encoder:
    """One that was asked for is looked for once per process; where another stands in for it, each
    time: it may be back.
    """
    choice = _FOUND_ENCODERS.get(name) or EncoderChoice.of(name)
    if choice.instead is None:
        _FOUND_ENCODERS[name] = choice
    return _load_encoder(choice, cache)


def _mark_continuation(choice: EncoderChoice, asked: EncoderChoice) -> EncoderChoice:
    """`choice` as the record of a fit tells it that goes on with it although `asked` is there."""
    return replace(
        choice, asked=asked.asked, instead="the model that the fit starts from was fitted on it"
    )


@lru_cache(maxsize=3)
def _load_encoder(choice: EncoderChoice, cache: Path) -> Encoder:
    """Loading the encoder takes seconds: once per process."""
    return Encoder(choice, EmbeddingCache(cache))
