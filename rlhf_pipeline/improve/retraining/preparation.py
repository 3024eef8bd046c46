"""Completes the parameters of a training for its policy and this machine, and opens the policy."""

from pathlib import Path
from typing import TypeVar

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.policy.causal_lm import Policy, load_policy, read_config
from rlhf_pipeline.generate.policy.devices import Placement, choose_placement
from rlhf_pipeline.improve.retraining.adapters import add_adapters, check_adapters
from rlhf_pipeline.improve.retraining.training import TrainingParams, choose_learning_rate

P = TypeVar("P", bound=TrainingParams)


def place_training(params: TrainingParams) -> Placement:
    """Where a training computes. Raises ConfigurationError as `choose_placement`, and for a GPU
    that is not the first visible one, which alone a trainer takes without `launch`.
    """
    place = choose_placement(params.device, params.dtype)
    if not place.is_cpu and place.device != "cuda:0":
        raise ConfigurationError(
            f"device is {place.device}, but a trainer takes the first GPU that it sees. Set "
            f"CUDA_VISIBLE_DEVICES={place.device.partition(':')[2]} for this process and device to "
            "cuda, or `launch` to use all."
        )
    return place


def count_parameters(policy_folder: Path) -> int:
    """The size of a policy, built on torch's `meta` device, which holds no weights. Raises
    ModelNotFound as `load_policy`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = read_config(policy_folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(part.numel() for part in model.parameters())


def complete_params(
    params: P,
    n_parameters: int,
    place: Placement,
    *,
    imitates: bool = False,
    updates_per_step: int = 1,
) -> P:
    """The parameters with device, number format and learning rate as they apply here. A strategy
    that updates the weights several times per step shares the default rate among these. Raises
    ConfigurationError as `check_adapters`.
    """
    check_adapters(params, place.device)
    default = choose_learning_rate(
        n_parameters, imitates=imitates, has_adapters=params.lora_rank > 0
    )
    rate = params.learning_rate or default / updates_per_step
    return params.model_copy(
        update={"learning_rate": rate, "device": place.device, "dtype": place.dtype}
    )


def open_policy(folder: Path, params: TrainingParams) -> Policy:
    """Load the policy to train, with new adapters where `params` ask for them. Weights that are
    trained are float32: small steps would be lost in bfloat16. The policy's own dropout is off: a
    sampled completion and its likelihood are then of one policy, and parts of a batch give the step
    of the whole.
    """
    from trl.trainer.utils import disable_dropout_in_model

    has_adapters = params.lora_rank > 0
    policy = (
        load_policy(folder, device=params.device, dtype=params.dtype, in_4bit=params.qlora)
        if has_adapters
        else load_policy(folder, device=params.device)
    )
    disable_dropout_in_model(policy.model)
    return add_adapters(policy, params, params.seed) if has_adapters else policy
