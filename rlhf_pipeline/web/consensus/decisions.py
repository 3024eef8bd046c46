"""Experts decide on disputed comparisons, and undo it."""

from rlhf_pipeline.api_types.comparisons import Deciding, Undoing
from rlhf_pipeline.records import Adjudication
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import filter_unjudged
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site


def decide(site: Site, principal: Principal, asked: Deciding) -> Adjudication:
    """Raises Problem 403 for a comparison whose votes are hidden, UnknownComparison."""
    _refuse_unjudged(site, principal, asked.comparison_id)
    return site.store.adjudications.decide(
        asked.comparison_id, asked.choice, reason=asked.reason, actor=principal.user_id
    )


def undo(site: Site, principal: Principal, asked: Undoing) -> None:
    """Raises as `decide`, and NotFound without a standing decision."""
    _refuse_unjudged(site, principal, asked.comparison_id)
    site.store.adjudications.undo(asked.comparison_id, reason=asked.reason, actor=principal.user_id)


def _refuse_unjudged(site: Site, principal: Principal, comparison_id: str) -> None:
    if filter_unjudged(site, principal, [comparison_id]):
        raise Problem(
            403,
            "You may vote and have not judged this comparison, so its votes are hidden. Judge it "
            "first.",
            kind="blind",
        )
