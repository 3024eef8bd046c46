"""What all routes of one project share: its store, its settings, and what is kept in memory between
requests. Knows no route.
"""

import asyncio
from dataclasses import dataclass

from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import AnnotationRules
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.auth import Auth
from rlhf_pipeline.web.calibration_log import CalibrationLog
from rlhf_pipeline.web.cards import Cards
from rlhf_pipeline.web.completing import Completer
from rlhf_pipeline.web.counting import Progress
from rlhf_pipeline.web.looking import Looking
from rlhf_pipeline.web.predicting import Predictor
from rlhf_pipeline.web.probing import Probing
from rlhf_pipeline.web.recent import CacheTimes, Current
from rlhf_pipeline.web.streams import Streams
from rlhf_pipeline.web.verdicts import Fits

# one costs three times what a vote does; on SQLite, which writes one at a time, more would only
# keep votes waiting
LEASES_AT_ONCE = 8


@dataclass(frozen=True)
class Terms:
    """Under what a vote is cast now: the rules and the version of the guidelines; and every
    dimension there ever was.
    """

    version: int
    rules: AnnotationRules
    guideline_version: int | None
    dimensions: frozenset[str]


class Site:
    """One web app of one project."""

    def __init__(self, settings: Settings, store: Store, cache_times: CacheTimes = CacheTimes()):  # noqa: B008 (frozen)
        self.settings = settings
        self.store = store
        self.auth = Auth(store, settings, known_for_s=cache_times.token_s)
        self.streams = Streams()
        self.cards = Cards(store)
        self.progress = Progress(store, cache_times)
        self.looking = Looking(store, cache_times)
        self.predictor = Predictor(settings, store, cache_times.champion_s)
        self.completer = Completer(settings, store)
        self.probing = Probing(store, cache_times)
        self.calibrations = CalibrationLog(store)
        self.fits = Fits(settings, store, cache_times)
        self.dealing = asyncio.Semaphore(1 if store.database.is_sqlite else LEASES_AT_ONCE)
        self.terms = Current(self._read_terms, cache_times.terms_s)

    def _read_terms(self) -> Terms:
        version, rules = self.store.rules.latest()
        guideline = self.store.guidelines.latest()
        named = {
            name for _, past, _, _ in self.store.rules.history() for name in past.dimensions
        } | set(rules.dimensions)
        return Terms(
            version,
            rules,
            guideline.version if guideline else None,
            frozenset(named | set(AnnotationRules().dimensions)),
        )
