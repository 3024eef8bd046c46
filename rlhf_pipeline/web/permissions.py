"""The permissions of the web app and the API, those of each role, and who holds them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rlhf_pipeline.core.records import Role, Token, User


class Permission(StrEnum):
    """What a route asks for. Tokens carry some of their owner's as scopes."""

    VOTES_CAST = "votes.cast"
    VOTES_READ_OWN = "votes.read_own"
    VOTES_READ = "votes.read"
    COMPARISONS_READ = "comparisons.read"
    COMPARISONS_OFFER = "comparisons.offer"
    CONSENSUS_READ = "consensus.read"
    CONSENSUS_DECIDE = "consensus.decide"
    GUIDELINES_READ = "guidelines.read"
    GUIDELINES_WRITE = "guidelines.write"
    RULES_READ = "rules.read"
    RULES_WRITE = "rules.write"
    USERS_READ = "users.read"
    USERS_WRITE = "users.write"
    PROGRESS_READ = "progress.read"
    PREDICTIONS_MAKE = "predictions.make"
    SERVE = "serve"
    FEEDBACK_SEND = "feedback.send"
    FEEDBACK_READ = "feedback.read"
    DATASETS_READ = "datasets.read"
    DATASETS_WRITE = "datasets.write"
    AUDIT_READ = "audit.read"
    AUDIT_VERIFY = "audit.verify"
    METRICS_READ = "metrics.read"
    METRICS_WRITE = "metrics.write"
    ALERTS_READ = "alerts.read"
    ALERTS_WRITE = "alerts.write"
    DECISIONS_ANSWER = "decisions.answer"
    MODELS_PROMOTE = "models.promote"
    ANNOTATORS_PAUSE = "annotators.pause"
    TOKENS_OWN = "tokens.own"


P = Permission
ANNOTATOR = frozenset(
    {P.VOTES_CAST, P.VOTES_READ_OWN, P.GUIDELINES_READ, P.RULES_READ, P.FEEDBACK_SEND, P.TOKENS_OWN}
)
READER = frozenset(
    {P.PROGRESS_READ, P.METRICS_READ, P.COMPARISONS_READ, P.RULES_READ, P.GUIDELINES_READ}
)

ROLE_PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.ANNOTATOR: ANNOTATOR,
    Role.CURATOR: ANNOTATOR
    | READER
    | {
        P.VOTES_READ,
        P.COMPARISONS_OFFER,
        P.CONSENSUS_READ,
        P.CONSENSUS_DECIDE,
        P.ANNOTATORS_PAUSE,
        P.GUIDELINES_WRITE,
        P.RULES_WRITE,
        P.FEEDBACK_READ,
        P.DATASETS_READ,
        P.DATASETS_WRITE,
    },
    Role.ENGINEER: READER
    | {
        P.COMPARISONS_OFFER,
        P.VOTES_READ,
        P.CONSENSUS_READ,
        P.CONSENSUS_DECIDE,
        P.PREDICTIONS_MAKE,
        P.SERVE,
        P.FEEDBACK_SEND,
        P.FEEDBACK_READ,
        P.DATASETS_READ,
        P.METRICS_WRITE,
        P.ALERTS_READ,
        P.ALERTS_WRITE,
        P.DECISIONS_ANSWER,
        P.ANNOTATORS_PAUSE,
        P.TOKENS_OWN,
    },
    Role.AUDITOR: READER | {P.AUDIT_READ, P.AUDIT_VERIFY, P.VOTES_READ, P.ALERTS_READ},
    Role.APPROVER: READER
    | {
        P.CONSENSUS_READ,
        P.ALERTS_READ,
        P.DECISIONS_ANSWER,
        P.MODELS_PROMOTE,
        P.AUDIT_READ,
        P.TOKENS_OWN,
    },
    Role.ADMIN: frozenset(Permission),
}


def is_blind(roles: Iterable[Role]) -> bool:
    """Whether these roles read nobody else's votes, models and figures: annotator alone."""
    return set(roles) == {Role.ANNOTATOR}


def permissions_of(roles: Iterable[Role]) -> frozenset[Permission]:
    """All that any of the roles brings."""
    return frozenset().union(*(ROLE_PERMISSIONS[role] for role in roles))


@dataclass(frozen=True)
class Principal:
    """An authenticated user, with the token used and its permissions."""

    user: User
    token: Token
    permissions: frozenset[Permission]

    @property
    def user_id(self) -> str:
        return self.user.user_id

    @property
    def is_session(self) -> bool:
        return self.token.kind == "session"

    def may(self, permission: Permission) -> bool:
        return permission in self.permissions

    @property
    def is_blind(self) -> bool:
        """Whether the user is an annotator alone and so sees no votes of others. The scopes of the
        token do not matter, because its owner can make another.
        """
        return is_blind(self.user.roles)
