"""The work ledger of completions (`protocols.WorkLedger`): claims and settles items.

The state, call, cost and result of an item commit together, so a killed process loses only the
calls that were under way. These are recorded as lost, and as perhaps billed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from sqlalchemy import Connection, and_, bindparam, exists, func, or_, select, true, update
from sqlalchemy.sql import ColumnElement

from rlhf_pipeline.core.protocols import (
    LONGEST_PAUSE_S,
    RENEW_S,
    WRITE_AGAIN_S,
    Attempt,
    Budget,
    BudgetShortfall,
    CallObserver,
    Claim,
    Lane,
    LedgerTransaction,
    WorkItem,
    ignore_calls,
)
from rlhf_pipeline.store.completions_cache import CompletionsCache
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_PARAMETERS, MAX_ROWS, Database
from rlhf_pipeline.store.generation_reports import LedgerReports
from rlhf_pipeline.store.schema import generation_attempts as calls
from rlhf_pipeline.store.schema import generation_items as items
from rlhf_pipeline.store.schema import generation_runs as runs

LEASE_S = 120.0
RELEASED: dict[str, Any] = {"state": "open", "owner": None, "leased_until": None}
# No wait is longer: a later time was recorded by a clock that has jumped back since.
LONGEST_WAIT_S = LONGEST_PAUSE_S + 3600.0  # the pause, and the retry's own delay
ENDS = ("ended_at", "paused_until", "pause_reason")  # nothing for a run that continues


class GenerationLedger(LedgerReports):
    """See `protocols.WorkLedger`. `lease_s` is how long a claim lasts without renewal; every
    transaction renews its owner's. `observe_calls` may be replaced by another CallObserver.
    """

    def __init__(
        self,
        database: Database,
        cache: CompletionsCache,
        *,
        lease_s: float = LEASE_S,
        write_again_s: tuple[float, ...] = WRITE_AGAIN_S,
        renew_s: float = RENEW_S,
    ):
        self.write_again_s = write_again_s
        self.renew_s = renew_s
        self.observe_calls: CallObserver = ignore_calls
        self._database = database
        self._cache = cache
        self._lease = timedelta(seconds=lease_s)
        self._renewed: dict[str, datetime] = {}  # time of the last renewal by owner

    # --- a run
    # ----------------------------------------------------------------------------------------------

    def start(
        self,
        run_id: str,
        items_: Sequence[WorkItem],
        *,
        asset: str,
        record: str,
        origin: str | None = None,
    ) -> None:
        is_known, has_ended = self._begin(run_id, len(items_), asset, record, origin)
        if has_ended:
            self._reopen_failed(run_id)
            # Only now: if a process is killed in between, the next one reopens the rest.
            with self._database.write_transaction() as connection:
                connection.execute(
                    update(runs).where(self._is_of_run(runs, run_id)).values(ended_at=None)
                )
        for batch in self._database.with_backoff(batches(items_, MAX_ROWS)):
            missing = self._update_known_items(run_id, batch) if is_known else batch
            if missing:
                self._insert_items(run_id, missing)

    def _reopen_failed(self, run_id: str) -> None:
        """`settled_at` stays: only attempts after it count against the item from now on."""
        is_failed = and_(self._is_of_run(items, run_id), items.c.state == "failed")
        opened = {"state": "open", "kind": None, "error": None, "not_before": None, "n_faults": 0}
        for _ in self._update_in_batches(is_failed, opened):
            pass

    def _begin(
        self, run_id: str, n_items: int, asset: str, record: str, origin: str | None
    ) -> tuple[bool, bool]:
        """Insert or restart the run; return whether it was known, and whether it had ended."""
        now = self._database.clock.now()
        with self._database.write_transaction() as connection:
            run = connection.execute(
                select(runs.c.ended_at).where(self._is_of_run(runs, run_id))
            ).one_or_none()
            if run is None:
                row = {
                    "run_id": run_id,
                    "asset": asset,
                    "n_items": n_items,
                    "record": record,
                    "started_at": now,
                }
                self._database.insert(
                    connection, runs, [row | {"origin": origin} | dict.fromkeys(ENDS)]
                )
                return False, False
            reopening = {**dict.fromkeys(ENDS), "origin": origin, "ended_at": run.ended_at}
            connection.execute(update(runs).where(self._is_of_run(runs, run_id)).values(reopening))
        return True, run.ended_at is not None

    def _update_known_items(self, run_id: str, batch: Sequence[WorkItem]) -> list[WorkItem]:
        """The items that are not in the ledger yet. Those that are, and may be called, reserve what
        a call costs at current prices.
        """
        query = select(items.c.item_no, items.c.state, items.c.reserved).where(
            self._is_of_run(items, run_id), items.c.item_no.in_([item.item_no for item in batch])
        )
        with self._database.read_transaction() as connection:
            there = {row.item_no: row for row in connection.execute(query)}
        noted = [item for item in batch if item.item_no in there]
        changed = [
            {"b_item": item.item_no, "b_reserved": item.reserve}
            for item in noted
            # A claimed item's reserve only grows.
            if (
                (row := there[item.item_no]).state in ("open", "failed")
                and item.reserve != row.reserved
            )
            or (row.state == "leased" and item.reserve > row.reserved)
        ]
        if changed:
            at = and_(self._is_of_run(items, run_id), items.c.item_no == bindparam("b_item"))
            with self._database.write_transaction() as connection:
                connection.execute(
                    update(items).where(at).values(reserved=bindparam("b_reserved")), changed
                )
        done = [item.cache_key for item in noted if there[item.item_no].state == "succeeded"]
        if done:
            with self._database.write_transaction() as connection:
                self._cache.find_hits(connection, done)  # records the use
        return [item for item in batch if item.item_no not in there]

    def _insert_items(self, run_id: str, batch: Sequence[WorkItem]) -> None:
        now = self._database.clock.now()
        with self._database.write_transaction() as connection:
            at = and_(
                self._is_of_run(items, run_id),
                items.c.item_no.in_([item.item_no for item in batch]),
            )
            # Another process may start the same run.
            there = set(connection.execute(select(items.c.item_no).where(at)).scalars())
            batch = [item for item in batch if item.item_no not in there]
            have = self._cache.find_hits(connection, [item.cache_key for item in batch])
            rows = [
                {
                    "run_id": run_id,
                    "item_no": item.item_no,
                    "position": item.position,
                    "prompt_id": item.prompt_id,
                    "provider": item.provider,
                    "model": item.model,
                    "sample_index": item.sample_index,
                    "params": item.params,
                    "cache_key": item.cache_key,
                    "state": "succeeded" if (is_cached := item.cache_key in have) else "open",
                    "owner": None,
                    "leased_until": None,
                    "not_before": None,
                    "reserved": item.reserve,
                    "is_metered": item.is_metered,
                    "is_cached": is_cached,
                    "n_attempts": 0,
                    "n_faults": 0,
                    "kind": None,
                    "error": None,
                    "settled_at": now if is_cached else None,
                }
                for item in batch
            ]
            self._database.insert(connection, items, rows)

    def end(self, run_id: str) -> None:
        with self._database.write_transaction() as connection:
            ended = {**dict.fromkeys(ENDS), "ended_at": self._database.clock.now()}
            connection.execute(update(runs).where(self._is_of_run(runs, run_id)).values(ended))

    def pause(self, run_id: str, until: datetime, why: str) -> None:
        with self._database.write_transaction() as connection:
            connection.execute(
                update(runs)
                .where(self._is_of_run(runs, run_id))
                .values(paused_until=until, pause_reason=why)
            )

    # --- a turn
    # ----------------------------------------------------------------------------------------------

    def settle_and_claim(
        self,
        run_id: str,
        owner: str,
        attempts: Sequence[Attempt],
        n_by_lane: Mapping[Lane, int],
        budget: Budget,
        *,
        is_dead: Callable[[str], bool],
    ) -> LedgerTransaction:
        """See the protocol. Raises StoreError if the database refuses, and keeps nothing then."""
        turn = self._run_transaction(run_id, owner, attempts, n_by_lane, budget, is_dead)
        if attempts:
            self.observe_calls(attempts)
        return turn

    def _run_transaction(
        self,
        run_id: str,
        owner: str,
        attempts: Sequence[Attempt],
        n_by_lane: Mapping[Lane, int],
        budget: Budget,
        is_dead: Callable[[str], bool],
    ) -> LedgerTransaction:
        now = self._database.clock.now()
        late: list[int] = []
        with self._database.write_transaction() as connection:
            for batch in batches(attempts, MAX_ROWS):
                late += self._settle(connection, run_id, owner, batch, now)
            self._renew_leases(connection, owner, now, is_dead)
            claimed, hits, over = self._claim_all(connection, run_id, owner, n_by_lane, budget, now)
            n_claimed = {lane: len(mine) for lane, mine in claimed.items()}
            if not n_by_lane or (
                any(n_by_lane.values())
                and all(n_claimed.get(lane, 0) >= n for lane, n in n_by_lane.items())
            ):
                return LedgerTransaction(claimed, hits, over, late=late)
            mine = and_(
                self._is_of_run(items, run_id), or_(*(_is_of_lane(lane) for lane in n_by_lane))
            )
            remaining = select(func.count(), func.min(items.c.not_before)).where(
                mine, items.c.state == "open"
            )
            n_open, due = connection.execute(remaining).one()
            others = select(func.count()).where(
                mine, items.c.state == "leased", items.c.owner != owner
            )
            n_leased = connection.execute(others).scalar_one()
        due_s = None if due is None else max(0.0, (due - now).total_seconds())
        return LedgerTransaction(
            claimed, hits, over, n_open=n_open, n_leased=n_leased, due_s=due_s, late=late
        )

    def _settle(
        self,
        connection: Connection,
        run_id: str,
        owner: str,
        attempts: Sequence[Attempt],
        now: datetime,
    ) -> list[int]:
        """Record calls, costs, results and the new states of items; return the items whose failure
        does not count.
        """
        query = select(items.c.item_no, items.c.state, items.c.owner, items.c.n_attempts).where(
            self._is_of_run(items, run_id), items.c.item_no.in_([a.item_no for a in attempts])
        )
        item_rows = {row.item_no: row for row in connection.execute(query)}
        tried = {item_no: row.n_attempts for item_no, row in item_rows.items()}
        rows: list[dict[str, Any]] = []
        changes: list[dict[str, Any]] = []
        for attempt in attempts:
            row = item_rows[attempt.item_no]
            tried[attempt.item_no] += 1
            rows.append(_build_call(run_id, attempt, tried[attempt.item_no]))
            # After a lease ended, another worker may have called. A text still counts, a
            # failure does not.
            is_mine = row.state == "leased" and row.owner == owner
            counts = is_mine or (attempt.becomes == "succeeded" and row.state != "succeeded")
            changes.append(_item_update(attempt, tried[attempt.item_no], now) if counts else {})
        self._database.insert(connection, calls, rows)
        self._spend(connection, run_id, rows, now)
        self._cache.put(
            connection, {a.cache_key: a.result for a in attempts if a.result is not None}
        )
        settled = [
            change | {"b_item": a.item_no}
            for change, a in zip(changes, attempts, strict=True)
            if change
        ]
        if settled:
            names = [name for name in settled[0] if name not in ("b_item", "faults", "settled")]
            values: dict[str, Any] = {name: bindparam(name) for name in names} | {
                "n_faults": items.c.n_faults + bindparam("faults"),
                "settled_at": func.coalesce(
                    bindparam("settled", type_=items.c.settled_at.type), items.c.settled_at
                ),
            }
            at = and_(self._is_of_run(items, run_id), items.c.item_no == bindparam("b_item"))
            connection.execute(update(items).where(at).values(values), settled)
        late = [a.item_no for change, a in zip(changes, attempts, strict=True) if not change]
        if late:
            at = and_(self._is_of_run(items, run_id), items.c.item_no.in_(late))
            connection.execute(update(items).where(at).values(n_attempts=items.c.n_attempts + 1))
        return [
            a.item_no
            for change, a in zip(changes, attempts, strict=True)
            if not change and a.becomes == "failed"
        ]

    def _renew_leases(
        self, connection: Connection, owner: str, now: datetime, is_dead: Callable[[str], bool]
    ) -> None:
        """Renew the owner's leases and take back those of dead owners in every run: they reserve
        money and block equal keys.
        """
        before = self._renewed.get(owner)
        if before is not None and abs(now - before) < self._lease / 4:
            return
        self._renewed[owner] = now
        mine = and_(items.c.state == "leased", items.c.owner == owner)
        connection.execute(update(items).where(mine).values(leased_until=now + self._lease))
        columns = (
            "run_id",
            "item_no",
            "owner",
            "leased_until",
            "provider",
            "model",
            "reserved",
            "is_metered",
            "n_attempts",
        )
        others = select(*(items.c[name] for name in columns)).where(
            items.c.state == "leased", items.c.owner != owner
        )
        rows = connection.execute(others).all()
        dead = {name: is_dead(name) for name in {row.owner for row in rows}}
        # A lease that ends later than possible was recorded by a clock that jumped back since.
        ended = [
            r
            for r in rows
            if dead[r.owner] or r.leased_until < now or r.leased_until > now + 2 * self._lease
        ]
        if len(ended) > MAX_ROWS:
            del self._renewed[owner]  # the next call renews more
        lost: dict[str, list[Any]] = {}
        for row in ended[:MAX_ROWS]:
            lost.setdefault(row.run_id, []).append(row)
        for run_id, lost_items in lost.items():
            self._record_lost_calls(connection, run_id, lost_items, now)

    def _record_lost_calls(
        self, connection: Connection, run_id: str, lost_items: Sequence[Any], now: datetime
    ) -> None:
        """Record calls whose end is unknown: perhaps made, perhaps billed, at most as reserved."""
        rows = [
            _empty_call(run_id, row.item_no, row.n_attempts + 1, row.provider, row.model, now)
            | {
                "outcome": "lost",
                "kind": "lost",
                "billing": "unknown" if row.is_metered else "none",
                "cost": row.reserved if row.is_metered else 0,
                "error": "The worker ended during this call, or before it; whether it was made is "
                "unknown.",
            }
            for row in lost_items
        ]
        self._database.insert(connection, calls, rows)
        self._spend(connection, run_id, rows, now)
        at = and_(
            self._is_of_run(items, run_id), items.c.item_no.in_([row.item_no for row in lost_items])
        )
        connection.execute(
            update(items).where(at).values(**RELEASED, n_attempts=items.c.n_attempts + 1)
        )

    # --- claims
    # ----------------------------------------------------------------------------------------------

    def _claim_all(
        self,
        connection: Connection,
        run_id: str,
        owner: str,
        n_by_lane: Mapping[Lane, int],
        budget: Budget,
        now: datetime,
    ) -> tuple[dict[Lane, list[Claim]], list[int], dict[Lane, BudgetShortfall]]:
        claimed: dict[Lane, list[Claim]] = {}
        hits: list[int] = []
        over: dict[Lane, BudgetShortfall] = {}
        for lane, n in n_by_lane.items():
            mine: list[Claim] = []
            while len(mine) < n:
                claims, answered, excess = self._claim(
                    connection, run_id, owner, lane, n - len(mine), budget, now
                )
                mine += claims
                hits += answered
                if excess is not None:
                    over[lane] = excess
                # Cached answers make room for more; without any, nothing more can be claimed.
                if not answered:
                    break
            claimed[lane] = mine
        return claimed, hits, over

    def _claim(
        self,
        connection: Connection,
        run_id: str,
        owner: str,
        lane: Lane,
        n: int,
        budget: Budget,
        now: datetime,
    ) -> tuple[list[Claim], list[int], BudgetShortfall | None]:
        """Claim up to n items that are due, whose key is not being requested and which the budgets
        cover. Return the claims, the items that the cache answers, and a budget that is too small.
        """
        twin = items.alias("twin")
        asked_for = exists().where(twin.c.state == "leased", twin.c.cache_key == items.c.cache_key)
        is_due = or_(
            items.c.not_before.is_(None),
            items.c.not_before <= now,
            items.c.not_before > now + timedelta(seconds=LONGEST_WAIT_S),
        )
        names = ("item_no", "cache_key", "reserved", "n_attempts", "n_faults", "settled_at")
        query = (
            select(*(items.c[name] for name in names))
            .where(self._is_of_run_lane(run_id, lane), items.c.state == "open", is_due, ~asked_for)
            .order_by(items.c.position)
            .limit(n)
        )
        rooms = self._remaining_budgets(connection, run_id, lane, budget, now)
        room = min((amount for amount, _ in rooms), default=None)
        rows = connection.execute(
            query if room is None else query.where(items.c.reserved <= room)
        ).all()
        have = self._find_hits(connection, rows)
        excess = None
        # The cache may answer what does not fit.
        if room is not None and len(rows) < n:
            too_much = connection.execute(query.where(items.c.reserved > room)).all()
            have |= self._find_hits(connection, too_much)
            excess = min((over for _, over in rooms), key=lambda over: over.left)
            if all(row.cache_key in have or row.reserved <= excess.left for row in too_much):
                excess = None  # it may fit once calls under way have ended
            rows = [*rows, *(row for row in too_much if row.cache_key in have)]
        answered = [row.item_no for row in rows if row.cache_key in have]
        done = {
            "state": "succeeded",
            "is_cached": True,
            "not_before": None,
            "kind": None,
            "error": None,
            "settled_at": now,
        }
        for batch in batches(answered, MAX_PARAMETERS):
            connection.execute(
                update(items)
                .where(self._is_of_run(items, run_id), items.c.item_no.in_(batch))
                .values(done)
            )
        # Of equal keys only the first is called.
        first = {row.cache_key: row for row in reversed(rows) if row.cache_key not in have}
        new_rows: list[Any] = []
        for row in rows:
            if first.get(row.cache_key) is row and (room is None or row.reserved <= room):
                new_rows.append(row)
                room = None if room is None else room - row.reserved
        lease = {
            "state": "leased",
            "owner": owner,
            "leased_until": now + self._lease,
            "not_before": None,
        }
        for batch in batches([row.item_no for row in new_rows], MAX_PARAMETERS):
            connection.execute(
                update(items)
                .where(self._is_of_run(items, run_id), items.c.item_no.in_(batch))
                .values(lease)
            )
        before = self._count_earlier_attempts(connection, run_id, new_rows)
        return (
            [
                Claim(row.item_no, row.n_attempts, row.n_faults, before.get(row.item_no, 0))
                for row in new_rows
            ],
            answered,
            excess,
        )

    def _find_hits(self, connection: Connection, rows: Sequence[Any]) -> set[str]:
        return self._cache.find_hits(connection, [row.cache_key for row in rows])

    def _count_earlier_attempts(
        self, connection: Connection, run_id: str, rows: Sequence[Any]
    ) -> dict[int, int]:
        """For items of a run that was started again: their attempts until they had failed."""
        failed = [row.item_no for row in rows if row.n_attempts and row.settled_at is not None]
        counts: dict[int, int] = {}
        for batch in batches(failed, MAX_PARAMETERS):
            joined = calls.join(
                items, and_(self._is_of_run(items, run_id), items.c.item_no == calls.c.item_no)
            )
            at = and_(
                self._is_of_run(calls, run_id),
                calls.c.item_no.in_(batch),
                calls.c.started_at <= items.c.settled_at,
            )
            query = (
                select(calls.c.item_no, func.count())
                .select_from(joined)
                .where(at)
                .group_by(calls.c.item_no)
            )
            counts |= {item_no: n for item_no, n in connection.execute(query)}
        return counts

    def fail_open(
        self,
        run_id: str,
        lane: Lane,
        kind: str,
        error: str,
        items_: Sequence[int] | None = None,
        *,
        above: int | None = None,
    ) -> Iterator[int]:
        is_open = and_(
            self._is_of_run_lane(run_id, lane),
            items.c.state == "open",
            true() if above is None else items.c.reserved > above,
        )
        failed = {
            "state": "failed",
            "kind": kind,
            "error": error,
            "not_before": None,
            "settled_at": self._database.clock.now(),
        }
        return self._update_in_batches(is_open, failed, items_, but_cached=above is not None)

    def release(self, run_id: str, owner: str, items_: Sequence[int] | None = None) -> None:
        at = and_(self._is_of_run(items, run_id), items.c.state == "leased", items.c.owner == owner)
        for _ in self._update_in_batches(at, RELEASED, items_):
            pass

    def reopen(self, run_id: str, items_: Sequence[int]) -> None:
        at = and_(self._is_of_run(items, run_id), items.c.state == "succeeded")
        for _ in self._update_in_batches(
            at, {"state": "open", "is_cached": False, "n_faults": 0}, items_
        ):
            pass

    def _update_in_batches(
        self,
        at: ColumnElement[bool],
        values: Mapping[str, Any],
        items_: Sequence[int] | None = None,
        *,
        but_cached: bool = False,
    ) -> Iterator[int]:
        """Change the items that match `at`, a few in each transaction; yield each once it is
        committed. `values` must end the match. `but_cached` skips items that the cache answers: the
        next transaction takes them, whatever a call would cost.
        """
        some: Iterator[Sequence[int] | None] = (
            (None for _ in count()) if items_ is None else iter(batches(items_, MAX_ROWS))
        )
        last = -1
        for batch in self._database.with_backoff(some):
            which = at if batch is None else and_(at, items.c.item_no.in_(batch))
            query = (
                select(items.c.run_id, items.c.item_no, items.c.cache_key)
                .where(which)
                .limit(MAX_ROWS)
            )
            if batch is None and but_cached:
                # Skipped items still match.
                query = query.where(items.c.item_no > last).order_by(items.c.item_no)
            with self._database.write_transaction() as connection:
                rows = connection.execute(query).all()
                have = self._find_hits(connection, rows) if but_cached else set()
                changed = [row.item_no for row in rows if row.cache_key not in have]
                if changed:
                    these = and_(
                        self._is_of_run(items, rows[0].run_id), items.c.item_no.in_(changed)
                    )
                    connection.execute(update(items).where(these).values(values))
            yield from changed
            if batch is None and len(rows) < MAX_ROWS:
                return
            last = rows[-1].item_no if rows else last

    def results(self, keys: Sequence[str]) -> dict[str, str]:
        return self._cache.get_many(keys)

    def _is_of_run_lane(self, run_id: str, lane: Lane) -> ColumnElement[bool]:
        return and_(self._is_of_run(items, run_id), _is_of_lane(lane))


def _is_of_lane(lane: Lane) -> ColumnElement[bool]:
    return and_(items.c.provider == lane[0], items.c.model == lane[1])


def _empty_call(
    run_id: str, item_no: int, attempt_no: int, provider: str, model: str, at: datetime
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "item_no": item_no,
        "attempt_no": attempt_no,
        "provider": provider,
        "model": model,
        "started_at": at,
        "latency_ms": 0.0,
        "outcome": "lost",
        "kind": "lost",
        "status": None,
        "n_prompt_tokens": 0,
        "n_tokens": 0,
        "cost": 0,
        "billing": "none",
        "wait_s": None,
        "error": None,
        "partial": None,
    }


def _build_call(run_id: str, a: Attempt, attempt_no: int) -> dict[str, Any]:
    return _empty_call(run_id, a.item_no, attempt_no, a.provider, a.model, a.started_at) | {
        "latency_ms": a.latency_ms,
        "outcome": a.outcome,
        "kind": a.kind,
        "status": a.status,
        "n_prompt_tokens": a.n_prompt_tokens,
        "n_tokens": a.n_tokens,
        "cost": a.cost,
        "billing": a.billing,
        "wait_s": a.wait_s,
        "error": a.error,
        "partial": a.partial,
    }


def _item_update(a: Attempt, n_attempts: int, now: datetime) -> dict[str, Any]:
    """The columns of an item after this attempt."""
    is_done = a.becomes != "open"
    return {
        **RELEASED,
        "state": a.becomes,
        "not_before": a.not_before,
        "n_attempts": n_attempts,
        "kind": None if a.becomes == "succeeded" else a.kind,
        "error": a.error if a.becomes == "failed" else None,
        "settled": now if is_done else None,
        "faults": int(a.is_fault),
    }
