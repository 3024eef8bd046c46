"""A reward model of a third kind, as a package might bring: the length of a completion."""

import json
from typing import ClassVar

import numpy as np
from pydantic import Field

from rlhf_pipeline.core.errors import ModelError
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.learn.reward_model.base import (
    ModelSummary,
    RewardModel,
    distinct_texts,
    drop_unweighted_pairs,
    sort_weighted_pairs,
)
from rlhf_pipeline.learn.reward_model.model_files import (
    read_config,
    replace_folder_atomically,
    require_weights,
)


class LengthParams(Parameters):
    power: float = Field(default=1.0, gt=0, le=2, description="Of the number of characters")
    min_pairs: int = Field(default=10, ge=2, description="Fewest pairs to fit on")


class LengthRewardModel(RewardModel):
    """Longer is better, or worse, whichever the votes say."""

    name: ClassVar[str] = "length"
    Params = LengthParams

    def __init__(self, params=None, encoder=None):
        self.params = params or LengthParams()
        self.slope_ = 0.0

    @property
    def summary(self):
        return ModelSummary(label="majority")

    def fit(self, pairs, *, weights=None, warm_start=None, progress=None):
        used = drop_unweighted_pairs(
            sort_weighted_pairs(pairs, weights), self.name, self.params.min_pairs
        )
        chosen, rejected = self._sizes(used["chosen"]), self._sizes(used["rejected"])
        sign = 1.0 if ((chosen - rejected) * used["weight"]).sum() >= 0 else -1.0
        both = np.concatenate([chosen, rejected])
        self.slope_, self.mean_ = sign / max(both.std(), 1e-9), float(both.mean())
        return self

    def member_scores(self, prompts, completions, *, progress=None):
        if not self.slope_:
            raise ModelError("This reward model is not fitted. Call fit.")
        _, texts, place = distinct_texts(prompts, completions)
        return (self.slope_ * (self._sizes(texts) - self.mean_))[place][None]

    def features(self, prompts, completions, *, progress=None):
        return self._sizes(completions)[:, None]

    @property
    def weights_hash(self):
        return content_hash(self.slope_, self.mean_)

    def save(self, folder):
        config = {
            "kind": self.name,
            "params": self.params.model_dump(),
            "slope": self.slope_,
            "mean": self.mean_,
            "weights_hash": self.weights_hash,
        }
        with replace_folder_atomically(folder) as partial_folder:
            (partial_folder / "config.json").write_text(json.dumps(config))

    @classmethod
    def load(cls, folder, *, encoder=None):
        config = read_config(folder, cls.name)
        model = cls(LengthParams(**config["params"]))
        model.slope_, model.mean_ = config["slope"], config["mean"]
        require_weights(model, config, folder)
        return model

    def _sizes(self, texts):
        return np.array([float(len(text)) ** self.params.power for text in texts])
