"""The sections of the web app: the built-in ones, then those of installed packages."""

from pathlib import Path

from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.web.alerts import routes as alerts
from rlhf_pipeline.web.alignment import routes as alignment
from rlhf_pipeline.web.annotate import routes as annotate
from rlhf_pipeline.web.audit import routes as audit
from rlhf_pipeline.web.calibration import routes as calibration
from rlhf_pipeline.web.chat import routes as chat
from rlhf_pipeline.web.clusters import routes as clusters
from rlhf_pipeline.web.compare import routes as compare
from rlhf_pipeline.web.comparisons import routes as comparisons
from rlhf_pipeline.web.consensus import routes as consensus
from rlhf_pipeline.web.datasets import pages as dataset_pages
from rlhf_pipeline.web.datasets import routes as datasets
from rlhf_pipeline.web.decisions import routes as decisions
from rlhf_pipeline.web.drift import routes as drift
from rlhf_pipeline.web.drift_events import routes as drift_events
from rlhf_pipeline.web.evolution import routes as evolution
from rlhf_pipeline.web.experiments import routes as experiments
from rlhf_pipeline.web.feedback import routes as feedback
from rlhf_pipeline.web.guidelines import routes as guidelines
from rlhf_pipeline.web.home import routes as home
from rlhf_pipeline.web.login import routes as login
from rlhf_pipeline.web.me import routes as me
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.predictions import routes as predictions
from rlhf_pipeline.web.preferences import routes as preferences
from rlhf_pipeline.web.production import routes as production
from rlhf_pipeline.web.progress import points
from rlhf_pipeline.web.progress import routes as progress
from rlhf_pipeline.web.quality import leaving_out
from rlhf_pipeline.web.quality import routes as quality
from rlhf_pipeline.web.releases import routes as releases
from rlhf_pipeline.web.rules import routes as rules
from rlhf_pipeline.web.runs import routes as runs
from rlhf_pipeline.web.section import Section
from rlhf_pipeline.web.settings import routes as settings
from rlhf_pipeline.web.users import routes as users
from rlhf_pipeline.web.votes import routes as votes

HERE = Path(__file__).parent

# In the order in which a request is matched, the busy ones first; tabs follow it too.
BUILT_IN = {
    "votes": Section(
        (votes.api, votes.pages),
        Permission.VOTES_READ,
        place="Data",
        tab="Votes",
        path="/votes",
        folder=HERE / "votes",
    ),
    "chat": Section((chat.api,), Permission.SERVE),
    "annotate": Section(
        (annotate.api, annotate.pages),
        Permission.VOTES_CAST,
        place="Annotate",
        path="/annotate",
        folder=HERE / "annotate",
    ),
    "home": Section(
        (home.api,),
        Permission.METRICS_READ,
        place="Home",
        path="/",
        folder=HERE / "home",
    ),
    "login": Section((login.api, login.pages, home.start_page), folder=HERE / "login"),
    "comparisons": Section(
        (comparisons.api, comparisons.pages),
        Permission.COMPARISONS_READ,
        place="Data",
        tab="Comparisons",
        path="/comparisons",
        folder=HERE / "comparisons",
    ),
    "consensus": Section(
        (consensus.api, consensus.pages),
        Permission.CONSENSUS_READ,
        place="Data",
        tab="Consensus",
        path="/consensus",
        folder=HERE / "consensus",
    ),
    "feedback": Section(
        (feedback.api, feedback.pages),
        Permission.FEEDBACK_READ,
        place="Data",
        tab="Feedback",
        path="/feedback",
        folder=HERE / "feedback",
    ),
    "datasets": Section(
        (datasets.training_datasets, datasets.preference_pairs, dataset_pages.pages),
        Permission.DATASETS_READ,
        place="Data",
        tab="Data sets",
        path="/datasets",
        folder=HERE / "datasets",
    ),
    "preferences": Section(
        (preferences.api, preferences.pages),
        Permission.METRICS_READ,
        place="Preferences",
        path="/preferences",
        folder=HERE / "preferences",
    ),
    "settings": Section(
        (settings.api, settings.pages),
        Permission.METRICS_READ,
        place="Settings",
        tab="Loop",
        path="/settings",
        folder=HERE / "settings",
    ),
    "guidelines": Section(
        (guidelines.api, guidelines.pages),
        Permission.GUIDELINES_READ,
        place="Settings",
        tab="Guidelines",
        path="/guidelines",
        folder=HERE / "guidelines",
    ),
    "rules": Section(
        (rules.api, rules.pages),
        Permission.RULES_READ,
        place="Settings",
        tab="Card rules",
        path="/rules",
        folder=HERE / "rules",
    ),
    "glossary": Section(
        (),
        Permission.METRICS_READ,
        place="Settings",
        tab="Glossary",
        path="/settings/glossary",
    ),
    "me": Section((me.api, me.charts, me.pages), path="/me", folder=HERE / "me"),
    "users": Section(
        (users.api, users.pages),
        Permission.USERS_READ,
        place="People",
        tab="Users",
        path="/users",
        folder=HERE / "users",
    ),
    "quality": Section(
        (quality.api, leaving_out.api, quality.charts, quality.pages, leaving_out.pages),
        Permission.VOTES_READ,
        place="People",
        tab="Quality",
        path="/quality",
        folder=HERE / "quality",
    ),
    "progress": Section(
        (progress.api, points.api, progress.pages),
        Permission.PROGRESS_READ,
        place="People",
        tab="Progress",
        path="/progress",
        folder=HERE / "progress",
    ),
    "predictions": Section((predictions.predictions,), Permission.PREDICTIONS_MAKE),
    "evolution": Section(
        (evolution.api, evolution.pages),
        Permission.METRICS_READ,
        place="Models",
        tab="Versions",
        path="/evolution",
        folder=HERE / "evolution",
    ),
    "releases": Section(
        (releases.models, releases.api, releases.pages),
        Permission.METRICS_READ,
        place="Models",
        tab="Releases",
        path="/releases",
        folder=HERE / "releases",
    ),
    "experiments": Section(
        (experiments.models, experiments.api, experiments.pages),
        Permission.METRICS_READ,
        place="Models",
        tab="Experiments",
        path="/experiments",
        folder=HERE / "experiments",
    ),
    "alignment": Section(
        (alignment.api, alignment.pages),
        Permission.METRICS_READ,
        place="Models",
        tab="Alignment",
        path="/alignment",
        folder=HERE / "alignment",
    ),
    "calibration": Section(
        (calibration.api, calibration.pages),
        Permission.METRICS_READ,
        place="Models",
        tab="Calibration",
        path="/calibration",
        folder=HERE / "calibration",
    ),
    "compare": Section(
        (compare.api, compare.pages),
        Permission.METRICS_READ,
        place="Models",
        tab="Compare",
        path="/compare",
        folder=HERE / "compare",
    ),
    "production": Section(
        (production.api, production.pages),
        Permission.METRICS_READ,
        place="Production",
        path="/production",
        folder=HERE / "production",
    ),
    "drift": Section(
        (drift.api, drift.pages),
        Permission.METRICS_READ,
        place="Drift",
        tab="Timeline",
        path="/drift",
        folder=HERE / "drift",
    ),
    "clusters": Section(
        (clusters.api, clusters.pages),
        Permission.VOTES_READ,
        place="Drift",
        tab="Clusters",
        path="/clusters",
        folder=HERE / "clusters",
    ),
    "drift_events": Section(
        (drift_events.api, drift_events.pages),
        Permission.METRICS_READ,
        place="Drift",
        tab="Events",
        path="/drift-events",
        folder=HERE / "drift_events",
    ),
    "decisions": Section(
        (decisions.api, decisions.pages),
        Permission.METRICS_READ,
        place="Drift",
        tab="Decisions",
        path="/decisions",
        folder=HERE / "decisions",
    ),
    "alerts": Section(
        (alerts.api, alerts.pages),
        Permission.ALERTS_READ,
        place="Alerts",
        path="/alerts",
        folder=HERE / "alerts",
    ),
    "runs": Section(
        (runs.api, runs.pages),
        Permission.METRICS_READ,
        place="Runs",
        tab="State",
        path="/runs",
        folder=HERE / "runs",
    ),
    "spending": Section(
        (),
        Permission.METRICS_READ,
        place="Runs",
        tab="Spending",
        path="/runs/spending",
    ),
    "audit": Section(
        (audit.api, audit.pages),
        Permission.AUDIT_READ,
        place="Audit",
        path="/audit",
        folder=HERE / "audit",
    ),
}
SECTIONS = Members("web", BUILT_IN)
