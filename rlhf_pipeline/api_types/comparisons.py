"""Comparisons, offers of comparisons to annotators, and the consensus on each."""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, computed_field

from rlhf_pipeline.api_types.base import Answer, Id, Request
from rlhf_pipeline.records import Adjudication, Choice, Interval, PromptCluster, Text


class ComparisonOut(Answer):
    comparison_id: str
    day: date
    prompt_id: str
    prompt: str
    completion_a: str
    completion_b: str
    category: str
    source: str | None = Field(description="Null if the comparison was not imported.")
    flag: str | None
    names_maker: bool = Field(description="Whether a completion names the model that wrote it.")
    model_version_a: str
    model_version_b: str
    gold: str | None = Field(description="The known answer.")
    n_wanted: int = Field(description="Number of judgements requested from people.")
    n_done: int = Field(description="Number of requested judgements that are done.")


class Offer(Request):
    """Selects comparisons by id, by day, by error cluster or all without votes, and optionally one
    annotator.
    """

    ids: list[Id] | None = Field(default=None, max_length=10_000)
    day: date | None = None
    all_unvoted: bool = False
    cluster: Id | None = Field(
        default=None,
        description="Id of a cluster of prompts, as in `GET clusters`: its comparisons of the last "
        "day on which it was found.",
    )
    overlap: int | None = Field(
        default=None,
        ge=1,
        le=9,
        description="Number of people who judge each comparison; default as in the rules.",
    )
    priority: int = Field(
        default=0, ge=-1000, le=1000, description="Lower priorities are dealt first."
    )
    annotator_id: Id | None = Field(
        default=None,
        description="User id of the one annotator who is asked, before any other card; default "
        "any annotator.",
    )


class Offered(Answer):
    n_comparisons: int
    n_wanted: int = Field(description="Number of judgements newly wanted.")


class ClusterOut(PromptCluster):
    """A cluster of the prompts that were judged on a day; `docs/loop.md` explains the figures."""

    day: date
    first_day: date = Field(description="The day on which it was first found.")
    model_version: str = Field(description="The reward model whose errors are counted.")
    noise_ceiling: Interval | None = Field(
        description="Accuracy that the day's votes allow; null if unknown."
    )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def n_prompts(self) -> int:
        return super().n_prompts


class Flagging(Request):
    """Takes comparisons out of use, or with a null flag back into use. Flags of an import stay."""

    ids: list[Id] = Field(min_length=1, max_length=10_000)
    flag: Literal["pii", "identity", "broken"] | None = Field(
        description="Contains personal data; mentions its model; is unreadable."
    )


class Flagged(Answer):
    n_comparisons: int = Field(description="Number of comparisons whose flag changed.")
    n_withdrawn: int = Field(description="Open judgements that were withdrawn.")


class Withdrawal(Request):
    ids: list[Id] = Field(min_length=1, max_length=10_000)


class Withdrawn(Answer):
    n_withdrawn: int = Field(description="Number of open judgements withdrawn; leased cards stay.")


class Deciding(Request):
    comparison_id: Id
    choice: Literal["a", "b", "tie", "both_bad"]
    reason: Annotated[Text, Field(min_length=1, max_length=2_000)]


class Undoing(Request):
    comparison_id: Id
    reason: Annotated[Text, Field(max_length=2_000)] = ""


class ConsensusOut(Answer):
    """The combined judgement on a comparison; `docs/annotating.md` explains the rule."""

    comparison_id: str
    prompt_id: str
    state: Literal["open", "disputed", "agreed", "decided"]
    choice: Choice | None = Field(
        description="Null if two choices have equal weight; where an expert decided, that decision."
    )
    share: float
    low: float
    high: float
    n_votes: int
    n_a: int
    n_b: int
    n_ties: int
    n_both_bad: int
    last_seq: int
    p_a: float | None = Field(
        description="Probability that a typical annotator prefers a. Only by joint_model, like the "
        "fields below."
    )
    p_low: float | None
    p_high: float | None
    up_to_seq: int | None = Field(
        description="Sequence number of the newest vote in the fit of the annotator model."
    )
    n_since: int | None = Field(description="Number of votes cast after that fit.")
    adjudication: Adjudication | None = Field(
        default=None, description="The decision that stands on it; later votes do not change it."
    )
