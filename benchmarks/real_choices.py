"""What is chosen on convarg's train and calib debates, one left out at a time: labels, heads, and
how to be calibrated on debates nobody knows.

Knows what raw files became; opens no test split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.measurement import Limits, print_table
from rlhf_pipeline.calibration import CALIBRATORS, Calibrator, log_loss
from rlhf_pipeline.frames import PREFERENCE_PAIRS, concat
from rlhf_pipeline.reward_model import EmbeddingRewardModel, RewardModelParams, reward_model_params
from rlhf_pipeline.reward_model.base import margins_of
from rlhf_pipeline.reward_model.evaluation import log_length_gaps, measure_length_effect
from rlhf_pipeline.reward_model.losses import join_soft_labels
from rlhf_pipeline.votes import (
    PairParams,
    gold_ceiling,
    gold_pairs,
    interval_of_mean,
    preference_pairs,
)

Floats = npt.NDArray[np.float64]

CONVARG = "convarg"
# What is learnt from each training pair, as the tables name it.
USED = "known right choice with the votes' shares (used)"
MAJORITY = "majority of votes as if certain"
SOFT = "annotator model's soft labels"
ENSEMBLE, HIDDEN = "used, ensemble of 5", "used, with a hidden layer"


@dataclass
class FittedProject:
    """What raw files became. `pairs` hold the test split, which `tables` opens. `labels` are the
    annotator model's, without a test vote.
    """

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    pairs: pd.DataFrame
    labels: pd.DataFrame
    model: EmbeddingRewardModel
    calibrator: Calibrator
    candidates: dict[str, float]

    @property
    def source(self) -> dict[str, str]:
        return dict(zip(self.comparisons["comparison_id"], self.comparisons["source"], strict=True))

    def select_source(self, source: str, pairs: pd.DataFrame) -> pd.DataFrame:
        return pairs[pairs["comparison_id"].map(self.source) == source].reset_index(drop=True)


class CachedFeaturesModel(EmbeddingRewardModel):
    """Asks for what it sees of a completion once: cross-validation would ask for the same a hundred
    times.
    """

    seen: ClassVar[dict[tuple[str, str], np.ndarray]] = {}

    def features(
        self, prompts: Sequence[str], completions: Sequence[str], **more: Any
    ) -> np.ndarray:
        keys = list(zip(prompts, completions, strict=True))
        new = [key for key in dict.fromkeys(keys) if key not in self.seen]
        if new:
            self.seen.update(
                zip(
                    new,
                    super().features([p for p, _ in new], [c for _, c in new], **more),
                    strict=True,
                )
            )
        return np.stack([self.seen[key] for key in keys])


def make_variants(
    fitted: FittedProject, splits: set[str]
) -> dict[str, tuple[pd.DataFrame, RewardModelParams]]:
    """Training pairs of those splits by what is learnt from each, and how. A pair without votes is
    learnt as its known right choice.
    """

    def select_splits(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["split"].isin(splits)]

    def add_gold_pairs(frame: pd.DataFrame) -> pd.DataFrame:
        return concat(
            [frame, certain[~certain["comparison_id"].isin(frame["comparison_id"])]],
            PREFERENCE_PAIRS,
        )

    def add_soft_labels(frame: pd.DataFrame) -> pd.DataFrame:
        joined = join_soft_labels(frame, fitted.labels)
        return joined.assign(soft_label=joined["soft_label"].fillna(joined["agreement"]))

    tied = PairParams(keep_even_splits=True, keep_only_ties=True)
    voted = select_splits(preference_pairs(fitted.votes, fitted.comparisons))
    with_ties = select_splits(preference_pairs(fitted.votes, fitted.comparisons, tied))
    certain = select_splits(gold_pairs(fitted.comparisons))
    gold = select_splits(gold_pairs(fitted.comparisons, voted))
    used = concat(
        [gold, voted[~voted["comparison_id"].isin(gold["comparison_id"])]], PREFERENCE_PAIRS
    )
    return {
        USED: (used, reward_model_params()),
        MAJORITY: (add_gold_pairs(voted), reward_model_params(label="majority")),
        "votes' shares": (add_gold_pairs(voted), reward_model_params()),
        SOFT: (add_soft_labels(add_gold_pairs(voted)), reward_model_params(label="annotators")),
        "annotator model's soft labels, ties kept": (
            add_soft_labels(add_gold_pairs(with_ties)),
            reward_model_params(label="annotators"),
        ),
        "votes' shares, ties by Davidson": (
            add_gold_pairs(with_ties),
            reward_model_params(loss="davidson"),
        ),
        ENSEMBLE: (used, reward_model_params(n_members=5)),
        HIDDEN: (used, reward_model_params(head="mlp")),
        "used, length taken out": (used, reward_model_params(debias_length=True)),
    }


@dataclass(frozen=True)
class HeldOutDebates:
    """Convarg's train and calib pairs by the known right choice, and the debate of each of all
    comparisons.
    """

    judged: pd.DataFrame
    debate: "pd.Series[str]"

    @classmethod
    def from_project(cls, fitted: FittedProject) -> "HeldOutDebates":
        certain = gold_pairs(fitted.comparisons)
        judged = fitted.select_source(CONVARG, certain[certain["split"].isin(["train", "calib"])])
        return cls(judged, fitted.comparisons.set_index("comparison_id")["split_group"])

    @property
    def debates(self) -> npt.NDArray[np.object_]:
        return self.judged["comparison_id"].map(self.debate).to_numpy(dtype=object)

    def predict_margins(
        self, fitted: FittedProject, pairs: pd.DataFrame, params: RewardModelParams
    ) -> tuple[Floats, float]:
        """Of each judged pair by a model that learnt from all debates but its own, toward the right
        choice; and the L2 of these models.

        The two penalties are chosen once, by cross-validation over the prompts of all these
        debates.
        """
        margins = np.full(len(self.judged), np.nan)
        of_pair = pairs["comparison_id"].map(self.debate).to_numpy()
        own = params.kind_params()
        whole = CachedFeaturesModel(
            own.model_copy(update={"head": "linear", "n_members": 1}), fitted.model.encoder
        ).fit(pairs)
        own = own.model_copy(
            update={"l2_grid": [whole.l2_], "context_penalty_grid": [whole.context_penalty_]}
        )
        for left_out in np.unique(self.debates):
            model = CachedFeaturesModel(own, fitted.model.encoder).fit(
                pairs[of_pair != left_out].reset_index(drop=True)
            )
            is_out = self.debates == left_out
            margins[is_out] = margins_of(model, self.judged[is_out])
        return margins, float(own.l2_grid[0])

    def choose_calibrator(self, margins: Floats) -> tuple[Calibrator, dict[str, float]]:
        """Of `margins` the method that loses least on debates it was not fitted to, fitted to all
        of them; and what each method lost.

        Platt 1999, section 2.2: margins of pairs that the model has not learnt from are as good as
        a split of their own. The two calib debates alone cannot tell one method from another; ten
        debates can.
        """

        # with sides swapped too, so that there are both outcomes
        def fit(method: str, of: Floats) -> Calibrator:
            outcomes = np.repeat([1.0, 0.0], len(of))
            return CALIBRATORS[method]().fit(
                np.concatenate([of, -of]), outcomes, np.ones(len(outcomes))
            )

        losses = {}
        for method in CALIBRATORS:
            p = np.full(len(margins), np.nan)
            for left_out in np.unique(self.debates):
                is_out = self.debates == left_out
                p[is_out] = fit(method, margins[~is_out]).transform(margins[is_out])
            losses[method] = log_loss(p, np.ones(len(p)))
        return fit(min(losses, key=lambda method: losses[method]), margins), losses


def compare_choices(fitted: FittedProject, limits: Limits) -> None:
    """What labels and heads would have done on debates left out. No test pair."""
    new = HeldOutDebates.from_project(fitted)
    judged, of_judged = new.judged, new.debates
    gaps = log_length_gaps(judged)
    turned = (judged["chosen_side"] == "b").to_numpy()
    rows: list[tuple[object, ...]] = []
    accuracy: dict[str, float] = {}
    for name, (pairs, params) in make_variants(fitted, {"train", "calib"}).items():
        margins, l2 = new.predict_margins(fitted, pairs, params)
        by_debate = pd.Series(margins > 0).groupby(of_judged).mean()
        accuracy[name] = float((margins > 0).mean())
        effect = measure_length_effect(margins, gaps, turned, 0.0, is_debiased=False)
        rows.append(
            (
                name,
                interval_of_mean(margins > 0, groups=of_judged),
                f"{by_debate.min():.3f}–{by_debate.max():.3f}",
                interval_of_mean(np.logaddexp(0, -margins), groups=of_judged),
                f"{effect.correlation_before:.2f}",
                f"{l2:g}",
            )
        )
        print(*rows[-1], sep=" | ", flush=True)
    longer = 0.5 + 0.5 * np.sign(gaps)
    by_debate = pd.Series(longer).groupby(of_judged).mean()
    rows.append(
        (
            "longer wins",
            interval_of_mean(longer, groups=of_judged),
            f"{by_debate.min():.3f}–{by_debate.max():.3f}",
            "-",
            "1.00",
            "-",
        )
    )
    votes = fitted.votes[fitted.votes["comparison_id"].isin(judged["comparison_id"])]
    rows.append(
        (
            "one person's vote: the ceiling beside it",
            gold_ceiling(votes, fitted.comparisons),
            "-",
            "-",
            "-",
            "-",
        )
    )
    n = len(np.unique(of_judged))
    print_table(
        f"Convarg's {n} train and calib debates, one left out at a time (95 % over debates); "
        f"{len(judged)} pairs judged by the known right choice",
        (
            "what is learnt",
            "accuracy (ceiling: last row)",
            "by debate",
            "log loss",
            "correlation of margin and length gap",
            "L2",
        ),
        rows,
    )
    limits.check(
        accuracy[SOFT] >= accuracy[MAJORITY],
        f"new debates: soft labels {accuracy[SOFT]:.3f}, majority {accuracy[MAJORITY]:.3f}; at "
        "least as good wanted",
    )
