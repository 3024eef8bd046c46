"""Workers keep the order, name the item that failed, and stop when nobody asks for more."""

import math
import os
from itertools import count

import pytest

from rlhf_pipeline.errors import WorkerKilled
from rlhf_pipeline.workers import WORKERS
from rlhf_pipeline.workers.processes import Processes


@pytest.mark.parametrize("name", WORKERS)
def test_results_come_in_the_order_of_the_items(name):
    assert WORKERS[name].name == name
    assert list(WORKERS[name]().map(math.sqrt, [9, 4, 1])) == [3, 2, 1]


@pytest.mark.parametrize("name", WORKERS)
def test_an_error_is_raised_as_it_is_and_names_the_item(name):
    results = WORKERS[name]().map(math.sqrt, [4, -25, 9])
    assert next(results) == 2
    with pytest.raises(ValueError, match="math domain error") as caught:
        next(results)
    assert caught.value.__notes__ == ["It was raised for the item -25."]


@pytest.mark.parametrize("name", WORKERS)
def test_endless_items_are_read_as_results_are_asked_for(name):
    results = WORKERS[name]().map(math.sqrt, count())
    assert [next(results) for _ in range(5)] == [math.sqrt(i) for i in range(5)]
    results.close()


def test_a_killed_process_names_the_item_and_a_cure():
    with pytest.raises(WorkerKilled, match=r"result of 3 arrived.*Run again"):
        list(Processes(1).map(os._exit, [3]))
