"""Caches completions by content fingerprint: a hit is never generated, or paid for, again."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, func, select

from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_PARAMETERS, MAX_ROWS, Database
from rlhf_pipeline.store.schema import completion_cache, generation_items, generation_runs

log = logging.getLogger(__name__)

HASH_LENGTH = 64
TOUCH_INTERVAL = timedelta(
    hours=1
)  # a use is recorded at most once in this time, so that repeating a run writes nothing


class CompletionsCache:
    """Insert or ignore: the first intact value of a key stays.

    Values are stored after a SHA-256 of key and value that every read checks. A value that was
    changed, truncated, stored under another key, or written before there were hashes counts as
    missing and is made again.
    """

    def __init__(self, database: Database):
        self._database = database

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """The values of the known keys whose value is intact."""
        found: dict[str, str] = {}
        with self._database.read_transaction() as connection:
            for batch in batches(sorted(set(keys)), MAX_PARAMETERS):
                whole, broken = self._read_entries(connection, batch)
                found |= whole
                if broken:
                    log.warning(
                        "%d cached completions are not what was stored (the first: %s); they are "
                        "made again.",
                        len(broken),
                        broken[0],
                    )
        return found

    def put_many(self, entries: Mapping[str, str]) -> None:
        """Store the entries whose keys are new or have a damaged value, some hundred to a
        transaction.
        """
        for batch in batches(sorted(entries), MAX_ROWS):
            with self._database.write_transaction() as connection:
                self.put(connection, {key: entries[key] for key in batch})

    def put(self, connection: Connection, entries: Mapping[str, str]) -> None:
        """`put_many` within the caller's transaction, so that a result and its request are stored
        together.
        """
        if not entries:
            return
        whole, broken = self._read_entries(connection, sorted(entries))
        if broken:
            connection.execute(
                completion_cache.delete().where(completion_cache.c.cache_key.in_(broken))
            )
        now = self._database.clock.now()
        new = [
            {
                "cache_key": key,
                "value": _prefix_hash(key, value),
                "stored_at": now,
                "last_hit_at": None,
            }
            for key, value in sorted(entries.items())
            if key not in whole
        ]
        self._database.insert(connection, completion_cache, new)

    def find_hits(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        """The known keys with an intact value; records the use, so that `prune` keeps them."""
        found: set[str] = set()
        for batch in batches(sorted(set(keys)), MAX_PARAMETERS):
            whole, _ = self._read_entries(connection, batch)
            found |= set(whole)
            if whole:
                used = completion_cache.c.cache_key.in_(sorted(whole))
                connection.execute(
                    completion_cache.update()
                    .where(used)
                    .values(last_hit_at=self._database.clock.now())
                )
        return found

    def touch(self, keys: Sequence[str]) -> None:
        """Record the use of these keys, unless it was recorded within the hour, so that `prune`
        keeps them.
        """
        now = self._database.clock.now()
        is_old = (
            func.coalesce(completion_cache.c.last_hit_at, completion_cache.c.stored_at)
            < now - TOUCH_INTERVAL
        )
        for batch in self._database.with_backoff(batches(sorted(set(keys)), MAX_ROWS)):
            at = and_(
                completion_cache.c.cache_key.in_(batch),
                is_old,
            )
            old = self._database.fetch_scalars(select(completion_cache.c.cache_key).where(at))
            if old:
                with self._database.write_transaction() as connection:
                    connection.execute(completion_cache.update().where(at).values(last_hit_at=now))

    def prune(self, *, unused_since: datetime) -> int:
        """Delete entries last stored or used before a moment; returns their number. Results of a
        running run stay: they are paid for and not yet delivered.
        """
        c = completion_cache.c
        used = func.coalesce(c.last_hit_at, c.stored_at)
        ledger = generation_items.join(
            generation_runs,
            generation_items.c.run_id == generation_runs.c.run_id,
        )
        needed = (
            select(generation_items.c.cache_key)
            .select_from(ledger)
            .where(generation_runs.c.ended_at.is_(None))
        )
        with self._database.read_transaction() as connection:
            held = set(connection.execute(needed).scalars())
            old = connection.execute(select(c.cache_key).where(used < unused_since)).scalars()
            going = sorted(set(old) - held)
        for batch in self._database.with_backoff(batches(going, MAX_ROWS)):
            with self._database.write_transaction() as connection:
                connection.execute(completion_cache.delete().where(c.cache_key.in_(batch)))
        return len(going)

    def _read_entries(
        self, connection: Connection, keys: Sequence[str]
    ) -> tuple[dict[str, str], list[str]]:
        """The whole values of these keys, and the keys whose value is not."""
        wanted = select(completion_cache.c.cache_key, completion_cache.c.value).where(
            completion_cache.c.cache_key.in_(keys)
        )
        whole: dict[str, str] = {}
        broken: list[str] = []
        for row in connection.execute(wanted):
            value = row.value[HASH_LENGTH:]
            if row.value == _prefix_hash(row.cache_key, value):
                whole[row.cache_key] = value
            else:
                broken.append(row.cache_key)
        return whole, sorted(broken)


def _prefix_hash(key: str, value: str) -> str:
    # A lone surrogate, which no database accepts, is refused by the insert.
    return hashlib.sha256(f"{key}\n{value}".encode("utf-8", "surrogatepass")).hexdigest() + value
