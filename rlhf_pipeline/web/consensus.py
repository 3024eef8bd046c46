"""Consensus page by page. Knows where to stop reading; what agreement is stands in `rlhf_pipeline.votes.consensus`."""

from rlhf_pipeline.votes.consensus import ConsensusParams, Method, State, consensus
from rlhf_pipeline.web.lists import plain_rows
from rlhf_pipeline.web.paging import cursor_of, place_of
from rlhf_pipeline.web.schemas import ConsensusOut, Page
from rlhf_pipeline.web.site import Site

LOOKS_AT = 2000  # comparisons a page reads at most: disputes may be rare


def page(site: Site, state: State | None, method: Method, *, cursor: str | None, limit: int) -> Page[ConsensusOut]:
    """Comparisons that people judged, by their newest vote, newest first; only those in `state`, where one is named."""
    params = ConsensusParams(min_votes=max(2, site.terms().rules.overlap))
    place = place_of(cursor, int)
    before = place[0] if place else None
    items: list[ConsensusOut] = []
    n_read = 0
    while len(items) < limit and n_read < LOOKS_AT:
        # A page of comparisons at a time: where the state is common one is enough.
        batch = site.store.votes.judged_comparisons(before_seq=before, limit=limit)
        if not batch:
            return Page(items=items, next=None)
        n_read += len(batch)
        rows = {row["comparison_id"]: row for row in plain_rows(consensus(site.store.votes.on([c for c, _ in batch]), method, params))}
        for comparison_id, seq in batch:
            before = seq
            row = rows.get(comparison_id)
            if row is not None and state in (None, row["state"]):
                items.append(ConsensusOut.model_validate({name: row[name] for name in ConsensusOut.model_fields}))
                if len(items) == limit:
                    break
    return Page(items=items, next=cursor_of(before) if before is not None else None)
