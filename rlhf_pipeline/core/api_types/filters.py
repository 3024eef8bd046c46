"""The filters of lists and charts: one record each for store, pages, API, CSV files and client."""

from collections.abc import Collection
from datetime import date, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from rlhf_pipeline.core.api_types.base import MOST_LISTED
from rlhf_pipeline.core.curation import DatasetStatus, KnownType, PairStatus
from rlhf_pipeline.core.monitoring import AlertState, MessageState
from rlhf_pipeline.core.records import (
    FeedbackStatus,
    Number,
    Record,
    Text,
    Until,
)
from rlhf_pipeline.core.releases import ModelStatus

VoteStatus = Literal["counting", "replaced", "not_counting"]
VoteFlag = Literal["pii", "identity", "broken", "undone"]
ComparisonStatus = Literal["not_offered", "waiting", "done"]
Mark = Literal["too_fast", "same_as_before", "duplicate"]
FeedbackKind = Literal["thumbs", "rating", "correction", "detailed"]
Value = Annotated[Text, Field(max_length=200)] | None
SHOWN_DAYS = 90  # without `since`
OF_SCRIPTS = frozenset({"zoom"})  # charts keep it in the address of their page
CHART_FORMAT = frozenset({"format"})  # a route of a chart takes it beside its filter
OTHER_PLACE = {"cursor", "limit", "format"}
_DAY: TypeAdapter[date | None] = TypeAdapter(date | None)


class QueryFilter(Record):
    """What a query chooses. A missing or empty parameter chooses all."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Forms send every field, with the blanks that somebody pasted."""
        others = (OF_SCRIPTS | CHART_FORMAT) - set(cls.model_fields)
        stripped = {n: _strip(value) for n, value in values.items() if n not in others}
        return {name: value for name, value in stripped.items() if value not in ("", [""])}

    @property
    def chosen(self) -> dict[str, str]:
        """The text of each filter in an address and a form, without the place in the list."""
        values = self.model_dump(mode="json", exclude=OTHER_PLACE)
        fields = type(self).model_fields
        return {
            name: str(value).lower()
            if isinstance(value, bool) and value != fields[name].default
            else str(value or "")
            for name, value in values.items()
        }


class DayFilter(QueryFilter):
    """Which days, by the first and the last."""

    since: date | None = None
    until: Until = None

    def resolve(self, newest: date | None, n_days: int = SHOWN_DAYS) -> tuple[date, date]:
        """First and last day: without `until` up to the newest day with data, without `since`
        `n_days` days.
        """
        last = self.until or max(newest or date.min, self.since or date.min)
        return self.since or last - timedelta(days=min(n_days, last.toordinal()) - 1), last

    def find_left_out(self, days: Collection[date], n_days: int = SHOWN_DAYS) -> date | None:
        """The first of the days with data, where `resolve` leaves it out without being asked to."""
        if self.since is not None or not days:
            return None
        first = min(days)
        return first if first < self.resolve(max(days), n_days)[0] else None

    def includes(self, day: date) -> bool:
        return (self.since or date.min) <= day <= (self.until or date.max)


class Filter(QueryFilter):
    """Which rows of a list, and which page of them."""

    cursor: Annotated[str, Field(max_length=500)] | None = Field(
        default=None, description="`next` of the previous page."
    )
    limit: int = Field(default=50, ge=1, le=MOST_LISTED)

    @property
    def here(self) -> dict[str, str]:
        """`chosen` and the page of the list, for an address that shows it again."""
        return {**self.chosen, "cursor": self.cursor or ""}

    def at(self, cursor: str | None, limit: int) -> Self:
        """The same filter at another place."""
        return self.model_copy(update={"cursor": cursor, "limit": limit})


class DatedFilter(DayFilter, Filter):
    """Which rows of a list that has days."""


class VoteFilter(DatedFilter):
    """Which votes."""

    q: Value = Field(default=None, description="Words in the reason or in the prompt.")
    annotator_id: Value = None
    comparison_id: Value = None
    day: date | None = Field(default=None, description="Instead of `since` and `until`.")
    up_to: Number | None = Field(default=None, description="Number of the last vote.")
    status: VoteStatus | None = None
    flag: VoteFlag | None = None
    is_blind: bool | None = Field(
        default=None,
        description="Whether the annotator could not read other people's votes. Votes of which "
        "this is not known are in neither.",
    )
    category: Value = None
    source: Value = Field(default=None, description="Data set, or `this project`.")
    mark: Mark | None = Field(
        default=None,
        description="Votes with this mark of `GET quality`. Combined only with annotator_id.",
    )

    @model_validator(mode="before")
    @classmethod
    def _spread_day(cls, values: dict[str, Any]) -> dict[str, Any]:
        try:
            day = _DAY.validate_python(_strip(values.get("day")))
        except ValidationError:
            return values  # refused, or dropped, as the field that it is
        return values if day is None else {**values, "day": None, "since": day, "until": day}

    @property
    def reads_comparison(self) -> bool:
        """Whether the vote alone does not tell."""
        return (self.category, self.source, self.q) != (None, None, None)


class ComparisonFilter(Filter):
    """Which comparisons."""

    q: Value = Field(default=None, description="Words in the prompt.")
    category: Value = None
    source: Value = Field(default=None, description="Data set, or `this project`.")
    flag: Value = None
    status: ComparisonStatus | None = Field(
        default=None, description="Of the judgements requested from people."
    )
    annotator_id: Value = Field(default=None, description="Who voted on it.")


class FeedbackSelection(DayFilter):
    """Which feedback, wherever in a list."""

    feedback_id: Number | None = None
    kind: FeedbackKind | None = None
    session_id: Value = None
    created_by: Value = None
    status: FeedbackStatus | Literal["all"] | None = None
    tag: Value = Field(default=None, description="Tag of a curator.")


class FeedbackFilter(FeedbackSelection, Filter):
    """Which feedback."""


class DatasetFilter(Filter):
    """Which data sets. Archived ones are listed only where `status` names them."""

    status: DatasetStatus | None = None
    type: KnownType | None = None


class PairFilter(Filter):
    """Which hand-made preference pairs."""

    dataset_id: Number | None = None
    status: PairStatus | None = None


class ReleaseFilter(Filter):
    """Which registered versions."""

    status: ModelStatus | Literal["candidate"] | None = None
    name: Value = Field(default=None, description="Name of the model, such as demo.policy.")


class DriftEventFilter(Filter):
    """Which drift events."""

    day: date | None = None
    decision_id: Number | None = Field(default=None, description="Only events that it claimed.")
    is_open: bool = Field(default=False, description="Only events that no decision has claimed.")


class AlertFilter(Filter):
    """Which alerts."""

    state: list[AlertState] = Field(default=["open", "acknowledged"], max_length=4)
    rule: Value = None


class AlertMessageFilter(Filter):
    """Which messages about alerts."""

    state: MessageState | None = None
    alert_id: Number | None = None


class AuditFilter(Filter):
    """Which actions."""

    actor: Value = None
    action: Value = Field(
        default=None, description="Name of the action; `users.*` matches a prefix."
    )
    object_id: Value = None


class PartFilter(DayFilter):
    """Which votes or figures: of a group of comparisons or annotators, by day."""

    category: Value = None
    source: Value = Field(default=None, description="Data set, or `this project`.")
    group: Value = Field(default=None, description="Of annotators.")

    @property
    def comparison_groups(self) -> dict[str, str]:
        """The chosen group of comparisons of each grouping."""
        chosen = {"category": self.category, "source": self.source}
        return {by: group for by, group in chosen.items() if group is not None}


class GroupFilter(PartFilter):
    """The same, of a model."""

    model: Value = None


class ProbeFilter(PartFilter):
    """Which predictions are compared with which later votes."""

    reward_model: Value = Field(
        default=None,
        description="Reward model as name@version; default the one that predicted last.",
    )
    calibrator: Value = Field(
        default=None, description="Calibrator as method@version; default all of that model."
    )


class PointFilter(DatedFilter):
    """Which metric points."""

    name: list[str] = Field(default=[], max_length=50, description="All metrics if none is named.")
    label: list[str] = Field(
        default=[], max_length=20, description="`name=value`; only points that carry all of them."
    )


def _strip(value: Any) -> Any:
    if isinstance(value, list):
        return [_strip(part) for part in value]
    return value.strip() if isinstance(value, str) else value
