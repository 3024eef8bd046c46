"""Completions by content fingerprint: implements protocols.CompletionCache. Knows keys and texts; knows no backend."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_PARAMETERS, MAX_ROWS, Database
from rlhf_pipeline.store.schema import completion_cache


class CompletionsCache:
    """Insert or ignore: the first value of a key stays."""

    def __init__(self, database: Database):
        self._database = database

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """The values of the keys that are known."""
        found: dict[str, str] = {}
        with self._database.reading() as connection:
            for batch in batches(sorted(set(keys)), MAX_PARAMETERS):
                wanted = select(completion_cache.c.cache_key, completion_cache.c.value).where(
                    self._database.mine(completion_cache), completion_cache.c.cache_key.in_(batch)
                )
                found.update({row.cache_key: row.value for row in connection.execute(wanted)})
        return found

    def put_many(self, entries: Mapping[str, str]) -> None:
        """Keep the entries whose keys are new, some hundred to a transaction."""
        now = self._database.clock.now()
        for batch in batches(sorted(entries), MAX_ROWS):
            with self._database.writing() as connection:
                stored = select(completion_cache.c.cache_key).where(
                    self._database.mine(completion_cache), completion_cache.c.cache_key.in_(batch)
                )
                known = set(connection.execute(stored).scalars())
                new = [{"cache_key": key, "value": entries[key], "stored_at": now} for key in batch if key not in known]
                self._database.insert(connection, completion_cache, new)
