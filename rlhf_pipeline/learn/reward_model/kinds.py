"""Registers the kinds of reward models and builds the parameters of a fit from theirs."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from rlhf_pipeline.core.errors import ConfigurationError, ModelError
from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.learn.reward_model.base import RewardModel
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingRewardModel
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from rlhf_pipeline.learn.reward_model.model_files import read_config
from rlhf_pipeline.learn.reward_model.transformer import TransformerRewardModel

# A new kind: one file with one class that inherits from base.RewardModel, and one line here.
REWARD_MODELS = Members[type[RewardModel]](
    "reward_model", {"embedding": EmbeddingRewardModel, "transformer": TransformerRewardModel}
)

# In the launchpad the parameters of UNNESTED stand next to those of the fit. Those of every other
# kind are in a section, named in SECTIONS or else after the kind.
UNNESTED = EmbeddingRewardModel.name
SECTIONS = {TransformerRewardModel.name: "fine_tuning"}
# Shared parameters: every kind that has them reads them from outside the sections.
SHARED = {"label", "n_members", "seed", "prompt_chars", "min_pairs"}


# Recipes by name. `best` is what debates that were left out prefer (docs/learning.md).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "best": {
        "kind": TransformerRewardModel.name,
        "n_members": 3,
        "steps": 50,
        "texts_per_batch": 12,
        "texts_per_prompt": 4,
        "frozen_layers": 1,
        "learning_rate": 1e-4,
    }
}


class RewardModelParams(BaseModel):
    """Parameters of a reward model's fit in the loop, for any kind."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: str = Field(
        default=UNNESTED,
        description="Which reward model; of another one than embedding, label, members, seed, "
        "prompt_chars and min_pairs are set here, the rest in its section (transformer: "
        "fine_tuning)",
    )
    preset: Literal["", "best"] = Field(
        default="",
        description="best: three seeds of kind transformer, for parameters left at their "
        "defaults. On debates that were left out it is right in 0.775 of pairs for 65 CPU "
        "seconds, the default head in 0.758 for 23, preferring the longer text in 0.732",
    )
    weight_before_change: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of pairs voted before a detected change of taste; empty = the one that "
        "best predicts pairs voted since",
    )
    allow_mixed_annotators: bool = Field(
        default=False,
        description="Fit on votes of humans and of simulated or machine annotators together",
    )
    n_resamples: int = Field(
        default=1000,
        ge=100,
        le=100_000,
        description="Bootstrap resamples of the report's intervals",
    )
    seed: int = Field(
        default=0,
        ge=0,
        description="Seed of those resamples and of what the members draw; one linear head draws "
        "nothing",
    )

    @property
    def chosen_kind(self) -> str:
        """The kind to fit: that of the preset unless another than the default is set."""
        preset = PRESETS.get(self.preset, {})
        return str(preset.get("kind", self.kind)) if self.kind == UNNESTED else self.kind

    def kind_params(self) -> BaseModel:
        """The `Params` of the kind, from its section and the fields next to it.

        Raises ConfigurationError for an unknown kind, and for parameters that the kind lacks.
        """
        name_of_kind = self.chosen_kind
        kind, values = REWARD_MODELS[name_of_kind], self.model_dump()
        values |= values.get(SECTIONS.get(name_of_kind, name_of_kind), {})
        own, unnested = kind.Params.model_fields, REWARD_MODELS[UNNESTED].Params.model_fields
        for name, value in PRESETS.get(self.preset, {}).items():
            if name in own and values.get(name) == own[name].get_default(call_default_factory=True):
                values[name] = value
        for name in set(values) & set(unnested) - set(own) - {"seed"}:
            if values[name] != unnested[name].get_default(call_default_factory=True):
                raise ConfigurationError(
                    f"{name} is a parameter of kind {UNNESTED}, not of {name_of_kind}. Leave it "
                    f"out, or set kind to {UNNESTED}."
                )
        return kind.Params(**{name: value for name, value in values.items() if name in own})

    def to_report(self) -> dict[str, Any]:
        """The parameters of this kind's fit as JSON, without those of other kinds."""
        of_fit = self.model_dump(mode="json", include=set(RewardModelParams.model_fields))
        of_fit["kind"] = self.chosen_kind
        if not self.preset:
            del of_fit["preset"]
        return of_fit | self.kind_params().model_dump(mode="json")


@cache
def params_class(kind: str) -> type[RewardModelParams]:
    """RewardModelParams plus the parameters of one kind at the top level, as on the command
    line.
    """
    bases: Any = (REWARD_MODELS[kind].Params, RewardModelParams)
    fields: dict[str, Any] = {
        "kind": (Literal[kind], kind),
        "seed": _field(RewardModelParams, "seed"),
    }
    return cast(
        "type[RewardModelParams]",
        create_model("RewardModelParams", __base__=bases, __module__=__name__, **fields),
    )


@cache
def launchpad_class() -> type[RewardModelParams]:
    """RewardModelParams plus the parameters of every kind; all kinds but one have a section."""
    names: Any = Literal[tuple(REWARD_MODELS)]
    fields: dict[str, Any] = {"kind": (names, RewardModelParams.model_fields["kind"])}
    for name in REWARD_MODELS:
        if name != UNNESTED:
            section = _section_class(name)
            described = Field(default_factory=section, description=section.__doc__)
            fields[SECTIONS.get(name, name)] = (section, described)
    return create_model(
        "RewardModelParams", __base__=params_class(UNNESTED), __module__=__name__, **fields
    )


def _section_class(kind: str) -> type[BaseModel]:
    """The parameters of `kind` that are not shared."""
    own = REWARD_MODELS[kind].Params
    fields: dict[str, Any] = {
        name: _field(own, name) for name in own.model_fields if name not in SHARED
    }
    return create_model(
        f"{kind.title()}Section",
        __module__=__name__,
        __config__=ConfigDict(extra="forbid", allow_inf_nan=False),
        __doc__=f"Parameters of kind {kind} alone; other kinds ignore them.",
        **fields,
    )


def _field(params: type[BaseModel], name: str) -> tuple[Any, Any]:
    """The field in the form that `create_model` takes."""
    return params.model_fields[name].annotation, params.model_fields[name]


def reward_model_params(**values: Any) -> RewardModelParams:
    """Build the parameters of a fit from their launchpad names.

    >>> reward_model_params(l2_grid=[0.1]).kind_params().l2_grid
    [0.1]
    """
    return launchpad_class()(**values)


def build_reward_model(params: RewardModelParams, encoder: Encoder | None = None) -> RewardModel:
    """Build the unfitted model that `params` describe; see `RewardModel.__init__`."""
    return REWARD_MODELS[params.chosen_kind](params.kind_params(), encoder)


def load_reward_model(folder: Path, *, encoder: Encoder | None = None) -> RewardModel:
    """Load the reward model in `folder`, of the kind that its config.json names.

    Raises ModelNotFound without a complete folder, ModelError for an unknown kind or a file that
    lacks a part, ModelHashMismatch if the model was fitted on another encoder than `encoder`.
    """
    kind = read_config(folder)["kind"]
    if kind not in REWARD_MODELS:
        raise ModelError(
            f"{folder} holds a reward model of kind {kind!r}. Known: {', '.join(REWARD_MODELS)}."
        )
    return REWARD_MODELS[kind].load(folder, encoder=encoder)
