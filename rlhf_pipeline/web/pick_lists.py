"""The values that filters of lists offer: categories, sources, flags and annotators."""

from collections.abc import Mapping

from rlhf_pipeline.records import OWN_SOURCE, Category
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
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


def list_annotators(site: Site, principal: Principal, names: Mapping[str, str]) -> dict[str, str]:
    """The names of people with counted votes, by id; those without a name have only an id."""
    reader_id = blind_reader_id(principal)
    counters = site.quality_counters
    counted = counters.counts() if reader_id is None else counters.counts_for_reader(reader_id)
    found = {who: names.get(who, who) for who in counted.by_annotator}
    return dict(sorted(found.items(), key=lambda one: one[1].casefold())[:MAX_ANNOTATORS])
