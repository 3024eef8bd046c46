"""Defines the report of a reward-model fit."""

from pydantic import Field

from rlhf_pipeline.core.records import DimensionHead, Interval, Record
from rlhf_pipeline.learn.reward_model.base import ModelSummary


class TestAccuracy(Record):
    """Accuracy of the model and its baselines on the same held-out pairs; intervals by bootstrap
    over prompts.
    """

    __test__ = False  # a record, not a test class

    n: int = Field(description="pairs")
    accuracy: Interval = Field(
        description="the majority's side is scored higher; equal scores count half"
    )
    vote_accuracy: Interval = Field(
        description="share of single votes predicted: the number to set beside the noise ceiling"
    )
    ceiling: Interval | None = Field(
        default=None,
        description="noise ceiling of these votes: how often one vote agrees with the majority of "
        "the others; None where none overlap",
    )
    log_loss: Interval = Field(description="nats per vote, before calibration; 0.693 is a coin")
    longer_wins: Interval = Field(description="accuracy of preferring the longer completion")
    over_longer: Interval = Field(
        description="accuracy minus that of preferring the longer completion, on the same pairs"
    )

    def describe(self, where: str = "left-out prompts") -> str:
        """A readable summary: single votes with their noise ceiling, and majorities, which have no
        ceiling because a majority is more reliable than one vote.
        """
        ceiling = self.ceiling or "unknown, nothing overlaps or was judged again"
        doubt = "" if self.over_longer.low > 0 else ": it is not surely better than length"
        return (
            f"on {where} {self.vote_accuracy} of votes predicted, noise ceiling {ceiling}; "
            f"accuracy {self.accuracy} on the majorities of {self.n} pairs, longer wins "
            f"{self.longer_wins}, difference {self.over_longer}{doubt}"
        )


class RewardModelReport(ModelSummary):
    """The data and parameters of a fit, and its results on prompts it never saw."""

    kind: str
    n_train: int = Field(description="pairs of the train split, learnt from or not")
    n_calib: int
    n_test: int
    n_before_change: int = Field(description="training pairs that were down-weighted")
    test: TestAccuracy | None = Field(description="None without test pairs")
    test_since_change: TestAccuracy | None = Field(
        default=None, description="the same on pairs voted since the change"
    )
    dimensions: tuple[DimensionHead, ...] = Field(
        default=(),
        description="the heads of the rubric's dimensions on test pairs; empty where no vote "
        "judges dimensions",
    )
    encoder_hash: str | None = Field(
        default=None, description="of the frozen encoder, where there is one"
    )
    encoder_asked: str | None = Field(
        default=None,
        description="the encoder that the setting named first; None of a kind without one",
    )
    encoder_used: str | None = Field(default=None, description="the one that was fitted on")
    encoder_instead_because: str | None = Field(
        default=None, description="why these are two; None where they are one"
    )
    weights_hash: str
    parent_weights_hash: str | None = Field(description="of the model it was started from")
    data_hash: str = Field(description="frame_hash of all pairs handed in, sorted by comparison")
    max_seq: int = Field(
        description="highest vote seq those pairs rest on, and the soft labels where they were "
        "learnt"
    )
    change_seq: int | None = Field(
        default=None,
        description="first vote of today's taste in every category; None without such a change",
    )
    change_seq_by_category: dict[str, int] = Field(
        default={}, description="later ones of single categories"
    )
    weight_before_change: float = Field(
        default=1.0, description="what pairs voted before the change counted"
    )
    weights_tried: dict[str, float] = Field(
        default={}, description="that weight -> log loss on held-out pairs voted since the change"
    )
    weight_reason: str = Field(
        default="",
        description="how that weight was come by, and which could not be tried; empty without a "
        "change",
    )

    def metrics(self) -> dict[str, float]:
        """The numbers to store with a version, by their usual names; each accuracy comes with its
        ceiling if that is known.
        """
        metrics: dict[str, float | None] = {
            "n_train": self.n_train,
            "n_before_change": self.n_before_change,
            "weight_before_change": self.weight_before_change,
        }
        for test, since in ((self.test, ""), (self.test_since_change, "_since_change")):
            if test is not None:
                metrics |= {
                    f"test_accuracy{since}": test.accuracy.value,
                    f"test_vote_accuracy{since}": test.vote_accuracy.value,
                    f"noise_ceiling{since}": test.ceiling.value if test.ceiling else None,
                    f"longer_wins{since}": test.longer_wins.value,
                    f"test_log_loss{since}": test.log_loss.value,
                }
        for head in self.dimensions:
            if head.vote_accuracy is not None:
                ceiling = head.ceiling.value if head.ceiling else None
                metrics |= {
                    f"test_vote_accuracy_in_{head.dimension}": head.vote_accuracy.value,
                    f"noise_ceiling_in_{head.dimension}": ceiling,
                }
        return {name: float(value) for name, value in metrics.items() if value is not None}

    @property
    def weight_note(self) -> str:
        """A readable note on the weight of pairs from before a change of taste; empty without a
        change.
        """
        if not self.weight_reason:
            return ""
        count = f"{self.weight_before_change:g}"
        return f"pairs from before the change count {count} ({self.weight_reason})"

    @property
    def dimension_note(self) -> str:
        """A readable note on the head of each dimension; empty where no vote judges one."""
        return f"by dimension: {'; '.join(map(str, self.dimensions))}" if self.dimensions else ""

    @property
    def summary(self) -> str:
        """A readable summary: number of training pairs, and the encoder if it is not the requested
        one.
        """
        read = f"{self.n_train:,} pairs"
        if self.encoder_instead_because is None:
            return read
        return (
            f"{read}, on encoder {self.encoder_used} instead of {self.encoder_asked} "
            f"({self.encoder_instead_because})"
        )
