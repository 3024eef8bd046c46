"""Fits the fine-tuned reward model: an encoder, or a causal language model."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import ConfigDict, Field

from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ModelError,
    ModelHashMismatch,
)
from rlhf_pipeline.core.files import open_atomically, write_atomically
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.learn.reward_model.base import (
    Floats,
    ModelSummary,
    RewardModel,
    both_sides,
    check_texts,
    drop_unweighted_pairs,
    require_finite,
    require_warm_start,
    sort_weighted_pairs,
)
from rlhf_pipeline.learn.reward_model.encoder import Encoder, EncoderChoice
from rlhf_pipeline.learn.reward_model.launching import run_launched
from rlhf_pipeline.learn.reward_model.losses import LabelParams, targets_of, vote_weights
from rlhf_pipeline.learn.reward_model.model_files import (
    BACKBONE_FOLDER,
    CONFIG_FILE,
    SavedEncoder,
    files_hash,
    hash_tensors,
    read_backbone_files,
    read_config,
    read_tensors,
    replace_folder_atomically,
    require_weights,
)
from rlhf_pipeline.learn.reward_model.network import (
    NetworkParams,
    build_empty_network,
    build_network,
    head_of,
    is_causal_backbone,
    load_tensors,
    pool_texts,
    read_weights,
    usable_device,
)
from rlhf_pipeline.learn.reward_model.token_ids import TokenReader
from rlhf_pipeline.learn.reward_model.trainer import (
    TrainerParams,
    TrainingData,
    TrainingRecord,
    train,
)

MEMBER_FILE = "member-{}.safetensors"
# Votes imagined for each side, so that few votes are no certainty.
IMAGINED_VOTES = 1.0
# A calibration reads the same scores four times; more texts than these would fill the memory.
KNOWN_TEXTS = 20_000
SCALE_TEXTS = 256  # the centre is known to a sixteenth of the scale


# The order of the bases is the order of the fields in config.json, which hashes cover.
class TransformerParams(TrainerParams, NetworkParams, LabelParams):
    """Parameters of a transformer reward model's fit."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_tokens: int = Field(
        default=256,
        ge=8,
        le=131_072,
        description="Tokens of prompt and completion together; what is longer is cut",
    )
    prompt_chars: int = Field(
        default=600,
        ge=0,
        le=10_000,
        description="Characters kept of the end of the prompt, before the completion",
    )
    n_members: int = Field(
        default=1,
        ge=1,
        le=32,
        description="Models fitted with seeds seed, seed + 1, …; a score is their mean",
    )
    min_pairs: int = Field(default=30, ge=4, description="Fewest pairs to fit on")


class TransformerRewardModel(RewardModel):
    """Scores the end of the prompt, ` [SEP] ` and the completion with a transformer; see
    `RewardModel` for the protocol.

    The backbone comes from `encoder`, with a window of `max_tokens`: the model uses its folder and
    hash and trains its weights. Longer texts are truncated as `TokenReader` describes.
    """

    name: ClassVar[str] = "transformer"
    Params = TransformerParams
    encoder: Encoder

    def __init__(
        self,
        params: TransformerParams | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self.params = TransformerParams() if params is None else params
        self.encoder = _set_encoder_window(encoder, self.params.max_tokens)
        self.records_: list[TrainingRecord] = []
        self.score_mean_, self.score_std_ = 0.0, 1.0
        self.networks_: list[Any] = []
        self._known: dict[tuple[str, str], Floats] = {}  # the members' scores of a text
        self._reader: TokenReader | None = None
        self._files: dict[str, bytes] = {}

    def fit(
        self,
        pairs: pd.DataFrame,
        *,
        weights: Floats | None = None,
        warm_start: RewardModel | None = None,
        progress: Progress = ignore_progress,
    ) -> Self:
        ordered = sort_weighted_pairs(pairs, weights)
        ordered["weight"] *= self.vote_weights_of(ordered)
        weighted_pairs = drop_unweighted_pairs(ordered, self.name, self.params.min_pairs)
        start = None if warm_start is None else require_warm_start(warm_start, self)
        if usable_device(self.params.device) != self.params.device:
            raise ConfigurationError(
                f"device is {self.params.device}, but torch sees no CUDA here. Set device to cpu."
            )
        if self.params.launch:
            return self._fit_launched(pairs, weights, start, progress)
        data = self._training_data(weighted_pairs)
        self.networks_, self.records_ = [], []
        self._files = read_backbone_files(self.encoder.folder)
        for member in range(self.params.n_members):
            network = self._initial_network(member, start)
            params = self.params.model_copy(update={"seed": self.params.seed + member})
            self.records_.append(train(network, data, params, progress))
            self.networks_.append(network)
        self._learn_score_scale(weighted_pairs)
        return self

    def _fit_launched(
        self,
        pairs: pd.DataFrame,
        weights: Floats | None,
        start: "TransformerRewardModel | None",
        progress: Progress,
    ) -> Self:
        """Fit in processes of their own, and take over what they learnt."""
        params = self.params.model_copy(update={"launch": ""})
        choice = self.encoder.choice
        task = partial(_fit_in_process, type(self), params, choice, pairs, weights, start)
        fitted = run_launched(self.params.launch, task, progress)
        self.__dict__ |= fitted.__dict__ | {"params": self.params, "encoder": self.encoder}
        return self

    @property
    def summary(self) -> ModelSummary:
        return ModelSummary(
            label=self.params.label,
            n_members=self.params.n_members,
            loss_curve=self.records_[0].loss_curve if self.records_ else (),
        )

    def member_scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        self._require_fitted()
        texts = self._cut_prompts(prompts, completions)
        remembered = self._known  # another thread may begin a new one
        scores_by_text = {text: remembered[text] for text in texts if text in remembered}
        # In one order, so that a text is in the same batch on either side of a pair.
        if new := sorted(set(texts) - scores_by_text.keys()):
            token_ids = self.reader.encode([front for front, _ in new], [back for _, back in new])
            pooled = (
                pool_texts(network, token_ids, self.reader.pad_id, progress=progress)
                @ head_of(network)
                for network in self.networks_
            )
            scores = require_finite(np.stack(list(pooled), axis=1) - self.score_mean_, "scores")
            scores_by_text |= zip(new, scores, strict=True)
            self._known = (
                scores_by_text if len(remembered) > KNOWN_TEXTS else remembered | scores_by_text
            )
        return np.array([scores_by_text[text] for text in texts]).reshape(-1, len(self.networks_)).T

    def features(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """The input of the first member's head, (n, d)."""
        self._require_fitted()
        token_ids, place = self._encode(prompts, completions)
        return pool_texts(self.networks_[0], token_ids, self.reader.pad_id, progress=progress)[
            place
        ]

    @property
    def reader(self) -> TokenReader:
        if self._reader is None:
            self._reader = self._open_reader(self.encoder.folder)
        return self._reader

    @property
    def weights_hash(self) -> str:
        self._require_fitted()
        parts = {
            f"{i}:{name}": part
            for i, network in enumerate(self.networks_)
            for name, part in read_weights(network).items()
        }
        return hash_tensors(parts, self.score_mean_, self.score_std_)

    def save(self, folder: Path) -> None:
        from safetensors.torch import save

        self._require_fitted()
        source = self.encoder.source
        config = {
            "kind": self.name,
            "params": self.params.model_dump(mode="json"),
            "encoder_hash": self.encoder.hash,
            "encoder_source": None if source is None else str(source),
            "backbone_hash": files_hash(self._files),
            "score_mean": self.score_mean_,
            "score_std": self.score_std_,
            "records": [record.model_dump(mode="json") for record in self.records_],
            "weights_hash": self.weights_hash,
        }
        with replace_folder_atomically(folder) as new_folder:
            for name, content in self._files.items():
                write_atomically(new_folder / BACKBONE_FOLDER / name, content)
            for i, network in enumerate(self.networks_):
                with open_atomically(new_folder / MEMBER_FILE.format(i)) as file:
                    file.write(save(read_weights(network)))
            write_atomically(new_folder / CONFIG_FILE, json.dumps(config, indent=1).encode())

    @classmethod
    def load(cls, folder: Path, *, encoder: Encoder | None = None) -> Self:
        """See `RewardModel`; the members' files hold the weights, so `encoder` is not read."""
        config = read_config(folder, cls.name)
        params = TransformerParams(**config["params"])
        params = params.model_copy(update={"device": usable_device(params.device)})
        backbone = Path(folder) / BACKBONE_FOLDER
        saved: Any = SavedEncoder(backbone, config)
        model = cls(params, saved)
        model._files = read_backbone_files(backbone)
        if files_hash(model._files) != config["backbone_hash"]:
            raise ModelHashMismatch(
                f"The files in {backbone} are not those that were saved. Fetch the model version "
                "again."
            )
        model._reader = model._open_reader(backbone)
        model.score_mean_, model.score_std_ = config["score_mean"], config["score_std"]
        model.networks_ = [
            model._load_network(read_tensors(Path(folder) / MEMBER_FILE.format(i), "pt"))
            for i in range(params.n_members)
        ]
        model.records_ = [TrainingRecord.model_validate(record) for record in config["records"]]
        require_weights(model, config, folder)
        return model

    def _training_data(self, pairs: pd.DataFrame) -> TrainingData:
        token_ids, place = self._encode(*both_sides(pairs))
        first, second = np.split(place, 2)
        return TrainingData(
            token_ids=token_ids,
            first=first,
            second=second,
            targets=self._targets(pairs),
            weights=pairs["weight"].to_numpy(dtype=np.float64),
            pad_id=self.reader.pad_id,
        )

    def _targets(self, pairs: pd.DataFrame) -> Floats:
        targets = targets_of(pairs, self.params.label)
        if self.params.label != "votes":
            return targets
        n_votes = pairs["n_votes"].to_numpy(dtype=np.float64)
        halves = IMAGINED_VOTES + _count_ties(pairs) / 2
        return np.asarray((targets * n_votes + halves) / (n_votes + 2 * halves))

    def vote_weights_of(self, pairs: pd.DataFrame) -> Floats:
        """The number of judgements behind each pair, as for every kind; of label votes with the
        ties, which are half a vote for each side.
        """
        counts = vote_weights(pairs, self.params.label)
        return counts + _count_ties(pairs) if self.params.label == "votes" else counts

    def _initial_network(self, member: int, start: "TransformerRewardModel | None") -> Any:
        """The network before its first step: the other model's, or the backbone with a new head."""
        if start is not None:
            start._require_fitted()
            parts = read_weights(start.networks_[member % len(start.networks_)])
            return self._load_network({name: part.clone() for name, part in parts.items()})
        return build_network(self.encoder.folder, self.params, seed=self.params.seed + member)

    def _load_network(self, parts: Mapping[str, Any]) -> Any:
        network = build_empty_network(self.encoder.folder, self.params)
        load_tensors(network, parts)
        return network.to(self.params.device)

    def _encode(
        self, prompts: Sequence[str], completions: Sequence[str]
    ) -> tuple[list[list[int]], npt.NDArray[np.int64]]:
        """Ids of the distinct texts, and the index among them of each completion in its prompt."""
        texts = self._cut_prompts(prompts, completions)
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        token_ids = self.reader.encode([front for front, _ in number], [back for _, back in number])
        return token_ids, np.array([number[text] for text in texts], dtype=np.int64)

    def _cut_prompts(
        self, prompts: Sequence[str], completions: Sequence[str]
    ) -> list[tuple[str, str]]:
        """The end of each prompt that is read, and its completion."""
        check_texts(prompts, completions)
        n_chars = self.params.prompt_chars
        return [
            (render_transcript(prompt)[-n_chars:] if n_chars else "", completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]

    def _learn_score_scale(self, pairs: pd.DataFrame) -> None:
        """Learn the centre and the scale of the members' mean over the training completions, by a
        sample of them: to score them all takes as long as a training.
        """
        prompts, completions = both_sides(pairs)
        sample = np.random.default_rng(self.params.seed).permutation(len(prompts))[:SCALE_TEXTS]
        self._known, self.score_mean_ = {}, 0.0
        scores = self.member_scores([prompts[i] for i in sample], [completions[i] for i in sample])
        raw = scores.mean(axis=0)
        self.score_mean_, self.score_std_ = float(raw.mean()), float(max(raw.std(), 1e-12))
        self._known = {text: score - self.score_mean_ for text, score in self._known.items()}

    def _open_reader(self, folder: Path) -> TokenReader:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)
        longest = (
            getattr(config.get_text_config(), "max_position_embeddings", None)
            or self.params.max_tokens
        )
        return TokenReader.from_folder(
            folder, min(self.params.max_tokens, longest), is_causal=is_causal_backbone(config)
        )

    def _require_fitted(self) -> None:
        if not self.networks_:
            raise ModelError(
                "This reward model is not fitted. Call fit, or load a folder that was saved."
            )


def _fit_in_process(
    kind: type[TransformerRewardModel],
    params: TransformerParams,
    choice: EncoderChoice,
    pairs: pd.DataFrame,
    weights: Floats | None,
    start: TransformerRewardModel | None,
    progress: Progress,
) -> TransformerRewardModel:
    encoder = Encoder(choice, max_tokens=params.max_tokens)
    return kind(params, encoder).fit(pairs, weights=weights, warm_start=start, progress=progress)


def _set_encoder_window(encoder: Encoder | None, max_tokens: int) -> Encoder:
    """Return `encoder` with a window of `max_tokens`. Its hash, which identifies what a model was
    fitted on, then does not depend on the caller's window.
    """
    if encoder is None or encoder.max_tokens != max_tokens:
        return Encoder(
            encoder.choice if encoder else None,
            encoder.cache if encoder else None,
            max_tokens=max_tokens,
        )
    return encoder


def _count_ties(pairs: pd.DataFrame) -> Floats:
    ties = pairs["n_ties"].fillna(0) if "n_ties" in pairs else np.zeros(len(pairs))
    return np.asarray(ties, dtype=np.float64)
