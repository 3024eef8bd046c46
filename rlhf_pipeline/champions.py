"""What serves now: the champion policy and the champion reward model with its calibrator.

The one place of the library where store, registry and stages meet; assets, command line and web ask it, so that all
three see the same champion. Knows nothing of how a champion is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.calibration import Calibrator, calibrator_from_json
from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.completions import BACKENDS, CompletionBackend, LocalBackend, OpenAICompatibleBackend, TemplateBackend
from rlhf_pipeline.config import Settings
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.errors import ConfigurationError, ModelNotFound
from rlhf_pipeline.policy.loading import Policy, load_policy
from rlhf_pipeline.policy.pretraining import PretrainingParams, pretrain
from rlhf_pipeline.protocols import Progress, silent
from rlhf_pipeline.records import ModelVersion, folder_hash
from rlhf_pipeline.registry import Kind, Registry
from rlhf_pipeline.reward_model import EmbeddingCache, Encoder, RewardModel, load_reward_model
from rlhf_pipeline.store import Store


@dataclass(frozen=True)
class Judge:
    """The champion reward model, ready to predict: P(a preferred) = calibrator(score(a) - score(b))."""

    version: ModelVersion
    reward_model: RewardModel
    calibrator: Calibrator | None
    calibrator_version: str

    @property
    def label(self) -> str:
        return self.version.label

    def p_chosen(self, pairs: pd.DataFrame) -> npt.NDArray[np.float64]:
        """Calibrated P(the majority's choice is preferred) of each of PREFERENCE_PAIRS, (n,)."""
        prompts, n = pairs["prompt"].tolist(), len(pairs)
        scores = self.reward_model.score([*prompts, *prompts], [*pairs["chosen"], *pairs["rejected"]])
        return (self.calibrator or NoCalibration()).transform(scores[:n] - scores[n:])

    def embed(self, prompts: Sequence[str], completions: Sequence[str]) -> npt.NDArray[np.float64]:
        """The reward model's own features (n, d), so that drift of the texts is seen as the model sees them."""
        return np.asarray(self.reward_model.features(prompts, completions), dtype=np.float64)


@dataclass(frozen=True)
class Champions:
    """Champions of one project. `cache` holds pretrained models and embeddings; all of it can be rebuilt."""

    store: Store
    registry: Registry
    cache: Path
    encoder_name: str | None = None

    def policy(self) -> ModelVersion:
        """Raises ModelNotFound before `rlhf init` has registered a first policy."""
        version = self.registry.get("policy", "champion")
        if version is None:
            raise ModelNotFound(f"Project {self.registry.project!r} has no champion policy. Run `rlhf init` first.")
        return version

    def policy_folder(self, version: ModelVersion | None = None) -> Path:
        return self.registry.folder(version or self.policy(), self.cache)

    def backend(self, settings: Settings) -> CompletionBackend:
        """What completes prompts: the champion policy on this machine, a server, the template null member, or an installed backend."""
        if settings.completion_backend == "template":
            return TemplateBackend()
        if settings.completion_backend == "openai_compatible":
            return OpenAICompatibleBackend(base_url=settings.base_url, model=settings.api_model, api_key=settings.api_key)
        if settings.completion_backend == "local":
            champion = self.policy()
            return LocalBackend(self.policy_folder(champion), model_version=champion.label)
        if settings.completion_backend not in BACKENDS:
            raise ConfigurationError(f"No completion backend {settings.completion_backend!r}. Known: {', '.join(BACKENDS)}.")
        return BACKENDS[settings.completion_backend]()

    def version(self, label: str) -> ModelVersion:
        """The reward model `name@version`. Raises ModelNotFound."""
        found = self.registry.get("reward_model", label.rpartition("@")[2])
        if found is None:
            raise ModelNotFound(f"The registry holds no {label}. `rlhf models list` shows what there is.")
        return found

    def reference_folder(self, version: ModelVersion) -> Path:
        return self.cache.parent / "models" / "reference" / version.label.replace("@", "-")

    def reference_window(self, label: str) -> Window | None:
        """The champion's out-of-sample predictions, frozen at registration; None for a model that never was calibrated."""
        folder = self.reference_folder(self.version(label))
        return Window.load(folder) if folder.exists() else None

    def load_policy(self, version: ModelVersion | None = None) -> Policy:
        return load_policy(self.policy_folder(version))

    def encoder(self) -> Encoder:
        return _encoder(self.encoder_name, self.cache / "embeddings")

    def judge(self, version: ModelVersion | None = None) -> Judge | None:
        """The champion reward model, or `version`; None before the first one is trained and calibrated."""
        version = version or self.registry.get("reward_model", "champion")
        if version is None:
            return None
        model = load_reward_model(self.registry.folder(version, self.cache), encoder=self.encoder())
        stored = self.store.calibrations.latest(version.label)
        if stored is None:
            return Judge(version, model, None, "none")
        report, calibrator = stored
        return Judge(version, model, calibrator_from_json(calibrator), f"{report.method}@{report.calibrator_version}")

    def promote(self, kind: Kind, version: ModelVersion, *, reason: str, actor: str) -> None:
        """Move the alias, then record it; repeating it changes nothing."""
        self.store.promotions.record(self.registry.promote(kind, version.version, reason=reason, actor=actor))

    def initialise(self, policy: str | None = None, *, progress: Progress = silent, actor: str = "rlhf init") -> ModelVersion:
        """Register the first policy as champion version 1: `policy` (hub id or folder), or the embedded one, trained here once."""
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
        with self.registry.run("first policy", {"stage": "init"}, run_key=f"init:{folder_hash(folder)}") as run:
            version = self.registry.register(
                "policy", folder, run=run, metrics=metrics, params={}, parent=None, data_hash=None, data_seq=None
            )
        self.promote("policy", version, reason="first policy of the project", actor=actor)
        return version


def not_worse(new: Judge, champion: Judge | None, test: pd.DataFrame, *, since_seq: int | None = None) -> tuple[bool, str]:
    """Whether `new` may replace `champion`, and why: its calibrated log loss on unseen pairs must not be higher.

    After a change of taste only pairs voted since count: both models are asked about the taste there is now.
    """
    if champion is None:
        return True, "first reward model"
    if since_seq is not None and (test["max_seq"] >= since_seq).any():
        test = test[test["max_seq"] >= since_seq]
    losses = [float(-np.log(np.clip(judge.p_chosen(test), 1e-12, 1)).mean()) for judge in (new, champion)]
    verdict = "no worse than" if losses[0] <= losses[1] else "worse than"
    return losses[0] <= losses[1], f"log loss {losses[0]:.3f}, {verdict} {losses[1]:.3f} of {champion.label} on {len(test)} unseen pairs"


@lru_cache(maxsize=2)
def _encoder(name: str | None, cache: Path) -> Encoder:
    """Loading the encoder takes seconds: once per process."""
    return Encoder(name, EmbeddingCache(cache))
