"""Pages of error clusters: one click from a cluster to its rows, and to an offer of them."""

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.watch.drift.cluster_history import ClusterDay
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.clusters import failing_cluster, write_clusters
from tests.web.conftest import UNCACHED, Web

CLUSTER = "2026-01-05-A"


def test_cluster_links_to_its_rows_and_an_offer(web: Web):
    ids = web.publish(3, overlap=1)
    engineer = web.client("engineer")
    assert engineer.get("/charts/clusters").json()["panels"] == []
    trend = tuple(
        ClusterDay(day=day, n_prompts=20, error=error, is_failing=True)
        for day, error in (("2026-01-05", 0.5), ("2026-01-06", 0.6))
    )
    cluster = failing_cluster(CLUSTER, ids[:2]).model_copy(update={"trend": trend})
    files = Artefacts(web.settings.frames)
    write_clusters(files, "2026-01-06", cluster)
    (panel,) = engineer.get("/charts/clusters").json()["panels"]
    (series,) = panel["series"]
    assert (series["name"], series["y"], series["n"]) == ("lentils · soup", [0.5, 0.6], [20, 20])
    assert series["links"][1] == f"/clusters/{CLUSTER}?day=2026-01-06"
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        paged = Web(web.store, web.settings, server.url, web.clock)
        browser = paged.browser(engineer.user)
        browser.follow_redirects = True
        listed = browser.get(f"{server.url}/clusters").text
        assert "lentils · soup has more errors than the rest on 6 Jan" in listed
        best = "of the day 10% <small>[6, 15], n = 60</small> is the best reachable"
        assert best in " ".join(listed.split())
        page = browser.get(f"{server.url}/clusters/{CLUSTER}").text
        assert f'href="/comparisons/{ids[0]}"' in page
        assert ids[2] not in page
        rate = interval_of_share(0.6, 20)
        span = f"[{rate.low * 100:.0f}, {rate.high * 100:.0f}], n = 20"
        assert span in " ".join(page.split("Days</h2>")[1].split())
        form = {"which": "cluster", "cluster": CLUSTER, "overlap": "3"}
        offered = browser.post(f"{server.url}/comparisons/offer", data=form).text
        assert "Requested 4 judgements of 2 comparisons" in offered
        assert browser.get(f"{server.url}/clusters/2026-01-05-Z").status_code == 404
