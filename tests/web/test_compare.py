"""Two policy versions on the same prompts: order, filters, pages, sides, CSV, missing pairs."""

import csv
import io

import pytest

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.compare.queries import find_partner
from rlhf_pipeline.web.server import WebServer
from tests.policy_versions import N_PROMPTS, put_versions
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite


@pytest.fixture
def read(web: Web):
    put_versions(web.store, web.settings.frames)
    reader = web.client("auditor")

    def read(a: int, b: int, status: int = 200, **params: object) -> dict:
        answer = reader.get("/compare", params={"a": a, "b": b} | params)
        assert answer.status_code == status, answer.text
        return answer.json()

    return read


@on_sqlite
def test_the_largest_disagreement_comes_first_on_every_page(read):
    whole = read(1, 2, limit=N_PROMPTS)
    gaps = [abs(row["difference"]) for row in whole["items"]]
    assert gaps == sorted(gaps, reverse=True)
    assert (whole["n_rows"], whole["n_better_a"], whole["n_better_b"]) == (30, 15, 14)
    assert (whole["n_same"], whole["win_rate"]["value"]) == (1, 0.7)
    first = read(1, 2, limit=20)
    second = read(1, 2, limit=20, cursor=first["next"])
    assert first["items"] + second["items"] == whole["items"]
    assert second["next"] is None
    assert read(1, 2, order="a", limit=1)["items"][0]["difference"] == -2.9
    read(1, 2, 422, cursor="WzBd-")


@on_sqlite
def test_sides_turn_with_their_scores_and_answers(read):
    row, turned = (read(*sides, limit=1)["items"][0] for sides in ((1, 2), (2, 1)))
    assert (row["completion_a"], row["score_b"], row["p_b"]) == ("Policy 1 on 29.", -2.9, 0.3)
    assert (turned["completion_b"], turned["score_a"]) == (row["completion_a"], row["score_b"])
    assert (turned["difference"], turned["p_b"]) == (-row["difference"], pytest.approx(0.7))
    rate = read(2, 1)["win_rate"]
    assert (rate["value"], rate["low"], rate["high"]) == pytest.approx((0.3, 0.25, 0.35))


@on_sqlite
def test_dimensions_turn_with_the_sides(read):
    _, helpful, style, _ = read(1, 2)["dimensions"]
    assert (helpful["win_rate"]["value"], helpful["score_difference"]["value"]) == (0.66, 0.4)
    assert helpful["head"]["vote_accuracy"]["value"] == 0.75
    assert (style["head"]["has_head"], style["win_rate"]) == (False, None)
    turned = read(2, 1)["dimensions"][1]
    gap = turned["score_difference"]
    assert (gap["value"], gap["low"], gap["high"]) == pytest.approx((-0.4, -0.5, -0.3))
    assert turned["win_rate"]["value"] == pytest.approx(0.34)
    assert turned["head"] == helpful["head"]
    assert read(1, 3)["dimensions"] == []


@on_sqlite
def test_filters_count_what_matches(read):
    coding = read(1, 2, category="coding")
    assert {row["category"] for row in coding["items"]} == {"coding"}
    assert (coding["n_rows"], coding["categories"]) == (15, ["coding", "creative"])
    assert [row["prompt_id"] for row in read(1, 2, q="QUESTION 7")["items"]] == ["p07"]
    assert read(1, 2, q="nothing has it")["items"] == []


@on_sqlite
def test_versions_of_two_evaluations_have_texts_and_no_scores(read):
    found = read(1, 3, limit=N_PROMPTS)
    texts = {(row["completion_a"], row["completion_b"]) for row in found["items"]}
    assert ("Policy 1 on 5.", "Policy 3 on 5.") in texts
    assert {row["difference"] for row in found["items"]} == {None}
    assert (found["reward_model"], found["win_rate"]) == (None, None)


@on_sqlite
def test_what_was_never_generated_is_named(read, web: Web):
    assert "versions 3 and 2; 2 and 1." in read(1, 9, 404)["detail"]
    assert "same version" in read(2, 2, 422)["detail"]
    assert web.client("curator").get("/compare", params={"a": 1, "b": 2}).status_code == 403


def test_one_version_gets_its_newest_partner():
    pairs, versions = [(4, 2), (3, 2), (2, 1)], [5, 4, 3, 2, 1]
    assert [find_partner(one, pairs, versions) for one in (4, 2, 1)] == [2, 4, 2]
    assert find_partner(5, pairs, versions) == 4  # refused with a reason
    assert find_partner(1, [], [1]) is None


@on_sqlite
def test_the_page_keeps_its_state_in_the_address_and_exports_it(read, web: Web):
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        browser = pages.browser(pages.add("engineer"))
        shown = browser.get(f"{server.url}/compare?a=1&b=2&category=coding&order=b").text
        assert '<option value="b" selected>' in shown
        address = "/compare.csv?a=1&b=2&category=coding&order=b"
        assert address.replace("&", "&amp;") in shown
        rows = list(csv.DictReader(io.StringIO(browser.get(server.url + address).text)))
        assert [row["prompt_id"] for row in rows[:2]] == ["p28", "p26"]
        assert len(rows) == 15
        assert '<td colspan="3">no head: 12' in shown
        assert f"+0.30 to +0.50, n = {N_PROMPTS}" in " ".join(shown.split())
        assert shown.count("clearly better<br>than chance") == 1
        default = browser.get(f"{server.url}/compare").text
        assert "win rate of policy 3 against policy 2" in default
        half = browser.get(f"{server.url}/compare?a=1").text
        assert "win rate of policy 2 against policy 1" in half
        missing = browser.get(f"{server.url}/compare?a=1&b=9&category=coding").text
        assert "versions 3 and 2" in missing
        assert '<option value="coding" selected>coding</option>' in missing
        same = browser.get(f"{server.url}/compare?a=2&b=2").text
        assert "Choose two versions" in same
        assert "A and B are the same version." in same
        assert '<option value="coding">' in same
