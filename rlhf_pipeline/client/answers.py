"""What the API answers, as immutable records. Fields that a newer server adds are passed over."""

from datetime import date, datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import ConfigDict

from rlhf_pipeline.records import (
    AnnotationRules,
    AnnotatorKind,
    Choice,
    Highlight,
    Interval,
    Record,
    ReliabilityBin,
    Role,
)

T = TypeVar("T")


class ApiRecord(Record):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Me(ApiRecord):
    user_id: str
    name: str
    email: str
    roles: tuple[Role, ...]
    permissions: tuple[str, ...]
    project: str


class Share(ApiRecord):
    n: int
    low: float | None
    high: float | None
    agree: int | None = None
    right: int | None = None
    marked: int | None = None


class Confidence(ApiRecord):
    stated: float
    n: int
    right: int


class Statistics(ApiRecord):
    votes_today: int
    votes_total: int
    median_seconds: float | None
    days_in_a_row: int
    repeats: Share
    gold: Share
    confidence: tuple[Confidence, ...]


class DealtCard(ApiRecord):
    """What is to be judged; `left` is a, `right` b."""

    assignment_id: str
    prompt: str
    left: str
    right: str
    leased_until: datetime


class RulesShown(ApiRecord):
    dimensions: tuple[str, ...]
    requires_reason: bool
    shows_length: bool
    undo_seconds: float
    lease_minutes: float
    prefetch: int


class Lease(ApiRecord):
    """Cards, and where there are none the reason."""

    cards: tuple[DealtCard, ...]
    rules: RulesShown
    guideline_version: int | None
    remaining: int
    reason_empty: (
        Literal[
            "no_comparisons", "all_judged_by_you", "all_judged", "cap_reached", "others_hold_them"
        ]
        | None
    )


class VoteReceipt(ApiRecord):
    vote_id: str
    assignment_id: str | None
    comparison_id: str | None
    choice: Choice
    strength: int | None
    voted_at: datetime
    received_at: datetime
    supersedes: str | None
    extra: bool | None


class ProblemField(ApiRecord):
    path: str
    message: str


class ProblemDocument(ApiRecord):
    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    errors: tuple[ProblemField, ...] = ()


class BatchResult(ApiRecord):
    """Of one vote of a batch: its receipt, or what was wrong with it."""

    status: int
    vote: VoteReceipt | None = None
    problem: ProblemDocument | None = None


class RecordedVote(ApiRecord):
    """A recorded vote; sides are the comparison's."""

    seq: int
    vote_id: str
    comparison_id: str
    annotator_id: str
    annotator_kind: AnnotatorKind
    choice: Choice
    strength: int | None
    reason: str | None
    stated_confidence: float | None
    duration_s: float | None
    voted_at: datetime | None
    received_at: datetime
    day: date
    origin: str
    supersedes: str | None
    is_superseded: bool
    is_counting: bool
    dimensions: dict[str, str] = {}
    highlights: tuple[Highlight, ...] = ()
    flags: tuple[str, ...] = ()


class Comparison(ApiRecord):
    comparison_id: str
    day: date
    prompt_id: str | None = None
    prompt: str
    completion_a: str
    completion_b: str
    category: str | None = None
    source: str | None = None
    flag: str | None = None
    model_version_a: str | None = None
    model_version_b: str | None = None
    gold: str | None = None
    n_slots: int | None = 0
    n_done: int | None = 0


class Offered(ApiRecord):
    n_comparisons: int | None
    n_slots: int | None


class ComparisonConsensus(ApiRecord):
    """What people together say of a comparison."""

    comparison_id: str
    state: Literal["open", "disputed", "agreed"]
    choice: Choice | None
    share: float
    low: float
    high: float
    n_votes: int
    n_a: int
    n_b: int
    n_ties: int
    n_both_bad: int
    p_a: float | None = None
    p_low: float | None = None
    p_high: float | None = None
    up_to_seq: int | None = None
    n_since: int | None = None


class GuidelineVersion(ApiRecord):
    version: int
    text: str
    created_at: datetime
    created_by: str


class ReadRules(AnnotationRules):
    """Rules as they are told; what a newer server adds is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    # None for those who may not write rules: it tells which cards are hidden ones
    seed: int | None = None  # type: ignore[assignment]


class RulesVersion(ApiRecord):
    version: int
    rules: ReadRules


class Work(ApiRecord):
    n_comparisons: int
    n_slots: int
    n_done: int
    n_leased: int
    n_open: int


class DayCount(ApiRecord):
    day: date
    n: int


class AnnotatorProgress(ApiRecord):
    annotator_id: str
    name: str | None = None
    n: int
    n_today: int
    median_seconds: float | None
    last_at: datetime | None


class AnnotationProgress(ApiRecord):
    work: Work | None
    votes_by_day: tuple[DayCount, ...]
    annotators: tuple[AnnotatorProgress, ...]


class AnnotatorQuality(ApiRecord):
    """Votes of `n` that bear a mark; None where it is unknown, or hidden from the user who asks."""

    annotator_id: str
    name: str | None
    n_votes: int
    too_fast: Share | None
    same_as_before: Share | None
    duplicate: Share | None


class DataQuality(ApiRecord):
    up_to_seq: int
    newest_seq: int
    n_annotators: int
    annotators: tuple[AnnotatorQuality, ...]


class Metrics(ApiRecord):
    votes: int
    votes_today: int
    comparisons: int
    open: int | None
    feedback: dict[str, int]


class PairToPredict(Record):
    """Two completions of a prompt; they need not be of the project."""

    prompt: str
    completion_a: str
    completion_b: str


class Prediction(ApiRecord):
    """P(a preferred): by the reward model, and after calibration."""

    p_raw: float
    p_calibrated: float
    score_a: float
    score_b: float
    features_hash: str


class PredictionSet(ApiRecord):
    """In the order of the pairs, and what they rest on."""

    reward_model: str
    calibrator: str
    data_hash: str | None
    data_seq: int | None
    predicted_at: datetime
    predictions: tuple[Prediction, ...]


class UserRow(ApiRecord):
    user_id: str
    email: str
    name: str
    kind: str
    roles: tuple[Role, ...]
    organization_roles: tuple[Role, ...] = ()
    in_every_project: bool = False
    created_at: datetime
    disabled_at: datetime | None
    login_link: str | None = None  # of `add_user` in a session; a token is told none
    # of an answer about one user, none in lists: what `change_user` was made of
    etag: str | None = None


class TokenRow(ApiRecord):
    """One's own token as it is listed: never its secret."""

    token_id: str
    name: str | None
    scopes: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class Calibration(ApiRecord):
    """One calibrator as it was measured on the test split of its day."""

    reward_model: str
    version: int
    calibrator_version: int | None
    method: str
    state: Literal["serving", "standby", "replaced", "refused", "imported"]
    fitted_at: datetime
    n_fit: int
    n: int
    ece_raw: Interval
    ece_calibrated: Interval
    ece_debiased_raw: Interval | None
    ece_debiased_calibrated: Interval | None
    slope_raw: Interval | None
    slope_calibrated: Interval | None
    accuracy: Interval
    noise_ceiling: Interval | None


class CalibrationDetail(Calibration):
    raw_bins: tuple[ReliabilityBin, ...]
    calibrated_bins: tuple[ReliabilityBin, ...]


class CalibrationProbe(ApiRecord):
    """Predictions that were made before their votes, beside these."""

    reward_model: str | None
    calibrator: str | None
    n_votes: int
    n_comparisons: int
    newest_only: bool
    accuracy: Interval | None
    noise_ceiling: Interval | None
    ece: Interval | None
    ece_debiased: Interval | None
    slope: Interval | None
    brier: Interval | None
    bins: tuple[ReliabilityBin, ...]
    counted_at: datetime
    is_current: bool


class ProbedPair(ApiRecord):
    """A vote that met a prediction; what a token may not read is None."""

    comparison_id: str
    seq: int
    p_raw: float
    p_calibrated: float
    prompt: str | None
    completion_a: str | None
    completion_b: str | None
    choice: Choice | None
    strength: int | None
    annotator_id: str | None
    wrong: bool | None


class AuditLinkRecord(ApiRecord):
    seq: int
    at: datetime
    actor: str
    action: str
    object_id: str
    payload_digest: str
    prev_hash: str
    hash: str


class Verification(ApiRecord):
    holds: bool
    n_links: int
    broken_at: str | None
    n_anchors: int


class Page(ApiRecord, Generic[T]):
    """A part of a list; `next` is the cursor of what follows."""

    items: tuple[T, ...]
    next: str | None


JsonObject = dict[str, Any]
