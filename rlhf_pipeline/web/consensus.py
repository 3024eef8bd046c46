"""Consensus page by page. Knows where to stop reading and what comes first; what agreement is stands in `rlhf_pipeline.votes.consensus`."""

from dataclasses import dataclass
from typing import Any

from rlhf_pipeline.votes.consensus import ConsensusParams, Method, State, adjudication, consensus
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.lists import plain_rows, unjudged
from rlhf_pipeline.web.paging import cursor_of, place_of
from rlhf_pipeline.web.schemas import ConsensusOut, Page
from rlhf_pipeline.web.site import Site

LOOKS_AT = 500  # comparisons a page reads at most: disputes may be rare, and of these it takes 0.1 s
FIRST = (-1, 0, 0, "")  # comes before every dispute


@dataclass(frozen=True)
class Found:
    """A page, and on how many comparisons it found judgements of people."""

    page: Page[ConsensusOut]
    n_judged: int


def page(site: Site, principal: Principal, state: State | None, method: Method, *, cursor: str | None, limit: int) -> Found:
    """Comparisons that people judged, by their newest vote, newest first; only those in `state`, where one is named.

    Open ones that the reader may still be dealt are left out: who may vote judges first. Disputed ones are for somebody to decide: of
    LOOKS_AT comparisons at a time the most evenly split come first, then those of the next.
    """
    params = params_of(site)
    if state == "disputed":
        return _disputed(site, method, params, cursor, limit)
    return _newest(site, principal, state, method, params, cursor, limit)


def params_of(site: Site) -> ConsensusParams:
    return ConsensusParams(min_votes=max(2, site.terms().rules.overlap))


def _newest(
    site: Site, principal: Principal, state: State | None, method: Method, params: ConsensusParams, cursor: str | None, limit: int
) -> Found:
    place = place_of(cursor, int)
    before = place[0] if place else None
    items: list[ConsensusOut] = []
    n_read = n_judged = 0
    while len(items) < limit and n_read < LOOKS_AT:
        # As much again as was read: where the state is common one page of comparisons is enough.
        batch = site.store.votes.judged_comparisons(before_seq=before, limit=min(max(limit, n_read), LOOKS_AT - n_read))
        if not batch:
            return Found(Page(items=items, next=None), n_judged)
        n_read += len(batch)
        rows = {row["comparison_id"]: row for row in plain_rows(consensus(site.store.votes.on([c for c, _ in batch]), method, params))}
        n_judged += len(rows)
        hidden = unjudged(site, principal, [c for c, row in rows.items() if row["state"] == "open"])
        for comparison_id, seq in batch:
            before = seq
            row = rows.get(comparison_id)
            if row is not None and state in (None, row["state"]) and comparison_id not in hidden:
                items.append(_shown(row))
                if len(items) == limit:
                    break
    return Found(Page(items=items, next=cursor_of(before) if before is not None else None), n_judged)


def _disputed(site: Site, method: Method, params: ConsensusParams, cursor: str | None, limit: int) -> Found:
    """A stretch of comparisons is read anew for each of its pages. The cursor says where it lies, so that votes that arrive meanwhile move
    none of its comparisons to another page."""
    before, last, *after = place_of(cursor, int, int, *map(type, FIRST)) or (None, 0, *FIRST)
    batch = site.store.votes.judged_comparisons(before_seq=before, limit=LOOKS_AT)
    stretch = [(c, seq) for c, seq in batch if seq >= last]
    if not stretch:
        return Found(Page(items=[], next=_stretch_below(last) if len(batch) > 0 else None), 0)
    if last == 0 and len(batch) == LOOKS_AT:
        last = stretch[-1][1]
    agreed = consensus(site.store.votes.on([c for c, _ in stretch]), method, params)
    rows = [row for row in plain_rows(adjudication(agreed)) if _place(row) > tuple(after)]
    following = None
    if len(rows) > limit:
        following = cursor_of(stretch[0][1] + 1 if before is None else before, last, *_place(rows[limit - 1]))
    elif last > 0:
        following = _stretch_below(last)
    return Found(Page(items=[_shown(row) for row in rows[:limit]], next=following), len(agreed))


def _stretch_below(seq: int) -> str:
    return cursor_of(seq, 0, *FIRST)


def _place(row: dict[str, Any]) -> tuple[int, int, int, str]:
    """Of a dispute in the order of `adjudication`."""
    return int(row["choice"] is not None), round(row["share"] * 10**9), -row["n_votes"], row["comparison_id"]


def _shown(row: dict[str, Any]) -> ConsensusOut:
    return ConsensusOut.model_validate({name: row[name] for name in ConsensusOut.model_fields})
