"""Builds a transformer with one score per text: backbone, pooling, head."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.core.errors import ConfigurationError, InvalidScores, ModelError
from rlhf_pipeline.core.protocols import Progress, ignore_progress

Floats = npt.NDArray[np.float64]

# Includes padding. Larger batches overflow the processor's cache, see `encoder`; a GPU needs large
# ones.
TOKENS_PER_BATCH = {"cpu": 512, "cuda": 32_768}
HEAD_SD = 0.02


class NetworkParams(BaseModel):
    """The parts of the network."""

    model_config = ConfigDict(allow_inf_nan=False)

    frozen_layers: int = Field(
        default=0,
        ge=0,
        le=200,
        description="Lowest layers kept as they are, and the token embeddings below them; 0 trains "
        "everything",
    )


def build_network(folder: Path, params: NetworkParams, *, seed: int) -> Any:
    """Build the backbone in `folder` with a new head, initialised with `seed`; on the CPU, in
    float32, without dropout.

    Raises ModelError if the folder holds no transformers backbone, ConfigurationError if `params`
    name layers that do not exist.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModel

    try:
        with silence_libraries():
            backbone = AutoModel.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError) as cause:
        raise ModelError(
            f"The backbone in {folder} cannot be loaded ({type(cause).__name__}: {cause}). Fetch "
            "it again."
        ) from cause
    return wrap_backbone(backbone, params, seed=seed)


def build_empty_network(folder: Path, params: NetworkParams) -> Any:
    """Build the network from the configuration in `folder`; weights are loaded later. Raises
    ModelError without a configuration.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    try:
        with torch.random.fork_rng(devices=[]):  # the random weights are discarded
            backbone = AutoModel.from_config(
                AutoConfig.from_pretrained(folder), dtype=torch.float32
            )
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise ModelError(
            f"{folder} holds no configuration of a network ({cause}). Fetch the model version "
            "again."
        ) from cause
    return wrap_backbone(backbone, params, seed=0)


def wrap_backbone(backbone: Any, params: NetworkParams, *, seed: int) -> Any:
    """Build a network around a backbone in memory. Raises ConfigurationError as `build_network`."""
    import torch

    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # BERT's own: not trained with the sentence encoders
    # of a causal model only the last token has read the whole text
    pooling = "last" if is_causal_backbone(backbone.config) else "mean"
    _freeze(backbone, params.frozen_layers)
    network = network_class()(backbone, pooling)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        network.head.weight.copy_(
            torch.randn(network.head.weight.shape, generator=generator) * HEAD_SD
        )
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return network.eval()


def usable_device(device: str) -> str:
    """`device`, or the CPU if it names a GPU that is not available; scores agree within
    rounding.
    """
    import torch

    return device if not device.startswith("cuda") or torch.cuda.is_available() else "cpu"


def is_causal_backbone(config: Any) -> bool:
    """Whether the backbone is a causal language model, by its configuration."""
    return bool(getattr(config, "is_decoder", False)) or any(
        "CausalLM" in name for name in config.architectures or []
    )


@cache
def network_class() -> Any:
    """Return the network's class, defined at first use: importing torch and transformers takes
    seconds.
    """
    import copy

    import torch
    from transformers import PreTrainedModel

    class RewardNetwork(PreTrainedModel):  # type: ignore[misc]
        """Scores texts; a PreTrainedModel, as transformers' Trainer and accelerate expect."""

        base_model_prefix = "backbone"
        main_input_name = "input_ids"
        supports_gradient_checkpointing = True
        _supports_sdpa = _supports_flash_attn = _supports_flex_attn = (
            _supports_attention_backend
        ) = True

        def __init__(self, backbone: Any, pooling: str) -> None:
            config = copy.deepcopy(backbone.config)
            config.num_labels = 1
            super().__init__(config)
            self.backbone = backbone
            self.pooling = pooling
            # No bias: it cancels out of every margin.
            self.head = torch.nn.Linear(config.get_text_config().hidden_size, 1, bias=False)

        def pool(self, input_ids: Any, attention_mask: Any) -> Any:
            """Pool to (n, d) in float32, ignoring padding, which is on the right."""
            hidden = self.backbone(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state.float()
            if self.pooling == "last":
                last = attention_mask.sum(1) - 1
                return hidden[torch.arange(len(hidden), device=hidden.device), last]
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return (hidden * mask).sum(1) / mask.sum(1)

        def forward(self, passes: Sequence[tuple[Any, Any]], **ignored: Any) -> Any:
            """Score the texts of all passes, each input_ids and attention_mask, (n,). One call
            takes them all: processes that share a batch may have different numbers of passes.
            """
            pooled = torch.cat([self.pool(ids, mask) for ids, mask in passes])
            with torch.autocast(pooled.device.type, enabled=False):
                return self.head(pooled).squeeze(-1)

    return RewardNetwork


def _freeze(backbone: Any, n_layers: int) -> None:
    if not n_layers:
        return
    layers = next(
        (
            part
            for name, part in backbone.named_modules()
            if name.split(".")[-1] in ("layer", "layers", "h")
        ),
        None,
    )
    if layers is None or n_layers > len(layers):
        n = 0 if layers is None else len(layers)
        raise ConfigurationError(
            f"frozen_layers is {n_layers}, but the backbone has {n} layers. Freeze fewer."
        )
    frozen = [
        getattr(backbone, "embeddings", None) or backbone.get_input_embeddings(),
        *layers[:n_layers],
    ]
    for part in frozen:
        part.requires_grad_(False)


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Hide progress bars over tensors, warnings about heads that are left out on purpose, and
    those of a name that trl 1.16 and peft 0.21 still use.
    """
    from transformers.utils import logging

    had_bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", category=FutureWarning, message=".*gradient_checkpointing"
            )
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


@contextmanager
def silence_trl() -> Iterator[None]:
    """`silence_libraries`, and no progress bars over rows: `progress` reports what is relevant."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with silence_libraries():
            yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()


@contextmanager
def collect_trl_warnings() -> Iterator[list[str]]:
    """The warnings that TRL logs within, each once."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = f"TRL: {' '.join(record.getMessage().split())}"
            if message not in messages:
                messages.append(message)

    collector = Collector(logging.WARNING)
    logging.getLogger("trl").addHandler(collector)
    try:
        yield messages
    finally:
        logging.getLogger("trl").removeHandler(collector)


def read_weights(network: Any) -> dict[str, Any]:
    """The tensors that define the model, by name, on the CPU and contiguous."""
    return {
        name: part.detach().to("cpu").contiguous() for name, part in network.state_dict().items()
    }


def load_tensors(network: Any, parts: Mapping[str, Any]) -> None:
    """Load `parts` into `network`. Raises ModelError naming the first part that is missing,
    unknown, of another shape, NaN or infinite.
    """
    import torch

    own = network.state_dict()
    wrong = sorted(set(own) ^ set(parts)) or [
        name for name in own if own[name].shape != parts[name].shape
    ]
    if wrong:
        raise ModelError(
            f"The weights do not fit the network: {wrong[0]} and {len(wrong) - 1} more. Fetch the "
            "model version again."
        )
    for name, part in parts.items():
        if part.is_floating_point() and not torch.isfinite(part).all():
            raise ModelError(
                f"The weights hold NaN or infinite numbers, first in {name}. Fetch the model "
                "version again, or fit it anew."
            )
    network.load_state_dict(dict(parts))


def pad(
    token_ids: Sequence[Sequence[int]], pad_id: int, device: str = "cpu", *, width: int = 0
) -> tuple[Any, Any]:
    """Pad to input_ids and attention_mask, (n, longest or `width`)."""
    import torch

    lengths = np.array([len(ids) for ids in token_ids])
    mask = np.arange(max(width, lengths.max())) < lengths[:, None]
    filled = np.full(mask.shape, pad_id, dtype=np.int64)
    filled[mask] = np.concatenate([np.asarray(ids) for ids in token_ids])
    return torch.from_numpy(filled).to(device), torch.from_numpy(mask.astype(np.int64)).to(device)


def pool_texts(
    network: Any,
    token_ids: Sequence[Sequence[int]],
    pad_id: int,
    *,
    progress: Progress = ignore_progress,
) -> Floats:
    """The head's input for each text, (n, d), computed in order of length to save padding. Raises
    InvalidScores on NaN.
    """
    import torch

    device = str(network.head.weight.device)
    budget = TOKENS_PER_BATCH[device.split(":", maxsplit=1)[0]]
    order = sorted(range(len(token_ids)), key=lambda row: len(token_ids[row]))
    batches: list[list[int]] = [[]]
    for row in order:
        if batches[-1] and (len(batches[-1]) + 1) * len(token_ids[row]) > budget:
            batches.append([])
        batches[-1].append(row)
    features = np.zeros((len(token_ids), network.head.weight.shape[1]))
    n_done = 0
    with torch.inference_mode():
        for batch in batches if order else []:
            ids, mask = pad([token_ids[row] for row in batch], pad_id, device)
            features[batch] = network.pool(ids, mask).cpu().numpy()
            n_done += len(batch)
            progress(n_done, len(order), "texts scored")
    if not np.isfinite(features).all():
        raise InvalidScores(
            "The network gives NaN or infinite numbers for a text. Its weights are damaged: load "
            "or fit it again."
        )
    return features


def head_of(network: Any) -> Floats:
    """The head's weights, (d,)."""
    return np.asarray(network.head.weight.detach().cpu().numpy()[0], dtype=np.float64)
