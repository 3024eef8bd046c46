"""Adds LoRA adapters (Hu et al. 2021) to a policy, and stores them merged and by themselves."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.generate.completions.adapter_server import ADAPTER, BASE_HASH, read_base_hash
from rlhf_pipeline.generate.policy.causal_lm import Policy, load_policy
from rlhf_pipeline.learn.reward_model.network import silence_libraries


class AdapterParams(Parameters):
    """Which weights are trained: all, or low-rank adapters alone."""

    lora_rank: int = Field(
        0,
        description="LoRA: rank of the adapters that are trained; 0 = train all weights",
        ge=0,
        le=1024,
    )
    lora_alpha: float = Field(
        32.0, description="LoRA: adapters are scaled by this over their rank", gt=0, le=4096
    )
    lora_dropout: float = Field(
        0.0,
        description="LoRA: share of an adapter's inputs dropped while training, not by ppo",
        ge=0,
        lt=1,
    )
    lora_targets: list[str] = Field(
        default=[],
        description="LoRA: names of the layers that get adapters; empty = every linear layer of "
        "the blocks, whatever the family calls it",
    )
    qlora: bool = Field(
        False,
        description="QLoRA: hold the frozen weights in 4 bits; needs a GPU and the package "
        "bitsandbytes",
    )


def check_adapters(params: AdapterParams, device: str) -> None:
    """Raise ConfigurationError if adapters of that kind cannot be trained here."""
    if not params.qlora:
        return
    if not params.lora_rank:
        raise ConfigurationError("qlora trains adapters, but lora_rank is 0. Set it, such as 16.")
    if find_spec("bitsandbytes") is None:
        raise ConfigurationError(
            "qlora needs the package bitsandbytes, which is not installed. `pip install "
            "bitsandbytes` on a machine with a GPU, or train LoRA without it (qlora: false): it "
            "takes 2 bytes per frozen weight in bfloat16 instead of half a byte."
        )
    if device == "cpu":
        raise ConfigurationError(
            "qlora needs a GPU, but the training is on the CPU. Set device to cuda where there is "
            "one, or qlora to false."
        )


def add_adapters(policy: Policy, params: AdapterParams, seed: int) -> Policy:
    """The policy with adapters that change nothing yet, drawn from `seed`; all other weights are
    frozen.

    Raises ConfigurationError if the model has no layer of a name in `lora_targets`.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=params.lora_rank,
        lora_alpha=params.lora_alpha,
        lora_dropout=params.lora_dropout,
        target_modules=sorted(params.lora_targets or _list_linear_layers(policy.model)),
        # GPT-2 stores its linear layers transposed
        fan_in_fan_out=_has_transposed_layers(policy.model),
    )
    try:
        # adapters are initialised from torch's global random stream
        with torch.random.fork_rng(devices=[]), silence_libraries():
            torch.manual_seed(seed)
            model = get_peft_model(policy.model, config)
    except ValueError as cause:
        if not params.lora_targets:
            raise
        names = sorted(_list_linear_layers(policy.model))
        raise ConfigurationError(
            f"lora_targets is {', '.join(params.lora_targets)}, but {policy.name} has no such "
            f"layer. Its linear layers: {', '.join(names)}."
        ) from cause
    return Policy(model, policy.tokenizer, name=policy.name)


def save_model(model: Any, folder: Path) -> None:
    """Write a trained model as `load_policy` reads it: adapters merged, and beside the weights by
    themselves.
    """
    from peft import PeftModel

    if isinstance(model, PeftModel):
        _save_adapter(model, folder / ADAPTER, Path(model.get_base_model().name_or_path))
        with silence_libraries():
            if getattr(model, "is_loaded_in_4bit", False):  # merged into the weights as they were
                base = load_policy(model.get_base_model().name_or_path, dtype="float32").model
                model = PeftModel.from_pretrained(base, folder / ADAPTER)
            model = model.merge_and_unload(adapter_names=["default"])
    model.save_pretrained(folder)


def _save_adapter(model: Any, folder: Path, parent: Path) -> None:
    """Write the adapter that leads from the base to this model. Where the parent has an adapter of
    its own, that is the sum of both, so that one server can hold every version in turn.
    """
    name, base_hash = "default", folder_hash(parent)
    with silence_libraries():
        if (parent / ADAPTER).is_dir():
            name, base_hash = "sum", read_base_hash(parent / ADAPTER)
            model.load_adapter(parent / ADAPTER, "parent")
            model.add_weighted_adapter(
                ["parent", "default"], [1.0, 1.0], name, combination_type="cat"
            )
        model.save_pretrained(folder, selected_adapters=[name])
    for file in (folder / name).glob("*"):  # peft puts all but `default` into folders of their own
        file.rename(folder / file.name)
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "README.md").unlink(missing_ok=True)
    # Equal trainings give equal bytes: neither the parent's path nor the order of a set is stored.
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = None
    config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=1, sort_keys=True), encoding="utf-8")
    (folder / BASE_HASH).write_text(base_hash, encoding="utf-8")


def _has_transposed_layers(model: Any) -> bool:
    from transformers.pytorch_utils import Conv1D

    return any(isinstance(part, Conv1D) for part in model.modules())


def _list_linear_layers(model: Any) -> set[str]:
    """The names of the linear layers in the model's blocks, such as q_proj or c_attn."""
    import torch
    from transformers.pytorch_utils import Conv1D

    output = model.get_output_embeddings()
    return {
        name.rpartition(".")[2]
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear | Conv1D) and part is not output
    }
