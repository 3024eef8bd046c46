"""Reads pages of consensus; `rlhf_pipeline.feedback.votes.consensus` defines the rule."""

from collections.abc import Callable
from typing import Any, Literal

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, Page
from rlhf_pipeline.core.api_types.filters import Filter
from rlhf_pipeline.core.records import Adjudication, Choice
from rlhf_pipeline.feedback.votes.consensus import (
    SHARES_APART,
    Method,
    adjudication_queue,
    consensus,
)
from rlhf_pipeline.feedback.votes.model_consensus import consensus_by_model
from rlhf_pipeline.web.consensus.annotator_fits import AnnotatorFit
from rlhf_pipeline.web.lists import make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

ConsensusState = Literal["open", "disputed", "agreed", "decided", "all"]
ConsensusMethod = Literal["majority", "strength_weighted", "joint_model"]
# comparisons that a page reads at most, in 0.1 s, because disputes may be rare
LOOKS_AT = 500
FIRST = (-1, 0, 0, "")  # sorts before every dispute
NOT_FITTED = (
    "There is no fit of the annotator model. Run the `learning` job, which materialises "
    "`annotator_model`: `rlhf run learning`."
)
ConsensusFunction = Callable[[list[str]], pd.DataFrame]  # comparisons -> CONSENSUS
Found = tuple[list[dict[str, Any]], str | None]  # rows of CONSENSUS, and the cursor of the next


class ConsensusFilter(Filter):
    """Which judged comparisons, and how their votes are combined."""

    state: ConsensusState = Field(
        default="all", description="Disputed ones need a decision, decided ones have one."
    )
    method: ConsensusMethod = Field(
        default="majority", description="joint_model uses the last fit of the annotator model."
    )


class ConsensusOut(Answer):
    """The combined judgement on a comparison; `docs/guides/agreement.md` explains the rule."""

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


def page(site: Site, _: Principal, only: ConsensusFilter) -> Page[ConsensusOut]:
    """Judged comparisons by their newest vote, newest first; decided ones, which are not disputed
    any more, by their decision.

    Disputed ones are sorted by how evenly they are split, within LOOKS_AT comparisons at a time.
    With the annotator model: Problem 409 without a fit.
    """
    # the same fit for the whole page, even if a newer one is loaded meanwhile
    fitted = newest_fit(site) if only.method == "joint_model" else None
    find = {"disputed": _find_disputed, "decided": _find_decided}.get(only.state, _find_newest)
    rows, following = find(site, _consensus_function(site, only.method, fitted), only)
    standing = site.store.adjudications.standing([row["comparison_id"] for row in rows])
    items = (_build_consensus(row, standing.get(row["comparison_id"])) for row in rows)
    matches = tuple(item for item in items if only.state in ("all", item.state))
    return Page(items=matches, next=following)


def newest_fit(site: Site) -> AnnotatorFit:
    """The newest fit of the annotator model. Raises Problem 409 without one, 503 if it cannot be
    read.
    """
    fitted = site.annotator_fit()
    if fitted is None:
        raise Problem(409, NOT_FITTED, kind="not_fitted")
    return fitted


def _consensus_function(
    site: Site, method: Method, fitted: AnnotatorFit | None
) -> ConsensusFunction:
    min_votes = site.terms().rules.agreement_votes
    if method == "joint_model":
        assert fitted is not None  # `newest_fit` has one or raises
        return lambda ids: consensus_by_model(
            site.store.votes.judgements(ids), fitted.labels_for(ids), min_votes
        )
    return lambda ids: consensus(site.store.votes.judgements(ids), method, min_votes)


def _find_newest(site: Site, consensus_of: ConsensusFunction, only: ConsensusFilter) -> Found:
    place = parse_cursor(only.cursor, int)
    before = place[0] if place else None
    matches: list[dict[str, Any]] = []
    n_read = 0
    while len(matches) < only.limit and n_read < LOOKS_AT:
        # Doubles each time: if the state is common, one page of comparisons is enough.
        size = min(max(only.limit, n_read), LOOKS_AT - n_read)
        batch = site.store.votes.judged_comparisons(before_seq=before, limit=size)
        if not batch:
            return matches, None
        n_read += len(batch)
        rows = {
            row["comparison_id"]: row for row in plain_rows(consensus_of([c for c, _ in batch]))
        }
        for comparison_id, seq in batch:
            before = seq
            row = rows.get(comparison_id)
            if row is not None and only.state in ("all", row["state"]):
                matches.append(row)
                if len(matches) == only.limit:
                    break
    return matches, make_cursor(before) if before is not None else None


def _find_decided(site: Site, consensus_of: ConsensusFunction, only: ConsensusFilter) -> Found:
    """The newest decision first."""
    place = parse_cursor(only.cursor, str, int)
    adjudications = site.store.adjudications.page(
        before_id=place[1] if place else None, limit=only.limit
    )
    ids = [adjudication.comparison_id for adjudication in adjudications]
    rows = {row["comparison_id"]: row for row in plain_rows(consensus_of(ids))} if ids else {}
    is_full = len(adjudications) == only.limit
    following = make_cursor("decided", adjudications[-1].adjudication_id) if is_full else None
    return [rows[comparison_id] for comparison_id in ids if comparison_id in rows], following


def _find_disputed(site: Site, consensus_of: ConsensusFunction, only: ConsensusFilter) -> Found:
    """Reads a stretch of comparisons for each of its pages. The cursor holds the stretch, so that
    new votes move no comparison to another page.
    """
    place = parse_cursor(only.cursor, int, int, *map(type, FIRST))
    before, last, *after = place or (None, 0, *FIRST)
    batch = site.store.votes.judged_comparisons(before_seq=before, limit=LOOKS_AT)
    stretch = [(c, seq) for c, seq in batch if seq >= last]
    if not stretch:
        return [], make_cursor(last, 0, *FIRST) if batch else None
    if last == 0 and len(batch) == LOOKS_AT:
        last = stretch[-1][1]
    agreed = consensus_of([c for c, _ in stretch])
    decided = site.store.adjudications.standing([c for c, _ in stretch])
    rows = [
        row
        for row in plain_rows(adjudication_queue(agreed))
        if _dispute_rank(row) > tuple(after) and row["comparison_id"] not in decided
    ]
    if len(rows) > only.limit:
        start = stretch[0][1] + 1 if before is None else before
        return rows[: only.limit], make_cursor(start, last, *_dispute_rank(rows[only.limit - 1]))
    return rows, make_cursor(last, 0, *FIRST) if last > 0 else None


def _dispute_rank(row: dict[str, Any]) -> tuple[int, int, int, str]:
    """Sort key of a dispute, in the order of `adjudication_queue`."""
    return (
        int(row["choice"] is not None),
        round(row["share"] * SHARES_APART),
        -row["n_votes"],
        row["comparison_id"],
    )


def _build_consensus(row: dict[str, Any], decision: Adjudication | None) -> ConsensusOut:
    """Votes are counted as before a decision; what is decided is the state and the choice."""
    decided: dict[str, Any] = {}
    if decision is not None:
        decided = {"state": "decided", "choice": decision.choice, "adjudication": decision}
    return ConsensusOut.model_validate(row | decided)
