"""The sections of the web app: the built-in ones, then those of installed packages."""

from pathlib import Path

from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.plugins import Members
from rlhf_pipeline.web.alerts import pages as alert_pages
from rlhf_pipeline.web.alerts import routes as alerts
from rlhf_pipeline.web.alignment import routes as alignment
from rlhf_pipeline.web.annotate import practice
from rlhf_pipeline.web.annotate import routes as annotate
from rlhf_pipeline.web.audit import routes as audit
from rlhf_pipeline.web.calibration import api as calibration_api
from rlhf_pipeline.web.calibration import charts as calibration_charts
from rlhf_pipeline.web.calibration import pages as calibration_pages
from rlhf_pipeline.web.clusters import routes as clusters
from rlhf_pipeline.web.compare import routes as compare
from rlhf_pipeline.web.comparisons import routes as comparisons
from rlhf_pipeline.web.consensus import routes as consensus
from rlhf_pipeline.web.decisions import routes as decisions
from rlhf_pipeline.web.drift import routes as drift
from rlhf_pipeline.web.drift_events import routes as drift_events
from rlhf_pipeline.web.evolution import routes as evolution
from rlhf_pipeline.web.feedback import routes as feedback
from rlhf_pipeline.web.guidelines import routes as guidelines
from rlhf_pipeline.web.home import routes as home
from rlhf_pipeline.web.login import routes as login
from rlhf_pipeline.web.me import routes as me
from rlhf_pipeline.web.predictions import routes as predictions
from rlhf_pipeline.web.preferences import routes as preferences
from rlhf_pipeline.web.production import routes as production
from rlhf_pipeline.web.progress import points
from rlhf_pipeline.web.progress import routes as progress
from rlhf_pipeline.web.quality import routes as quality
from rlhf_pipeline.web.rules import routes as rules
from rlhf_pipeline.web.runs import routes as runs
from rlhf_pipeline.web.section import Section
from rlhf_pipeline.web.settings import routes as settings
from rlhf_pipeline.web.users import routes as users
from rlhf_pipeline.web.votes import routes as votes

HERE = Path(__file__).parent

# In the order in which a request is matched, the busy ones first; the menu follows its groups.
BUILT_IN = {
    "votes": Section(
        (votes.api, votes.pages),
        Permission.VOTES_READ,
        group="Data",
        label="Votes",
        path="/votes",
        folder=HERE / "votes",
    ),
    "annotate": Section(
        (annotate.api, practice.api, annotate.pages),
        Permission.VOTES_CAST,
        group="Label",
        label="Annotate",
        path="/annotate",
        folder=HERE / "annotate",
    ),
    "home": Section(
        (home.api,),
        Permission.METRICS_READ,
        label="Home",
        path="/",
        folder=HERE / "home",
    ),
    "login": Section((login.api, login.pages, home.start_page), folder=HERE / "login"),
    "comparisons": Section(
        (comparisons.api, comparisons.pages),
        Permission.COMPARISONS_READ,
        group="Data",
        label="Comparisons",
        path="/comparisons",
        folder=HERE / "comparisons",
    ),
    "consensus": Section(
        (consensus.api, consensus.pages),
        Permission.CONSENSUS_READ,
        group="Data",
        label="Consensus",
        path="/consensus",
        folder=HERE / "consensus",
    ),
    "preferences": Section(
        (preferences.api, preferences.pages),
        Permission.METRICS_READ,
        group="Data",
        label="Preferences",
        path="/preferences",
        folder=HERE / "preferences",
    ),
    "guidelines": Section(
        (guidelines.api, guidelines.pages),
        Permission.GUIDELINES_READ,
        group="Label",
        label="Guidelines",
        path="/guidelines",
        folder=HERE / "guidelines",
    ),
    "me": Section(
        (me.api, me.charts, me.pages), group="Label", label="Me", path="/me", folder=HERE / "me"
    ),
    "rules": Section(
        (rules.api, rules.pages),
        Permission.RULES_READ,
        group="Governance",
        label="Rules",
        path="/rules",
        folder=HERE / "rules",
    ),
    "users": Section(
        (users.api, users.pages),
        Permission.USERS_READ,
        group="People",
        label="Users",
        path="/users",
        folder=HERE / "users",
    ),
    "progress": Section(
        (progress.api, points.api, progress.pages),
        Permission.PROGRESS_READ,
        group="Data",
        label="Progress",
        path="/progress",
        folder=HERE / "progress",
    ),
    "quality": Section(
        (quality.api, quality.charts, quality.pages),
        Permission.VOTES_READ,
        group="People",
        label="Data quality",
        path="/quality",
        folder=HERE / "quality",
    ),
    "predictions": Section(
        (predictions.predictions, predictions.completions), Permission.PREDICTIONS_MAKE
    ),
    "alignment": Section(
        (alignment.api, alignment.pages),
        Permission.METRICS_READ,
        group="Models",
        label="Alignment",
        path="/alignment",
        folder=HERE / "alignment",
    ),
    "calibration": Section(
        (calibration_api.router, calibration_charts.api, calibration_pages.router),
        Permission.METRICS_READ,
        group="Models",
        label="Calibration",
        path="/calibration",
        folder=HERE / "calibration",
    ),
    "production": Section(
        (production.api, production.pages),
        Permission.METRICS_READ,
        group="Models",
        label="Production",
        path="/production",
        folder=HERE / "production",
    ),
    "evolution": Section(
        (evolution.api, evolution.pages),
        Permission.METRICS_READ,
        group="Models",
        label="Evolution",
        path="/evolution",
        folder=HERE / "evolution",
    ),
    "gates": Section(  # each version's gate is on the page of versions
        (),
        Permission.METRICS_READ,
        group="Models",
        label="Gates",
        path="/evolution#policies",
    ),
    "compare": Section(
        (compare.api, compare.pages),
        Permission.METRICS_READ,
        group="Models",
        label="Compare",
        path="/compare",
        folder=HERE / "compare",
    ),
    "drift": Section(
        (drift.api, drift.pages),
        Permission.METRICS_READ,
        group="Drift",
        label="Timeline",
        path="/drift",
        folder=HERE / "drift",
    ),
    "drift_events": Section(
        (drift_events.api, drift_events.pages),
        Permission.METRICS_READ,
        group="Drift",
        label="Events",
        path="/drift-events",
        folder=HERE / "drift_events",
    ),
    "clusters": Section(
        (clusters.api, clusters.pages),
        Permission.VOTES_READ,
        group="Drift",
        label="Error clusters",
        path="/clusters",
        folder=HERE / "clusters",
    ),
    "decisions": Section(
        (decisions.api, decisions.pages),
        Permission.METRICS_READ,
        group="Drift",
        label="Decisions",
        path="/decisions",
        folder=HERE / "decisions",
    ),
    "alerts": Section(
        (alerts.api, alert_pages.pages),
        Permission.ALERTS_READ,
        group="Drift",
        label="Alerts",
        path="/alerts",
        folder=HERE / "alerts",
    ),
    "runs": Section(
        (runs.api, runs.pages),
        Permission.METRICS_READ,
        group="Runs",
        label="Runs",
        path="/runs",
        folder=HERE / "runs",
    ),
    "automations": Section(
        (),
        Permission.METRICS_READ,
        group="Runs",
        label="Schedules",
        path="/runs#automations",
    ),
    "spending": Section(
        (),
        Permission.METRICS_READ,
        group="Runs",
        label="Spending",
        path="/runs#spending",
    ),
    "settings": Section(
        (settings.api, settings.pages),
        Permission.METRICS_READ,
        group="Runs",
        label="Settings",
        path="/settings",
        folder=HERE / "settings",
    ),
    "feedback": Section(
        (feedback.api, feedback.pages),
        Permission.FEEDBACK_READ,
        group="Data",
        label="Feedback",
        path="/feedback",
        folder=HERE / "feedback",
    ),
    "audit": Section(
        (audit.api, audit.pages),
        Permission.AUDIT_READ,
        group="Governance",
        label="Audit",
        path="/audit",
        folder=HERE / "audit",
    ),
}
SECTIONS = Members("web", BUILT_IN)
