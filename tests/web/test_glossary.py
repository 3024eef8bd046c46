"""The glossary: labels beside the plain terms, and nothing else changes."""

import re
from collections.abc import Iterator

import pytest

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import NewVote, Role
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web

LABEL = re.compile(r'<small class="gloss">[^<]*</small>')
TERMS = re.compile(r'\s*<script type="application/json" id="glossary">[^<]*</script>')


@pytest.fixture
def paged(web: Web) -> Iterator[Web]:
    """A project with a vote and figures."""
    now = web.clock.now()
    web.store.votes.cast(
        NewVote(
            comparison_id=web.publish(1)[0],
            annotator_id="ann",
            annotator_kind="human",
            origin="api",
            choice="a",
            voted_at=now,
            idempotency_key="v",
        )
    )
    figures = {"model.accuracy": 0.71, "model.accuracy_ceiling": 0.83, "spend.amount": 4.25}
    web.store.metric_points.put(
        [
            MetricPoint(
                day=now.date(),
                name=name,
                labels={"reward_model": "demo.reward_model@1"} if "model" in name else {},
                n=100,
                value=value,
                low=value - 0.02,
                high=value + 0.02,
                measured_at=now,
            )
            for name, value in figures.items()
        ]
    )
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        yield Web(web.store, web.settings, server.url, web.clock)


def test_glossary_adds_labels_without_changing_numbers(paged: Web):
    browser = paged.browser(paged.add(Role.ENGINEER))
    paths = ("/", "/alignment", "/drift", "/clusters", "/settings")
    plain = {path: browser.get(f"{paged.url}{path}").text for path in paths}
    chart = browser.get("/charts/accuracy").text
    assert not any(LABEL.search(page) for page in plain.values())
    browser.cookies.set("glossary", "on")
    for path, before in plain.items():
        after = browser.get(f"{paged.url}{path}").text
        assert LABEL.search(after)
        unlabelled = TERMS.sub("", LABEL.sub("", after))
        assert re.sub(r"\s+", " ", unlabelled) == re.sub(r"\s+", " ", before), path
    assert browser.get("/charts/accuracy").text == chart
    clusters = browser.get(f"{paged.url}/clusters").text
    assert '<h1>Error clusters<small class="gloss"> = damaged tissue</small></h1>' in clusters
    browser.cookies.set("glossary", "off")
    assert not LABEL.search(browser.get(f"{paged.url}/drift").text)


def test_only_the_glossary_page_has_the_switch(paged: Web):
    browser = paged.browser(paged.add(Role.ENGINEER))
    pages = {
        path: browser.get(f"{paged.url}{path}").text for path in ("/drift", "/settings/glossary")
    }
    assert ["glossary-switch" in page for page in pages.values()] == [False, True]
    assert "morphogenetic cancer" not in pages["/drift"]
