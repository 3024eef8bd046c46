"""Two days side by side: figures of other pages, order, filters, pages, CSV, refusals."""

import csv
import io
from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest

from rlhf_pipeline.frames import PREDICTIONS, check_frame
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import NewVote
from rlhf_pipeline.reports.chart import day_value
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.compare.days import fill_in
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import NOON, UNCACHED, Web, comparisons
from tests.web.databases import on_sqlite
from tests.web.test_preferences import points
from tests.web.test_preferences import read as read_chart

FIRST, SECOND = date(2026, 1, 2), date(2026, 1, 3)
DAYS = {"earlier": FIRST.isoformat(), "later": SECOND.isoformat()}
CHOICES = {"c": ("a", "a", "tie"), "d": ("b", "a", "b")}  # of three people, by day
MODEL = "demo.reward_model@1"
PREFERENCES = {  # chart and legend on the page Preferences
    "undecided": ("ties", "equally good or both bad"),
    "agreement": ("agreement", "same choice"),
    "longer": ("preferred", "longer completion preferred"),
}
FIGURES = ("model.accuracy", "model.accuracy_ceiling", "model.ece", "model.calibration_slope")


def predict(frame: pd.DataFrame, model: str, p_a: float, hour: int) -> pd.DataFrame:
    """P(a) falls by 0.1 from one comparison to the next."""
    n = len(frame)
    rows = frame[["day", "comparison_id"]].assign(
        reward_model=model, calibrator="none", data_hash="d", features_hash="f", score_a=1.5,
        score_b=0.5, p_raw=0.7, p_calibrated=[p_a - i / 10 for i in range(n)],
        predicted_at=NOON + timedelta(hours=hour),
    )  # fmt: skip
    return check_frame(rows, PREDICTIONS)


def put_days(web: Web, sizes: tuple[int, int] = (3, 3)) -> None:
    """Three people judge so many comparisons on each day; c0000 and d0000 have one prompt, and only
    the first three comparisons but d0002 were predicted.
    """
    store = web.store
    for day, (prefix, choices), n in zip((FIRST, SECOND), CHOICES.items(), sizes, strict=True):
        frame = comparisons(n, prefix=prefix, day=day.isoformat())
        frame["prompt_id"] = ["shared", *frame["prompt_id"][1:]]
        frame["category"] = ["coding", *["creative"] * (n - 1)]
        predicted = frame.iloc[: 3 if prefix == "c" else 2]
        later = predict(predicted, "demo.reward_model@2", 0.3, hour=1)
        known = [predict(predicted, MODEL, 0.9, hour=0), later.iloc[:1]]
        store.comparisons.publish(frame, pd.concat(known), published_at=NOON)
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        store.votes.cast_many(
            [
                NewVote(
                    comparison_id=one,
                    annotator_id=who,
                    annotator_kind="machine" if who == "robot" else "human",
                    choice="skip" if who == "zoe" else choice,
                    voted_at=noon,
                    idempotency_key=f"{one}/{who}",
                    origin="page",
                )
                for one in frame["comparison_id"]
                for who, choice in zip(
                    ("ann", "bob", "eve", "zoe", "robot"), (*choices, "a", "a"), strict=True
                )
            ]
        )
        values = dict(zip(FIGURES, (0.75, 0.9, 0.05, 1.1), strict=True)) | {"policy.length": 60.0}
        points = [
            MetricPoint(
                day=day, name=name, value=value, low=value - 0.05, high=value + 0.05, n=40,
                labels={"policy" if "policy" in name else "reward_model": MODEL}, measured_at=NOON,
            )
            for name, value in values.items()
        ]  # fmt: skip
        verdict = {"day": day, "name": "drift.verdict", "measured_at": NOON, "n": 9}
        overall = MetricPoint(labels={"space": "overall"}, value=1.0, **verdict)
        other = MetricPoint(labels={"space": "errors"}, value=2.0, **verdict)
        store.metric_points.put([*points, overall, other])


@pytest.fixture
def read(web: Web):
    put_days(web)
    reader = web.client("auditor")

    def read(status: int = 200, **params: object) -> dict:
        answer = reader.get("/compare/days", params=DAYS | params)
        assert answer.status_code == status, answer.text
        return answer.json()

    return read


def ids(found: dict) -> list[str]:
    return [row["comparison_id"] for row in found["items"]]


@on_sqlite
@pytest.mark.parametrize("sizes", [(24, 24), (24, 3)])
def test_figures_equal_those_of_the_other_pages(web: Web, sizes: tuple[int, int]):
    put_days(web, sizes)
    reader = web.client("auditor")
    found = reader.get("/compare/days", params=DAYS).json()
    figures = {one["name"]: one for one in found["figures"]}
    for name, (chart, words) in PREFERENCES.items():
        drawn = points(read_chart(reader, chart), words)
        for side, day in zip(("earlier", "later"), (FIRST, SECOND), strict=True):
            shown = figures[name][side]
            assert (shown and (shown["value"], shown["n"])) == drawn.get(day_value(day)), name
    for name in FIGURES:
        (point,) = reader.get(
            "/metrics/points", params={"name": name, "until": DAYS["earlier"]}
        ).json()["items"]
        assert figures[name]["earlier"]["value"] == point["value"]
        assert figures[name]["difference"] is None
    change = figures["undecided"]["difference"]
    if sizes == (24, 3):
        assert (figures["undecided"]["later"], change) == (None, None), "withheld as on Preferences"
    else:
        assert change["value"] == pytest.approx(-1 / 3)
        assert change["low"] < change["value"] < change["high"]


@on_sqlite
def test_each_day_says_who_judged_and_predicted_it(read):
    found = read()
    assert {one["name"] for one in found["figures"]} == {*FIGURES, "policy.length"}
    day = found["earlier"]
    assert (day["n_votes"], day["n_comparisons"], day["verdict"]) == (9, 3, "warning"), "no skips"
    assert day["by_category"] == {"creative": 6, "coding": 3}
    assert (day["reward_models"], day["policy"], day["newest_only"]) == ([MODEL], MODEL, False)
    assert found["n_not_counted"] == 0


@on_sqlite
def test_the_largest_disagreement_comes_first_and_the_first_prediction_counts(read):
    found = read()
    assert ids(found) == ["d0000", "d0001", "c0002", "c0001", "c0000", "d0002"]
    first, last = found["items"][0], found["items"][-1]
    assert (first["reward_model"], first["p_a"]) == (MODEL, 0.9)
    assert first["disagreement"] == pytest.approx(0.9 - 1 / 3)
    assert (first["n_a"], first["n_b"], first["n_neither"], first["is_on_both"]) == (1, 2, 0, True)
    assert first["completion_a"] == "text A of d0"
    assert (last["reward_model"], last["disagreement"]) == (None, None)
    tied = found["items"][4]
    assert (tied["n_a"], tied["n_b"], tied["n_neither"]) == (2, 0, 1)


@on_sqlite
def test_filters_choose_comparisons_and_pages_follow_each_other(read):
    assert ids(read(which="both")) == ["c0000", "d0000"]
    assert ids(read(which="later", category="creative")) == ["d0001", "d0002"]
    assert ids(read(q="TEXT A of C1")) == ["c0001"]
    assert read(q="nothing has it")["items"] == []
    whole, first = ids(read()), read(limit=4)
    second = read(limit=4, cursor=first["next"])
    assert [*ids(first), *ids(second)] == whole
    assert (first["n_rows"], first["n_shared_prompts"], second["next"]) == (6, 1, None)
    read(422, cursor="WzBd-")


@on_sqlite
def test_a_day_that_cannot_be_compared_is_named(read):
    assert "Nobody voted on 2026-01-09" in read(404, later="2026-01-09")["detail"]
    assert "from 2026-01-02 to 2026-01-03" in read(404, later="2026-01-09")["detail"]
    assert "Exchange them" in read(422, later="2026-01-01")["detail"]
    assert "Name two days" in read(422, later=DAYS["earlier"])["detail"]
    read(422, later="yesterday")


@on_sqlite
def test_only_readers_of_all_votes_see_two_days(read, web: Web):
    for role in ("annotator", "curator", "approver"):
        answer = web.client(role).get("/compare/days", params=DAYS)
        assert answer.status_code == 403, role
    user = web.add("auditor")
    narrow = web.client(user=user, scopes=["votes.read"]).get("/compare/days", params=DAYS).json()
    assert narrow["figures"] == []
    assert {row["prompt"] for row in narrow["items"]} == {None}


def test_one_day_gets_the_nearest_day_with_votes():
    first, second, last = known = [date(2026, 1, day) for day in (2, 4, 7)]
    newest_first = known[::-1]
    assert fill_in(newest_first, None, None) == (second, last)
    assert fill_in(newest_first, None, second) == (first, second)
    assert fill_in(newest_first, first, None) == (first, second)
    assert fill_in(newest_first, None, first) == (first, first)  # refused with a reason
    assert fill_in(newest_first, last, None) == (last, last)
    assert fill_in([first], None, first) == (None, None)
    assert fill_in([], first, last) == (first, last)


@on_sqlite
def test_the_page_keeps_its_state_in_the_address_and_exports_it(web: Web):
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        browser = pages.browser(pages.add("engineer"))
        empty = browser.get(f"{server.url}/compare/days?earlier=2026-01-02").text
        assert "Nothing to compare yet" in empty
        assert 'id="days" data-refresh' in empty
        put_days(web)
        shown = browser.get(f"{server.url}/compare/days?which=later&category=creative").text
        assert '<option value="later" selected>' in shown
        assert "figures of fewer than 20 comparisons are withheld" in shown
        assert '<option value="2026-01-03" selected>' in shown
        address = "/compare/days.csv?earlier=2026-01-02&later=2026-01-03&which=later"
        assert address.replace("&", "&amp;") in shown
        rows = list(csv.DictReader(io.StringIO(browser.get(server.url + address).text)))
        assert [row["comparison_id"] for row in rows] == ["d0000", "d0001", "d0002"]
        assert (rows[0]["n_b"], rows[0]["day"]) == ("2", "2026-01-03")
        wrong = browser.get(f"{server.url}/compare/days?earlier=2026-01-03&later=2026-01-02").text
        assert "Exchange them" in wrong
        assert '<option value="2026-01-02" selected>' in wrong
        # the days that are shown, while votes of the later one may still arrive
        assert 'hx-get="/compare/days?earlier=2026-01-02&amp;later=2026-01-03' in shown
        pages.publish(1, prefix="e", day="2026-01-04")
        next_day = datetime(2026, 1, 4, 12, tzinfo=UTC)
        pages.store.votes.cast(
            NewVote(
                comparison_id="e0000", annotator_id="ann", annotator_kind="human", choice="a",
                voted_at=next_day, idempotency_key="e", origin="page",
            )
        )  # fmt: skip
        past = browser.get(f"{server.url}/compare/days?later=2026-01-03").text
        assert "2026-01-02</h2>" in past
        assert "data-refresh" not in past
        approver = pages.browser(pages.add("approver"))
        assert "/compare/days" not in approver.get(f"{server.url}/compare").text
