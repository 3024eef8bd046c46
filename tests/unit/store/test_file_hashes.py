"""Hashes of files: the old content is accepted until the new one is in place, whatever kills the
writer.
"""

from datetime import datetime, timedelta

import pytest

from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON

PATH = "frames/votes/2026-01-01.parquet"


class Ticking:
    """A clock that moves on by a second whenever it is read."""

    def __init__(self) -> None:
        self.time = NOON

    def now(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time


@pytest.fixture
def hashes(store: Store) -> Store:
    store.database.clock = Ticking()
    return store


def write(store: Store, content: bytes) -> None:
    with store.file_hashes.record_replacement({PATH: content}):
        pass


def is_accepted(store: Store, content: bytes) -> bool:
    return store.file_hashes.find_changed({PATH: content}) == []


def test_file_that_was_never_recorded_is_accepted(hashes: Store) -> None:
    assert is_accepted(hashes, b"anything")


def test_only_the_newest_content_is_accepted(hashes: Store) -> None:
    write(hashes, b"old")
    write(hashes, b"new")
    assert (
        is_accepted(hashes, b"old"),
        is_accepted(hashes, b"new"),
        is_accepted(hashes, b"neu"),
    ) == (False, True, False)
    (known,) = hashes.file_hashes.all()
    assert (known.path, known.state, known.size) == (PATH, "written", 3)


def test_both_contents_are_accepted_while_a_file_is_replaced(hashes: Store) -> None:
    write(hashes, b"old")
    with hashes.file_hashes.record_replacement({PATH: b"new"}):
        assert (
            is_accepted(hashes, b"old"),
            is_accepted(hashes, b"new"),
            is_accepted(hashes, b"neu"),
        ) == (True, True, False)
        assert [known.state for known in hashes.file_hashes.all()] == ["pending", "written"]


def test_killed_writer_leaves_both_contents_accepted(hashes: Store) -> None:
    write(hashes, b"old")
    with pytest.raises(KeyboardInterrupt), hashes.file_hashes.record_replacement({PATH: b"new"}):
        raise KeyboardInterrupt
    assert (is_accepted(hashes, b"old"), is_accepted(hashes, b"new")) == (True, True)
    write(hashes, b"newer")
    assert (is_accepted(hashes, b"old"), is_accepted(hashes, b"newer")) == (False, True)


def test_hash_of_a_writer_killed_long_ago_is_dropped(hashes: Store) -> None:
    with pytest.raises(KeyboardInterrupt), hashes.file_hashes.record_replacement({PATH: b"killed"}):
        raise KeyboardInterrupt
    hashes.database.clock.time += timedelta(hours=2)  # type: ignore[attr-defined]
    write(hashes, b"new")
    assert (is_accepted(hashes, b"killed"), is_accepted(hashes, b"new")) == (False, True)


def test_clock_that_was_set_back_keeps_no_old_hash(hashes: Store) -> None:
    write(hashes, b"old")
    hashes.database.clock.time -= timedelta(hours=3)  # type: ignore[attr-defined]
    write(hashes, b"new")
    assert (is_accepted(hashes, b"old"), is_accepted(hashes, b"new")) == (False, True)


def test_content_written_while_the_clock_ran_ahead_is_dropped(hashes: Store) -> None:
    hashes.database.clock.time += timedelta(days=3650)  # type: ignore[attr-defined]
    write(hashes, b"ahead")
    hashes.database.clock.time -= timedelta(days=3650)  # type: ignore[attr-defined]
    write(hashes, b"new")
    assert (is_accepted(hashes, b"ahead"), is_accepted(hashes, b"new")) == (False, True)


def test_two_writers_of_one_file_raise_no_false_alarm(hashes: Store) -> None:
    write(hashes, b"old")
    with hashes.file_hashes.record_replacement({PATH: b"first"}):
        write(hashes, b"second")
    assert (
        is_accepted(hashes, b"first"),
        is_accepted(hashes, b"second"),
        is_accepted(hashes, b"old"),
    ) == (True, True, False)


def test_same_content_again_stays_accepted(hashes: Store) -> None:
    write(hashes, b"same")
    write(hashes, b"same")
    assert is_accepted(hashes, b"same")
    assert len(hashes.file_hashes.all()) == 1


def test_forgotten_file_is_not_recorded_any_more(hashes: Store) -> None:
    write(hashes, b"old")
    hashes.file_hashes.forget([PATH])
    assert is_accepted(hashes, b"anything")
