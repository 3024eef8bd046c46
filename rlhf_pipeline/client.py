"""`Client`: the typed client of the REST API, safe to share between threads.

with Client("http://127.0.0.1:8080", token="rlhf_…") as api:
    for card in api.lease(5).cards:
        api.vote("a", card_id=card.card_id, strength=3)
"""

import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from rlhf_pipeline.core.api_types.base import Answer, Page, ProblemDocument
from rlhf_pipeline.core.api_types.feedback_reviews import (
    FeedbackReview,
    ReviewedFeedback,
    ReviewUndo,
)
from rlhf_pipeline.core.api_types.filters import (
    AlertFilter,
    ComparisonFilter,
    DatasetFilter,
    FeedbackFilter,
    Filter,
    PairFilter,
    PointFilter,
    ReleaseFilter,
    VoteFilter,
)
from rlhf_pipeline.core.api_types.production import ProductionFigure, StoredFigures
from rlhf_pipeline.core.api_types.project import (
    ComparisonOut,
    DecisionOut,
    Me,
    Metrics,
    Offered,
    PairToPredict,
    Predictions,
    Withdrawn,
)
from rlhf_pipeline.core.api_types.votes import (
    BatchResult,
    BatchResults,
    Extended,
    Lease,
    RatingReceipt,
    Statistics,
    VoteReceipt,
)
from rlhf_pipeline.core.curation import (
    CreatedPairs,
    CuratedPair,
    Dataset,
    DatasetChange,
    DatasetDetails,
    DatasetExport,
    ExportOrder,
    FeedbackBulk,
    NewDataset,
    NewPair,
    PairChange,
)
from rlhf_pipeline.core.errors import (
    ApiError,
    ConfigurationError,
    ConflictingRequest,
    InvalidRequest,
    MissingResource,
    NotAuthorised,
    ServerUnavailable,
    TooManyRequests,
)
from rlhf_pipeline.core.experiments import (
    Experiment,
    ExperimentChange,
    ExperimentReport,
    NewExperiment,
)
from rlhf_pipeline.core.monitoring import Alert, MetricPoint
from rlhf_pipeline.core.records import Choice, Feedback, ListedVote, NewFeedback, Promotion, User
from rlhf_pipeline.core.releases import Deployment, ReleasedModel

A = TypeVar("A", bound=BaseModel)

TIMEOUT_S = 30.0
TRIES = 6
LONGEST_WAIT_S = 5.0
ERRORS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: NotAuthorised,
    403: NotAuthorised,
    404: MissingResource,
    409: ConflictingRequest,
    412: ConflictingRequest,
    413: InvalidRequest,
    422: InvalidRequest,
    428: InvalidRequest,
    429: TooManyRequests,
}
DOWN = (502, 503, 504)
SETS, PAIRS, MODELS = "training-datasets", "preference-pairs", "models"
EXPERIMENTS = f"{MODELS}/ab-test"
NO_TYPE = "about:blank"  # RFC 9457: the status alone says what happened


class VoteOptions(TypedDict, total=False):
    """Fields of a vote besides its choice; one of the two ids is required."""

    card_id: str
    comparison_id: str
    strength: int | None
    reason: str | None
    stated_confidence: float | None
    duration_s: float | None
    voted_at: datetime | None
    dimensions: Mapping[str, str]
    highlights: Sequence[Mapping[str, Any]]
    flags: Sequence[str]
    supersedes: str | None
    guideline_version: int | None
    idempotency_key: str


class VoteBody(VoteOptions):
    """A complete vote."""

    choice: Choice | str


class Client:
    """A server and a token. A request whose answer was lost is sent again if that does nothing
    twice: reads, leases, and votes and feedback under their idempotency key.

    Raises the matching ApiError: NotAuthorised, MissingResource, ConflictingRequest,
    InvalidRequest, TooManyRequests, and ServerUnavailable if the server does not answer several
    attempts.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
        transport: httpx.BaseTransport | None = None,
    ):
        self._longest_wait_s = longest_wait_s
        self._http = httpx.Client(
            base_url=_base_url(url),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
        )

    def me(self) -> Me:
        """The user of the token, with roles and permissions."""
        return self._get("me", Me)

    def statistics(self) -> Statistics:
        """Your own voting statistics."""
        return self._get("me/statistics", Statistics)

    def lease(self, n: int = 5, *, ratings: bool = False) -> Lease:
        """Lease up to `n` cards to judge; cards you still hold come first. With `ratings` some may
        be of kind `rating`.
        """
        body = {"n": n} | ({"ratings": True} if ratings else {})
        return self._post("cards:lease", Lease, body, is_repeatable=True)

    def extend(self) -> int:
        """Extend all leases you hold; returns their number."""
        return self._post("cards:extend", Extended, is_repeatable=True).n

    def release(self, card_id: str) -> None:
        """Return a card without judging it."""
        self._post(f"cards/{quote(card_id, safe='')}:release", Answer, is_repeatable=False)

    def vote(self, choice: Choice | str, **options: Unpack[VoteOptions]) -> VoteReceipt:
        """Cast a vote on a card (`card_id`: a is the left side) or, with the permission
        `comparisons.read`, on a `comparison_id`.
        """
        body = _drop_missing({**options, "choice": choice})
        key = body.pop("idempotency_key", None) or _new_key()
        return self._post("votes", VoteReceipt, body, key=key, is_repeatable=True)

    def rate(
        self, card_id: str, value: int, *, text: str | None = None, key: str | None = None
    ) -> RatingReceipt:
        """Rate a card of kind `rating`, 1 (poor) to 5 (excellent)."""
        body = _drop_missing({"card_id": card_id, "value": value, "text": text})
        key = key or _new_key()
        return self._post("ratings", RatingReceipt, body, key=key, is_repeatable=True)

    def vote_batch(self, votes: Sequence[VoteBody]) -> tuple[BatchResult, ...]:
        """Cast up to 50 votes. Each gets its own result, in order."""
        bodies = [{"idempotency_key": _new_key()} | _drop_missing(vote) for vote in votes]
        return self._post(
            "votes:batch", BatchResults, {"votes": bodies}, is_repeatable=True
        ).results

    def votes(self, only: VoteFilter = VoteFilter(limit=100)) -> Iterator[ListedVote]:  # noqa: B008
        """Recorded votes, newest first; `limit` is the size of a page."""
        return self._list("votes", ListedVote, only)

    def comparisons(
        self,
        only: ComparisonFilter = ComparisonFilter(limit=100),  # noqa: B008
    ) -> Iterator[ComparisonOut]:
        """Comparisons, those of the newest day first."""
        return self._list("comparisons", ComparisonOut, only)

    def comparison(self, comparison_id: str) -> ComparisonOut:
        """One comparison."""
        return self._get(f"comparisons/{quote(comparison_id, safe='')}", ComparisonOut)

    def offer(
        self,
        *,
        ids: Sequence[str] | None = None,
        day: date | None = None,
        all_unvoted: bool = False,
        overlap: int | None = None,
        priority: int = 0,
        annotator_id: str | None = None,
    ) -> Offered:
        """Offer comparisons to all annotators, or to the one named."""
        body = {
            "ids": None if ids is None else list(ids),
            "day": day,
            "all_unvoted": all_unvoted,
            "overlap": overlap,
            "priority": priority,
            "annotator_id": annotator_id,
        }
        return self._post("comparisons:offer", Offered, _drop_missing(body), is_repeatable=False)

    def withdraw(self, ids: Sequence[str]) -> int:
        """Withdraw the open judgements of comparisons; returns their number."""
        body = {"ids": list(ids)}
        return self._post("comparisons:withdraw", Withdrawn, body, is_repeatable=False).n_withdrawn

    def predict(self, *pairs: PairToPredict) -> Predictions:
        """Predict with the champion reward model which completion people prefer, for 1 to 50
        pairs.

        A model that was fitted to few pairs is rarely right. Where `calibrator` is `none`, its
        probabilities were never compared with votes: read `GET calibrations` before using them.
        """
        body = {"pairs": [pair.model_dump() for pair in pairs]}
        return self._post("predictions", Predictions, body, is_repeatable=True)

    def users(self, *, limit: int = 100) -> Iterator[User]:
        """All users of the project, by e-mail address."""
        return self._list("users", User, Filter(limit=limit))

    def metrics(self) -> Metrics:
        """Figures of the project for scripts."""
        return self._get("metrics", Metrics)

    def metric_points(
        self,
        *names: str,
        since: date | None = None,
        until: date | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> Iterator[MetricPoint]:
        """Figures of the project by day, the newest day first; of all metrics if none is named."""
        chosen = [f"{name}={value}" for name, value in (labels or {}).items()]
        only = PointFilter(name=list(names), label=chosen, since=since, until=until, limit=limit)
        return self._list("metrics/points", MetricPoint, only)

    def send_production_figures(self, figures: Sequence[ProductionFigure]) -> StoredFigures:
        """Store figures of models in production; each replaces that of the same day, metric and
        model, so it may be sent again.
        """
        body = {
            "figures": [figure.model_dump(mode="json", exclude_none=True) for figure in figures]
        }
        return self._post("metrics/production", StoredFigures, body, is_repeatable=True)

    def decisions(self, *, limit: int = 100) -> Iterator[DecisionOut]:
        """Decisions to retrain, to answer otherwise, or to hold, newest first."""
        return self._list("decisions", DecisionOut, Filter(limit=limit))

    def answer_decision(
        self, decision_id: int, answer: Literal["quarantine", "retrain", "nothing"], reason: str
    ) -> DecisionOut:
        """Answer a decision that waits for a person."""
        body = {"answer": answer, "reason": reason}
        return self._post(f"decisions/{decision_id}:answer", DecisionOut, body, is_repeatable=False)

    def alerts(self, only: AlertFilter = AlertFilter(limit=100)) -> Iterator[Alert]:  # noqa: B008
        """Alerts, newest first; by default those that are open or acknowledged."""
        return self._list("alerts", Alert, only)

    def send_feedback(
        self, feedback: NewFeedback, *, idempotency_key: str | None = None
    ) -> Feedback:
        """Send thumbs, a rating, a text or a correction. A correction becomes a comparison with a
        vote for the corrected text.
        """
        body = feedback.model_dump(mode="json", exclude_none=True)
        key = idempotency_key or _new_key()
        return self._post("feedback", Feedback, body, key=key, is_repeatable=True)

    def datasets(
        self,
        only: DatasetFilter = DatasetFilter(limit=100),  # noqa: B008
    ) -> Iterator[Dataset]:
        """Data sets, newest first; archived ones only where the filter names them."""
        return self._list(SETS, Dataset, only)

    def dataset(self, dataset_id: int) -> DatasetDetails:
        """One data set with its frozen versions."""
        return self._get(f"{SETS}/{dataset_id}", DatasetDetails)

    def create_dataset(self, new: NewDataset) -> Dataset:
        """Create a draft."""
        return self._write("POST", SETS, Dataset, new)

    def change_dataset(self, dataset_id: int, change: DatasetChange) -> Dataset:
        """Change a data set wholly or not at all. Status `curating` counts its rows and measures
        their quality, `ready` freezes them as its next version.
        """
        return self._write("PATCH", f"{SETS}/{dataset_id}", Dataset, change)

    def archive_dataset(self, dataset_id: int) -> Dataset:
        """Archive a data set. Its versions stay."""
        return self._write("DELETE", f"{SETS}/{dataset_id}", Dataset)

    def export_dataset(
        self,
        dataset_id: int,
        order: ExportOrder = ExportOrder(),  # noqa: B008
    ) -> DatasetExport:
        """Write a frozen version for a trainer or provider, checked by its rules."""
        return self._write("POST", f"{SETS}/{dataset_id}/export", DatasetExport, order)

    def pairs(
        self,
        only: PairFilter = PairFilter(limit=100),  # noqa: B008
    ) -> Iterator[CuratedPair]:
        """Hand-made pairs in their latest revision, the newest first."""
        return self._list(PAIRS, CuratedPair, only)

    def add_pair(self, new: NewPair) -> CuratedPair:
        """Add a pair to a data set."""
        return self._write("POST", PAIRS, CuratedPair, new)

    def add_pairs(self, dataset_id: int, feedback_ids: Sequence[int]) -> tuple[CuratedPair, ...]:
        """Make pairs of approved corrections and ratings, all or none."""
        bulk = FeedbackBulk(dataset_id=dataset_id, feedback_ids=tuple(feedback_ids))
        return self._write("POST", f"{PAIRS}/bulk", CreatedPairs, bulk).pairs

    def change_pair(self, pair_id: int, change: PairChange) -> CuratedPair:
        """Make the next revision of a pair. Frozen versions keep theirs."""
        return self._write("PATCH", f"{PAIRS}/{pair_id}", CuratedPair, change)

    def reject_pair(self, pair_id: int) -> CuratedPair:
        """Reject a pair: the next version leaves it out."""
        return self._write("DELETE", f"{PAIRS}/{pair_id}", CuratedPair)

    def feedback(self, only: FeedbackFilter = FeedbackFilter()) -> Iterator[Feedback]:  # noqa: B008
        """Feedback, newest first."""
        return self._list("feedback", Feedback, only)

    def review_feedback(self, review: FeedbackReview) -> ReviewedFeedback:
        """Approve, reject, tag or annotate feedback, all entries or none. Raises
        ConflictingRequest if the filter of the review matches another number of entries.
        """
        return self._write("POST", "feedback:review", ReviewedFeedback, review)

    def undo_review(self, review_id: int) -> ReviewedFeedback:
        """Undo a review of feedback; `left` names entries that were reviewed again since."""
        undo = ReviewUndo(review_id=review_id)
        return self._write("POST", "feedback:undo", ReviewedFeedback, undo)

    def models(self, only: ReleaseFilter = ReleaseFilter(limit=100)) -> Iterator[ReleasedModel]:  # noqa: B008
        """Registered versions with their state, newest first."""
        return self._list(MODELS, ReleasedModel, only)

    def deploy(
        self, model: str, reason: str, *, overrides: bool = False, expected: int | None = None
    ) -> Deployment:
        """Deploy a version, or request it where a second person has to approve. `expected`: the
        version that it replaces.
        """
        body = {"reason": reason, "overrides": overrides, "expected": expected}
        path = f"{MODELS}/{quote(model, safe='')}/deploy"
        return self._post(path, Deployment, body, is_repeatable=False)

    def roll_back(self, model: str, reason: str) -> Promotion:
        """Deploy the version before the present one. `model`: a name, or the version that is
        deployed now.
        """
        path = f"{MODELS}/{quote(model, safe='')}/rollback"
        return self._post(path, Promotion, {"reason": reason}, is_repeatable=False)

    def experiments(self) -> tuple[Experiment, ...]:
        """Experiments, newest first."""
        return self._get(EXPERIMENTS, Page[Experiment]).items

    def experiment(self, experiment_id: int) -> ExperimentReport:
        """One experiment with its present results."""
        return self._get(f"{EXPERIMENTS}/{experiment_id}", ExperimentReport)

    def start_experiment(self, new: NewExperiment) -> Experiment:
        """Let a second version answer a share of the chats, or make a draft."""
        return self._write("POST", EXPERIMENTS, Experiment, new)

    def change_experiment(self, experiment_id: int, change: ExperimentChange) -> Experiment:
        """Start, pause, resume, end or cancel an experiment, raise its share, or set its end."""
        return self._write("PATCH", f"{EXPERIMENTS}/{experiment_id}", Experiment, change)

    def deploy_treatment(self, experiment_id: int, reason: str) -> Deployment:
        """Deploy the treatment to everybody, or request it, and end the experiment."""
        path = f"{EXPERIMENTS}/{experiment_id}/deploy"
        return self._post(path, Deployment, {"reason": reason}, is_repeatable=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _list(self, path: str, item: type[A], only: Filter) -> Iterator[A]:
        """The items of all pages."""
        while True:
            params = only.model_dump(mode="json", exclude_none=True)
            page = self._get(path, Page[item], params)  # type: ignore[valid-type]
            yield from page.items
            if page.next is None:
                return
            only = only.at(page.next, only.limit)

    def _get(self, path: str, kind: type[A], params: Mapping[str, Any] | None = None) -> A:
        request = self._http.build_request("GET", _locate(path), params=params)
        return self._read(request, kind, is_repeatable=True)

    def _post(
        self,
        path: str,
        kind: type[A],
        body: Any = None,
        *,
        key: str | None = None,
        is_repeatable: bool,
    ) -> A:
        """`is_repeatable`: sending the request twice does no more than once."""
        headers = {} if key is None else {"Idempotency-Key": key}
        request = self._http.build_request("POST", _locate(path), json=body, headers=headers)
        return self._read(request, kind, is_repeatable)

    def _write(self, method: str, path: str, kind: type[A], body: BaseModel | None = None) -> A:
        """Send a record; a rejection or an end again if its answer was lost."""
        fields = None if body is None else body.model_dump(mode="json", exclude_none=True)
        request = self._http.build_request(method, _locate(path), json=fields)
        return self._read(request, kind, is_repeatable=method == "DELETE")

    def _read(self, request: httpx.Request, kind: type[A], is_repeatable: bool) -> A:
        """Raises the ApiError that matches an unsuccessful answer."""
        response = self._send(request, is_repeatable)
        if not response.is_success:
            raise _error_of(response)
        try:
            # A newer server may add fields, which records otherwise refuse.
            return kind.model_validate_json(response.content or b"{}", extra="ignore")
        except ValidationError as cause:
            raise ServerUnavailable(
                f"{request.method} {request.url.path}: the answer does not match this API: "
                f"{cause}. Check that the address is that of `rlhf serve` and that client and "
                "server have the same version.",
                status=response.status_code,
            ) from cause

    def _send(self, request: httpx.Request, is_repeatable: bool) -> httpx.Response:
        """Send a request, again while that is safe and may help, after growing delays with jitter,
        so that waiting clients do not return at the same moment.
        """
        n = 0
        while True:
            n += 1
            is_last = n == TRIES or not is_repeatable
            delay = min(self._longest_wait_s, 0.05 * 2**n) * random.uniform(0.5, 1.5)
            try:
                response = self._http.send(request)
            except httpx.TransportError as cause:
                if is_last:
                    raise ServerUnavailable(
                        f"{request.url.scheme}://{request.url.netloc.decode()} does not answer: "
                        f"{cause or type(cause).__name__}. Start it with `rlhf serve`, or correct "
                        "the address."
                    ) from cause
            else:
                asked_s = _retry_after_s(response)
                if is_last or asked_s is None or asked_s > self._longest_wait_s:
                    return response
                delay = max(delay, asked_s)
            time.sleep(delay)


def _locate(path: str) -> str:
    """Its place below the base URL. The slash is needed: `votes:batch` would be a URL of scheme
    `votes`.
    """
    return f"/{path}" if path.startswith((SETS, PAIRS, MODELS)) else f"/v1/{path}"


def _base_url(url: str) -> httpx.URL:
    """Raises ConfigurationError for an address that is not an HTTP URL."""
    try:
        parsed = httpx.URL(url.rstrip("/") + "/api/")
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(
            f"Invalid server address {url!r}. Write it as http://127.0.0.1:8080."
        )
    return parsed


def _retry_after_s(response: httpx.Response) -> float | None:
    """Seconds after which the same request may get another answer; None if this one is final."""
    header = response.headers.get("retry-after")
    if response.status_code not in DOWN:
        return None
    try:
        return float(header or 0)
    except ValueError:  # a date: the server is down for longer than a client waits
        return None


def _error_of(response: httpx.Response) -> ApiError:
    status = response.status_code
    try:
        problem = ProblemDocument.model_validate_json(response.content)
    except ValidationError:
        problem = ProblemDocument(type=NO_TYPE, title="", status=status, detail=response.text[:300])
    name = problem.type.removeprefix("urn:rlhf:problem:")
    return ERRORS.get(status, ServerUnavailable if status >= 500 else ApiError)(
        f"{status}: {problem.detail or problem.title or response.reason_phrase}",
        status=status,
        kind=None if name == NO_TYPE else name,
        fields=tuple((field.path, field.message) for field in problem.errors),
    )


def _drop_missing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None; times and days as ISO 8601."""
    return {
        name: value.isoformat() if isinstance(value, date) else value
        for name, value in fields.items()
        if value is not None
    }


def _new_key() -> str:
    return str(uuid.uuid4())
