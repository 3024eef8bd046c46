"""The log of served answers, its figures by version, and feedback on an answer by its id."""

from datetime import timedelta

import pytest

from rlhf_pipeline.core.errors import InvalidVote, NotFound
from rlhf_pipeline.core.records import NewFeedback
from rlhf_pipeline.store import ServedAnswer
from rlhf_pipeline.watch.metrics import measure_answers
from tests.unit.store.conftest import NOON, SetClock

V3, V4 = "demo.policy@3", "demo.policy@4"


def log(store, answer_id, version=V3, **more):
    fields = {"latency_s": 1.0, "created_at": NOON, "n_prompt_tokens": 5, "n_tokens": 15} | more
    store.answers.add(ServedAnswer(answer_id=answer_id, version=version, **fields))


def send(store, **fields):
    return store.feedback.add(NewFeedback(**fields), created_by="u1")


def measure(store):
    points = measure_answers(store, [NOON.date()], NOON)
    return {(p.name.partition(".")[2], p.labels["model"]): p for p in points}


def test_figures_of_answers_are_kept_apart_by_version(store, clock: SetClock):
    for i in range(20):
        log(store, f"a{i}", latency_s=float(i + 1), cost=2_000_000_000)
    log(store, "failed", latency_s=99, finish_reason="error", error="dropped", n_tokens=0)
    log(store, "left", latency_s=99, finish_reason="cancelled")
    log(store, "b", version=V4, latency_s=3.0)
    log(store, "yesterday", created_at=NOON - timedelta(days=1), latency_s=50)
    points = measure(store)
    values = {name: (p.n, p.value) for (name, version), p in points.items() if version == V3}
    assert values == {
        "errors": (22, pytest.approx(1 / 22)),
        "latency": (20, 10.5),
        "latency_p50": (20, 10.0),
        "latency_p95": (20, 19.0),
        "tokens": (22, pytest.approx((21 * 20 + 5) / 22)),
        "cost": (20, pytest.approx(2.0)),
    }
    assert points["latency", V3].low < 10.5 < points["latency", V3].high
    assert {name: p.value for (name, version), p in points.items() if version == V4} == {
        "errors": 0,
        "latency": 3,
        "latency_p50": 3,
        "latency_p95": 3,
        "tokens": 20,
    }


def test_last_thumbs_of_an_answer_count_for_its_version(store, clock: SetClock):
    for name in ("a", "b"):
        log(store, name)
    log(store, "c", version=V4)
    for name, value in (("a", 0), ("a", 1), ("b", 0), ("c", 1)):
        send(store, kind="thumbs", value=value, answer_id=name)
    send(store, kind="thumbs", value=0, completion_id="elsewhere")
    send(store, kind="rating", value=4, answer_id="b")
    points = measure(store)
    opinions = {
        key: (p.n, p.value) for key, p in points.items() if key[0] in ("satisfaction", "rating")
    }
    assert opinions == {
        ("satisfaction", V3): (2, 0.5),
        ("satisfaction", V4): (1, 1.0),
        ("rating", V3): (1, 4.0),
    }


def test_correction_of_an_answer_takes_its_texts_and_version(store, clock: SetClock):
    log(store, "a", session_id="s1", prompt="Name a prime above 20.", completion="21")
    entry = send(store, kind="correction", answer_id="a", correction="23")
    assert (entry.prompt, entry.completion, entry.session_id, entry.model_version) == (
        "Name a prime above 20.",
        "21",
        "s1",
        V3,
    )
    [comparison] = store.comparisons.with_ids([entry.comparison_id]).to_dict("records")
    assert {comparison["model_version_a"], comparison["model_version_b"]} == {V3, "correction"}
    with pytest.raises(InvalidVote, match="equals the answer"):
        send(store, kind="correction", answer_id="a", correction="21")


def test_correction_without_kept_texts_brings_them(store, clock: SetClock):
    log(store, "a")
    with pytest.raises(InvalidVote, match=r"serving\.keep_texts"):
        send(store, kind="correction", answer_id="a", correction="23")
    texts = {"prompt": "Name a prime above 20.", "completion": "21"}
    assert send(store, kind="correction", answer_id="a", correction="23", **texts).vote_id


def test_old_answers_are_deleted(store, clock: SetClock):
    log(store, "old", created_at=NOON - timedelta(days=3))
    log(store, "new")
    assert store.answers.prune(NOON - timedelta(days=1)) == 1
    assert store.answers.get("new").version == V3
    with pytest.raises(NotFound, match="answer_days"):
        send(store, kind="thumbs", value=1, answer_id="old")
