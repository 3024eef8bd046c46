"""Calibration over HTTP: the log with its states, a diagram whose bins list exactly their votes,
and nothing of it for who judges blind.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pandas as pd

from rlhf_pipeline.core.frames import PREDICTIONS, check_frame
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    CalibrationReport,
    DimensionCalibration,
    Interval,
    NewVote,
    Promotion,
    ReliabilityBin,
)
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import NOON, UNCACHED, Web, comparisons

MODEL = "demo.reward_model@1"
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'


def interval(value: float, **more: object) -> Interval:
    return Interval(
        value=value, low=max(0.0, value - 0.05), high=min(1.0, value + 0.05), n=50, **more
    )


def report(
    hours: int = 0, *, model: str = MODEL, ece: float = 0.1, **more: object
) -> CalibrationReport:
    def metrics(error: float) -> CalibrationMetrics:
        return CalibrationMetrics(
            n=50,
            accuracy=interval(0.7),
            binned_gap=interval(error),
            brier=interval(0.2),
            log_loss=interval(0.6),
            ece=interval(error / 2),
            slope=interval(0.9),
        )

    bins = (
        ReliabilityBin(
            low=0.7,
            high=0.75,
            n=50,
            mean_confidence=0.72,
            accuracy=0.7,
            accuracy_low=0.55,
            accuracy_high=0.8,
        ),
    )
    fields = {
        "reward_model": model,
        "method": "temperature",
        "params": {"temperature": 1.5},
        "raw": metrics(ece),
        "calibrated": metrics(ece / 2),
        "candidates": {"none": 0.7},
        "raw_bins": bins,
        "calibrated_bins": bins,
        "noise_ceiling": interval(0.8),
        "data_hash": "d",
        "n_fit": 100,
        "fitted_at": NOON + timedelta(hours=hours),
    }
    return CalibrationReport(**(fields | more))


def predictions(
    frame: pd.DataFrame, p: list[float], *, model: str = MODEL, calibrator: str = "temperature@1"
) -> pd.DataFrame:
    rows = frame[["day", "comparison_id"]].assign(
        reward_model=model,
        calibrator=calibrator,
        data_hash="d",
        features_hash="f",
        score_a=[probability - 0.5 for probability in p],
        score_b=0.0,
        p_raw=p,
        p_calibrated=p,
        predicted_at=NOON,
    )
    return check_frame(rows, PREDICTIONS)


def publish(
    web: Web,
    p: list[float],
    *,
    prefix: str = "c",
    model: str = MODEL,
    calibrator: str = "temperature@1",
    **more: object,
) -> list[str]:
    frame = comparisons(len(p), prefix=prefix, **more)
    web.store.comparisons.publish(
        frame, predictions(frame, p, model=model, calibrator=calibrator), published_at=NOON
    )
    return list(frame["comparison_id"])


def vote(web: Web, ids: list[str], choices: str, *, person: str = "ann", **more: object) -> None:
    web.store.votes.cast_many(
        [
            NewVote(
                comparison_id=comparison_id,
                annotator_id=person,
                annotator_kind="human",
                origin="api",
                choice=choice,
                idempotency_key=str(uuid.uuid4()),
                **({"voted_at": NOON} | more),
            )
            for comparison_id, choice in zip(ids, choices, strict=True)
        ]
    )


def get_counted(client: httpx.Client, path: str, **params: object) -> dict:
    """What a GET answers, once it has been counted."""
    for _ in range(1000):
        answer = client.get(path, params=params)
        if answer.status_code == 503 or (
            answer.status_code == 200 and answer.json().get("is_current") is False
        ):
            time.sleep(0.05)
            continue
        assert answer.status_code == 200, answer.text
        return answer.json()
    raise AssertionError(f"{path} was never counted: {answer.text}")


def get_counted_page(browser: httpx.Client, address: str, **params: object) -> httpx.Response:
    """A page, once what it shows has been counted."""
    for _ in range(1000):
        answer = browser.get(address, params=params)
        if 'hx-trigger="load delay:2s"' not in answer.text:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{address} was never counted: {answer.text}")


def listed(client: httpx.Client, **params: object) -> list[dict]:
    items, cursor = [], None
    while True:
        answer = get_counted(
            client,
            "/calibrations/probe/pairs",
            limit=2,
            **params,
            **({"cursor": cursor} if cursor else {}),
        )
        items += answer["items"]
        cursor = answer["next"]
        if cursor is None:
            return items


@contextmanager
def pages(web: Web) -> Iterator[Web]:
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        yield Web(web.store, web.settings, server.url, web.clock)


# --- the diagram and its pairs
# -----------------------------------------------------------------------------------------------


def test_every_bin_lists_exactly_the_votes_that_it_counts(web: Web):
    ids = publish(web, [0.9, 0.9, 0.1, 0.6, 0.55, 0.52, 0.5, 1.0, 0.93])
    vote(web, ids[:8], "abbaabab")
    vote(web, ids[:4], "bbab", person="bob")
    vote(web, ids[8:], "a", person="eve", strength=4)
    engineer = web.client("engineer")
    probe = get_counted(engineer, "/calibrations/probe")
    assert (
        probe["reward_model"],
        probe["n_votes"],
        probe["n_comparisons"],
        probe["newest_only"],
    ) == (MODEL, 12, 8, False)
    assert sum(row["n"] for row in probe["bins"]) == 12
    for name in ("accuracy", "noise_ceiling", "ece", "brier"):
        assert probe[name]["low"] <= probe[name]["value"] <= probe[name]["high"]
    seqs = []
    for bin_row in probe["bins"]:
        assert 0 <= bin_row["accuracy_low"] <= bin_row["accuracy"] <= bin_row["accuracy_high"] <= 1
        rows = listed(engineer, bin=(bin_row["low"] + bin_row["high"]) / 2)
        assert len(rows) == bin_row["n"], bin_row
        assert [row["wrong"] for row in rows] == sorted(
            (row["wrong"] for row in rows), reverse=True
        ), "the wrong ones first"
        for row in rows:
            confidence = max(row["p_calibrated"], 1 - row["p_calibrated"])
            assert bin_row["low"] - 1e-9 <= confidence <= bin_row["high"] + 1e-9
            assert row["wrong"] == ((row["p_calibrated"] > 0.5) != (row["choice"] == "a"))
            assert row["prompt"] == f"prompt c{int(row['comparison_id'][1:])}"
        seqs += [row["seq"] for row in rows]
    assert sorted(seqs) == [seq for seq in range(1, 14) if seq != 7], "equal scores predict no side"
    strong = [row for row in listed(engineer, bin=0.925) if row["strength"] == 4]
    assert [(row["comparison_id"], row["annotator_id"], row["completion_a"]) for row in strong] == [
        (ids[8], "eve", "text A of c8")
    ]


def test_predictions_are_separated_by_model_and_calibrator(web: Web):
    vote(web, publish(web, [0.9], prefix="one"), "a")
    vote(web, publish(web, [0.8, 0.8], prefix="two", calibrator="platt@2"), "ab")
    vote(
        web,
        publish(web, [0.7] * 3, prefix="three", model="demo.reward_model@2", day="2026-01-03"),
        "aab",
    )
    engineer = web.client("engineer")
    counted = {
        name: get_counted(engineer, "/calibrations/probe", **query)["n_votes"]
        for name, query in {
            "newest": {},
            "first": {"reward_model": MODEL},
            "platt": {"reward_model": MODEL, "calibrator": "platt@2"},
            "nobody": {"reward_model": "nobody@1"},
            "no calibrator": {"reward_model": MODEL, "calibrator": "none"},
        }.items()
    }
    assert counted == {"newest": 3, "first": 3, "platt": 2, "nobody": 0, "no calibrator": 0}
    assert get_counted(engineer, "/calibrations/probe")["reward_model"] == "demo.reward_model@2"
    assert len(listed(engineer, bin=0.825, reward_model=MODEL, calibrator="platt@2")) == 2


def test_a_bin_without_votes_is_named(web: Web):
    vote(web, publish(web, [0.9]), "a")
    engineer = web.client("engineer")
    get_counted(engineer, "/calibrations/probe")
    answer = engineer.get("/calibrations/probe/pairs", params={"bin": 0.6})
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:rlhf:problem:empty_bin")
    assert "0.90-0.95" in answer.json()["detail"]
    for wrong in ({}, {"bin": 0.3}, {"bin": "nan"}, {"bin": 0.9, "cursor": "x"}):
        assert engineer.get("/calibrations/probe/pairs", params=wrong).status_code == 422, wrong


# --- the log
# --------------------------------------------------------------------------------------------------


def test_calibration_log_shows_the_state_of_each_calibrator(web: Web):
    calibrations = web.store.calibrations
    calibrations.add(report(0), {"temperature": 1.5})
    calibrations.add(report(1, ece=0.05), {"temperature": 1.2})
    calibrations.add(report(2, may_serve=False), {"temperature": 9.0})
    calibrations.add(
        report(3, model="demo.reward_model@2", noise_ceiling=None), {"temperature": 1.0}
    )
    calibrations.import_reports([report(4, calibrator_version=7)], actor="test")
    web.store.promotions.record(
        Promotion(
            model_name="demo.reward_model",
            version=1,
            previous_version=None,
            data_seq=None,
            reason="x",
            actor="test",
            promoted_at=NOON,
        )
    )
    engineer = web.client("engineer")
    items = get_counted(engineer, "/calibrations")["items"]
    assert [
        (report["reward_model"][-1], report["version"], report["state"]) for report in items
    ] == [
        ("1", 4, "imported"),
        ("2", 1, "standby"),
        ("1", 3, "refused"),
        ("1", 2, "serving"),
        ("1", 1, "replaced"),
    ]
    assert [report["calibrator_version"] for report in items] == [7, 1, 3, 2, 1]
    assert [report["noise_ceiling"] is None for report in items] == [
        False,
        True,
        False,
        False,
        False,
    ]
    newest = items[3]
    raw, calibrated = newest["raw"], newest["calibrated"]
    assert raw["binned_gap"]["value"] == 0.05
    assert calibrated["ece"]["value"] == 0.0125
    paged, cursor = [], None
    while True:
        page = get_counted(
            engineer, "/calibrations", limit=2, **({"cursor": cursor} if cursor else {})
        )
        paged += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert paged == items
    assert engineer.get("/calibrations", params={"cursor": "eA"}).status_code == 422


# --- pages
# --------------------------------------------------------------------------------------------------


def test_empty_page_says_what_is_missing(web: Web):
    with pages(web) as site:
        page = get_counted_page(site.browser(web.add("engineer")), f"{site.url}/calibration").text
        assert 'id="later-votes" data-refresh' in page
        assert "No calibrator yet" in page
        assert "rlhf import calibration-log" in page
        assert 'class="filters"' not in page
        publish(web, [0.9])
        page = get_counted_page(site.browser(web.add("engineer")), f"{site.url}/calibration")
        assert "No vote for a side has a prediction by reward model 1 yet" in words(page)


def test_diagram_and_votes_follow_annotators_and_days(web: Web):
    ids = publish(web, [0.9] * 24)
    for person in ("ann", "bob", "eve"):
        vote(web, ids[:12], "a" * 12, person=person, voted_at=NOON)
    vote(web, ids[12:], "a" * 9 + "b" * 3, person="tess", voted_at=NOON + timedelta(days=2))
    web.store.annotator_groups.assign(dict.fromkeys(("ann", "bob", "eve"), "experts"), actor="test")
    reader = web.client("engineer")
    path = "/charts/calibration/later_votes"
    late = {"since": (NOON + timedelta(days=1)).date().isoformat()}
    for filters, n, share in (
        ({}, 48, 45 / 48),
        ({"group": "experts"}, 36, 1.0),
        (late, 12, 0.75),
        ({"until": NOON.date().isoformat(), "group": "experts"}, 36, 1.0),
    ):
        _, after = get_counted(reader, path, **filters)["panels"][0]["series"]
        assert (after["n"], after["y"]) == ([n], [share]), filters
        assert len(listed(reader, bin=0.925, **filters)) == n
    assert after["links"] == [f"/calibration/pairs?until={NOON.date()}&group=experts&bin=0.925"]
    (panel, _) = get_counted(reader, "/charts/calibration/later_groups", **late)["panels"]
    assert panel["series"][1]["n"] == [12]
    assert panel["series"][1]["links"][0] == f"/calibration?since={late['since']}&category=factual"
    alone = get_counted(reader, path, group="api")
    assert alone["notes"] == [
        "Withheld: fewer than 10 judged comparisons, or fewer than 3 annotators."
    ]
    none = reader.get("/calibrations/probe/pairs", params={"bin": 0.925, "group": "api"})
    assert none.status_code == 404
    with pages(web) as site:
        browser = site.browser(web.add("engineer"))
        filters = {"group": "experts", "until": NOON.date().isoformat()}
        page = words(get_counted_page(browser, f"{site.url}/calibration", **filters))
        assert "36 votes on 12 comparisons of group experts, days until" in page
        assert '<option value="experts" selected>' in page
        assert f'name="until" value="{NOON.date()}"' in page


def head(dimension: str) -> DimensionCalibration:
    measured = report()
    return DimensionCalibration(
        by="dimension",
        group=dimension,
        n=50,
        raw=measured.raw,
        calibrated=measured.calibrated,
        raw_bins=measured.raw_bins,
        calibrated_bins=measured.calibrated_bins,
        noise_ceiling=measured.noise_ceiling,
        method="platt",
        params={},
        n_fit=40,
    )


def words(answer: httpx.Response) -> str:
    """The page on one line: where a template breaks its lines is no matter."""
    return " ".join(answer.text.split())


def test_hostile_texts_are_escaped(web: Web):
    web.store.calibrations.import_reports(
        [report(0, model=HOSTILE, method=HOSTILE, calibrator_version=1)], actor="test"
    )
    vote(
        web,
        publish(
            web,
            [0.9],
            model=HOSTILE,
            prompt=HOSTILE,
            completion_a=HOSTILE,
            completion_b=f"{HOSTILE}b",
        ),
        "a",
    )
    with pages(web) as site:
        browser = site.browser(web.add("engineer"))
        for path, params in (
            ("/calibration", {}),
            ("/calibration", {"model": HOSTILE, "version": 1}),
            ("/calibration/pairs", {"bin": 0.925}),
            ("/calibration", {"model": HOSTILE, "dimension": HOSTILE}),
            ("/calibration/pairs", {"bin": 0.925, "model": HOSTILE}),
        ):
            answer = get_counted_page(browser, f"{site.url}{path}", **params)
            assert answer.status_code == 200, answer.text
            assert "alert(1)" in answer.text
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text
            assert "style=" not in answer.text
