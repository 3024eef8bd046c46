"""Which comparisons people are asked to judge. Knows days and rules; knows no card."""

from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.schemas import Offer, Offered
from rlhf_pipeline.web.site import Site


def offer(site: Site, actor: str, asked: Offer) -> Offered:
    """Raises Problem 422 unless exactly one way of naming them is given, UnknownComparison."""
    ways = [asked.ids is not None, asked.day is not None, asked.all_unvoted]
    if sum(ways) != 1:
        raise Problem(
            422,
            "Say which comparisons: ids, a day, or all_unvoted, one of the three.",
            kind="invalid",
            errors=[("body.ids", "or day, or all_unvoted")],
        )
    if asked.ids is not None:
        ids = list(dict.fromkeys(asked.ids))
    else:
        ids = site.store.comparisons.offerable(day=str(asked.day) if asked.day else None, unvoted_only=asked.all_unvoted)
    overlap = asked.overlap or site.terms().rules.overlap
    n_new = site.store.assignments.offer(ids, overlap=overlap, priority=asked.priority, actor=actor)
    return Offered(n_comparisons=len(ids), n_slots=n_new)
