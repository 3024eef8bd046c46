"""Chooses versions by the filters of a page or request."""

from rlhf_pipeline.api_types.evolution import EvolutionOut
from rlhf_pipeline.api_types.filters import ModelFilter


def select_versions(evolution: EvolutionOut, chosen: ModelFilter) -> EvolutionOut:
    return EvolutionOut(
        policies=tuple(one for one in evolution.policies if chosen.takes(one.label, one.day)),
        reward_models=tuple(
            one for one in evolution.reward_models if chosen.takes(one.label, one.day)
        ),
    )


def list_models(evolution: EvolutionOut) -> list[str]:
    """What `model` may be: each model by name, then each of its versions."""
    return [
        one
        for versions in (evolution.policies, evolution.reward_models)
        if versions
        for one in (versions[0].label.rpartition("@")[0], *(each.label for each in versions))
    ]
