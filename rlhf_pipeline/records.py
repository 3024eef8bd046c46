"""The nouns of the loop as immutable records. Knows no DataFrame, no database, no library but pydantic."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

ID_LENGTH = 20  # hex characters: 80 bits, no collision expected below 10^11 ids


def content_id(*parts: object) -> str:
    """The first 80 bits of SHA-256 over the canonical JSON of `parts`, as 20 hex characters."""
    return content_hash(*parts)[:ID_LENGTH]


def content_hash(*parts: object) -> str:
    """SHA-256 over the canonical JSON of `parts`, as 64 hex characters."""
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


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


class NewVote(Record):
    """What an annotator sends. `strength` is 1 (slight) to 4 (strong), only with choice a or b.

    Only an imported vote may lack `voted_at`: it is filed under the day it was imported and stays out of the drift streams.
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
    origin: Literal["page", "api", "cli", "import", "simulation"]
    idempotency_key: str = Field(min_length=1, max_length=200)
    supersedes: str | None = None
    task_id: str | None = Field(default=None, description="judgements submitted together; `voted_at` and `duration_s` are the task's")


class Vote(NewVote):
    """A vote as recorded: `seq` is commit order within the store, `day` the UTC day of `voted_at`, or of its receipt."""

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
    few_groups: int | None = Field(default=None, description="groups of the observations, where so few that they may all be alike")

    def __str__(self) -> str:
        few = "" if self.few_groups is None else f" within {self.few_groups} group{'s' if self.few_groups > 1 else ''}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]{few}"


class CalibrationMetrics(Record):
    """How far stated probabilities can be trusted. All on the same rows; n comparisons."""

    n: int
    accuracy: Interval
    ece_equal_width: Interval
    ece_equal_mass: Interval
    brier: Interval
    log_loss: Interval


class ReliabilityBin(Record):
    low: float
    high: float
    n: int
    mean_confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


class CalibrationReport(Record):
    """One calibrator fitted for one reward-model version; `method` is `none` if nothing helped."""

    reward_model: str
    calibrator_version: int | None = None
    method: str
    params: dict[str, Any]
    raw: CalibrationMetrics
    calibrated: CalibrationMetrics
    candidates: dict[str, float] = Field(description="method -> cross-validated log loss on the calibration split")
    raw_bins: tuple[ReliabilityBin, ...] = ()
    calibrated_bins: tuple[ReliabilityBin, ...] = ()
    noise_ceiling: Interval | None = None
    data_hash: str
    n_fit: int
    fitted_at: datetime = Field(default_factory=utc_now)


class DriftEvent(Record):
    """One detection. Unique by (model_version, detector, params_hash, stream, seq): inserted or ignored."""

    kind: Literal["drift", "calibration"]
    model_version: str
    detector: str
    params_hash: str
    stream: str
    seq: int
    day: date
    change_seq: int | None = Field(default=None, description="the detector's estimate of the vote at which the change began")
    evidence: dict[str, Any]
    detected_at: datetime = Field(default_factory=utc_now)

    @property
    def event_id(self) -> str:
        return content_id(self.model_version, self.detector, self.params_hash, self.stream, self.seq)


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


class TriggerEvidence(Record):
    """All a trigger rule may look at, read in the transaction that stores its decision."""

    champion: str | None = Field(description="label of the champion reward model")
    open_events: tuple[DriftEvent, ...] = Field(description="not yet claimed by a decision")
    held_events: tuple[DriftEvent, ...] = Field(description="claimed by earlier hold decisions since the last fire")
    last_fired_at: datetime | None
    n_new_votes: int = Field(description="votes with a seq above that of the last fire (all votes if none)")
    max_seq: int
    n_unfinished: int = Field(default=0, description="fire decisions still pending or submitted")
    now: datetime


class Evaluation(Record):
    """A candidate policy against the champion on the frozen prompt set, judged by the reward model."""

    candidate: str
    champion: str
    reward_model: str
    n_prompts: int
    prompts_hash: str
    win_rate: Interval
    mean_reward_candidate: Interval
    mean_reward_champion: Interval
    kl: Interval = Field(description="nats per token, candidate from champion, on the candidate's samples")
    checkable_candidate: Interval | None = Field(description="share of checkable answers that are right")
    checkable_champion: Interval | None
    mean_length_candidate: float = Field(description="characters")
    mean_length_champion: float
    checkable_difference: Interval | None = Field(default=None, description="candidate minus champion, paired by prompt")
    expected_win_rate: Interval | None = Field(default=None, description="mean calibrated P(candidate preferred) by a person")
    samples_hash: str | None = Field(default=None, description="hash of the completions it was judged on")
    base: str | None = Field(default=None, description="the first policy of the project")
    win_rate_against_base: Interval | None = Field(default=None, description="the same judge, prompts and seeds against it")
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


def lineage_tags(values: Mapping[str, object | None]) -> dict[str, str]:
    """String tags without the missing ones, as MLflow and Dagster want them."""
    return {key: str(value) for key, value in values.items() if value is not None}
