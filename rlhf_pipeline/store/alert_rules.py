"""Changes of alert rules that people made by command or API; they come after `rlhf.yaml`."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import Record, content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import alert_rules


class AlertRuleChange(Record):
    """What somebody set of one rule, and when."""

    rule: str
    given: dict[str, Any]
    changed_at: datetime
    changed_by: str


class AlertRuleChanges:
    """At most one change per rule, the latest; the audit chain keeps the earlier ones' authors."""

    def __init__(self, database: Database):
        self._database = database

    def all(self) -> list[AlertRuleChange]:
        """By rule."""
        wanted = (
            select(alert_rules)
            .where(self._database.in_project(alert_rules))
            .order_by(alert_rules.c.rule)
        )
        return [
            AlertRuleChange(
                rule=row["rule"],
                given=json.loads(row["record"]),
                changed_at=row["changed_at"],
                changed_by=row["changed_by"],
            )
            for row in self._database.fetch_mappings(wanted)
        ]

    def put(self, rule: str, given: Mapping[str, Any], *, actor: str) -> None:
        """Replace what was set of a rule."""
        row = {
            "rule": rule,
            "record": json.dumps(given, sort_keys=True),
            "changed_at": self._database.clock.now().astimezone(UTC),
            "changed_by": actor,
        }
        with audited_transaction(self._database) as (connection, ledger):
            self._delete(connection, rule)
            self._database.insert(connection, alert_rules, [row])
            ledger.append(
                actor=actor,
                action="alert_rule.set",
                object_id=rule,
                digest=content_hash(row["record"]),
            )

    def delete(self, rule: str, *, actor: str) -> None:
        """Return to the rule of `rlhf.yaml` or the default. Raises NotFound if nothing was set."""
        with audited_transaction(self._database) as (connection, ledger):
            if not self._delete(connection, rule):
                raise NotFound(f"Nothing was set of the rule {rule!r}.")
            ledger.append(
                actor=actor,
                action="alert_rule.reset",
                object_id=rule,
                digest=content_hash(rule),
            )

    def _delete(self, connection: Connection, rule: str) -> int:
        return connection.execute(
            alert_rules.delete().where(
                self._database.in_project(alert_rules), alert_rules.c.rule == rule
            )
        ).rowcount
