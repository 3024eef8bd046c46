"""Offers of whole clusters of errors."""

from rlhf_pipeline.core.artefacts import Artefacts
from tests.clusters import failing_cluster, write_clusters
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


def test_a_cluster_of_errors_is_listed_and_offered(web: Web):
    ids = web.publish(4, overlap=1)
    engineer = web.client("engineer")
    assert engineer.get("/clusters").json() == {"items": [], "next": None}
    cluster = failing_cluster("2026-01-05-A", ids[:2])
    files = Artefacts(web.settings.frames)
    write_clusters(files, "2026-01-05", cluster)
    write_clusters(files, "2026-01-06", cluster, failing_cluster("2026-01-06-B", ids[3:]))
    listed = engineer.get("/clusters").json()["items"]
    assert [(cluster["day"], cluster["cluster_id"]) for cluster in listed] == [
        ("2026-01-06", "2026-01-05-A"),
        ("2026-01-06", "2026-01-06-B"),
    ]
    assert listed[0]["comparison_ids"] == ids[:2]
    assert listed[0]["name"] == "lentils · soup"
    assert len(engineer.get("/clusters", params={"day": "2026-01-05"}).json()["items"]) == 1
    body = {"cluster": "2026-01-05-A", "overlap": 3}
    for n_new in (4, 0):
        answer = engineer.post("/comparisons:offer", json=body).json()
        assert answer == {"n_comparisons": 2, "n_wanted": n_new}
    assert web.store.cards.count_wanted(ids)[ids[0]] == (3, 0)
    unknown = engineer.post("/comparisons:offer", json={"cluster": "2026-01-05-Z"})
    assert unknown.status_code == 404
    both = engineer.post("/comparisons:offer", json={"cluster": "2026-01-05-A", "ids": ids})
    assert both.status_code == 422
