"""Caches completions by content fingerprint: a hit is never generated, or paid for, again."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, select

from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_PARAMETERS, MAX_ROWS, Repository
from rlhf_pipeline.store.schema import completion_cache, generation_items, generation_runs

# A use is recorded at most once in this time, so that repeating a run writes nothing.
TOUCH_INTERVAL = timedelta(hours=1)

c = completion_cache.c


class CompletionsCache(Repository):
    """Insert or ignore: the first value of a key stays."""

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """The values of the known keys."""
        values: dict[str, str] = {}
        with self._database.read_transaction() as connection:
            for batch in batches(keys, MAX_PARAMETERS):
                query = select(c.cache_key, c.value).where(c.cache_key.in_(batch))
                values |= {key: value for key, value in connection.execute(query)}
        return values

    def put_many(self, entries: Mapping[str, str]) -> None:
        """Store the entries whose keys are new, some hundred to a transaction."""
        for batch in batches(entries, MAX_ROWS):
            with self._database.write_transaction() as connection:
                self.put(connection, {key: entries[key] for key in batch})

    def put(self, connection: Connection, entries: Mapping[str, str]) -> None:
        """`put_many` within the caller's transaction, so that a result and its request are stored
        together.
        """
        query = select(c.cache_key).where(c.cache_key.in_(entries))
        stored_keys = set(connection.execute(query).scalars())
        now = self._database.clock.now()
        new = [
            {"cache_key": key, "value": value, "used_at": now}
            for key, value in entries.items()
            if key not in stored_keys
        ]
        self._database.insert(connection, completion_cache, new)

    def find_hits(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        """The known keys; records the use, so that `prune` keeps them."""
        all_hits: set[str] = set()
        now = self._database.clock.now()
        for batch in batches(keys, MAX_PARAMETERS):
            stored_keys = connection.execute(
                select(c.cache_key).where(c.cache_key.in_(batch))
            ).scalars()
            if hits := set(stored_keys):
                all_hits |= hits
                old = and_(c.cache_key.in_(hits), c.used_at < now - TOUCH_INTERVAL)
                connection.execute(completion_cache.update().where(old).values(used_at=now))
        return all_hits

    def prune(self, *, unused_since: datetime) -> int:
        """Delete entries last stored or used before a moment; returns their number. Results of a
        running run stay: they are paid for and not yet delivered.
        """
        needed = (
            select(generation_items.c.cache_key)
            .join(generation_runs, generation_items.c.run_id == generation_runs.c.run_id)
            .where(generation_runs.c.ended_at.is_(None))
        )
        with self._database.read_transaction() as connection:
            needed_keys = set(connection.execute(needed).scalars())
            old = connection.execute(select(c.cache_key).where(c.used_at < unused_since)).scalars()
            going = sorted(set(old) - needed_keys)
        for batch in self._database.with_backoff(batches(going, MAX_ROWS)):
            with self._database.write_transaction() as connection:
                connection.execute(completion_cache.delete().where(c.cache_key.in_(batch)))
        return len(going)
