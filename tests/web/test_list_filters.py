"""Lists of comparisons and votes: filters, flags and ticked rows, over HTTP."""

import re
import uuid

import httpx
import pytest

from rlhf_pipeline.web import pick_lists
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


def cast(client: httpx.Client, comparison_id: str, choice: str = "a", **more: object) -> str:
    sent = {"comparison_id": comparison_id, "choice": choice, **more}
    answer = client.post("/votes", json=sent, headers={"Idempotency-Key": str(uuid.uuid4())})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["vote_id"])


def list_keys(client: httpx.Client, path: str, key: str, **params: object) -> list[str]:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return [item[key] for item in answer.json()["items"]]


def test_a_flag_takes_comparisons_out_of_use_until_it_is_removed(web: Web):
    ids = web.publish(3)
    engineer, ann = web.client("engineer"), web.client("annotator")
    for n_changed in (1, 0):
        flagged = engineer.post("/comparisons:flag", json={"ids": ids[:1], "flag": "pii"})
        assert flagged.json() == {"n_comparisons": n_changed, "n_withdrawn": n_changed}
    assert list_keys(engineer, "/comparisons", "comparison_id", flag="pii") == ids[:1]
    cards = ann.post("/assignments:lease", json={"n": 9}).json()["cards"]
    assert len(cards) == 2
    engineer.post("/comparisons:flag", json={"ids": ids[:1], "flag": None})
    engineer.post("/comparisons:offer", json={"ids": ids})
    cards = ann.post("/assignments:lease", json={"n": 9}).json()["cards"]
    assert len(cards) == 3
    refused = engineer.post("/comparisons:flag", json={"ids": ["none"], "flag": "pii"})
    assert refused.status_code == 404
    assert ann.post("/comparisons:flag", json={"ids": ids, "flag": "pii"}).status_code == 403


def test_a_blind_reader_finds_by_kind_only_what_they_judged(web: Web):
    own, other = web.publish(1, prefix="o"), web.publish(1, prefix="i", source="arena")
    curator, engineer = web.client("curator"), web.client("engineer")
    admin = web.client("admin")
    cast(admin, other[0])
    skipped = cast(curator, other[0], "skip")
    by_source = {"source": "arena"}
    assert list_keys(engineer, "/comparisons", "comparison_id", **by_source) == other
    assert len(list_keys(engineer, "/votes", "vote_id", **by_source)) == 2
    voter = {"annotator_id": admin.user.user_id}
    assert list_keys(engineer, "/comparisons", "comparison_id", **voter) == other
    for only in (by_source, voter):
        assert list_keys(curator, "/comparisons", "comparison_id", **only) == []
        # their own skip would tell of which data set the comparison is
        assert list_keys(curator, "/votes", "vote_id", **only) == []
    assert list_keys(curator, "/votes", "vote_id") == [skipped]
    assert curator.get("/comparisons", params={"status": "done"}).status_code == 403
    cast(curator, own[0])
    assert list_keys(curator, "/comparisons", "comparison_id", source="this project") == own


def test_pages_keep_their_filters_and_act_on_ticked_rows(web: Web, paged: Web):
    ids = web.publish(3, offer=False) + web.publish(2, prefix="i", source="arena", offer=False)
    admin = paged.browser(paged.add("admin"))
    admin.follow_redirects = True
    filters = {"q": "prompt", "source": "this project"}
    page = admin.get(f"{paged.url}/comparisons", params=filters).text
    assert page.count('<article class="row') == 3
    assert '<option value="arena">' in page
    assert 'action="/comparisons/offer?q=prompt&amp;source=this+project&amp;"' in page
    offered = admin.post(
        f"{paged.url}/comparisons/offer",
        params=filters,
        data={"which": "ids", "id": ids[:2], "annotator_id": ""},
    ).text
    assert "Requested 2 judgements of 2 comparisons." in offered
    assert offered.count('<article class="row') == 3
    flagged = admin.post(
        f"{paged.url}/comparisons/flag", params=filters, data={"id": ids[1:3], "flag": "broken"}
    ).text
    assert "Flagged 2 comparisons. Withdrew 1 open judgement." in flagged
    assert flagged.count("unreadable</span>") == 2
    for act in ("offer", "flag"):
        data = {"which": "ids", "annotator_id": "", "flag": "broken"}
        nothing = admin.post(f"{paged.url}/comparisons/{act}", params=filters, data=data)
        assert "Tick at least one comparison." in nothing.text
        assert nothing.url.path == "/comparisons"
        assert nothing.url.params["source"] == "this project"
    panel = {"which": "ids", "ids": " ", "overlap": "1", "priority": "0"}
    unnamed = admin.post(f"{paged.url}/comparisons/offer", data=panel)
    assert unnamed.status_code == 422
    assert "Write the id of at least one comparison." in unnamed.text
    unknown = admin.get(f"{paged.url}/votes", params={"annotator_id": "nobody"}).text
    assert "No matching votes" in unknown
    assert "More continues" not in unknown, "the search is at its end"
    vote = cast(web.client("admin"), ids[0])
    votes = admin.get(f"{paged.url}/votes", params={"q": "prompt c0", "status": "counting"}).text
    assert ">prompt c0</a>" in votes
    assert vote in web.client("auditor").get("/votes").text


def test_first_pages_are_live_unless_they_are_filtered(web: Web, paged: Web):
    admin = paged.browser(paged.add("admin"))

    def find_live(path: str, **params: object) -> list[tuple[str, str]]:
        page = admin.get(f"{paged.url}{path}", params=params).text
        return re.findall(r'id="(\w+)" data-refresh hx-get="([^"]*)"', page)

    assert find_live("/comparisons") == [("comparisons", "/comparisons")]
    assert find_live("/votes") == [("newest", "/votes")]
    client = web.client("admin")
    for one in web.publish(3, offer=False):
        cast(client, one)
    for path in ("/votes", "/comparisons"):
        assert [one for one, _ in find_live(path)] == ["newest"]
        assert find_live(path, category="factual") == [], "it is checked row by row"
        cursor = client.get(path, params={"limit": 2}).json()["next"]
        assert find_live(path, cursor=cursor) == []
    refused = admin.post(f"{paged.url}/comparisons/flag", data={"id": "none", "flag": "broken"})
    assert 'hx-get="/comparisons"' in refused.text


def test_those_with_the_most_votes_are_offered_by_name(
    web: Web, paged: Web, monkeypatch: pytest.MonkeyPatch
):
    ids = web.publish(3, offer=False)
    few, most = web.client("admin"), web.client("admin")
    for client, n in ((few, 1), (most, 3)):
        for one in ids[:n]:
            cast(client, one)
    reader = paged.browser(paged.add("auditor"))
    address = f"{paged.url}/votes"
    whole = reader.get(address).text
    assert "type any id" not in whole
    monkeypatch.setattr(pick_lists, "MAX_ANNOTATORS", 1)
    page = reader.get(address).text
    assert "1 of 2 listed; type any id" in page
    offered = page.partition('<datalist id="annotators">')[2].partition("</datalist>")[0]
    assert (most.user.user_id in offered, few.user.user_id in offered) == (True, False)


def test_votes_are_listed_up_to_a_number(web: Web):
    admin = web.client("admin")
    cast_ids = [cast(admin, one) for one in web.publish(3)]
    second = web.store.votes.max_seq() - 1
    listed = list_keys(web.client("engineer"), "/votes", "vote_id", up_to=second)
    assert listed == cast_ids[1::-1]
    every = list_keys(web.client("engineer"), "/votes", "vote_id", up_to="")  # an empty field
    assert every == cast_ids[::-1]
    # the number of a vote would tell how many others cast before it
    assert web.client("annotator", "auditor").get("/votes?up_to=1").status_code == 403
