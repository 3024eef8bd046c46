"""Records of curated data sets: types, states, queries, hand-made pairs, quality, versions."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    model_validator,
)

from rlhf_pipeline.core.errors import DatasetConflict
from rlhf_pipeline.core.records import (
    Number,
    Record,
    Text,
    Until,
)

DatasetType = Literal["preference", "sft", "unpaired"]
DatasetStatus = Literal["draft", "curating", "ready", "exported", "archived"]
PairStatus = Literal["accepted", "rejected"]
# names by which other tools call the types
TYPE_ALIASES: dict[str, DatasetType] = {
    "preference_pairs": "preference",
    "dpo": "preference",
    "instruction_tuning": "sft",
}
KnownType = Annotated[DatasetType, BeforeValidator(lambda name: TYPE_ALIASES.get(str(name), name))]
# `ready` is reached by freezing a version; work on the next one returns to `curating`.
MOVES: dict[DatasetStatus, tuple[DatasetStatus, ...]] = {
    "draft": ("curating", "archived"),
    "curating": ("ready", "archived"),
    "ready": ("exported", "curating", "archived"),
    "exported": ("exported", "curating", "archived"),
    "archived": (),
}
MOST_IDS = 1_000  # of one query, and rows of one bulk
Value = Annotated[Text, Field(min_length=1, max_length=200)]


def _read_name(text: str) -> str:
    name = text.strip()
    if not name or not name.isprintable():
        raise ValueError("must be one line that is not blank")
    if "@" in name:
        raise ValueError("must not contain @, which stands before a version, as in NAME@2")
    return name


def _refuse_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


PairText = Annotated[Text, Field(max_length=200_000), AfterValidator(_refuse_blank)]
SetName = Annotated[Value, AfterValidator(_read_name)]


def check_move(name: str, old: DatasetStatus, new: DatasetStatus) -> None:
    """Raises DatasetConflict unless a data set may go from the one status to the other."""
    if new not in MOVES[old]:
        allowed = " or ".join(MOVES[old]) or "nothing else"
        raise DatasetConflict(
            f"Data set {name!r} is {old} and cannot become {new}; it can become {allowed}."
        )


def find_edited_status(name: str, status: DatasetStatus, *, begins: bool = False) -> DatasetStatus:
    """The status after an edit: that of a frozen data set becomes `curating`, for its next version,
    and with `begins` a draft's too. Raises DatasetConflict for an archived one.
    """
    if status == "archived":
        raise DatasetConflict(
            f"Data set {name!r} is archived and cannot be edited. Make a new one."
        )
    return "draft" if status == "draft" and not begins else "curating"


class VoteQuery(Record):
    """Which preference pairs of votes a data set holds. What is left out chooses all."""

    categories: tuple[Value, ...] = Field(default=(), max_length=100)
    since: date | None = Field(default=None, description="first day of the last vote")
    until: Until = None
    min_agreement: float = Field(default=0.5, ge=0.5, le=1)
    min_votes: Number = 1
    cluster: Value | None = Field(
        default=None, description="id of an error cluster, as the page of clusters shows it"
    )
    comparison_ids: tuple[Value, ...] = Field(
        default=(), max_length=MOST_IDS, description="hand-picked; empty chooses all"
    )


class FeedbackQuery(Record):
    """Which approved feedback of applications a data set holds. What is left out chooses all."""

    kinds: tuple[Literal["thumbs", "rating", "correction"], ...] = ()
    session_id: Value | None = None
    since: date | None = None
    until: Until = None
    feedback_ids: tuple[Number, ...] = Field(default=(), max_length=MOST_IDS)


class DatasetQuery(Record):
    """What a draft holds beside its hand-made pairs; nothing without `votes` and `feedback`."""

    votes: VoteQuery | None = None
    feedback: FeedbackQuery | None = None
    leave_out: tuple[Value, ...] = Field(
        default=(), max_length=MOST_IDS, description="ids of rows that a curator took out"
    )


def pick_comparisons(query: DatasetQuery, ids: Iterable[str]) -> DatasetQuery:
    """The query with further hand-picked comparisons. Raises DatasetConflict where it chooses votes
    by filters alone, and for more than MOST_IDS.
    """
    if query.votes is not None and not query.votes.comparison_ids:
        raise DatasetConflict(
            "This data set holds every pair that its filters choose; picked ones would replace "
            "them. Pick into another data set."
        )
    votes = query.votes or VoteQuery()
    picked = tuple(dict.fromkeys([*votes.comparison_ids, *ids]))
    if len(picked) > MOST_IDS:
        raise DatasetConflict(
            f"{len(picked):,} comparisons would be picked, and at most {MOST_IDS:,} can be. Choose "
            "them by the filters of a data set instead."
        )
    return query.model_copy(update={"votes": votes.model_copy(update={"comparison_ids": picked})})


def unpick_comparisons(query: DatasetQuery, ids: Iterable[str]) -> DatasetQuery:
    """The query without some hand-picked comparisons; without the last one it holds no votes."""
    if query.votes is None or not query.votes.comparison_ids:
        return query
    gone = set(ids)
    left = tuple(name for name in query.votes.comparison_ids if name not in gone)
    votes = query.votes.model_copy(update={"comparison_ids": left})
    return query.model_copy(update={"votes": votes if left else None})


class NewDataset(Record):
    """A data set to make. The names of other tools for types and fields are accepted too."""

    name: SetName
    type: KnownType = Field(
        default="preference", validation_alias=AliasChoices("type", "dataset_type")
    )
    description: Text = Field(default="", max_length=20_000)
    query: DatasetQuery = DatasetQuery()


class PairTexts(Record):
    """A hand-made preference pair. The names of other tools are accepted too."""

    prompt: PairText = Field(
        validation_alias=AliasChoices("prompt", "query"), description="The question."
    )
    chosen: PairText = Field(validation_alias=AliasChoices("chosen", "chosen_response"))
    rejected: PairText = Field(validation_alias=AliasChoices("rejected", "rejected_response"))
    strength: float = Field(
        default=1.0,
        ge=0,
        le=1,
        validation_alias=AliasChoices("strength", "preference_strength"),
        description="How strong the preference is, 0 to 1.",
    )
    context: tuple[PairText, ...] = Field(
        default=(),
        max_length=50,
        validation_alias=AliasChoices("context", "context_documents"),
        description="Documents that the answers were given.",
    )
    notes: Text | None = Field(
        default=None,
        max_length=20_000,
        validation_alias=AliasChoices("notes", "annotation_notes"),
    )

    @model_validator(mode="after")
    def _refuse_equal_sides(self) -> Self:
        if self.chosen.strip() == self.rejected.strip():
            raise ValueError("chosen and rejected are the same text: there is nothing to prefer")
        return self


class CuratedPair(PairTexts):
    """The latest revision of a hand-made pair."""

    pair_id: int
    revision: int
    dataset_id: int
    status: PairStatus
    feedback_ids: tuple[int, ...] = Field(default=(), description="feedback it was made from")
    edited_by: str
    edited_at: datetime


class QualityPart(Record):
    """One part of the quality of a data set: its value, and the rows that lower it."""

    name: str
    value: float = Field(ge=0, le=1)
    n_rows: int = Field(description="rows that lower it")
    row_ids: tuple[str, ...] = Field(description="the first of them")


class DatasetQuality(Record):
    """Score from 0 to 1 with its parts, and what keeps the set from becoming ready."""

    score: float = Field(ge=0, le=1, description="geometric mean of the parts")
    parts: tuple[QualityPart, ...]
    problems: tuple[str, ...] = Field(description="empty where it may become ready")
    n_rows: int


class DatasetExport(Record):
    """One export of a version: where the file is, its format and SHA-256."""

    version: int
    format: str
    url: str
    n_rows: int
    sha256: str
    exported_at: datetime
    warnings: tuple[str, ...] = Field(default=(), description="what its reader may refuse or cut")


class Dataset(Record):
    """A data set as listed. `n_rows` and `quality` are those of the last build."""

    dataset_id: int
    name: str
    description: str
    type: DatasetType
    status: DatasetStatus
    query: DatasetQuery
    n_rows: int
    quality: DatasetQuality | None
    n_versions: int
    last_export: DatasetExport | None
    created_by: str
    created_at: datetime
    updated_at: datetime


class DatasetVersion(Record):
    """A frozen version. Its rows never change; `content_hash` names them."""

    dataset_id: int
    version: int
    content_hash: str
    n_rows: int
    query: DatasetQuery
    quality: DatasetQuality
    frozen_by: str
    frozen_at: datetime


class NamedVersion(Record):
    """A frozen version by the name of its data set."""

    dataset_id: int
    name: str
    version: int
    content_hash: str
    frozen_at: datetime

    @property
    def label(self) -> str:
        """As models record it."""
        return f"{self.name}@{self.version}"


class DatasetChange(Record):
    """A change of a data set; what is left out stays. Status `curating` builds it, `ready` freezes
    its next version, `archived` ends it.
    """

    name: SetName | None = None
    description: Text | None = Field(default=None, max_length=20_000)
    query: DatasetQuery | None = None
    status: DatasetStatus | None = None

    def edit(self, dataset: Dataset) -> Dataset:
        """The data set with the new fields; a new query of a frozen one begins its next version.
        Raises DatasetConflict for a new query of an archived one.
        """
        fields = {name: getattr(self, name) for name in ("name", "description", "query")}
        if self.query is not None:
            fields["status"] = find_edited_status(dataset.name, dataset.status)
        return dataset.model_copy(update={k: v for k, v in fields.items() if v is not None})


class TrainedVersion(DatasetVersion):
    """A frozen version and what was made of it."""

    models: tuple[str, ...] = Field(
        description="the policies trained on it that the gate decided on, as name@version"
    )


class DatasetDetails(Dataset):
    """A data set with its frozen versions, newest first."""

    versions: tuple[TrainedVersion, ...]


class NewPair(PairTexts):
    """A pair to add to a data set."""

    dataset_id: Number


class PairChange(Record):
    """A change of a pair, which makes its next revision; what is left out stays."""

    prompt: PairText | None = Field(default=None, validation_alias=AliasChoices("prompt", "query"))
    chosen: PairText | None = Field(
        default=None, validation_alias=AliasChoices("chosen", "chosen_response")
    )
    rejected: PairText | None = Field(
        default=None, validation_alias=AliasChoices("rejected", "rejected_response")
    )
    strength: float | None = Field(
        default=None, validation_alias=AliasChoices("strength", "preference_strength")
    )
    context: tuple[PairText, ...] | None = Field(
        default=None, validation_alias=AliasChoices("context", "context_documents")
    )
    notes: Text | None = Field(
        default=None, validation_alias=AliasChoices("notes", "annotation_notes")
    )


class CreatedPairs(Record):
    """The pairs that a bulk made."""

    pairs: tuple[CuratedPair, ...]


class FeedbackBulk(Record):
    """Feedback of which pairs are made, all or none."""

    dataset_id: Number
    feedback_ids: tuple[Number, ...] = Field(min_length=1, max_length=MOST_IDS)


class ExportOrder(Record):
    """An export of a version, by default the newest."""

    format: Value = Field(default="trl", validation_alias=AliasChoices("format", "export_format"))
    version: Number | None = None
    url: Value | None = Field(
        default=None,
        validation_alias=AliasChoices("url", "export_url"),
        description="folder of an object store, such as s3://bucket/sets; by default exports/ of "
        "the home",
    )
