"""Data sets and pairs over REST and pages: who may do what, and what each act leads to."""

import json
import re

import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.curation import DatasetQuality, DatasetQuery, PairTexts
from rlhf_pipeline.core.records import NewFeedback
from tests.dataset_rows import build_dataset_rows, build_vote_pairs
from tests.policy_versions import put_versions
from tests.web.conftest import Web

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


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"status": "ready", "query": {}}, 409, "no rows"),
        ({"status": "curating", "name": "taken"}, 409, "already"),
        ({"status": "curating", "query": {"votes": {"cluster": "no"}}}, 404, "'no'"),
        ({"status": "exported"}, 409, "an export"),
        ({"name": "set@2"}, 422, "NAME@2"),
        ({"name": " \n"}, 422, "blank"),
        ({"query": {"feedback": {"feedback_ids": [2**63]}}}, 422, "less than or equal"),
    ],
)
def test_a_refused_change_changes_nothing(ask, curated, change, status, words):
    assert ask(curated, "POST", SETS, {"name": "taken"}).status_code == 201
    before = ask(curated, "GET", f"{SETS}/1").json()
    answer = ask(curated, "PATCH", f"{SETS}/1", {"name": "new", "description": "new"} | change)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
    assert ask(curated, "GET", f"{SETS}/1").json() == before


def test_one_change_edits_and_freezes(ask, curated):
    change = {"name": "new", "query": {"votes": {"categories": ["creative"]}}, "status": "ready"}
    frozen = ask(curated, "PATCH", f"{SETS}/1", change).json()
    assert (frozen["name"], frozen["status"], frozen["n_rows"]) == ("new", "ready", 1)
    version = ask(curated, "GET", f"{SETS}/1").json()["versions"][0]
    assert version["query"]["votes"]["categories"] == ["creative"]


def test_lists_have_filters_and_pages(ask, curator):
    for i, kind in enumerate(["dpo", "instruction_tuning", "unpaired", "sft", "sft"]):
        ask(curator, "POST", SETS, {"name": f"set {i}", "dataset_type": kind})
    first = ask(curator, "GET", f"{SETS}?type=instruction_tuning&limit=2").json()
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
    added = ask(curated, "POST", PAIRS, PAIR | {"preference_strength": 0.75, "notes": "n"})
    assert added.status_code == 201
    assert added.json()["strength"] == 0.75
    assert ask(curated, "PATCH", f"{SETS}/1", {"status": "ready"}).json()["n_rows"] == 3
    revised = ask(curated, "PATCH", f"{PAIRS}/1", {"chosen_response": "better"}).json()
    assert (revised["revision"], revised["chosen"], revised["notes"]) == (2, "better", "n")
    assert ask(curated, "PATCH", f"{PAIRS}/1", {"annotation_notes": None}).json()["notes"] is None
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
    review = {"feedback_ids": [n for n in range(1, 1_001) if n != 7], "status": "approved"}
    assert curated.post("/feedback:review", json=review).status_code == 200
    refused = ask(curated, "POST", f"{PAIRS}/bulk", {"dataset_id": 1, "feedback_ids": ids})
    assert refused.status_code == 422
    assert paths(refused) == [f"body.feedback_ids.{i}" for i in (6, 500, 999)]
    message = refused.json()["errors"][0]["message"]
    assert message == "feedback 7: is pending: approve it first"
    assert ask(curated, "GET", PAIRS).json()["items"] == []
    curated.post("/feedback:review", json={"feedback_ids": [7], "status": "approved"})
    ids = [n for n in range(1, 1_001) if n != 501]
    created = ask(curated, "POST", f"{PAIRS}/bulk", {"dataset_id": 1, "feedback_ids": ids})
    assert created.status_code == 201
    assert len(created.json()["pairs"]) == 999
    assert created.json()["pairs"][0]["feedback_ids"] == [1]
    again = ask(curated, "POST", f"{PAIRS}/bulk", {"dataset_id": 1, "feedback_ids": [3, 1]})
    assert again.status_code == 422
    assert "feedback 3: is pair 3 of this data set already" in again.text


def test_a_part_of_the_quality_leads_to_its_rows(paged, ask, curator):
    pairs = build_vote_pairs(rejected=["In Austria.", "In Norway."])
    Artefacts(paged.settings.frames).write_frame("preference_pairs", pairs)
    ask(curator, "POST", SETS, {"name": "x", "query": {"votes": {}}})
    ask(curator, "PATCH", f"{SETS}/1", {"status": "curating"})
    html = ask(curator, "GET", "/datasets/1?part=sides").text
    assert "Where is Oslo?" in html
    assert "Where is Bern?" not in html
    assert ask(curator, "PATCH", f"{SETS}/1", {"status": "ready"}).status_code == 409


def test_a_cut_list_says_how_many_rows_there_are(paged, ask, curator):
    ask(curator, "POST", SETS, {"name": "x"})
    texts = [
        PairTexts(prompt=f"q{n}?", chosen="longer" if n < 60 else "c", rejected="r")
        for n in range(201)
    ]
    paged.store.curated_pairs.add(1, [(pair, ()) for pair in texts], actor="cara")
    ask(curator, "PATCH", f"{SETS}/1", {"status": "curating"})
    html = " ".join(ask(curator, "GET", "/datasets/1?part=length_gap").text.split())
    assert "the first 50 of 60 rows that lower it" in html
    assert "The newest 200 of them." in html


def test_a_form_loaded_before_another_edit_is_refused(paged, ask, curated):
    page = f"{paged.url}/datasets/1"
    read_at = re.search('name="read_at" value="([^"]+)"', curated.get(page).text)[1]
    form = {"edit": "yes", "name": "Support Q4", "votes": "yes", "read_at": read_at}
    answers = [
        curated.post(page, data=form | {"category": category}).status_code
        for category in ("creative", "coding")
    ]
    assert answers == [303, 409]
    votes = ask(curated, "GET", f"{SETS}/1").json()["query"]["votes"]
    assert votes["categories"] == ["creative"]


@pytest.mark.parametrize(
    ("name", "words"), [("x" * 201, "must have at most 200 characters"), ("", "must not be empty")]
)
def test_a_wrong_length_is_named_in_characters(paged, ask, curator, name, words):
    answer = ask(curator, "POST", SETS, {"name": name})
    assert answer.json()["errors"] == [{"path": "body.name", "message": words}]
    assert f"name: {words}" in curator.post(f"{paged.url}/datasets", data={"name": name}).text


def test_a_version_leads_to_its_models_and_they_to_it(paged, ask, curator):
    ids = paged.publish(1)
    entry = paged.store.feedback.add(
        NewFeedback(kind="thumbs", value=1, completion="c"), created_by="app"
    )
    sources = [[f"comparison:{ids[0]}"], ["pair:1@1", f"feedback:{entry.feedback_id}"]]
    rows = build_dataset_rows(sources=[json.dumps(each) for each in sources])
    dataset = paged.store.datasets.add("x", "preference", DatasetQuery(), "", actor="t")
    dataset_id = dataset.dataset_id
    good = DatasetQuality(score=1, parts=(), problems=(), n_rows=2)
    paged.store.datasets.record_build(dataset_id, good, actor="t")
    paged.store.datasets.freeze(dataset_id, rows, good, actor="t")
    put_versions(paged.store, paged.settings.frames, paged.settings.project, dataset="x@1")
    [version] = ask(curator, "GET", f"{SETS}/1").json()["versions"]
    assert version["models"] == ["demo.policy@2", "demo.policy@3"]
    assert '<a href="/evolution#policy-2">policy 2</a>' in ask(curator, "GET", "/datasets/1").text
    link = '<a href="/datasets/1">x@1</a>'
    for path in ("/evolution", "/feedback", f"/comparisons/{ids[0]}"):
        assert link in " ".join(ask(curator, "GET", path).text.split()), path


def test_comparisons_are_picked_into_a_data_set_and_removed(paged, ask, curator):
    ids = paged.publish(3)
    browser = paged.browser(curator.user)

    def submit(path, **fields):
        return browser.post(f"{paged.url}{path}", data=fields)

    def picked(number=1):
        votes = paged.store.datasets.get(number).query.votes
        return None if votes is None else votes.comparison_ids

    assert submit("/comparisons/pick", name="new").headers["location"].startswith("/comparisons")
    created = submit("/comparisons/pick", name="new", id=ids[:2])
    assert created.headers["location"] == "/datasets/1"
    assert submit("/comparisons/pick", name="new", id=ids[:2]).status_code == 409
    assert submit("/comparisons/pick", dataset="1", id=ids[1:]).status_code == 303
    assert picked() == tuple(ids)
    assert "3 comparisons picked by hand" in " ".join(
        ask(curator, "GET", "/datasets/1").text.split()
    )
    assert submit("/datasets/1", edit="yes", name="new", votes="yes").status_code == 303
    assert picked() == tuple(ids)  # the form has no field for them
    many = [f"c{i}" for i in range(990)]
    assert submit("/comparisons/pick", dataset="1", id=many).status_code == 303
    refused = submit("/comparisons/pick", dataset="1", id=[f"d{i}" for i in range(10)])
    assert refused.status_code == 409
    assert "at most 1,000" in refused.text
    submit("/datasets/1/unpick", id=[*many, ids[0]])
    assert picked() == tuple(ids[1:])
    submit("/datasets/1/unpick", id=ids[1:])
    assert picked() is None
    ask(curator, "POST", SETS, {"name": "all", "query": {"votes": {}}})
    assert submit("/comparisons/pick", dataset="2", id=ids).status_code == 409
    engineer = paged.browser(paged.add("engineer"))
    assert engineer.post(f"{paged.url}/comparisons/pick", data={"id": ids}).status_code == 403
