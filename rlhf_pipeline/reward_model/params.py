"""How a reward model is fitted for the loop, whichever kind it is. Knows parameters; knows no
fit.
"""

from typing import Any, Literal

from pydantic import Field

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.reward_model.embedding import EmbeddingParams
from rlhf_pipeline.reward_model.transformer_params import FineTuningParams, TransformerParams


class RewardModelParams(EmbeddingParams):
    """How a reward model is fitted for the loop."""

    kind: Literal["embedding", "transformer"] = Field(
        default="embedding",
        description="Which reward model; of a transformer, loss, label, members, seed, "
        "prompt_chars and min_pairs are set here, the rest in fine_tuning",
    )
    fine_tuning: FineTuningParams = Field(
        default_factory=FineTuningParams,
        description="What a transformer has beside these; an embedding model takes no notice of it",
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

    def to_embedding_params(self) -> EmbeddingParams:
        return EmbeddingParams(
            **{name: getattr(self, name) for name in EmbeddingParams.model_fields}
        )

    def to_transformer_params(self) -> TransformerParams:
        """With what both kinds have, and `fine_tuning`. Raises ConfigurationError for what only an
        embedding model can do.
        """
        if self.debias_length:
            raise ConfigurationError(
                "debias_length is known to the embedding kind alone. Leave it out, or set kind to "
                "embedding."
            )
        shared = set(TransformerParams.model_fields) & set(type(self).model_fields)
        return TransformerParams(
            **{name: getattr(self, name) for name in sorted(shared)},
            **self.fine_tuning.model_dump(),
        )

    def to_report(self) -> dict[str, Any]:
        """What a model of this kind was fitted with, as JSON: without the parameters of the other
        kind alone.
        """
        own = FineTuningParams.model_fields if self.kind == "transformer" else {}
        of_embedding = set(EmbeddingParams.model_fields) - set(TransformerParams.model_fields)
        left_out = {"fine_tuning"} | (of_embedding if own else set())
        nested = self.fine_tuning.model_dump(mode="json") if own else {}
        return self.model_dump(mode="json", exclude=left_out) | nested
