"""Data sets and pairs over REST and pages: who may do what, and what each act leads to."""

import json

import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.curation import DatasetQuality, DatasetQuery
from rlhf_pipeline.core.records import NewFeedback
from tests.dataset_rows import build_dataset_rows, build_vote_pairs
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both
SETS, PAIRS = "/api/training-datasets", "/api/preference-pairs"
PAIR = {"query": "q?", "chosen_response": "c", "rejected_response": "r", "dataset_id": 1}


@pytest.fixture
def curator(paged: Web):
    Artefacts(paged.settings.frames).write_frame("preference_pairs", build_vote_pairs())
    return paged.client("curator")


@pytest.fixture
def ask(paged: Web):
    """Sends a request below the server's own address."""

    def send(client, method, path, body=None, **more):
        return client.request(method, f"{paged.url}{path}", json=body, **more)

    return send


@pytest.fixture
def curated(curator, ask):
    """A data set of the votes, built."""
    body = {"name": "Support Q4", "dataset_type": "preference_pairs", "query": {"votes": {}}}
    assert ask(curator, "POST", SETS, body).status_code == 201
    assert ask(curator, "PATCH", f"{SETS}/1", {"status": "curating"}).json()["n_rows"] == 2
    return curator


def paths(answer):
    return [error["path"] for error in answer.json()["errors"]]


def test_only_curators_and_admins_create(paged, ask, curated):
    writes = [
        ("POST", SETS, {"name": "x"}),
        ("PATCH", f"{SETS}/1", {"name": "x"}),
        ("DELETE", f"{SETS}/1", None),
        ("POST", f"{SETS}/1/export", {}),
        ("POST", PAIRS, PAIR),
        ("PATCH", f"{PAIRS}/1", {}),
        ("DELETE", f"{PAIRS}/1", None),
        ("POST", f"{PAIRS}/bulk", {"dataset_id": 1, "feedback_ids": [1]}),
    ]
    for role in ("engineer", "annotator", "auditor", "approver"):
        client = paged.client(role)
        for method, path, body in writes:
            assert ask(client, method, path, body).status_code == 403, (role, path)
        may_read = role == "engineer"
        for path in (SETS, f"{SETS}/1", PAIRS, "/datasets", "/datasets/1"):
            answer = ask(client, "GET", path)
            assert answer.status_code == (200 if may_read else 403), (role, path)
    assert ask(paged.client("admin"), "POST", SETS, {"name": "x"}).status_code == 201


def test_a_data_set_goes_from_draft_to_archived(paged, ask, curated):
    assert ask(curated, "GET", f"{SETS}/1").json()["status"] == "curating"
    frozen = ask(curated, "PATCH", f"{SETS}/1", {"status": "ready"}).json()
    assert (frozen["status"], frozen["n_versions"]) == ("ready", 1)
    export = ask(curated, "POST", f"{SETS}/1/export", {"export_format": "parquet"})
    assert export.status_code == 201
    details = ask(curated, "GET", f"{SETS}/1").json()
    assert details["status"] == "exported"
    assert details["last_export"] == export.json()
    assert [version["version"] for version in details["versions"]] == [1]
    assert ask(curated, "DELETE", f"{SETS}/1").json()["status"] == "archived"
    assert ask(curated, "GET", SETS).json()["items"] == []
    assert len(ask(curated, "GET", f"{SETS}?status=archived").json()["items"]) == 1
    acts = paged.client("auditor").get("/audit", params={"action": "dataset*"}).json()["items"]
    assert {act["actor"] for act in acts} == {curated.user.user_id}
    assert [act["action"] for act in acts[::-1]] == [
        *("dataset.add", "dataset.build", "dataset_version.freeze", "dataset.ready"),
        *("dataset.export", "dataset.archived"),
    ]


@pytest.mark.parametrize("status", ["draft", "exported"])
def test_an_illegal_move_conflicts(ask, curated, status):
    answer = ask(curated, "PATCH", f"{SETS}/1", {"status": status})
    assert answer.status_code == 409
    assert "curating" in answer.json()["detail"] or "an export" in answer.json()["detail"]


def test_a_draft_is_built_before_it_is_frozen(ask, curator):
    ask(curator, "POST", SETS, {"name": "x", "query": {"votes": {}}})
    change = {"status": "ready", "description": "new"}
    assert ask(curator, "PATCH", f"{SETS}/1", change).status_code == 409
    assert ask(curator, "GET", f"{SETS}/1").json()["description"] == ""


def test_lists_have_filters_and_pages(ask, curator):
    for i, kind in enumerate(["dpo", "instruction_tuning", "unpaired", "sft", "sft"]):
        ask(curator, "POST", SETS, {"name": f"set {i}", "dataset_type": kind})
    first = ask(curator, "GET", f"{SETS}?type=sft&limit=2").json()
    assert [each["name"] for each in first["items"]] == ["set 4", "set 3"]
    rest = ask(curator, "GET", f"{SETS}?type=sft&limit=2&cursor={first['next']}").json()
    assert [each["name"] for each in rest["items"]] == ["set 1"]
    assert rest["next"] is None
    assert ask(curator, "GET", f"{SETS}?typ=sft").status_code == 422


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"format": "openai"}, "at least 10"),
        ({"format": "none"}, "Known: trl"),
        ({"url": "/etc"}, "object store"),
        ({"url": "file:///etc"}, "object store"),
        ({"version": 2}, "no version 2"),
    ],
)
def test_an_export_that_cannot_be_is_refused(ask, curated, body, words):
    ask(curated, "PATCH", f"{SETS}/1", {"status": "ready"})
    answer = ask(curated, "POST", f"{SETS}/1/export", body)
    assert answer.status_code in (404, 422)
    assert words in answer.json()["detail"]


def test_a_pair_is_revised_rejected_and_kept_by_its_version(ask, curated):
    added = ask(curated, "POST", PAIRS, PAIR | {"preference_strength": 0.75})
    assert added.status_code == 201
    assert added.json()["strength"] == 0.75
    assert ask(curated, "PATCH", f"{SETS}/1", {"status": "ready"}).json()["n_rows"] == 3
    revised = ask(curated, "PATCH", f"{PAIRS}/1", {"chosen_response": "better"}).json()
    assert (revised["revision"], revised["chosen"], revised["rejected"]) == (2, "better", "r")
    assert ask(curated, "DELETE", f"{PAIRS}/1").json()["status"] == "rejected"
    assert ask(curated, "GET", f"{PAIRS}?status=accepted").json()["items"] == []
    details = ask(curated, "GET", f"{SETS}/1").json()
    assert details["status"] == "curating"  # its next version begins
    lines = ask(curated, "GET", "/datasets/1/1/trl").text.splitlines()
    assert json.loads(lines[-1]) == {"prompt": "q?", "chosen": "c", "rejected": "r"}
    assert ask(curated, "PATCH", f"{SETS}/1", {"status": "ready"}).json()["n_rows"] == 2
    difference = ask(curated, "GET", "/datasets/1?against=1").text
    assert "In version 2, not in 1: 0 rows" in difference
    assert "In version 1, not in 2: 1 row" in difference
    assert ask(curated, "GET", "/datasets/1?against=3").status_code == 404


@pytest.mark.parametrize("change", [{"chosen": "r"}, {"rejected": " "}, {"strength": 2}])
def test_equal_or_blank_sides_are_refused(ask, curated, change):
    texts = {"prompt": "q?", "chosen": "c", "rejected": "r", "dataset_id": 1}
    assert ask(curated, "POST", PAIRS, texts | change).status_code == 422
    ask(curated, "POST", PAIRS, texts)
    assert ask(curated, "PATCH", f"{PAIRS}/1", change).status_code == 422
    assert ask(curated, "GET", PAIRS).json()["items"][0]["revision"] == 1


def test_a_bulk_makes_all_pairs_or_names_each_fault(paged, ask, curated):
    for i in range(1_000):
        values = {"prompt": f"p{i}", "completion": "bad"}
        feedback = (
            NewFeedback(kind="thumbs", value=1, **values)
            if i == 500
            else NewFeedback(kind="correction", correction="good", **values)
        )
        paged.store.feedback.add(feedback, created_by="app")
    ids = [*range(1, 1_000), 2_000]
    refused = ask(curated, "POST", f"{PAIRS}/bulk", {"dataset_id": 1, "feedback_ids": ids})
    assert refused.status_code == 422
    assert paths(refused) == ["body.feedback_ids.500", "body.feedback_ids.999"]
    assert ask(curated, "GET", PAIRS).json()["items"] == []
    ids = [n for n in range(1, 1_001) if n != 501]
    created = ask(curated, "POST", f"{PAIRS}/bulk", {"dataset_id": 1, "feedback_ids": ids})
    assert created.status_code == 201
    assert len(created.json()["pairs"]) == 999
    assert created.json()["pairs"][0]["feedback_ids"] == [1]


def test_the_pages_show_make_and_mend_a_data_set(paged, ask, curator):
    browser = paged.browser(curator.user)

    def submit(path, **fields):
        return browser.post(f"{paged.url}{path}", data=fields)

    def page(path):
        answer = browser.get(f"{paged.url}{path}")
        assert answer.status_code == 200
        return answer.text

    assert "No data sets yet" in page("/datasets")
    created = submit("/datasets", name="Q4", type="preference", votes="yes", min_agreement="0.5")
    assert created.status_code == 303
    assert "2 rows" in page(created.headers["location"])
    again = submit("/datasets", name="Q4", type="preference")
    assert again.status_code == 409
    assert "already" in again.text
    same = {"prompt": "a", "chosen": "b", "rejected": "b"}
    assert submit("/datasets/1/pairs", **same).status_code == 422
    assert submit("/datasets/1/pairs", **same | {"rejected": "c"}).status_code == 303
    assert submit("/datasets/1", edit="yes", name="Q4", votes="yes").status_code == 303
    assert submit("/datasets/1/leave-out", row_id="comparison:c1").status_code == 303
    assert paged.store.datasets.get(1).n_rows == 2
    assert submit("/datasets/pairs/1", reject="yes").status_code == 303
    assert "rejected" in page("/datasets/pairs/1")
    assert submit("/datasets/1", status="ready").status_code == 303
    assert submit("/datasets/1/export").status_code == 422  # no format
    assert browser.get(f"{paged.url}/datasets/1/1/none").is_client_error
    assert submit("/datasets/1/export", format="trl").status_code == 303
    html = page("/datasets/1")
    assert "exported" in html
    assert "In Norway." in html
    assert "In Switzerland." not in html
    assert submit("/datasets/1", status="archived").status_code == 303
    assert "Freeze" not in page("/datasets/1")


def test_a_part_of_the_quality_leads_to_its_rows(paged, ask, curator):
    pairs = build_vote_pairs(rejected=["In Austria.", "In Norway."])
    Artefacts(paged.settings.frames).write_frame("preference_pairs", pairs)
    ask(curator, "POST", SETS, {"name": "x", "query": {"votes": {}}})
    ask(curator, "PATCH", f"{SETS}/1", {"status": "curating"})
    html = ask(curator, "GET", "/datasets/1?part=sides").text
    assert "Where is Oslo?" in html
    assert "Where is Bern?" not in html
    assert ask(curator, "PATCH", f"{SETS}/1", {"status": "ready"}).status_code == 409


def test_a_comparison_names_the_versions_that_hold_it(paged, ask, curator):
    ids = paged.publish(1)
    rows = build_dataset_rows(sources=[json.dumps([f"comparison:{ids[0]}"]), "[]"])
    dataset = paged.store.datasets.add("x", "preference", DatasetQuery(), "", actor="t")
    dataset_id = dataset.dataset_id
    good = DatasetQuality(score=1, parts=(), problems=(), n_rows=2)
    paged.store.datasets.record_build(dataset_id, good, actor="t")
    paged.store.datasets.freeze(dataset_id, rows, good, actor="t")
    assert "in data set 1, version 1" in " ".join(
        ask(curator, "GET", f"/comparisons/{ids[0]}").text.split()
    )
