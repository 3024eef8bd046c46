"""Versions of models: the gate's figures and reasons as stored, training data, the evaluation
page.
"""

from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.policy_versions import PAGE, put_versions
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite


@on_sqlite
def test_versions_have_reasons_training_data_and_the_decision_that_started_them(web: Web):
    kept = put_versions(web.store, web.settings.frames)
    policies = web.client("auditor").get("/evolution").json()["policies"]
    assert [(one["version"], one["state"]) for one in policies] == [
        (3, "refused"),
        (2, "champion"),
        (1, "earlier champion"),
    ]
    refused, champion, first = policies
    stored = web.store.gates.latest()
    assert refused["gate"]["checks"] == [check.model_dump() for check in stored.checks]
    assert refused["gate"]["evaluation"] == stored.evaluation.model_dump(mode="json")
    assert champion["training"] == {
        "parent": "demo.policy@1",
        "strategy": "dpo",
        "data_hash": kept,
        "n_pairs": 5,
        "by_origin": {"vote": 3, "relabelled": 2},
    }
    assert champion["decision"]["reasons"] == ["by hand: a test"]
    assert (champion["has_report"], champion["compared_with"]) == (True, [1])
    assert (refused["training"]["n_pairs"], refused["decision"]) == (None, None)
    assert (first["gate"], first["promotion"]["reason"]) == (None, "first policy of the project")


@on_sqlite
def test_the_chart_shows_the_evaluations_with_their_intervals(web: Web):
    reader = web.client("auditor")
    assert Chart.model_validate(reader.get("/charts/evolution").json()).panels == ()
    put_versions(web.store, web.settings.frames)
    chart = Chart.model_validate(reader.get("/charts/evolution").json())
    drawn = {
        (panel.title.partition(" ")[0], series.name): series
        for panel in chart.panels
        if panel
        for series in panel.series
    }
    rate = drawn["Win", "by the judge"]
    evaluations = [gate.evaluation for gate in web.store.gates.all()]
    assert rate.y == tuple(each.win_rate.value for each in evaluations)
    assert rate.low == tuple(each.win_rate.low for each in evaluations)
    assert (rate.x, rate.n) == ((2, 3), (30, 30))
    assert rate.links == ("/evolution#policy-2", "/evolution#policy-3")
    assert drawn["Mean", "this version"].low == (70.0, 66.0), "no interval on record, and one"
    assert ("Checkable", "this version") not in drawn


@on_sqlite
def test_the_evaluation_page_is_served_under_a_policy_of_its_own(web: Web):
    put_versions(web.store, web.settings.frames)
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        browser = pages.browser(pages.add("engineer"))
        shown = browser.get(f"{server.url}/evolution").text
        assert "not above 0.5" in shown
        assert "3 labelled by votes" in shown
        assert 'href="/evolution"' in browser.get(f"{server.url}/").text
        report = browser.get(f"{server.url}/evolution/2/report")
        assert report.content == PAGE
        (policy,) = report.headers.get_list("content-security-policy")
        assert "'sha256-" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy
        missing = browser.get(f"{server.url}/evolution/1/report")
        assert (missing.status_code, "no evaluation page of demo.policy@1" in missing.text) == (
            404,
            True,
        )
