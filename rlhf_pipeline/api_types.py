"""The records of the REST API, with the bounds and descriptions that OpenAPI shows."""

from datetime import date, datetime
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SkipValidation

from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import AnnotationRules, AnnotatorKind, Choice, Highlight, Role, Text

MOST_IN_BATCH = 50
MOST_AT_ONCE = 20  # cards in a lease, as many as a project may let prefetch
MOST_LISTED = 200
LARGEST = 2**53 - 1  # an integer that every JSON reader can hold

T = TypeVar("T")


LongText = Annotated[Text, Field(max_length=20_000)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]
Id = Annotated[Text, Field(min_length=1, max_length=200)]
Side = Literal["a", "b", "tie"]
Flag = Literal["pii", "identity", "broken", "undone"]


class Model(BaseModel):
    """Unknown fields are an error in what is sent, so that a misspelt one is not lost in
    silence.
    """

    model_config = ConfigDict(extra="forbid")


class ProblemDetail(BaseModel):
    path: str = Field(description="of the field, e.g. `body.votes.0.choice`")
    message: str


class ProblemDocument(BaseModel):
    """RFC 9457: what went wrong and what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemDetail] = []


class Page(BaseModel, Generic[T]):
    """A part of a list, newest first; ask again with `cursor` = `next` for what follows."""

    items: list[T]
    next: str | None = Field(description="cursor of the next page; null at the end")


# --- people
# --------------------------------------------------------------------------------------------------


class Login(Model):
    email: Annotated[Text, Field(max_length=254)]
    password: Annotated[Text, Field(max_length=1000)]


class Redemption(Model):
    token: Annotated[Text, Field(max_length=200)]


class PasswordChange(Model):
    old_password: Annotated[Text, Field(max_length=1000)] | None = None
    new_password: Annotated[Text, Field(max_length=1000)]


class Me(BaseModel):
    user_id: str
    name: str
    email: str
    roles: list[Role] = Field(description="in this project, those of the organisation among them")
    permissions: list[Permission]
    project: str


class TokenOut(BaseModel):
    token_id: str
    kind: Literal["api", "session", "login"]
    name: str | None
    scopes: list[str] | None = Field(description="permissions it carries; null = all its owner has")
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewToken(Model):
    name: Name
    scopes: list[Permission] | None = Field(default=None, max_length=len(Permission))
    days: int = Field(default=90, ge=1, le=366)


class IssuedToken(TokenOut):
    secret: str | None = Field(
        description="shown this once; null in the answer to a repeated request"
    )


class UserOut(BaseModel):
    user_id: str
    email: str
    name: str
    kind: Literal["person", "service"]
    roles: list[Role] = Field(description="in this project")
    organization_roles: list[Role] = Field(
        description="in every project of the organisation, beside those"
    )
    in_every_project: bool = Field(
        description="an account of the organisation, whatever its roles; only its admins change it"
    )
    has_password: bool
    created_at: datetime
    disabled_at: datetime | None


class NewUser(Model):
    email: Annotated[Text, Field(max_length=254)]
    name: Annotated[Text, Field(max_length=200)] = ""
    roles: list[Role] = Field(default=[], max_length=len(Role))
    organization_roles: list[Role] = Field(
        default=[], max_length=len(Role), description="given by an admin of the organisation alone"
    )
    kind: Literal["person", "service"] = "person"


class AddedUser(UserOut):
    login_link: str | None = Field(
        description="logs its first visitor in, once, for 24 hours; null where a token asked, and "
        "in the answer to a repeated request"
    )


class UserChange(Model):
    name: Name | None = None
    roles: list[Role] | None = Field(default=None, max_length=len(Role))
    organization_roles: list[Role] | None = Field(
        default=None,
        max_length=len(Role),
        description="given by an admin of the organisation alone; the first ends password and "
        "tokens",
    )
    disabled: bool | None = None


class LoginLink(BaseModel):
    login_link: str | None
    expires_at: datetime


# --- cards and votes
# --------------------------------------------------------------------------------------------------


class LeaseRequest(Model):
    n: int = Field(default=5, ge=1, le=MOST_AT_ONCE)


class CardOut(BaseModel):
    """Nothing here tells why it was dealt, nor which model wrote what."""

    assignment_id: str
    prompt: str
    left: str
    right: str
    leased_until: datetime


class RulesShown(BaseModel):
    """What an annotator works by. Shares and seed of hidden cards are not among it."""

    dimensions: list[str]
    requires_reason: bool
    shows_length: bool
    undo_seconds: float
    lease_minutes: float
    prefetch: int


class Lease(BaseModel):
    cards: list[CardOut]
    rules: RulesShown
    guideline_version: int | None
    remaining: int = Field(
        description="about how many judgements are open for you: in tens, at most 200"
    )
    reason_empty: (
        Literal[
            "no_comparisons", "all_judged_by_you", "all_judged", "cap_reached", "others_hold_them"
        ]
        | None
    )


class Extended(BaseModel):
    n: int = Field(description="cards whose lease was prolonged")


class VoteFields(Model):
    """A judgement of a card (`assignment_id`: a is what stood left, b right) or, for those who may
    read comparisons, of a comparison (`comparison_id`: its own a and b)."""

    assignment_id: Id | None = None
    comparison_id: Id | None = None
    choice: Choice
    strength: int | None = Field(
        default=None, ge=1, le=4, description="1 slight to 4 strong; only with choice a or b"
    )
    reason: LongText | None = None
    stated_confidence: float | None = Field(default=None, ge=0, le=1)
    duration_s: float | None = Field(default=None, ge=0, le=86_400, allow_inf_nan=False)
    voted_at: AwareDatetime | None = Field(
        default=None, description="when, by your clock; missing = now. Later than now counts as now"
    )
    dimensions: dict[Annotated[Text, Field(max_length=40)], Side] = Field(default={}, max_length=8)
    highlights: list[Highlight] = Field(default=[], max_length=200)
    flags: list[Flag] = Field(default=[], max_length=4)
    supersedes: Id | None = Field(
        default=None,
        description="your vote that this one replaces, within the project's `undo_seconds`",
    )
    guideline_version: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        description="of the guidelines that were shown, as the lease told it; missing = the newest",
    )


class VoteInBatch(VoteFields):
    idempotency_key: Annotated[Text, Field(min_length=1, max_length=128)]


class Batch(Model):
    # Each is read by itself, so that a wrong one is answered for by itself.
    votes: list[SkipValidation[VoteInBatch]] = Field(min_length=1, max_length=MOST_IN_BATCH)


class VoteReceipt(BaseModel):
    vote_id: str
    assignment_id: str | None
    comparison_id: str | None = Field(description="only where the vote named it")
    choice: Choice
    strength: int | None
    voted_at: datetime
    received_at: datetime
    supersedes: str | None
    extra: bool | None = Field(
        description="the lease had ended and the card was somebody else's by then: kept as one "
        "judgement more; null for users who judge blind, to whom it would reveal hidden cards"
    )


class BatchResult(BaseModel):
    status: int
    vote: VoteReceipt | None = None
    problem: ProblemDocument | None = None


class BatchResults(BaseModel):
    results: list[BatchResult] = Field(description="in the order of the votes")


class VoteOut(BaseModel):
    """A recorded vote, sides as the comparison has them."""

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
    dimensions: dict[str, Side]
    highlights: list[Highlight]
    flags: list[Flag]


class OwnVote(BaseModel):
    """One's own vote as one cast it: a is what stood left."""

    vote_id: str
    assignment_id: str | None
    choice: Choice
    strength: int | None
    reason: str | None
    stated_confidence: float | None
    duration_s: float | None
    voted_at: datetime | None
    received_at: datetime
    supersedes: str | None
    is_superseded: bool
    dimensions: dict[str, Side]
    highlights: list[Highlight]
    flags: list[Flag]


class Share(BaseModel):
    """So many of n, with the interval in which the share lies at 95 %."""

    n: int
    low: float | None
    high: float | None


class Repeats(Share):
    agree: int


class GoldShare(Share):
    right: int


class Confidence(BaseModel):
    stated: float
    n: int
    right: int


class Statistics(BaseModel):
    """Of oneself. Hidden cards are counted as their votes stood at 00:00 UTC: a later vote would
    reveal its card.
    """

    votes_today: int
    votes_total: int
    median_seconds: float | None
    days_in_a_row: int
    repeats: Repeats
    gold: GoldShare
    confidence: list[Confidence]


# --- comparisons and consensus
# ----------------------------------------------------------------------------------------------


class ComparisonOut(BaseModel):
    comparison_id: str
    day: date
    prompt_id: str | None = Field(description="as `source`: a correction has one of its own")
    prompt: str
    completion_a: str
    completion_b: str
    category: str | None = Field(
        description="as `source`, null for those who may vote until they have judged it: a "
        "correction has its own"
    )
    source: str | None
    flag: str | None
    names_maker: bool = Field(description="a completion says which model wrote it")
    model_version_a: str | None = Field(
        description="null for those who may vote: who knows the name judges the name"
    )
    model_version_b: str | None
    gold: str | None = Field(description="the known answer; null for those who may vote")
    n_slots: int | None = Field(
        description="judgements asked of people; null for users who may vote, as n_done"
    )
    n_done: int | None


class Offer(Model):
    """Which comparisons: by id, by day, or all that nobody voted on; and whom, if not anybody."""

    ids: list[Id] | None = Field(default=None, max_length=10_000)
    day: date | None = None
    all_unvoted: bool = False
    overlap: int | None = Field(
        default=None, ge=1, le=9, description="people who judge each; missing = as the rules say"
    )
    priority: int = Field(default=0, ge=-1000, le=1000, description="lower is dealt first")
    annotator_id: Id | None = Field(
        default=None,
        description="user id of the one person who is to judge them, before anything else; missing "
        "= anybody",
    )


class Offered(BaseModel):
    n_comparisons: int | None = Field(
        description="null for users who may vote, unless they named the comparisons"
    )
    n_slots: int | None = Field(description="that are new; null for users who may vote")


class Withdrawal(Model):
    ids: list[Id] = Field(min_length=1, max_length=10_000)


class Withdrawn(BaseModel):
    n_slots: int | None = Field(
        description="open slots that were withdrawn; leased cards stay. Null for users who may vote"
    )


class ConsensusOut(BaseModel):
    """What people together say; see `docs/annotating.md` for the rule."""

    comparison_id: str
    prompt_id: str
    state: Literal["open", "disputed", "agreed"]
    choice: Choice | None = Field(description="missing where two sides have the same weight")
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
        description="chance that a typical annotator takes a; by joint_model alone, as the fields "
        "below"
    )
    p_low: float | None
    p_high: float | None
    up_to_seq: int | None = Field(description="newest vote that the annotator model was fitted to")
    n_since: int | None = Field(description="of the votes, those that came after it")


# --- guidelines, rules
# --------------------------------------------------------------------------------------------------


class GuidelineOut(BaseModel):
    version: int
    text: str
    created_at: datetime
    created_by: str


class NewGuideline(Model):
    text: Annotated[Text, Field(min_length=1, max_length=100_000)]


class RulesRead(AnnotationRules):
    seed: int | None = Field(
        description="null but for admins, and for auditors who do not vote: it tells which cards "
        "are hidden ones"
    )  # type: ignore[assignment]


class RulesOut(BaseModel):
    version: int
    rules: RulesRead


# --- progress, metrics, feedback, audit
# -------------------------------------------------------------------------------------


class Work(BaseModel):
    n_comparisons: int
    n_slots: int
    n_done: int
    n_leased: int
    n_open: int


class DayCount(BaseModel):
    day: date
    n: int


class AnnotatorProgress(BaseModel):
    annotator_id: str
    name: str | None = Field(description="for those who may read users")
    kind: AnnotatorKind
    n: int
    n_today: int
    median_seconds: float | None
    last_at: datetime | None


class ProgressOut(BaseModel):
    """Votes that were cast, skips and a machine's left out; a vote that replaced another is counted
    once. A day is that of `voted_at`: imported votes without a time stand in no day and are
    nobody's last."""

    work: Work | None = Field(description="null for users who may vote")
    votes: int
    machine_votes: int
    votes_by_day: list[DayCount]
    annotators: list[AnnotatorProgress]


class MarkedShare(Share):
    """n: votes of which it could be said."""

    marked: int


class AnnotatorQuality(BaseModel):
    """Of judgements that count. A share of no votes has no interval."""

    annotator_id: str
    name: str | None = Field(description="for those who may read users")
    n_votes: int
    too_fast: MarkedShare | None = Field(
        description="faster than anybody reads both completions, of votes that say how long they "
        "took"
    )
    same_as_before: MarkedShare | None = Field(
        description="share of votes that repeat the previous vote's displayed side; about 0.5 for "
        "attentive annotators. Null where no displayed side is known, as of imported "
        "votes, and for users who may vote"
    )
    duplicate: MarkedShare | None = Field(
        description="of two completions that the same annotator had judged before under another "
        "comparison, repeats left out"
    )


class QualityOut(BaseModel):
    """The most doubtful first: by the highest lower end of their shares, the same as before above a
    half.
    """

    up_to_seq: int = Field(
        description="the last vote that is counted; after a start, many are still to be read"
    )
    newest_seq: int
    n_annotators: int
    annotators: list[AnnotatorQuality] = Field(description="at most 500")


class Metrics(BaseModel):
    votes: int
    machine_votes: int
    votes_today: int
    skips: int
    annotators: int
    comparisons: int
    offered: int | None = Field(
        description="null for users who may vote, as slots, done, leased, open and audit_links"
    )
    slots: int | None
    done: int | None
    leased: int | None
    open: int | None
    feedback: dict[str, int]
    audit_links: int | None
    guideline_version: int | None
    rules_version: int


class AuditLinkOut(BaseModel):
    seq: int
    at: datetime
    actor: str
    action: str
    object_id: str
    payload_digest: str
    prev_hash: str
    hash: str


class Verification(BaseModel):
    holds: bool
    n_links: int = Field(description="that follow from each other; 0 where the chain is broken")
    broken_at: str | None = Field(description="the first row that is not what it was, and how")
    n_anchors: int = Field(description="daily anchors the chain was held against")


class Health(BaseModel):
    status: Literal["ok"]
