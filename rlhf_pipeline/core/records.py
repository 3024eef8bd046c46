"""Immutable records of the loop: votes, model versions, reports, decisions, users."""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

ID_LENGTH = 20  # hex characters: 80 bits, no collision expected below 10^11 ids
# Made once: `json.dumps` makes an encoder per call, and a vote has five hashes.
canonical_json = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str, check_circular=False
).encode
_CONTROLS = bytes(range(32))


def content_id(*parts: object) -> str:
    """The first 80 bits of SHA-256 over the canonical JSON of `parts`, as 20 hex characters."""
    return content_hash(*parts)[:ID_LENGTH]


def content_hash(*parts: object) -> str:
    """SHA-256 over the canonical JSON of `parts`, as 64 hex characters."""
    return hashlib.sha256(b"[%b]" % b",".join(map(_encode, parts))).hexdigest()


def _encode(part: object) -> bytes:
    """The canonical JSON."""
    if part is None:
        return b"null"
    return _encode_text(part) if type(part) is str else canonical_json(part).encode()


@lru_cache(16)  # each text of a pair is in several of its ids
def _encode_text(text: str) -> bytes:
    """In a third of the encoder's time, which looks at each character."""
    raw = text.encode().replace(b"\\", rb"\\").replace(b'"', rb"\"").replace(b"\n", rb"\n")
    has_others = len(raw.translate(None, _CONTROLS)) < len(raw)
    return canonical_json(text).encode() if has_others else b'"%b"' % raw


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
        raise ValueError("must not contain a NUL character: Postgres cannot store it")
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise ValueError(
            "must not contain a lone surrogate (half of a character): remove character "
            f"{cause.start + 1:,}"
        ) from cause
    return text


# text from outside that both databases can store
Text = Annotated[str, AfterValidator(_storable)]
LARGEST = 2**53 - 1  # an integer that every JSON reader can hold
Number = Annotated[int, Field(ge=1, le=LARGEST)]  # of a record


def _follow_since(until: date | None, info: ValidationInfo) -> date | None:
    since = info.data.get("since")
    if since and until and since > until:
        raise ValueError(f"From {since} is after To {until}: exchange them or leave one out")
    return until


Until = Annotated[date | None, AfterValidator(_follow_since)]  # a last day, after a field `since`


class Record(BaseModel):
    """Base record: frozen, refuses unknown fields, round-trips through JSON."""

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
    """A user's role in a project; `rlhf_pipeline.web.permissions` maps each to its permissions."""

    ANNOTATOR = "annotator"
    CURATOR = "curator"
    ENGINEER = "engineer"
    AUDITOR = "auditor"
    APPROVER = "approver"
    ADMIN = "admin"


class Highlight(Record):
    """A marked span of a completion, positive or negative: `start` to `end` in Unicode code points
    of the raw text.
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
    """Optional details of a vote. Sides are those of the comparison, not of the screen."""

    dimensions: dict[str, Literal["a", "b", "tie"]] = Field(
        default={}, description="dimension of the rubric -> side that is better in it"
    )
    highlights: tuple[Highlight, ...] = Field(default=(), max_length=200)
    flags: tuple[Literal["pii", "identity", "broken", "undone"], ...] = Field(
        default=(),
        description="pii: contains personal data; identity: a completion names its model or "
        "vendor; broken: unreadable; undone: withdrawn by the annotator",
    )

    @property
    def is_empty(self) -> bool:
        return not (self.dimensions or self.highlights or self.flags)


PEOPLE_FLAGS = ("pii", "identity", "broken")  # for which people take a comparison out of use
REJECTED_FLAG = "rejected"  # of a correction's comparison, while a curator rejects the correction
GATE_SOURCE = "gate"  # of comparisons by which the gate asks people; their votes never teach
FASTEST_READING = 100.0  # characters of both completions a second: 1,000 words a minute
OWN_SOURCE = "this project"  # names the missing source of comparisons that were not imported
# measures of what people prefer: agreement of pairs of votes, and the prefix of others
AGREEMENT, DIMENSION = "agreement", "dimension."


class NewVote(Record):
    """A vote as submitted. `strength` is 1 (slight) to 4 (strong), only with choice a or b.

    Only an imported vote may lack `voted_at`: its day is the day of the import, and drift streams
    skip it.
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
        description="groups votes submitted together; `voted_at` and `duration_s` are those of "
        "the task",
    )
    card_id: str | None = Field(
        default=None, description="the card that was dealt; None for votes without a card"
    )
    is_swapped: bool | None = Field(
        default=None, description="completion b was shown on the left; None if unknown"
    )
    guideline_version: int | None = Field(
        default=None, description="version of the guidelines shown"
    )
    is_blind: bool | None = Field(
        default=None,
        description="whether the annotator's roles kept them from reading other people's votes; "
        "None if unknown, as for imported votes whose file does not state it",
    )
    details: VoteDetails | None = None


class Vote(NewVote):
    """A recorded vote: `seq` is the commit order in the store; `day` is the UTC day of `voted_at`,
    or of `received_at` if that is missing.
    """

    seq: int
    vote_id: str
    day: date
    received_at: datetime

    @classmethod
    def from_row(cls, row: Mapping[Any, Any]) -> Self:
        """The record of a stored vote."""
        values = {name: row[name] for name in cls.model_fields}
        if values["details"] is not None:
            values["details"] = VoteDetails.from_json(values["details"])
        return cls.model_validate(values)


class ListedVote(Vote):
    """A vote with its current status; see `store.counting`."""

    is_superseded: bool = Field(description="a later vote of the annotator replaces it")
    is_counting: bool = Field(description="the annotator's counting vote on this comparison")


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
    """A point estimate with its confidence interval and its number of observations."""

    value: float
    low: float
    high: float
    n: int
    level: float = 0.95
    few_groups: int | None = Field(
        default=None,
        description="number of groups among the observations, set only if so small that the "
        "interval may be too narrow",
    )
    basis: Literal["repeats"] | None = Field(
        default=None,
        description="set for a noise ceiling estimated from annotators' repeats because too few "
        "comparisons have overlapping votes",
    )

    def complement(self) -> "Interval":
        """The interval of 1 minus the value: of a noise ceiling, the best reachable error rate."""
        return self.model_copy(
            update={"value": 1 - self.value, "low": 1 - self.high, "high": 1 - self.low}
        )

    def negate(self) -> "Interval":
        """The interval of a difference the other way round."""
        return self.model_copy(update={"value": -self.value, "low": -self.high, "high": -self.low})

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


class RatioSums(NamedTuple):
    """Sums of a mean, `total` of `n` values, over groups whose values resemble each other, such as
    the votes on a comparison: of the groups' own n and total also the squares and products.
    """

    n_groups: float
    n: float
    total: float
    n_squares: float
    products: float
    total_squares: float


class CalibrationMetrics(Record):
    """Calibration figures, all over the same `n` comparisons."""

    n: int
    accuracy: Interval
    binned_gap: Interval = Field(
        description="mean gap of confidence and accuracy over bins; noise alone makes it positive"
    )
    brier: Interval
    log_loss: Interval
    ece: Interval = Field(description="expected calibration error: binned_gap less what noise adds")
    slope: Interval | None = Field(
        description="slope of the outcome's log odds on the stated log odds, without intercept: 1 "
        "is calibrated, below 1 overconfident; None if it cannot be estimated",
    )


class ReliabilityBin(Record):
    low: float
    high: float
    n: int
    mean_confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


class GroupCalibration(Record):
    """Calibration figures of one group of test pairs; None if there are too few for an interval."""

    by: str = Field(description="grouping of the pairs: source or category")
    group: str
    n: int = Field(description="number of pairs in the group")
    raw: CalibrationMetrics | None
    calibrated: CalibrationMetrics | None
    raw_bins: tuple[ReliabilityBin, ...] = ()
    calibrated_bins: tuple[ReliabilityBin, ...] = ()
    noise_ceiling: Interval | None = Field(description="noise ceiling of the group's votes")


class DimensionCalibration(GroupCalibration):
    """Calibration figures of a reward model's head of one dimension of the rubric, `group`, on the
    test pairs that votes judge in it. Its calibrator is measured and not applied.
    """

    method: str | None = Field(
        description="calibrator chosen on the calib split; None with too few pairs judged there"
    )
    params: dict[str, Any] = Field(description="its fitted parameters; empty without one")
    n_fit: int = Field(description="judged pairs in the calib split")

    def __str__(self) -> str:
        if self.raw is None:
            return f"{self.group} too few test pairs ({self.n:,}) for figures"
        after = ""
        if self.calibrated is not None:
            after = f" -> {self.calibrated.slope or 'unknown'} by {self.method}"
        return f"{self.group} ECE {self.raw.ece}, slope {self.raw.slope or 'unknown'}{after}"


class Refusal(Record):
    """Why a fitted reward model may not become champion. `data_seq` is the highest vote seq of its
    training data; a fit with later votes may succeed.
    """

    cause: str
    data_seq: int = 0


class CalibrationReport(Record):
    """Report of a calibrator fitted for one reward-model version; `method` is `none` if no method
    improved it.
    """

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
    by_dimension: tuple[DimensionCalibration, ...] = Field(
        default=(),
        description="the heads of the rubric's dimensions; empty where no test vote judges one",
    )
    data_hash: str
    n_fit: int
    fitted_at: datetime = Field(default_factory=utc_now)
    may_serve: bool = Field(
        default=True,
        description="whether the reward model uses it for predictions; False if the previous "
        "calibrator stays",
    )
    refusal: Refusal | None = Field(
        default=None, description="why its reward model may not become champion; None if it may"
    )
    data_seq: int | None = Field(
        default=None,
        description="highest vote seq that its reward model may have seen; None if unknown",
    )


class DriftEvent(Record):
    """One detection of drift. Unique by (model_version, detector, params_hash, stream, seq);
    duplicates are ignored on insert.
    """

    kind: Literal["drift", "calibration"]
    model_version: str
    detector: str
    params_hash: str
    stream: str
    seq: int
    day: date
    change_seq: int | None = Field(
        default=None, description="estimated vote seq at which the change began"
    )
    evidence: dict[str, Any]
    detected_at: datetime = Field(default_factory=utc_now)
    is_replayed: bool = Field(
        default=False,
        description="found when votes that were read before were read again under other "
        "parameters; starts no retraining",
    )

    @property
    def event_id(self) -> str:
        return content_id(
            self.model_version, self.detector, self.params_hash, self.stream, self.seq
        )


CauseName = Literal[
    "taste", "category", "newcomers", "carelessness", "mix", "calibration", "nothing"
]


class Cause(Record):
    """One possible cause of a change, with the numbers and names that speak for it; `nothing` is
    chance.
    """

    name: CauseName
    probability: float = Field(ge=0, le=1)
    effect: Interval = Field(
        description="by how much it raises the error rate of the votes after the change"
    )
    evidence: dict[str, Any] = {}


class ChangeCauses(Record):
    """Why the error rate of one model changed at `change_seq`, judged by its votes up to
    `until_seq`.
    """

    change_seq: int
    until_seq: int
    n_before: int
    n_after: int
    rise: Interval = Field(description="error rate after the change minus the expected one")
    people: float = Field(
        default=1.0,
        description="effective number of annotators after the change over that before it: 1 where "
        "as many people share the votes as usual",
    )
    causes: tuple[Cause, ...] = Field(description="all seven, the likeliest first")
    summary: str = Field(description="one sentence for people")


Remedy = Literal[
    "retrain",
    "retrain_category",
    "reweight",
    "refit_calibrator",
    "quarantine",
    "report_two_tastes",
    "ask_for_cause",
    "lift_quarantine",
    "dismiss",
]
RETRAINING_REMEDIES: frozenset[Remedy] = frozenset({"retrain", "retrain_category", "reweight"})


class Quarantine(Record):
    """The annotators whose votes from `from_seq` on teach nothing and are no errors of a model."""

    annotator_ids: tuple[str, ...]
    from_seq: int = Field(description="first vote that is left out")


class TrainingOrder(Record):
    """What a person orders of a training job: all parameters by stage, and an optional idempotency
    key.
    """

    stages: dict[str, dict[str, Any]]
    key: str | None = Field(
        default=None, description="names the job: a second order with this key starts no other"
    )

    @property
    def strategy(self) -> str:
        return str(self.stages["candidate_model"]["strategy"])


class TriggerDecision(Record):
    """A decision to fire or hold retraining, with its evidence. The store assigns `decision_id`."""

    decision_id: int | None = None
    action: Literal["fire", "hold"]
    reasons: tuple[str, ...]
    event_ids: tuple[str, ...]
    evidence: dict[str, Any] = {}
    change_seq: int | None = None
    decided_at: datetime = Field(default_factory=utc_now)
    recorded_at: datetime | None = Field(
        default=None, description="when it was stored: later than `decided_at` in a replay"
    )
    attempt: int = 1
    state: Literal["held", "pending", "submitted", "succeeded", "failed"] = "pending"
    run_id: str | None = None
    actor: str | None = Field(
        default=None, description="who made it by hand; None = the retraining trigger"
    )
    remedy: Remedy | None = Field(
        default=None,
        description="what is done about the change, by its cause; None = no confirmed change, or a "
        "retraining by hand",
    )
    answers: int | None = Field(
        default=None,
        description="the decision that a person answered, lifted or cancelled by this one",
    )
    error: str | None = Field(default=None, description="why its last attempt failed")

    @property
    def stored_id(self) -> int:
        """`decision_id` of a decision that was read from the store."""
        assert self.decision_id is not None
        return self.decision_id

    @property
    def quarantine(self) -> Quarantine | None:
        """Whom it leaves out, or would leave out if a person agrees."""
        record = self.evidence.get("quarantine")
        return None if record is None else Quarantine.model_validate(record)

    @property
    def order(self) -> TrainingOrder | None:
        """The training job that a person ordered by it."""
        record = self.evidence.get("order")
        return None if record is None else TrainingOrder.model_validate(record)


class Adjudication(Record):
    """An expert's decision on a disputed comparison, or with `choice` None the undoing of one."""

    adjudication_id: int
    comparison_id: str
    choice: Literal["a", "b", "tie", "both_bad"] | None
    reason: str
    at_seq: int = Field(description="seq of the newest vote at the time")
    decided_by: str
    decided_at: datetime


class TasteChange(Record):
    """A confirmed change of taste: votes before `change_seq` get less weight in training. A false
    alarm is retracted, not deleted.
    """

    change_id: int
    change_seq: int = Field(description="first vote of the new taste")
    category: str | None = Field(
        default=None, description="category whose taste changed; None = all"
    )
    cause: str = Field(description="the trigger's reason, or the text of the user who recorded it")
    decision_id: int | None = Field(
        default=None,
        description="the retraining decision that confirmed it; None if a user did",
    )
    actor: str
    recorded_at: datetime
    retracted_at: datetime | None = None
    retracted_by: str | None = None
    retraction_reason: str | None = None


class LeftToPeople(Record):
    """A change that the trigger left to people since it last fired, while its champion serves."""

    decision_id: int
    seq: int = Field(description="the last vote that the decision knew")
    cause: CauseName | None = Field(default=None, description="the likeliest one; None: unexamined")
    annotator_ids: tuple[str, ...] = Field(default=(), description="whose votes it is about")
    is_answered: bool = False
    reread_from: datetime | None = Field(
        default=None,
        description="when the answer began a quarantine; what detectors find from then on is new",
    )


class TriggerEvidence(Record):
    """All input of a trigger rule, read in the transaction that stores its decision."""

    champion: str | None = Field(description="label of the champion reward model")
    open_events: tuple[DriftEvent, ...] = Field(description="events not yet claimed by a decision")
    held_events: tuple[DriftEvent, ...] = Field(
        description="events claimed by hold decisions since the last fire"
    )
    last_fired_at: datetime | None
    n_new_votes: int = Field(
        description="usable votes since the last fire (or ever): without machine votes, skips and "
        "superseded votes"
    )
    max_seq: int
    n_unfinished: int = Field(
        default=0, description="retrainings and other answers still pending or submitted"
    )
    n_ordered: int = Field(default=0, description="training jobs ordered and not ended")
    left_to_people: tuple[LeftToPeople, ...] = ()
    now: datetime


class CategoryComparison(Record):
    """A candidate against the champion on the prompts of one category; `reward_difference` is
    candidate minus champion in logits, paired by prompt.
    """

    category: str
    win_rate: Interval
    reward_difference: Interval
    checkable_difference: Interval | None = None

    def complement(self) -> "CategoryComparison":
        """The champion against the candidate."""
        facts = self.checkable_difference
        return self.model_copy(
            update={
                "win_rate": self.win_rate.complement(),
                "reward_difference": self.reward_difference.negate(),
                "checkable_difference": facts and facts.negate(),
            }
        )


class DimensionHead(Record):
    """A reward model's head of one dimension of the rubric, such as helpful, and how well it
    predicts votes in it that no head was fitted to.
    """

    dimension: str
    n_train: int = Field(description="training pairs that votes judge in it")
    has_head: bool = Field(description="whether these were enough, and the kind of model has heads")
    vote_accuracy: Interval | None = Field(
        default=None, description="share of held-out votes in it predicted; None without a head"
    )
    ceiling: Interval | None = Field(
        default=None, description="noise ceiling of the votes in it; None where none overlap"
    )

    @property
    def beats_chance(self) -> bool:
        """Whether the held-out votes show that the head predicts anything."""
        return self.vote_accuracy is not None and self.vote_accuracy.low > 0.5

    def __str__(self) -> str:
        if not self.has_head:
            return f"{self.dimension} has no head, {self.n_train:,} training pairs are judged in it"
        if self.vote_accuracy is None:
            return f"{self.dimension} has no held-out votes to measure its head on"
        return (
            f"{self.dimension} {self.vote_accuracy} of votes predicted, noise ceiling "
            f"{self.ceiling or 'unknown, nothing overlaps'}"
        )


class DimensionComparison(Record):
    """A candidate against the champion in one dimension of the rubric, as a head of the reward
    model estimates it. The intervals are over prompts and do not contain the head's own errors.
    """

    head: DimensionHead
    win_rate: Interval | None = Field(default=None, description="None without a head")
    score_difference: Interval | None = Field(
        default=None, description="candidate minus champion in the head's logits, paired by prompt"
    )

    @property
    def verdict(self) -> Literal["better", "worse"] | None:
        """What the whole interval of the win rate shows; None if it contains 0.5, and for a head
        that does not beat chance, whose win rate says nothing.
        """
        if self.win_rate is None or not self.head.beats_chance:
            return None
        if self.win_rate.low > 0.5:
            return "better"
        return "worse" if self.win_rate.high < 0.5 else None

    def complement(self) -> "DimensionComparison":
        """The champion against the candidate."""
        rate, gap = self.win_rate, self.score_difference
        return self.model_copy(
            update={
                "win_rate": rate and rate.complement(),
                "score_difference": gap and gap.negate(),
            }
        )


class CanaryExposure(Record):
    """How far up planted secrets rank among other random codes, by a candidate's likelihood."""

    n: int = Field(description="canaries")
    exposure: float = Field(description="mean over the canaries of log2(codes / rank), in bits")
    limit: float = Field(description="the most that 99 of 100 candidates reach by chance, in bits")
    n_first: int = Field(description="canaries that rank first of all codes")
    n_said: int = Field(description="canaries whose code the likeliest answer says")
    n_alternatives: int = Field(description="codes that each secret is ranked among")


class SafetyComparison(Record):
    """Violations of the safety prompts by candidate and champion."""

    n: int = Field(description="prompts")
    n_candidate: int = Field(description="prompts that the candidate's answer violates")
    n_champion: int
    never: tuple[str, ...] = Field(
        description="prompts marked `never` that the candidate's answer violates"
    )
    p_value: float = Field(description="chance of so many more violations of equally safe policies")


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
        description="KL(candidate || champion) in nats per token, on the candidate's samples"
    )
    checkable_candidate: Interval | None = Field(
        description="share of checkable answers that are correct"
    )
    checkable_champion: Interval | None
    length_candidate: Interval = Field(description="mean number of characters")
    length_champion: Interval
    checkable_difference: Interval | None = Field(
        default=None, description="candidate minus champion, paired by prompt"
    )
    expected_win_rate: Interval | None = Field(
        default=None, description="mean calibrated P(candidate preferred) by a person"
    )
    evaluation_set: int | None = Field(
        default=None, description="version of the evaluation set; None if it has none"
    )
    samples_hash: str | None = Field(default=None, description="hash of the judged completions")
    base: str | None = Field(default=None, description="the champion's oldest ancestor")
    win_rate_against_base: Interval | None = Field(
        default=None, description="win rate against `base` with the same judge, prompts and seeds"
    )
    win_rate_by_labels: Interval | None = Field(
        default=None,
        description="win rate by the members that labelled the retraining set: above `win_rate`, "
        "the candidate has learnt their errors too",
    )
    shares_votes: bool | None = Field(
        default=None,
        description="whether the judge was fitted on votes that the candidate was trained on; None "
        "if unknown",
    )
    judge_agreement: Interval | None = Field(
        default=None, description="share of held-out pairs on which the judge agrees with votes"
    )
    n_leaked: int | None = Field(
        default=None,
        description="evaluation prompts that the candidate was trained on; None if not counted",
    )
    length_controlled_win_rate: Interval | None = Field(
        default=None, description="win rate if both completions of a prompt were equally long"
    )
    diversity_candidate: float | None = Field(
        default=None,
        description="different word pairs over all of them in the completions of five words or "
        "more; None if all are shorter",
    )
    diversity_champion: float | None = None
    copied_candidate: float = Field(
        default=0.0, description="share of completions that only repeat their prompt"
    )
    copied_champion: float = 0.0
    by_category: tuple[CategoryComparison, ...] = ()
    by_dimension: tuple[DimensionComparison, ...] = Field(
        default=(), description="empty where no vote judges dimensions of the rubric"
    )
    safety: SafetyComparison | None = Field(
        default=None, description="None without a file of safety prompts"
    )
    canaries: CanaryExposure | None = Field(
        default=None, description="None where no canaries were planted"
    )
    evaluated_at: datetime = Field(default_factory=utc_now)

    @property
    def length_ratio(self) -> float:
        return self.length_candidate.value / self.length_champion.value


class GateCheck(Record):
    name: str
    passed: bool
    reason: str
    is_warning: bool = Field(
        default=False, description="whether a person should look although nothing is refused"
    )
    is_missing: bool = Field(
        default=False, description="whether it could not be made, so that nothing is known"
    )
    is_required: bool = Field(
        default=True, description="whether the candidate is refused where it does not pass"
    )

    @property
    def is_blocking(self) -> bool:
        return self.is_required and not self.passed


class GateDecision(Record):
    candidate: str
    champion: str
    promoted: bool
    checks: tuple[GateCheck, ...]
    evaluation: Evaluation | None = None
    not_served: str | None = Field(
        default=None, description="why completions do not come from a promoted candidate"
    )
    registered: ModelVersion | None = Field(
        default=None,
        description="the candidate's registry entry, with its parent and the hash of its "
        "retraining set",
    )
    run_id: str | None = Field(default=None, description="the run that decided")
    asks_people: bool = Field(
        default=False,
        description="whether all checks but the win rate are made, and votes decide on that",
    )
    people_win_rate: Interval | None = Field(
        default=None, description="by people's votes; None where the judge alone decided"
    )
    session_id: int | None = Field(
        default=None, description="the session that asked people; None where nobody was asked"
    )
    decided_at: datetime = Field(default_factory=utc_now)

    @property
    def blocking(self) -> tuple[GateCheck, ...]:
        """The checks for which the candidate is refused."""
        return tuple(check for check in self.checks if check.is_blocking)

    @property
    def verdict(self) -> str:
        if self.asks_people:
            return "waits for votes"
        if not self.promoted:
            return "not promoted"
        return "promoted, not served" if self.not_served else "promoted"


class Promotion(Record):
    """One move of the champion alias: new and previous version, time, reason and actor."""

    model_name: str
    version: int
    previous_version: int | None
    data_seq: int | None
    reason: str
    actor: str
    promoted_at: datetime = Field(default_factory=utc_now)
    last_decision: int | None = Field(
        default=None,
        description="last retraining decision whose quarantine, or its end, the data follow",
    )
    rolls_back: bool = Field(
        default=False, description="whether it leaves the version before off the history"
    )
    request_id: int | None = Field(default=None, description="the approved request behind it")
    deployment: dict[str, Any] | None = Field(
        default=None, description="what completes prompts from then on"
    )

    @property
    def label(self) -> str:
        return f"{self.model_name}@{self.version}"


class VisibleRules(Record):
    """The rules that annotators see. They omit what would reveal hidden cards."""

    model_config = ConfigDict(allow_inf_nan=False)

    lease_minutes: float = Field(
        default=10, gt=0, le=24 * 60, description="minutes for which a dealt card is reserved"
    )
    prefetch: int = Field(default=5, ge=1, le=20, description="number of cards dealt ahead")
    undo_seconds: float = Field(
        default=30,
        ge=0,
        le=86_400,
        description="seconds within which a vote may be undone or changed",
    )
    requires_reason: bool = Field(
        default=False, description="refuse votes without a reason, except skips"
    )
    shows_length: bool = Field(
        default=False,
        description="show the character count of each completion, which can cause length bias",
    )
    dimensions: tuple[str, ...] = Field(
        default=("helpful", "correct", "harmless", "style"),
        max_length=8,
        description="dimensions of the rubric, in order",
    )

    @field_validator("dimensions")
    @classmethod
    def _check_dimensions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names) or any(
            not re.fullmatch(r"[a-z][a-z0-9_ -]{0,39}", name) for name in names
        ):
            raise ValueError(
                "dimensions must be distinct names of at most 40 characters: lower-case letters, "
                "digits, spaces, _ or -"
            )
        return names


class AnnotationRules(VisibleRules):
    """Annotation settings of a project; versioned, set by a curator. A change applies to cards
    dealt later.
    """

    overlap: int = Field(default=1, ge=1, le=9, description="annotators per comparison")
    repeat_share: float = Field(
        default=0.08,
        ge=0,
        le=0.5,
        description="share of cards that repeat the annotator's own comparison with sides swapped",
    )
    repeat_after: int = Field(
        default=20, ge=1, description="minimum number of other votes between a card and its repeat"
    )
    gold_share: float = Field(
        default=0.05,
        ge=0,
        le=0.5,
        description="share of cards with a known answer, if the project has any",
    )
    rating_share: float = Field(
        default=0,
        ge=0,
        le=0.5,
        description="share of cards that ask for a rating, 1 to 5, of one completion of a "
        "comparison, which the annotator is then never dealt",
    )
    max_votes_per_day: int | None = Field(
        default=None, ge=1, description="votes of one annotator per UTC day; empty = no limit"
    )
    seed: int = Field(default=0, ge=0, description="seed of sides, order, repeats and gold cards")
    agreement_votes: int = Field(
        default_factory=lambda fields: max(2, fields.get("overlap", 1)),
        ge=2,
        le=9,
        description="votes below which a comparison counts as open; default: the overlap, at "
        "least 2",
    )


class CardKind(StrEnum):
    """Why a card was dealt; hidden from annotators, but for ratings."""

    NORMAL = "normal"
    REPEAT = "repeat"
    GOLD = "gold"
    RATING = "rating"


class Card(Record):
    """One comparison, or its left completion to be rated, dealt to one annotator until
    `leased_until`.
    """

    card_id: str
    comparison_id: str
    annotator_id: str
    pass_no: int
    kind: CardKind
    is_swapped: bool
    n: int = Field(description="place in the annotator's sequence of cards, from 1")
    state: Literal["leased", "voted", "rated", "skipped", "released"]
    offered_to: str | None = Field(
        description="the annotator asked by name, '' for anybody, None if the card has no place in "
        "an offer: a repeat, a rating, a known answer, or a vote after others took the place"
    )
    leased_at: datetime
    leased_until: datetime
    settled_at: datetime | None = None


class User(Record):
    """A user who may log in. `user_id` is the pseudonym used in votes; e-mail and name are stored
    only in this table.
    """

    user_id: str
    email: str
    name: str
    kind: Literal["person", "service"] = "person"
    roles: tuple[Role, ...] = ()
    has_password: bool = False
    created_at: datetime
    disabled_at: datetime | None = None
    paused_at: datetime | None = Field(
        default=None, description="since when they may not vote; they can still log in"
    )


class Token(Record):
    """A token as stored, by SHA-256 only. `token_id` is a prefix of that hash and safe to show."""

    token_id: str
    user_id: str
    kind: Literal["api", "session", "login"]
    name: str | None
    scopes: tuple[str, ...] | None = Field(
        description="subset of the owner's permissions; None = all of them"
    )
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class Guideline(Record):
    """Instructions for annotators in Markdown. Versions count from 1; a vote records the version it
    was cast under.
    """

    version: int
    text: str
    created_at: datetime
    created_by: str


class NewFeedback(Record):
    """Feedback sent from an application: thumbs (value 0 or 1), rating (1 to 5), a correction, or
    detailed text.
    """

    kind: Literal["thumbs", "rating", "correction", "detailed"]
    session_id: Text | None = Field(
        default=None, max_length=200, description="Groups the turns of one conversation."
    )
    turn: int | None = Field(default=None, ge=0)
    prompt: Text | None = Field(default=None, max_length=200_000)
    completion: Text | None = Field(default=None, max_length=200_000)
    completion_id: Text | None = Field(default=None, max_length=200)
    answer_id: Text | None = Field(
        default=None,
        max_length=200,
        description="id of a served answer: its version, session and kept texts are filled in",
    )
    model_version: Text | None = Field(
        default=None, max_length=200, description="what wrote the completion, as name@version"
    )
    # strict: true is no rating
    value: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    text: Text | None = Field(default=None, max_length=20_000)
    correction: Text | None = Field(default=None, max_length=200_000)
    tags: tuple[Annotated[Text, Field(max_length=100)], ...] = Field(default=(), max_length=20)
    given_at: AwareDatetime | None = Field(default=None, description="time by the sender's clock")
    author: Text | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="end user on whose behalf a service sends it; stored only as a pseudonym",
    )

    @model_validator(mode="after")
    def _check_kind_fields(self) -> Self:
        if self.kind == "thumbs" and self.value not in (0.0, 1.0):
            raise ValueError("thumbs need value 0 (down) or 1 (up)")
        if self.kind == "rating" and (self.value is None or not 1 <= self.value <= 5):
            raise ValueError("a rating needs a value from 1 to 5")
        if self.kind in ("correction", "detailed") and self.value is not None:
            raise ValueError(f"{self.kind} takes no value")
        has_texts = self.answer_id or (self.prompt and self.completion)
        if self.kind == "correction" and not (self.correction and has_texts):
            raise ValueError(
                "a correction needs the prompt, the completion it corrects and the corrected text"
            )
        if self.kind == "correction" and self.correction == self.completion:
            raise ValueError("the corrected text equals the completion it corrects")
        if self.kind == "detailed" and not self.text:
            raise ValueError("detailed feedback needs a text")
        if self.kind != "correction" and self.correction is not None:
            raise ValueError(f"{self.kind} takes no correction; send kind correction")
        if self.completion is None and self.completion_id is None and self.answer_id is None:
            raise ValueError(
                "feedback must name its completion: set completion, completion_id or answer_id"
            )
        return self


FeedbackStatus = Literal["pending", "approved", "rejected"]


class Feedback(NewFeedback):
    """Recorded feedback, and what curators decided about it; `comparison_id` and `vote_id` are set
    for a correction, which becomes a vote.
    """

    feedback_id: int
    created_at: datetime
    created_by: str
    comparison_id: str | None = None
    vote_id: str | None = None
    status: FeedbackStatus = "pending"
    curator_tags: tuple[str, ...] = Field(default=(), description="beside the sender's `tags`")
    notes: str | None = Field(default=None, description="of the curators")
    reviewed_by: str | None = None
    reviewed_at: datetime | None = None
