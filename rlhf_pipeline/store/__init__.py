"""The store: all SQL of the project behind one object.

In: records of `core`. Out: records and frames; no other room writes SQL. `schema` has the tables;
`casting` makes votes rows, `counting` says which of them count, `engine` opens transactions.
"""

from types import TracebackType
from typing import Self

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.protocols import Clock
from rlhf_pipeline.store import migrations
from rlhf_pipeline.store.adjudications import Adjudications
from rlhf_pipeline.store.alerts import AlertMessages, Alerts
from rlhf_pipeline.store.annotator_groups import AnnotatorGroups
from rlhf_pipeline.store.answers import AnswerLog, ServedAnswer
from rlhf_pipeline.store.audit_chain import Audit
from rlhf_pipeline.store.calibrations import Calibrations
from rlhf_pipeline.store.cards import Cards, RemainingWork
from rlhf_pipeline.store.comparisons import Comparisons, PublishResult
from rlhf_pipeline.store.completions_cache import CompletionsCache
from rlhf_pipeline.store.curated_pairs import CuratedPairs
from rlhf_pipeline.store.datasets import Datasets
from rlhf_pipeline.store.decisions import Decisions
from rlhf_pipeline.store.detectors import Detectors
from rlhf_pipeline.store.engine import BUSY_TIMEOUT_S, Database
from rlhf_pipeline.store.evaluation_sets import EvaluationSets
from rlhf_pipeline.store.events import Events
from rlhf_pipeline.store.experiments import ExperimentLog
from rlhf_pipeline.store.feedback import FeedbackEntries
from rlhf_pipeline.store.feedback_reviews import FeedbackReviews
from rlhf_pipeline.store.gate_sessions import GateSessions
from rlhf_pipeline.store.generation import GenerationLedger
from rlhf_pipeline.store.heartbeats import Heartbeat, Heartbeats
from rlhf_pipeline.store.imports import Import, Imports, UnfinishedImport
from rlhf_pipeline.store.lineage import Lineage
from rlhf_pipeline.store.metric_points import MetricPoints
from rlhf_pipeline.store.predictions import PredictionLog, PredictionReplay
from rlhf_pipeline.store.preferences import Preferences
from rlhf_pipeline.store.promotions import Gates, Promotions, ReleaseActs
from rlhf_pipeline.store.ratings import Ratings
from rlhf_pipeline.store.replays import Replays
from rlhf_pipeline.store.rules import Guidelines, Rules
from rlhf_pipeline.store.taste_changes import TasteChangeLog
from rlhf_pipeline.store.tokens import FailedLogins, Tokens
from rlhf_pipeline.store.training_jobs import TrainingJobs
from rlhf_pipeline.store.users import Users
from rlhf_pipeline.store.vote_log import DayDigest, TouchedDay
from rlhf_pipeline.store.vote_marks import VoteMarks
from rlhf_pipeline.store.votes import Votes

__all__ = [
    "DayDigest",
    "Heartbeat",
    "Import",
    "PredictionReplay",
    "PublishResult",
    "RemainingWork",
    "ServedAnswer",
    "Store",
    "TouchedDay",
    "UnfinishedImport",
]


class Store:
    """The rows of a home, one attribute per noun. Threads and processes may share the database. Use
    it with `with`, or call `close`.
    """

    def __init__(self, database: Database):
        self.database = database
        self.comparisons = Comparisons(database)
        self.predictions = PredictionLog(database)
        self.votes = Votes(database)
        self.vote_marks = VoteMarks(database)
        self.lineage = Lineage(database)
        self.replays = Replays(database)
        self.imports = Imports(database)
        self.detectors = Detectors(database)
        self.events = Events(database)
        self.decisions = Decisions(database)
        self.training_jobs = TrainingJobs(database)
        self.taste_changes = TasteChangeLog(database)
        self.adjudications = Adjudications(database)
        self.promotions = Promotions(database)
        self.gates = Gates(database)
        self.release_acts = ReleaseActs(database)
        self.gate_sessions = GateSessions(database)
        self.calibrations = Calibrations(database)
        self.heartbeats = Heartbeats(database)
        self.completions_cache = CompletionsCache(database)
        self.generation = GenerationLedger(database, self.completions_cache)
        self.cards = Cards(database)
        self.ratings = Ratings(database)
        self.users = Users(database)
        self.tokens = Tokens(database)
        self.failed_logins = FailedLogins(database)
        self.guidelines = Guidelines(database)
        self.rules = Rules(database)
        self.evaluation_sets = EvaluationSets(database)
        self.answers = AnswerLog(database)
        self.experiments = ExperimentLog(database)
        self.feedback = FeedbackEntries(database)
        self.feedback_reviews = FeedbackReviews(database)
        self.datasets = Datasets(database)
        self.curated_pairs = CuratedPairs(database)
        self.metric_points = MetricPoints(database)
        self.annotator_groups = AnnotatorGroups(database)
        self.preferences = Preferences(database)
        self.alerts = Alerts(database)
        self.alert_messages = AlertMessages(database)
        self.audit = Audit(database)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        clock: Clock | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> Self:
        """Open the store at a SQLAlchemy URL; creates the folder of a SQLite file.

        Raises StoreError for an unusable URL or an unwritable folder.
        Call `migrate` before first use.
        """
        return cls(
            Database(
                url,
                clock=clock,
                busy_timeout_s=busy_timeout_s,
            )
        )

    @classmethod
    def of_home(cls, settings: Settings) -> Self:
        """The store of a home; tables of an earlier version are upgraded. Raises StoreError for
        those of a later version or another commit.
        """
        store = cls.open(settings.store_url)
        if store.database.path is None or store.database.path.exists():
            migrations.upgrade(store.database)
        return store

    @classmethod
    def open_read_only(cls, url: str) -> Self:
        """Open the store without creating, changing or migrating anything. Raises StoreError if the
        SQLite file is missing.
        """
        return cls(Database(url, read_only=True))

    def migrate(self) -> None:
        """Create the tables where they are missing, and upgrade those of an earlier version. Many
        processes may call it at once; costs one query if nothing is to be done. Raises StoreError
        for the tables of a later version or another commit.
        """
        migrations.migrate(self.database)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
