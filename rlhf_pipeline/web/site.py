"""State shared by all routes of one project: store, settings and caches.

What needs pandas or a model is imported when a route first asks for it, so that voting in the
terminal starts without.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from rlhf_pipeline.core.api_types.filters import ProbeFilter
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.metric_catalogue import METRICS, let_silence_grow, reset_past_counts
from rlhf_pipeline.core.records import AnnotationRules, AnnotatorKind
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.dagster_runs import DagsterRuns
from rlhf_pipeline.store.vote_lists import DayTally
from rlhf_pipeline.watch.telemetry.prometheus import RequestCounts, render_metrics
from rlhf_pipeline.web.annotate.cards import CardDealer
from rlhf_pipeline.web.auth import Auth
from rlhf_pipeline.web.memory_cache import CachedValue, CacheTimes, DayFigures, ExpiringCache
from rlhf_pipeline.web.progress.vote_counts import count_votes
from rlhf_pipeline.web.readiness import ReadinessCheck

if TYPE_CHECKING:
    from rlhf_pipeline.core.artefacts import Artefacts
    from rlhf_pipeline.learn.champions import Champions
    from rlhf_pipeline.store.vote_marks import MarkedVotes
    from rlhf_pipeline.web.calibration.probe_counter import ProbeResult
    from rlhf_pipeline.web.chat.server import ChatServer
    from rlhf_pipeline.web.consensus.annotator_fits import AnnotatorFit
    from rlhf_pipeline.web.drift.reports import DriftReports
    from rlhf_pipeline.web.predictions.predictor import Predictor
    from rlhf_pipeline.web.preferences.sums_reader import PreferenceReader

# a lease costs three times as much as a vote; SQLite has a single writer, so more would only
# keep votes waiting
LEASES_AT_ONCE = 8
MAX_PROBES = 24
# older points are no news, and bound the cost of a scrape however old the project is
SCRAPED_DAYS = 30


@dataclass(frozen=True)
class Terms:
    """The terms of a vote: rules, version of the guidelines, and all dimensions ever used."""

    version: int
    rules: AnnotationRules
    guideline_version: int | None
    dimensions: frozenset[str]


class Site:
    """One web app of one project."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        cache_times: CacheTimes = CacheTimes(),  # noqa: B008 (frozen)
    ):
        self.settings = settings
        self.store = store
        self.auth = Auth(store, settings, known_for_s=cache_times.token_s)
        self.cards = CardDealer(store)
        self.day_figures = DayFigures(store, cache_times.figures_s)
        self.vote_counts = CachedValue(lambda: count_votes(self.tallies()), cache_times.work_s)
        self.paces = CachedValue(store.votes.paces, cache_times.figures_s)
        self.work = CachedValue(store.cards.remaining_work, cache_times.work_s)
        self.leases = asyncio.Semaphore(1 if store.database.is_sqlite else LEASES_AT_ONCE)
        self.terms = CachedValue(self._read_terms, cache_times.terms_s)
        self.readiness = ReadinessCheck(settings, store)
        self.request_counts = RequestCounts()
        self.dagster_runs = DagsterRuns(settings)
        self.metrics_text = CachedValue(self._render_metrics, cache_times.scrape_s)
        self.measure_answers = CachedValue(self._measure_answers, cache_times.figures_s)
        self._cache_times = cache_times
        self._probes: ExpiringCache[ProbeFilter, ProbeResult] = ExpiringCache(
            MAX_PROBES, cache_times.figures_s
        )

    @cached_property
    def files(self) -> Artefacts:
        from rlhf_pipeline.core.artefacts import Artefacts

        return Artefacts(self.settings.frames)

    @cached_property
    def quality(self) -> CachedValue[dict[str, MarkedVotes]]:
        return CachedValue(self.store.vote_marks.count, self._cache_times.figures_s)

    @cached_property
    def champions(self) -> Champions:
        from rlhf_pipeline.learn.champions import Champions
        from rlhf_pipeline.registry import Registry

        settings = self.settings
        registry = Registry(
            settings.tracking_uri,
            settings.home / "mlflow" / "artifacts",
            settings.project,
            ui=settings.mlflow_ui,
        )
        return Champions(self.store, registry, settings.cache, settings.encoder)

    @cached_property
    def predictor(self) -> Predictor:
        from rlhf_pipeline.web.predictions.predictor import Predictor

        return Predictor(self.champions, self._cache_times.champion_s)

    @cached_property
    def chat_server(self) -> ChatServer:
        from rlhf_pipeline.web.chat.server import ChatServer

        return ChatServer(self.settings, self.champions, self._cache_times.champion_s)

    @cached_property
    def preferences(self) -> PreferenceReader:
        from rlhf_pipeline.web.preferences.sums_reader import PreferenceReader

        return PreferenceReader(self.store, self.day_figures)

    def tallies(self) -> dict[str, Sequence[DayTally]]:
        """Standing votes by day and annotator."""
        days = self.day_figures.days()
        return self.day_figures.read("tallies", days, self.store.votes.day_tallies)

    def group_sizes(self) -> Counter[str]:
        """Number of people with a vote by group of annotators."""
        groups = self.store.annotator_groups.all()
        people = {
            (groups.get(tally.annotator_id, tally.origin), tally.annotator_id)
            for tallies in self.tallies().values()
            for tally in tallies
            if tally.annotator_kind != AnnotatorKind.MACHINE
        }
        return Counter(group for group, _ in people)

    @cached_property
    def drift_reports(self) -> DriftReports:
        from rlhf_pipeline.web.drift.reports import DriftReports

        return DriftReports(self.files)

    def probe(self, filters: ProbeFilter) -> ProbeResult:
        """The charts of a page share one count."""
        from rlhf_pipeline.web.calibration.probe_counter import count_probe

        filters = ProbeFilter.model_validate(
            filters.model_dump(include=set(ProbeFilter.model_fields))
        )
        result = self._probes.get(filters)
        if result is None:
            result = count_probe(self.store, filters)
            self._probes.put(filters, result)
        return result

    @cached_property
    def annotator_fit(self) -> CachedValue[AnnotatorFit | None]:
        from rlhf_pipeline.web.consensus.annotator_fits import read_fit

        return CachedValue(lambda: read_fit(self.files), self._cache_times.figures_s)

    def _render_metrics(self) -> bytes:
        """What Prometheus reads: the newest points and the number of votes, not the votes."""
        now = self.store.database.clock.now()
        since = now.date() - timedelta(days=SCRAPED_DAYS)
        points = let_silence_grow(self.store.metric_points.latest(list(METRICS), since=since), now)
        points = reset_past_counts(points, now.date())
        return render_metrics(points, self.store.votes.max_seq(), self.request_counts)

    def _measure_answers(self) -> None:
        """Write points of today's served answers, as the sensor `alerts` does each minute."""
        from rlhf_pipeline.watch.metrics import measure_answers

        now = self.store.database.clock.now()
        self.store.metric_points.put(measure_answers(self.store, [now.date()], now))

    def _read_terms(self) -> Terms:
        version, rules = self.store.rules.latest()
        guideline = self.store.guidelines.latest()
        dimensions = {
            name for _, past, _, _ in self.store.rules.history() for name in past.dimensions
        } | set(rules.dimensions)
        return Terms(
            version,
            rules,
            guideline.version if guideline else None,
            frozenset(dimensions | set(AnnotationRules().dimensions)),
        )
