"""Two policy versions on the same prompts: filters, pages, sides, CSV, missing pairs."""

import pytest

from rlhf_pipeline.core.monitoring import MetricPoint
from tests.policy_versions import N_PROMPTS, put_versions
from tests.web.conftest import NOON, Web


@pytest.fixture
def read(web: Web):
    put_versions(web.store, web.settings.frames)
    reader = web.client("auditor")

    def read(a: int, b: int, status: int = 200, **params: object) -> dict:
        answer = reader.get("/compare", params={"a": a, "b": b} | params)
        assert answer.status_code == status, answer.text
        return answer.json()

    return read


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
    read(1, 2, 422, cursor="WzBd-")


def test_swapped_sides_keep_their_scores_and_answers(read):
    row, turned = (read(*sides, limit=1)["items"][0] for sides in ((1, 2), (2, 1)))
    assert (row["completion_a"], row["score_b"], row["p_b"]) == ("Policy 1 on 29.", -2.9, 0.3)
    assert (turned["completion_b"], turned["score_a"]) == (row["completion_a"], row["score_b"])
    assert (turned["difference"], turned["p_b"]) == (-row["difference"], pytest.approx(0.7))
    rate = read(2, 1)["win_rate"]
    assert (rate["value"], rate["low"], rate["high"]) == pytest.approx((0.3, 0.25, 0.35))


def test_filters_count_matches(read):
    coding = read(1, 2, category="coding")
    assert {row["category"] for row in coding["items"]} == {"coding"}
    assert (coding["n_rows"], coding["categories"]) == (15, ["coding", "creative"])
    assert [row["prompt_id"] for row in read(1, 2, q="QUESTION 7")["items"]] == ["p07"]
    assert read(1, 2, q="nothing has it")["items"] == []


def test_versions_without_completions_are_named(read, web: Web):
    unknown = read(1, 9, 404)["detail"]
    assert "versions 3 and 2; 2 and 1." in unknown
    assert "`rlhf models compare demo.policy@1 demo.policy@9`" in unknown
    assert "same version" in read(2, 2, 422)["detail"]


def test_the_page_compares_two_versions_and_shows_their_metric_points(paged: Web):
    put_versions(paged.store, paged.settings.frames)
    point = MetricPoint(
        day=NOON.date(), name="production.quality", value=0.25, n=4, measured_at=NOON
    )
    paged.store.metric_points.put(
        [point.model_copy(update={"labels": {"model": f"demo.policy@{n}"}}) for n in (1, 2, 7)]
    )
    browser = paged.browser(paged.add("auditor"))
    page = browser.get(f"{paged.url}/compare?a=1&b=2").text
    assert "win rate of policy 2 against policy 1" in page
    assert page.count('<option value="1" selected>') == page.count('<option value="2" selected>')
    assert page.count("production: quality") == 2
    points = browser.get("/compare", params={"a": 1, "b": 2}).json()["points"]
    assert [point["labels"]["model"] for point in points] == ["demo.policy@1", "demo.policy@2"]
