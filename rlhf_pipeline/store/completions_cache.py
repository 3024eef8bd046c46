"""Completions by content fingerprint: implements protocols.CompletionCache. Knows keys and texts; knows no backend."""

import hashlib
import logging
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select

from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_PARAMETERS, MAX_ROWS, Database
from rlhf_pipeline.store.schema import completion_cache

log = logging.getLogger(__name__)

HASH_LENGTH = 64


class CompletionsCache:
    """Insert or ignore: the first whole value of a key stays.

    What is kept is a SHA-256 of key and value before the value, checked whenever it is read: one that was changed, cut off or put under
    another key is not served but made again, as is one of before there were hashes.
    """

    def __init__(self, database: Database):
        self._database = database

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """The values of the keys that are known and whole."""
        found: dict[str, str] = {}
        with self._database.reading() as connection:
            for batch in batches(sorted(set(keys)), MAX_PARAMETERS):
                whole, broken = self._stored(connection, batch)
                found |= whole
                if broken:
                    log.warning(
                        "%d cached completions are not what was stored (the first: %s); they are made again.", len(broken), broken[0]
                    )
        return found

    def put_many(self, entries: Mapping[str, str]) -> None:
        """Keep the entries whose keys are new, or hold what is not whole, some hundred to a transaction."""
        now = self._database.clock.now()
        for batch in batches(sorted(entries), MAX_ROWS):
            with self._database.writing() as connection:
                whole, broken = self._stored(connection, batch)
                if broken:
                    mine = self._database.mine(completion_cache)
                    connection.execute(completion_cache.delete().where(mine, completion_cache.c.cache_key.in_(broken)))
                new = [{"cache_key": key, "value": _sealed(key, entries[key]), "stored_at": now} for key in batch if key not in whole]
                self._database.insert(connection, completion_cache, new)

    def _stored(self, connection: Connection, keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """The whole values of these keys, and the keys whose value is not."""
        wanted = select(completion_cache.c.cache_key, completion_cache.c.value).where(
            self._database.mine(completion_cache), completion_cache.c.cache_key.in_(keys)
        )
        whole: dict[str, str] = {}
        broken: list[str] = []
        for row in connection.execute(wanted):
            value = row.value[HASH_LENGTH:]
            if row.value == _sealed(row.cache_key, value):
                whole[row.cache_key] = value
            else:
                broken.append(row.cache_key)
        return whole, sorted(broken)


def _sealed(key: str, value: str) -> str:
    # Half a character, which no database takes, is for the insert to refuse.
    return hashlib.sha256(f"{key}\n{value}".encode("utf-8", "surrogatepass")).hexdigest() + value
