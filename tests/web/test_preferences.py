"""What people prefer: the same numbers as metric points and frames, up to the newest vote."""

from datetime import UTC, date, datetime, timedelta

import httpx
import pytest

from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.feedback.votes import agreement
from rlhf_pipeline.reports.chart import Chart, day_value
from rlhf_pipeline.watch.metrics.stages import agreement_points
from tests.web.conftest import NOON, Web

PATH = "/charts/preferences"
DAYS = [date(2026, 1, 2) + timedelta(days=n) for n in (0, 1, 3)]
PEOPLE = ("ann", "bob", "eve")


def cast(web: Web, n: int = 60, *, people: tuple[str, ...] = PEOPLE, **more: object) -> None:
    """Three days of votes, the second a gap after the next one: a mostly, and the longer b less."""
    days = [datetime(day.year, day.month, day.day, 12, tzinfo=UTC) for day in DAYS]
    ids = web.publish(n, offer=False)
    web.store.votes.cast_many(
        [
            NewVote(
                comparison_id=ids[i],
                annotator_id=who,
                annotator_kind="human",
                choice=("a", "a", "b", "tie")[(i + j) % 4],
                voted_at=days[i % 3],
                idempotency_key=f"{i}/{who}/{more}",
                **({"origin": "page", "strength": None} | more),
            )
            for i in range(n)
            for j, who in enumerate(people)
        ]
    )


def read(reader, figure: str, **params: object) -> Chart:
    answer = reader.get(f"{PATH}/{figure}", params=params)
    assert answer.status_code == 200, answer.text
    return Chart.model_validate(answer.json())


def points(chart: Chart, name: str) -> dict[float, tuple[float, int]]:
    """(value, n) by place of all series with a name."""
    return {
        (x if series.along == "y" else y): (y if series.along == "y" else x, n)
        for panel in chart.panels
        if panel
        for series in panel.series
        if series.name == name
        for x, y, n in zip(series.x, series.y, series.n, strict=True)
    }


def test_charts_equal_metric_points_and_frames(web: Web):
    cast(web)
    for day in DAYS:
        agreed = agreement(web.store.votes.log([day.isoformat()]))
        web.store.metric_points.put(
            agreement_points(agreed.raw_agreement, day.isoformat(), datetime.now(UTC))
        )
    reader = web.client("auditor")
    listed = reader.get("/metrics/points", params={"name": "agreement.rate"}).json()["items"]
    drawn = points(read(reader, "agreement"), "same choice")
    expected = {day_value(date.fromisoformat(row["day"])): row["value"] for row in listed}
    assert {day: value for day, (value, _) in drawn.items()} == pytest.approx(expected)
    undecided = points(read(reader, "ties", by="source"), "equally good or both bad")
    whole = agreement(web.store.votes.log())
    assert undecided == {0.0: (pytest.approx(whole.share_of_ties), whole.n_votes)}


def test_vote_is_shown_immediately(web: Web):
    cast(web)
    reader = web.client("auditor")
    read(reader, "choices")
    cast_one = NewVote(
        comparison_id="c0001", annotator_id="zoe", annotator_kind="human", choice="both_bad",
        voted_at=NOON, idempotency_key="new", origin="page",
    )  # fmt: skip
    web.store.votes.cast(cast_one)
    after = read(reader, "choices")
    assert sum(n for _, n in points(after, "both bad").values()) == 60 * 3 + 1
    assert points(after, "both bad")[day_value(NOON.date())][0] == pytest.approx(1 / 61)


def test_filters_choose_the_votes(web: Web):
    cast(web)
    reader = web.client("auditor")
    day = {"since": DAYS[1].isoformat(), "until": DAYS[1].isoformat()}
    tied = points(read(reader, "ties", **day), "equally good or both bad")
    assert {day: n for day, (_, n) in tied.items()} == {day_value(DAYS[1]): 60}
    assert read(reader, "ties", category="poetry").panels == ()
    assert read(reader, "ties", category="", group="page", source="this project").panels != ()
    assert "No votes match" in read(reader, "strength").notes[0]


def test_point_links_to_the_filtered_votes(web: Web):
    cast(web)
    reader = web.client("auditor")

    def links(reader=reader, **params: str) -> set[str]:
        panels = read(reader, "ties", **params).panels
        return {
            link for panel in panels if panel for series in panel.series for link in series.links
        }

    assert f"/votes?day={DAYS[0]}&category=factual" in links(category="factual")
    days = f"since={DAYS[0]}&until={DAYS[2]}"
    filters = {"since": DAYS[0].isoformat(), "source": "this project"}
    assert links(by="category", **filters) == {
        f"/votes?category=factual&source=this+project&{days}"
    }
    assert links(by="source", since=DAYS[0].isoformat()) == {f"/votes?source=this+project&{days}"}
    for place in links(by="category", **filters):
        votes = reader.get("/votes", params=httpx.URL(place).params).json()["items"]
        assert len(votes) == 50, "a page"
    assert links(group="page") == links(by="category", group="page") == set()
    assert links(by="group") == set()
    assert links(web.client("auditor", scopes=["metrics.read"])) == set()


def test_small_groups_are_withheld(web: Web):
    cast(web, 24)
    cast(web, 24, people=("solo",), origin="api")
    reader = web.client("auditor")
    (panel,) = read(reader, "ties", by="group").panels
    assert [tick.label for tick in panel.y.ticks] == ["page", "api"]
    assert [mark.label for mark in panel.marks] == ["1 annotator: too few"]
    assert [series.y for series in panel.series] == [(0.0,)]
    withheld = read(reader, "ties", group="api")
    assert withheld.panels == ()
    assert "1 annotator" in withheld.notes[-1]
    (whole,) = read(reader, "ties", by="category").panels
    assert whole.series[0].n == (24 * 4,)
    few = read(reader, "ties", by="category", until=DAYS[0].isoformat())
    assert few.panels == ()
    assert "8 comparisons: too few" in few.notes[-1]
    unknown = read(reader, "ties", by="category", group="nobody")
    assert unknown.panels == ()
    assert unknown.notes == ("No votes of the group 'nobody' match. Widen the other filters.",)


def test_each_group_and_day_needs_three_people_of_the_selection(web: Web):
    everybody = web.publish(24, offer=False, prefix="code", category="coding")
    ann_alone = web.publish(24, offer=False, prefix="poem", category="poetry")
    web.store.votes.cast_many(
        [
            NewVote(
                comparison_id=comparison_id,
                annotator_id=who,
                annotator_kind="human",
                choice=choice,
                voted_at=NOON + timedelta(days=n),
                idempotency_key=f"{comparison_id}/{who}",
                origin="page",
            )
            for n, (ids, choices) in enumerate(
                ((everybody, "aaa"), (ann_alone, ("a", "skip", "skip")))
            )
            for comparison_id in ids
            for who, choice in zip(PEOPLE, choices, strict=True)
        ]
    )
    reader = web.client("auditor")
    undecided = "equally good or both bad"
    assert points(read(reader, "ties", by="group"), undecided) == {0.0: (0.0, 72 + 24)}
    alone = read(reader, "ties", by="group", category="poetry")
    assert (alone.panels, alone.notes[-1]) == ((), "page: 1 annotator: too few")
    everyone = points(read(reader, "ties"), undecided)
    assert set(everyone) == {day_value(NOON.date()), day_value(NOON.date()) + 1}
    chosen = read(reader, "ties", group="page")
    assert points(chosen, undecided) == {day_value(NOON.date()): (0.0, 72)}
    assert "fewer than 3 annotators of the group voted" in chosen.notes[-1]


def test_skip_that_replaces_a_vote_removes_the_annotator(web: Web):
    web.store.annotator_groups.assign(dict.fromkeys((*PEOPLE, "nobody"), "experts"), actor="test")
    ids = web.publish(24, offer=False, prefix="code", category="coding")

    def cast(comparison_id: str, who: str, choice: str, **more: object) -> None:
        vote = {"comparison_id": comparison_id, "annotator_id": who, "annotator_kind": "human"}
        more = {"idempotency_key": f"{comparison_id}/{who}", **more}
        web.store.votes.cast(NewVote(choice=choice, voted_at=NOON, origin="page", **vote, **more))

    for comparison_id in ids:
        cast(comparison_id, "ann", "a")
        cast(comparison_id, "bob", "a")
    cast(ids[0], "eve", "a")
    reader = web.client("auditor")
    undecided = "equally good or both bad"
    chosen = {"group": "experts", "category": "coding"}
    whole = points(read(reader, "ties", **chosen), undecided)
    assert whole == {day_value(NOON.date()): (0.0, 49)}
    first = web.store.votes.with_key(f"{ids[0]}/eve").vote_id
    cast(ids[0], "eve", "skip", idempotency_key="skip", supersedes=first)
    alone = read(reader, "ties", **chosen)
    assert (alone.panels, "2 annotators of the group" in alone.notes[0]) == ((), True)


def test_page_names_votes_outside_its_days(paged: Web):
    cast(paged, 21)
    browser = paged.browser(paged.add("auditor"))
    assert "left out" not in browser.get(f"{paged.url}/preferences").text
    later = NewVote(
        comparison_id="c0001", annotator_id="zoe", annotator_kind="human", choice="a",
        voted_at=NOON + timedelta(days=150), idempotency_key="later", origin="page",
    )  # fmt: skip
    paged.store.votes.cast(later)
    words = "63 votes before the last 90 days left out: show all days since 2026-01-02"
    page = browser.get(f"{paged.url}/preferences").text
    assert words in " ".join(page.split())
    assert "left out" not in browser.get(f"{paged.url}/preferences?since={DAYS[0]}").text
