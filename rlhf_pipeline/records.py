"""The nouns of the loop as immutable records. Knows no DataFrame, no database, no library but
pydantic.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

ID_LENGTH = 20  # hex characters: 80 bits, no collision expected below 10^11 ids


def content_id(*parts: object) -> str:
    """The first 80 bits of SHA-256 over the canonical JSON of `parts`, as 20 hex characters."""
    return content_hash(*parts)[:ID_LENGTH]


def content_hash(*parts: object) -> str:
    """SHA-256 over the canonical JSON of `parts`, as 64 hex characters."""
    canonical = json.dumps(
        parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def fields_to_hash(params: BaseModel, always: Sequence[str]) -> dict[str, Any]:
    """The fields `always` of parameters, and others where they are not at their default: a field
    added later changes no known hash.
    """
    changed = params.model_dump(exclude_defaults=True)
    return {
        name: value
        for name, value in params.model_dump(mode="json").items()
        if name in always or name in changed
    }


def folder_hash(folder: Path) -> str:
    """SHA-256 over the sorted relative names and contents of all files below `folder`."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def utc_now() -> datetime:
    return datetime.now(UTC)


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must hold no NUL character: Postgres keeps none")
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise ValueError(
            "must hold no half of a character (a lone surrogate): remove the one after "
            f"{cause.start:,} others"
        ) from cause
    return text


# that both databases can keep; said by somebody outside
Text = Annotated[str, AfterValidator(_storable)]


class Record(BaseModel):
    """Frozen, refuses unknown fields, round-trips through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls.model_validate_json(text)


class Category(StrEnum):
    REASONING = "reasoning"
    FACTUAL = "factual"
    CREATIVE = "creative"
    CODING = "coding"
    SAFETY = "safety"
    INSTRUCTION = "instruction"


class Difficulty(StrEnum):
    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


class Choice(StrEnum):
    A = "a"
    B = "b"
    TIE = "tie"
    BOTH_BAD = "both_bad"
    SKIP = "skip"


class AnnotatorKind(StrEnum):
    HUMAN = "human"
    SIMULATED = "simulated"
    MACHINE = "machine"


class Verdict(StrEnum):
    """Ordered: missing data is never `stable`."""

    INSUFFICIENT = "insufficient"
    STABLE = "stable"
    WARNING = "warning"
    DRIFT = "drift"


class Role(StrEnum):
    """What a person may do in a project; `rlhf_pipeline.permissions` says what each means."""

    ANNOTATOR = "annotator"
    CURATOR = "curator"
    ENGINEER = "engineer"
    AUDITOR = "auditor"
    APPROVER = "approver"
    ADMIN = "admin"


class Highlight(Record):
    """A span of a completion that spoke for or against it: `start` to `end` in characters (Unicode
    code points) of its raw text.
    """

    side: Literal["a", "b"]
    start: int = Field(ge=0)
    end: int = Field(gt=0)
    sign: Literal["+", "-"]

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"start {self.start} must be below end {self.end}")
        return self


class VoteDetails(Record):
    """What an annotator said beside the choice. Sides are those of the comparison, wherever they
    were shown.
    """

    dimensions: dict[str, Literal["a", "b", "tie"]] = Field(
        default={}, description="dimension of the rubric -> side that is better in it"
    )
    highlights: tuple[Highlight, ...] = Field(default=(), max_length=200)
    flags: tuple[Literal["pii", "identity", "broken", "undone"], ...] = Field(
        default=(),
        description="pii: personal data shown; identity: a completion names its maker; broken: "
        "unreadable; undone: withdrawn",
    )

    @property
    def is_empty(self) -> bool:
        return not (self.dimensions or self.highlights or self.flags)


class NewVote(Record):
    """What an annotator sends. `strength` is 1 (slight) to 4 (strong), only with choice a or b.

    Only an imported vote may lack `voted_at`: it is filed under the day it was imported and stays
    out of the drift streams.
    """

    comparison_id: str
    annotator_id: str
    annotator_kind: AnnotatorKind
    choice: Choice
    strength: int | None = Field(default=None, ge=1, le=4)
    reason: str | None = None
    stated_confidence: float | None = Field(default=None, ge=0, le=1)
    duration_s: float | None = Field(default=None, ge=0)
    voted_at: datetime | None
    origin: Literal["page", "api", "cli", "import", "simulation", "pipeline"]
    idempotency_key: str = Field(min_length=1, max_length=200)
    supersedes: str | None = None
    task_id: str | None = Field(
        default=None,
        description="judgements submitted together; `voted_at` and `duration_s` are the task's",
    )
    assignment_id: str | None = Field(
        default=None, description="the card that was dealt; None for votes that nobody was dealt"
    )
    is_swapped: bool | None = Field(
        default=None, description="completion b was shown on the left; None where nobody knows"
    )
    guideline_version: int | None = Field(default=None, description="of the guidelines shown")
    details: VoteDetails | None = None


class Vote(NewVote):
    """A vote as recorded: `seq` is commit order within the store, `day` the UTC day of `voted_at`,
    or of its receipt.
    """

    seq: int
    vote_id: str
    day: date
    received_at: datetime


class ModelVersion(Record):
    """A registry entry. `content_hash` is `folder_hash` of the files that `uri` points to."""

    name: str
    version: int
    kind: Literal["policy", "reward_model"]
    uri: str
    content_hash: str
    mlflow_run_id: str | None = None
    parent: str | None = Field(default=None, description="`name@version` this one was trained from")
    data_hash: str | None = Field(default=None, description="hash of the frame it was trained on")
    data_seq: int | None = Field(default=None, description="highest vote seq it may have seen")
    metrics: dict[str, float] = {}
    params: dict[str, Any] = {}
    created_at: datetime = Field(default_factory=utc_now)

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


class Interval(Record):
    """A point estimate with its confidence interval, and how many observations it rests on."""

    value: float
    low: float
    high: float
    n: int
    level: float = 0.95
    few_groups: int | None = Field(
        default=None,
        description="groups of the observations, where so few that they may all be alike",
    )
    basis: Literal["repeats"] | None = Field(
        default=None,
        description="of a noise ceiling that no overlap of votes gives: how often annotators "
        "repeat themselves",
    )

    def __str__(self) -> str:
        few = (
            ""
            if self.few_groups is None
            else f" within {self.few_groups} group{'s' if self.few_groups > 1 else ''}"
        )
        return (
            f"{self.value:.3f} [{self.low:.3f}, "
            f"{self.high:.3f}]{few}{'' if self.basis is None else f' from {self.basis}'}"
        )


class BrierParts(Record):
    """Brier = reliability - resolution + uncertainty + within_bins, exactly; see
    `rlhf_pipeline.calibration.summary`.
    """

    reliability: Interval = Field(
        description="squared distance of stated and true share per bin: 0 is calibrated"
    )
    resolution: Interval = Field(
        description="squared distance of the bins' true shares from a half: what the model knows"
    )
    uncertainty: float = Field(
        default=0.25,
        description="of which of two sides is preferred, which is a coin's to nobody who sees "
        "neither",
    )
    within_bins: float = Field(
        description="what probabilities that differ within a bin add or take; 0 where they do not"
    )


class CalibrationMetrics(Record):
    """How far stated probabilities can be trusted. All on the same rows; n comparisons. Reports of
    earlier versions lack the last three.
    """

    n: int
    accuracy: Interval
    ece_equal_width: Interval
    ece_equal_mass: Interval
    brier: Interval
    log_loss: Interval
    ece_debiased: Interval | None = Field(
        default=None, description="equal mass, less what noise alone adds"
    )
    slope: Interval | None = Field(
        default=None,
        description="of the outcome's log odds on the stated ones, no intercept: 1 is calibrated, "
        "below overconfident",
    )
    brier_parts: BrierParts | None = None


class ReliabilityBin(Record):
    low: float
    high: float
    n: int
    mean_confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


class GroupCalibration(Record):
    """The same measures of one group of the test pairs; None where they are too few for an interval
    to mean anything.
    """

    by: str = Field(description="what the pairs are grouped by: source, category")
    group: str
    n: int = Field(description="its pairs")
    raw: CalibrationMetrics | None
    calibrated: CalibrationMetrics | None
    calibrated_bins: tuple[ReliabilityBin, ...] = ()
    noise_ceiling: Interval | None = Field(description="of the group's own votes")


class CalibrationWindow(Record):
    """How far predictions could be trusted over one window of days. A figure is None where there
    are too few judgements for an interval.
    """

    day: str = Field(description="last UTC day of the window, YYYY-MM-DD")
    first_day: str = Field(description="its first")
    n_votes: int = Field(description="votes for a or b that met a prediction made before them")
    n_comparisons: int
    n_prompts: int = Field(description="prompts of these: intervals are drawn over them")
    reward_models: tuple[str, ...] = Field(
        description="labels of those that predicted, in the order in which they were first judged"
    )
    last_seq: int | None = Field(description="highest vote seq among the judgements")
    accuracy: Interval | None = Field(description="share of the votes predicted right")
    noise_ceiling: Interval | None = Field(
        description="of all votes of the window: what stands beside the accuracy"
    )
    ece: Interval | None = Field(
        description="expected calibration error without what noise alone adds"
    )
    brier: Interval | None = Field(
        description="mean squared distance of probability and vote; 0.25 is a coin"
    )
    rests_on: str = Field(
        default="",
        description="hash of the frames it was made from: another hash is another window",
    )


class Refusal(Record):
    """Why a fitted reward model may not become champion. `data_seq` is the highest vote seq it had
    learnt from: later votes may do better.
    """

    cause: str
    data_seq: int = 0


class CalibrationReport(Record):
    """One calibrator fitted for one reward-model version; `method` is `none` if nothing helped."""

    reward_model: str
    calibrator_version: int | None = None
    method: str
    params: dict[str, Any]
    raw: CalibrationMetrics
    calibrated: CalibrationMetrics
    candidates: dict[str, float] = Field(
        description="method -> cross-validated log loss on the calibration split"
    )
    raw_bins: tuple[ReliabilityBin, ...] = ()
    calibrated_bins: tuple[ReliabilityBin, ...] = ()
    noise_ceiling: Interval | None = None
    by_group: tuple[GroupCalibration, ...] = ()
    data_hash: str
    n_fit: int
    fitted_at: datetime = Field(default_factory=utc_now)
    may_serve: bool = Field(
        default=True,
        description="whether its reward model predicts through it; False where the calibrator "
        "before stays",
    )
    refusal: Refusal | None = Field(
        default=None, description="why its reward model may not become champion; None where it may"
    )


class DriftEvent(Record):
    """One detection. Unique by (model_version, detector, params_hash, stream, seq): inserted or
    ignored.
    """

    kind: Literal["drift", "calibration"]
    model_version: str
    detector: str
    params_hash: str
    stream: str
    seq: int
    day: date
    change_seq: int | None = Field(
        default=None, description="the detector's estimate of the vote at which the change began"
    )
    evidence: dict[str, Any]
    detected_at: datetime = Field(default_factory=utc_now)

    @property
    def event_id(self) -> str:
        return content_id(
            self.model_version, self.detector, self.params_hash, self.stream, self.seq
        )


class TriggerDecision(Record):
    """Fire or hold, with what it was decided on. `decision_id` is given by the store."""

    decision_id: int | None = None
    action: Literal["fire", "hold"]
    reasons: tuple[str, ...]
    event_ids: tuple[str, ...]
    evidence: dict[str, Any] = {}
    change_seq: int | None = None
    decided_at: datetime = Field(default_factory=utc_now)
    attempt: int = 1
    state: Literal["held", "pending", "submitted", "succeeded", "failed"] = "pending"
    run_id: str | None = None


class TasteChange(Record):
    """A confirmed change of taste: votes cast before `change_seq` say less about taste today. A
    false alarm is retracted, not deleted.
    """

    change_id: int
    change_seq: int = Field(description="first vote of the new taste")
    category: str | None = Field(
        default=None, description="scope: the category whose taste changed; None = all"
    )
    cause: str = Field(description="what the trigger saw, or what a person wrote")
    decision_id: int | None = Field(
        default=None,
        description="the retraining decision that confirmed it; None where a person did",
    )
    actor: str
    recorded_at: datetime
    retracted_at: datetime | None = None
    retracted_by: str | None = None
    retraction_reason: str | None = None


class TriggerEvidence(Record):
    """All a trigger rule may look at, read in the transaction that stores its decision."""

    champion: str | None = Field(description="label of the champion reward model")
    open_events: tuple[DriftEvent, ...] = Field(description="not yet claimed by a decision")
    held_events: tuple[DriftEvent, ...] = Field(
        description="claimed by earlier hold decisions since the last fire"
    )
    last_fired_at: datetime | None
    n_new_votes: int = Field(
        description="votes since the last fire (or ever) that may teach: no machine's, no skips, "
        "none that was superseded"
    )
    max_seq: int
    n_unfinished: int = Field(default=0, description="fire decisions still pending or submitted")
    now: datetime


class Evaluation(Record):
    """A candidate policy against the champion on the frozen prompt set, judged by the reward
    model.
    """

    candidate: str
    champion: str
    reward_model: str
    n_prompts: int
    prompts_hash: str
    win_rate: Interval
    mean_reward_candidate: Interval
    mean_reward_champion: Interval
    kl: Interval = Field(
        description="nats per token, candidate from champion, on the candidate's samples"
    )
    checkable_candidate: Interval | None = Field(
        description="share of checkable answers that are right"
    )
    checkable_champion: Interval | None
    mean_length_candidate: float = Field(description="characters")
    mean_length_champion: float
    checkable_difference: Interval | None = Field(
        default=None, description="candidate minus champion, paired by prompt"
    )
    expected_win_rate: Interval | None = Field(
        default=None, description="mean calibrated P(candidate preferred) by a person"
    )
    samples_hash: str | None = Field(
        default=None, description="hash of the completions it was judged on"
    )
    base: str | None = Field(default=None, description="the first policy of the project")
    win_rate_against_base: Interval | None = Field(
        default=None, description="the same judge, prompts and seeds against it"
    )
    evaluated_at: datetime = Field(default_factory=utc_now)

    @property
    def length_ratio(self) -> float:
        return self.mean_length_candidate / self.mean_length_champion


class GateCheck(Record):
    name: str
    passed: bool
    reason: str


class GateDecision(Record):
    candidate: str
    champion: str
    promoted: bool
    checks: tuple[GateCheck, ...]
    evaluation: Evaluation | None = None
    decided_at: datetime = Field(default_factory=utc_now)


class Promotion(Record):
    """One move of an alias: which version became champion when, from which, decided by what."""

    model_name: str
    version: int
    previous_version: int | None
    data_seq: int | None
    reason: str
    actor: str
    promoted_at: datetime = Field(default_factory=utc_now)


class AnnotationRules(Record):
    """How a project is annotated; versioned, set by a curator. A change holds for cards dealt from
    then on.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    overlap: int = Field(default=1, ge=1, le=9, description="people who judge each comparison")
    repeat_share: float = Field(
        default=0.08,
        ge=0,
        le=0.5,
        description="share of cards that repeat one's own, sides swapped",
    )
    repeat_after: int = Field(
        default=20, ge=1, description="other votes between a card and its repeat"
    )
    gold_share: float = Field(
        default=0.05,
        ge=0,
        le=0.5,
        description="share of cards whose answer is known, where there are any",
    )
    lease_minutes: float = Field(
        default=10, gt=0, le=24 * 60, description="for which a dealt card is one's own"
    )
    prefetch: int = Field(default=5, ge=1, le=20, description="cards dealt ahead")
    max_votes_per_day: int | None = Field(
        default=None, ge=1, description="of one annotator, in a UTC day; empty = no cap"
    )
    undo_seconds: float = Field(
        default=30, ge=0, le=86_400, description="in which a vote may be taken back or changed"
    )
    requires_reason: bool = Field(
        default=False, description="a vote without a reason is refused, a skip is not"
    )
    shows_length: bool = Field(
        default=False, description="characters of each completion, which invites a length bias"
    )
    dimensions: tuple[str, ...] = Field(
        default=("helpful", "correct", "harmless", "style"),
        max_length=8,
        description="rubric, in order",
    )
    seed: int = Field(default=0, ge=0, description="of sides, order, repeats and gold")
    agreement_votes: int = Field(
        default_factory=lambda said: _default_agreement_votes(said.get("overlap", 1)),
        ge=2,
        le=9,
        description="judgements below which a comparison is open; left out of rules that are read, "
        "the overlap, two at least",
    )

    @field_validator("dimensions")
    @classmethod
    def _check_dimensions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names) or any(
            not re.fullmatch(r"[a-z][a-z0-9_ -]{0,39}", name) for name in names
        ):
            raise ValueError(
                "dimensions must be different names of at most 40 letters in lower case, digits, "
                "spaces, _ or -"
            )
        return names

    def to_json(self) -> str:
        """As stored. Rules whose `agreement_votes` is the default keep the bytes, and so the
        digest, they had before there was such a rule.
        """
        is_default = self.agreement_votes == _default_agreement_votes(self.overlap)
        return self.model_dump_json(exclude={"agreement_votes"} if is_default else None)


def _default_agreement_votes(overlap: int) -> int:
    """The default. Stored rules rely on it: another one would rewrite the consensus of the past."""
    return max(2, overlap)


class AssignmentKind(StrEnum):
    """Why a card was dealt. Nothing that an annotator sees says which."""

    NORMAL = "normal"
    REPEAT = "repeat"
    GOLD = "gold"


class Assignment(Record):
    """A card: one comparison dealt to one annotator until `leased_until`."""

    assignment_id: str
    comparison_id: str
    annotator_id: str
    pass_no: int
    kind: AssignmentKind
    is_swapped: bool
    n: int = Field(description="the how-manieth card of this annotator, from 1")
    state: Literal["leased", "voted", "skipped", "released"]
    slot_no: int | None
    leased_at: datetime
    leased_until: datetime
    settled_at: datetime | None = None


class User(Record):
    """Somebody who may log in. `user_id` is the pseudonym under which votes are kept; e-mail and
    name stay in this table.
    """

    user_id: str
    email: str
    name: str
    kind: Literal["person", "service"] = "person"
    roles: tuple[Role, ...] = Field(default=(), description="in this project")
    organization_roles: tuple[Role, ...] = Field(
        default=(), description="in every project of the organisation"
    )
    in_every_project: bool = Field(
        default=False, description="an account of the organisation, not of this project alone"
    )
    has_password: bool = False
    created_at: datetime
    disabled_at: datetime | None = None

    @property
    def all_roles(self) -> tuple[Role, ...]:
        """By which it is said what they may do here."""
        return tuple(sorted({*self.roles, *self.organization_roles}))


class Token(Record):
    """A secret as the store knows it: by its SHA-256 alone. `token_id` is the beginning of that
    hash, safe to show.
    """

    token_id: str
    user_id: str
    kind: Literal["api", "session", "login"]
    name: str | None
    scopes: tuple[str, ...] | None = Field(
        description="permissions it carries of those its owner has; None = all of them"
    )
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class Guideline(Record):
    """What annotators are asked to do, in Markdown. Versions count from 1; a vote keeps the one it
    was cast under.
    """

    version: int
    text: str
    created_at: datetime
    created_by: str


class NewFeedback(Record):
    """What somebody sends from where a model is used: thumbs (value 0 or 1), rating (1 to 5), a
    correction, or detailed text.
    """

    kind: Literal["thumbs", "rating", "correction", "detailed"]
    session_id: Text | None = Field(
        default=None, max_length=200, description="links the turns of one conversation"
    )
    turn: int | None = Field(default=None, ge=0)
    prompt: Text | None = Field(default=None, max_length=200_000)
    completion: Text | None = Field(default=None, max_length=200_000)
    completion_id: Text | None = Field(default=None, max_length=200)
    value: float | None = Field(default=None, allow_inf_nan=False)
    text: Text | None = Field(default=None, max_length=20_000)
    correction: Text | None = Field(default=None, max_length=200_000)
    tags: tuple[Annotated[Text, Field(max_length=100)], ...] = Field(default=(), max_length=20)
    given_at: AwareDatetime | None = Field(
        default=None, description="when, by the clock of the sender"
    )
    author: Text | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="whose words a service passes on; kept as a pseudonym alone, as imports do",
    )

    @model_validator(mode="after")
    def _check_kind_fields(self) -> Self:
        if self.kind == "thumbs" and self.value not in (0.0, 1.0):
            raise ValueError("thumbs need value 0 (down) or 1 (up)")
        if self.kind == "rating" and (self.value is None or not 1 <= self.value <= 5):
            raise ValueError("a rating needs a value from 1 to 5")
        if self.kind in ("correction", "detailed") and self.value is not None:
            raise ValueError(f"{self.kind} takes no value")
        if self.kind == "correction" and not (self.correction and self.prompt and self.completion):
            raise ValueError(
                "a correction needs the prompt, the completion it corrects and the corrected text"
            )
        if self.kind == "correction" and self.correction == self.completion:
            raise ValueError("the corrected text equals the completion it corrects")
        if self.kind == "detailed" and not self.text:
            raise ValueError("detailed feedback needs a text")
        if self.kind != "correction" and self.correction is not None:
            raise ValueError(f"{self.kind} takes no correction; send kind correction")
        if self.completion is None and self.completion_id is None:
            raise ValueError("say what the feedback is about: completion, completion_id or both")
        return self


class Feedback(NewFeedback):
    """Feedback as recorded; `comparison_id` and `vote_id` are those that a correction became."""

    feedback_id: int
    created_at: datetime
    created_by: str
    comparison_id: str | None = None
    vote_id: str | None = None


def lineage_tags(values: Mapping[str, object | None]) -> dict[str, str]:
    """String tags without the missing ones, as MLflow and Dagster want them."""
    return {key: str(value) for key, value in values.items() if value is not None}
