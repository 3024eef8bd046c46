"""Groups that annotators were given; votes of anybody else belong to the group of their origin."""

from collections.abc import Mapping

from sqlalchemy import select

from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import annotator_groups


class AnnotatorGroups(Repository):
    """One group per annotator who was given one."""

    def all(self) -> dict[str, str]:
        """Group by annotator id."""
        query = select(annotator_groups.c.annotator_id, annotator_groups.c.name)
        return {row.annotator_id: row.name for row in self._database.fetch_all(query)}

    def assign(self, group_of: Mapping[str, str | None], *, actor: str) -> int:
        """Put annotators into a group, or with None into none; returns how many changed. Annotators
        who are not named keep theirs.
        """
        with audited_transaction(self._database) as (connection, ledger):
            names = {
                row.annotator_id: row.name for row in connection.execute(select(annotator_groups))
            }
            changed = {who: name for who, name in group_of.items() if names.get(who) != name}
            if not changed:
                return 0
            for some in batches(changed, MAX_ROWS):
                these = annotator_groups.c.annotator_id.in_(some)
                connection.execute(annotator_groups.delete().where(these))
            self._database.insert(
                connection,
                annotator_groups,
                [{"annotator_id": who, "name": name} for who, name in changed.items() if name],
            )
            ledger.append(
                actor=actor,
                action="annotators.tag",
                object_id=f"{len(changed)} annotators",
                digest=content_hash(sorted(changed.items())),
            )
        return len(changed)
