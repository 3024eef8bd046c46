"""Lineage at a million votes follows indexes."""

from sqlalchemy import event

from tests.unit.store.conftest import NOON
from tests.unit.store.databases import on_sqlite

QUARANTINED = {"eve": 3}


def explain(store, ask):
    """The plans of the queries that `ask` makes."""
    statements = []
    engine = store.database.engine

    def note(connection, cursor, statement, parameters, context, executemany):
        statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    ask()
    event.remove(engine, "before_cursor_execute", note)
    with store.database.read_transaction() as connection:
        return [
            row[3]
            for statement, parameters in statements
            if statement.startswith("SELECT")
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]


@on_sqlite
def test_no_query_reads_all_votes_or_comparisons(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    store.votes.cast(make_vote("c0"))

    def ask():
        store.lineage.sum_teaching(1, QUARANTINED)
        store.lineage.judge(1, 1, QUARANTINED)
        store.lineage.corrections(1, QUARANTINED)
        store.votes.log(annotator_id="ann")

    plans = explain(store, ask)
    tables = ("votes", "later", "comparisons")
    read = [plan for plan in plans if plan.split()[1] in tables]
    assert len(read) > 10
    scans = [plan for plan in read if plan.startswith("SCAN") and "COVERING INDEX" not in plan]
    ranges = [plan for plan in read if plan.endswith("PRIMARY KEY (rowid<?)")]
    assert scans + ranges == []
