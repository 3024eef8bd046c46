"""What Prometheus reads at /metrics, and who may; the spans of requests."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.watch.telemetry.tracing import flush_spans
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.server import WebServer
from tests.collector import Collector, collecting
from tests.web.conftest import UNCACHED, Web
from tests.web.test_votes import lease, vote


@pytest.fixture
def cache_times() -> CacheTimes:
    return CacheTimes(**{**vars(UNCACHED), "scrape_s": 0})


def scrape(web: Web, **headers: str) -> dict[str, dict[tuple[str, ...], float]]:
    answer = httpx.get(f"{web.url}/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            assert sample.name.startswith("rlhf_")
            samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return samples


def test_prometheus_reads_the_newest_points_of_the_project(web: Web):
    now = web.clock.now().replace(microsecond=0)  # asked anew: a suite may run past midnight

    def point(days_ago: int, name: str, value: float | None, **more: object) -> MetricPoint:
        day = now.date() - timedelta(days=days_ago)
        return MetricPoint(day=day, name=name, value=value, measured_at=now, **more)

    web.store.metric_points.put([
        point(1, "queue.open", 7),
        point(0, "queue.open", 5),
        point(0, "spend.amount", 0.25, labels={"lane": 'evil"host\\/m\n1'}),
        point(0, "model.ece", 0.04, low=0.01, high=0.07, labels={"reward_model": "3"}),
        point(0, "drift.verdict", None, labels={"space": "prompts"}),
        point(0, "champion.age_days", 1.5, labels={"kind": "policy"}),
        point(31, "freshness.hours", 3, labels={"asset": "votes"}),
        point(1, "spend.amount", 9, labels={"lane": "other"}),
        point(1, "runs.failed", 1, labels={"job": "collection"}),
        point(1, "votes.cast", 8, labels={"source": "api"}),
        point(0, "sensors.lag_seconds", 12, labels={"sensor": "votes"}),
    ])  # fmt: skip
    samples = scrape(web)
    assert samples["rlhf_queue_open"] == {(): 5}
    assert samples["rlhf_spend_amount"] == {('evil"host\\/m\n1',): 0.25, ("other",): 0}
    assert samples["rlhf_model_ece"] == {("3",): 0.04}
    assert samples["rlhf_model_ece_low"] == {("3",): 0.01}
    assert samples["rlhf_model_ece_high"] == {("3",): 0.07}
    assert samples["rlhf_champion_age_days"] == {("policy",): 1.5}
    assert samples["rlhf_sensors_lag_seconds"] == {("votes",): 12}
    assert "rlhf_drift_verdict" not in samples  # nothing was measured: no sample, not 0
    assert samples["rlhf_runs_failed"] == {("collection",): 0}  # the count was yesterday's
    assert samples["rlhf_votes_cast"] == {("api",): 0}
    assert "rlhf_freshness_hours" not in samples  # older than a month
    measured = samples["rlhf_metric_measured_timestamp_seconds"]
    assert measured[("queue.open",)] == now.timestamp()


def test_prometheus_reads_votes_and_requests_of_this_process(web: Web):
    web.publish(2)
    annotator = web.client("annotator")
    for card in lease(annotator, 2):
        assert vote(annotator, card["card_id"]).status_code == 201
    annotator.get("/nope")
    samples = scrape(web)
    assert samples["rlhf_votes_total"] == {(): 2}
    assert samples["rlhf_http_requests_total"][("4xx",)] == 1
    assert samples["rlhf_http_requests_total"][("2xx",)] == 3
    buckets = samples["rlhf_vote_request_seconds_bucket"]
    assert buckets[("+Inf",)] == samples["rlhf_vote_request_seconds_count"][()] == 2
    assert list(buckets.values()) == sorted(buckets.values())
    assert 0 < samples["rlhf_vote_request_seconds_sum"][()] < 60


def test_only_local_clients_scrape_without_a_token(web: Web):
    through_a_proxy = {"X-Forwarded-For": "203.0.113.7"}
    with WebServer(create_app(web.settings, web.store)) as server:  # with pages and their login
        refused = httpx.get(f"{server.url}/metrics", headers=through_a_proxy)
    assert refused.status_code == 401
    assert "not_logged_in" in refused.text
    reader = web.client("engineer").headers["Authorization"]
    scrape(web, Authorization=reader, **through_a_proxy)
    annotator = web.client("annotator").headers["Authorization"]
    assert httpx.get(f"{web.url}/metrics", headers={"Authorization": annotator}).status_code == 403


class TestWithACollector:
    @pytest.fixture
    def collector(self) -> Iterator[Collector]:
        with collecting() as collector:
            yield collector

    @pytest.fixture
    def settings(self, url: str, tmp_path: Path, collector: Collector) -> Settings:
        return Settings(
            home=tmp_path,
            project="demo",
            database_url=url,
            otlp_endpoint=collector.url,
        )

    def test_a_request_that_casts_a_vote_leaves_a_span(self, web: Web, collector: Collector):
        web.publish(1)
        annotator = web.client("annotator")
        [card] = lease(annotator, 1)
        assert vote(annotator, card["card_id"], reason="too long").status_code == 201
        flush_spans()
        [span] = collector.spans
        assert (span.name, span.parent_id) == ("POST /api/v1/votes", "")
        assert span.attributes["http.response.status_code"] == 201
        assert not any(b"too long" in body for body in collector.bodies)


class TestWithAPublicAddress:
    @pytest.fixture
    def settings(self, url: str, tmp_path: Path) -> Settings:
        return Settings(
            home=tmp_path,
            project="demo",
            database_url=url,
            web_url="https://votes.example",
        )

    def test_clients_of_a_local_proxy_need_a_token(self, web: Web):
        public = {"Host": "votes.example"}
        assert httpx.get(f"{web.url}/metrics", headers=public).status_code == 401
        assert httpx.get(f"{web.url}/metrics").status_code == 401
        scrape(web, Authorization=web.client("engineer").headers["Authorization"], **public)
