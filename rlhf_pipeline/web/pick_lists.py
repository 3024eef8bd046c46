"""The values that filters of lists offer: categories, sources, flags and annotators."""

import heapq
from collections.abc import Iterable, Mapping

from rlhf_pipeline.records import OWN_SOURCE, Category
from rlhf_pipeline.web.site import Site

MAX_ANNOTATORS = 500
PEOPLE_FLAG_WORDS = {
    "pii": "personal data",
    "identity": "mentions its model",
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


def list_annotators(site: Site, names: Mapping[str, str]) -> dict[str, str]:
    """Names by id of those with the most of the newest votes, by name, at most MAX_ANNOTATORS;
    people without a name have only an id.
    """
    known = site.quality()
    most = heapq.nsmallest(MAX_ANNOTATORS, known, key=lambda who: (-known[who].n_votes, who))
    return dict(
        sorted(((who, names.get(who, who)) for who in most), key=lambda one: one[1].casefold())
    )


def as_choices(values: Iterable[str]) -> dict[str, str]:
    """Values that are their own words."""
    return {one: one for one in values}
