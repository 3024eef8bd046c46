"""The values that filters of lists offer: categories, sources, flags and annotators."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_pipeline.records import OWN_SOURCE, Category
from rlhf_pipeline.web.site import Site

MAX_ANNOTATORS = 500
PEOPLE_FLAG_WORDS = {
    "pii": "personal data",
    "identity": "names its maker",
    "broken": "unreadable",
}
VOTE_FLAG_WORDS = PEOPLE_FLAG_WORDS | {"undone": "undone"}
COMPARISON_FLAG_WORDS = PEOPLE_FLAG_WORDS | {
    "identical": "identical completions",
    "repeated": "repeated pair",
}


def list_categories(site: Site) -> list[str]:
    """The project's own, then those of generators."""
    own = site.store.comparisons.values_of("category")
    return list(dict.fromkeys([*own, *Category]))


def list_sources(site: Site) -> list[str]:
    """Data sets, and OWN_SOURCE where the project has comparisons of its own."""
    own = [OWN_SOURCE] if site.store.comparisons.has_own() else []
    return own + site.store.comparisons.values_of("source")


@dataclass(frozen=True)
class Annotators:
    """Names by id of those with the most of the newest votes, by name; people without one have only
    an id. `n`: how many have such votes.
    """

    names: Mapping[str, str]
    n: int


def list_annotators(site: Site, names: Mapping[str, str]) -> Annotators:
    """At most MAX_ANNOTATORS."""
    known = site.quality().by_annotator
    most = heapq.nsmallest(MAX_ANNOTATORS, known, key=lambda who: (-known[who].n_votes, who))
    listed = sorted(((who, names.get(who, who)) for who in most), key=lambda one: one[1].casefold())
    return Annotators(dict(listed), len(known))
