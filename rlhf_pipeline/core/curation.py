"""Records of curated data sets: types, states, queries, hand-made pairs, quality, versions."""

from datetime import date, datetime
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, field_validator, model_validator

from rlhf_pipeline.core.errors import DatasetConflict
from rlhf_pipeline.core.records import Record, Text

DatasetType = Literal["preference", "sft", "unpaired"]
DatasetStatus = Literal["draft", "curating", "ready", "exported", "archived"]
PairStatus = Literal["accepted", "rejected"]
# names by which other tools call the types
TYPE_ALIASES: dict[str, DatasetType] = {
    "preference_pairs": "preference",
    "dpo": "preference",
    "instruction_tuning": "sft",
}
# `ready` is reached by freezing a version; work on the next one returns to `curating`.
MOVES: dict[DatasetStatus, tuple[DatasetStatus, ...]] = {
    "draft": ("curating", "archived"),
    "curating": ("ready", "archived"),
    "ready": ("exported", "curating", "archived"),
    "exported": ("exported", "curating", "archived"),
    "archived": (),
}
MOST_IDS = 1_000  # of one query, and rows of one bulk
LongText = Annotated[Text, Field(max_length=200_000)]
Value = Annotated[Text, Field(min_length=1, max_length=200)]


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
    until: date | None = None
    min_agreement: float = Field(default=0.5, ge=0.5, le=1)
    min_votes: int = Field(default=1, ge=1)
    cluster: Value | None = Field(
        default=None, description="id of an error cluster, as the page of clusters shows it"
    )
    comparison_ids: tuple[Value, ...] = Field(
        default=(), max_length=MOST_IDS, description="hand-picked; empty chooses all"
    )


class FeedbackQuery(Record):
    """Which feedback of applications a data set holds. What is left out chooses all."""

    kinds: tuple[Literal["thumbs", "rating", "correction"], ...] = ()
    session_id: Value | None = None
    since: date | None = None
    until: date | None = None
    feedback_ids: tuple[int, ...] = Field(default=(), max_length=MOST_IDS)


class DatasetQuery(Record):
    """What a draft holds beside its hand-made pairs; nothing without `votes` and `feedback`."""

    votes: VoteQuery | None = None
    feedback: FeedbackQuery | None = None
    leave_out: tuple[Value, ...] = Field(
        default=(), max_length=MOST_IDS, description="ids of rows that a curator took out"
    )


class NewDataset(Record):
    """A data set to make. The names of other tools for types and fields are accepted too."""

    name: Value
    type: Annotated[
        DatasetType, BeforeValidator(lambda name: TYPE_ALIASES.get(str(name), name))
    ] = Field(default="preference", validation_alias=AliasChoices("type", "dataset_type"))
    description: Text = Field(default="", max_length=20_000)
    query: DatasetQuery = DatasetQuery()


class PairTexts(Record):
    """A hand-made preference pair. The names of other tools are accepted too."""

    prompt: LongText = Field(
        min_length=1, validation_alias=AliasChoices("prompt", "query"), description="The question."
    )
    chosen: LongText = Field(
        min_length=1, validation_alias=AliasChoices("chosen", "chosen_response")
    )
    rejected: LongText = Field(
        min_length=1, validation_alias=AliasChoices("rejected", "rejected_response")
    )
    strength: float = Field(
        default=1.0,
        ge=0,
        le=1,
        validation_alias=AliasChoices("strength", "preference_strength"),
        description="How strong the preference is, 0 to 1.",
    )
    context: tuple[LongText, ...] = Field(
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

    @field_validator("prompt", "chosen", "rejected")
    @classmethod
    def _refuse_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value

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


class DatasetChange(Record):
    """A change of a data set; what is left out stays. Status `curating` builds it, `ready` freezes
    its next version, `archived` ends it.
    """

    name: Value | None = None
    description: Text | None = Field(default=None, max_length=20_000)
    query: DatasetQuery | None = None
    status: DatasetStatus | None = None


class DatasetDetails(Dataset):
    """A data set with its frozen versions, newest first."""

    versions: tuple[DatasetVersion, ...]


class NewPair(PairTexts):
    """A pair to add to a data set."""

    dataset_id: int


class PairChange(Record):
    """A change of a pair, which makes its next revision; what is left out stays."""

    prompt: LongText | None = Field(default=None, validation_alias=AliasChoices("prompt", "query"))
    chosen: LongText | None = Field(
        default=None, validation_alias=AliasChoices("chosen", "chosen_response")
    )
    rejected: LongText | None = Field(
        default=None, validation_alias=AliasChoices("rejected", "rejected_response")
    )
    strength: float | None = Field(
        default=None, validation_alias=AliasChoices("strength", "preference_strength")
    )
    context: tuple[LongText, ...] | None = Field(
        default=None, validation_alias=AliasChoices("context", "context_documents")
    )
    notes: Text | None = Field(
        default=None, validation_alias=AliasChoices("notes", "annotation_notes")
    )


class FeedbackBulk(Record):
    """Feedback of which pairs are made, all or none."""

    dataset_id: int
    feedback_ids: tuple[int, ...] = Field(min_length=1, max_length=MOST_IDS)


class ExportOrder(Record):
    """An export of a version, by default the newest."""

    format: Value = Field(default="trl", validation_alias=AliasChoices("format", "export_format"))
    version: int | None = Field(default=None, ge=1)
    url: Value | None = Field(
        default=None,
        validation_alias=AliasChoices("url", "export_url"),
        description="folder of an object store, such as s3://bucket/sets; by default exports/ of "
        "the home",
    )
