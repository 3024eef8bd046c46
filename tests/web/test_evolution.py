"""Versions of models: the gate's figures and reasons as stored, training data, the evaluation
page.
"""

import html
import re
from datetime import date
from pathlib import Path
from typing import Any

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import Interval, NewVote, Promotion
from rlhf_pipeline.improve.evaluation.gate import (
    GateParams,
    decide_promotion,
    leave_to_people,
)
from rlhf_pipeline.improve.gate_sessions import advance, open_session, void
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.clusters import failing_cluster, write_clusters
from tests.policy_versions import PAGE, evaluate, put_versions
from tests.unit.improve.test_gate_sessions import make_samples
from tests.web.conftest import NOON, UNCACHED, Web
from tests.web.test_calibration import report


def test_versions_show_reasons_training_data_and_decision(web: Web):
    set_hash = put_versions(web.store, web.settings.frames)
    policies = web.client("auditor").get("/evolution").json()["policies"]
    assert [(version["version"], version["state"]) for version in policies] == [
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
        "dataset": None,
        "dataset_id": None,
        "data_hash": set_hash,
        "n_pairs": 5,
        "by_origin": {"vote": 3, "relabelled": 2},
    }
    assert champion["decision"]["reasons"] == ["by hand: a test"]
    assert (champion["has_report"], champion["compared_with"]) == (True, [1])
    assert (refused["training"]["n_pairs"], refused["decision"]) == (None, None)
    assert (first["gate"], first["promotion"]["reason"]) == (None, "first policy of the project")


def test_the_evaluation_page_is_served_under_a_policy_of_its_own(web: Web):
    put_versions(web.store, web.settings.frames)
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        browser = pages.browser(pages.add("engineer"))
        page_html = browser.get(f"{server.url}/evolution").text
        assert "not above 0.5" in page_html
        assert "3 labelled by votes" in page_html
        words = " ".join(re.sub(r"<[^>]*>", " ", html.unescape(page_html)).split())
        assert "Length +7.7% KL 0.100 [0.080, 0.120], n = 30" in words
        assert words.count("Worse in tone estimated: wins 28% [23, 33], n = 30") == 2
        headline = "Policy 2 and no reward model serve; policy 3 was refused for its win rate"
        assert headline in words
        report = browser.get(f"{server.url}/evolution/2/report")
        way_back = b'\n<nav><a href="/evolution#policy-2">Versions</a></nav>'
        assert report.content.replace(way_back, b"") == PAGE != report.content
        (policy,) = report.headers.get_list("content-security-policy")
        assert "'sha256-" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy
        missing = browser.get(f"{server.url}/evolution/1/report")
        assert (missing.status_code, "no evaluation page of demo.policy@1" in missing.text) == (
            404,
            True,
        )


def test_reward_model_shows_its_accuracy_since_promotion(paged: Web):
    label = "demo.reward_model@1"
    paged.store.calibrations.add(report(model=label, data_seq=40), {"method": "none"})
    paged.store.promotions.record(
        Promotion(
            model_name="demo.reward_model",
            version=1,
            previous_version=None,
            data_seq=40,
            reason="first reward model",
            actor="run run-1",
        )
    )
    served = Interval(value=0.71, low=0.68, high=0.74, n=1191)
    ceiling = Interval(value=0.784, low=0.68, high=0.845, n=1576)

    def put(day: str, name: str, interval: Interval) -> None:
        at, labels = date.fromisoformat(day), {"reward_model": label}
        paged.store.metric_points.put([MetricPoint.of_interval(at, name, interval, NOON, labels)])

    put("2026-01-02", "model.accuracy", interval_of_share(0.5, 20))
    put("2026-01-02", "model.accuracy_ceiling", interval_of_share(0.9, 20))
    put("2026-01-03", "model.accuracy", served)
    reader = paged.client("auditor")
    (model,) = reader.get("/evolution").json()["reward_models"]
    assert Interval.model_validate(model["served"]) == served
    assert model["served_until"] == "2026-01-03"
    assert model["served_ceiling"] is None, "that of another day"
    put("2026-01-03", "model.accuracy_ceiling", ceiling)
    (model,) = reader.get("/evolution").json()["reward_models"]
    assert Interval.model_validate(model["served_ceiling"]) == ceiling
    html = paged.browser(paged.add("engineer")).get(f"{paged.url}/evolution").text
    words = " ".join(re.sub(r"<[^>]*>", " ", html).split())
    assert "right 71% [68, 74], n = 1,191 ; 78% [68, 84], n = 1,576 is possible" in words


def test_approver_promotes_another_version_with_a_reason(paged: Web, tmp_path: Path):
    workspace = Workspace(paged.settings)
    workspace.registry.tracking.open()
    for version in (1, 2):
        (tmp_path / f"{version}").mkdir()
        (tmp_path / f"{version}" / "weights").write_text(f"of version {version}")
        with workspace.registry.run(f"made {version}") as run:
            workspace.registry.register("policy", tmp_path / f"{version}", run=run)
    put_versions(paged.store, paged.settings.frames)  # 2 serves
    approver, body = paged.client("approver"), {"reason": "too long"}
    address = f"{paged.url}/api/models/demo.policy@{{}}/deploy"
    assert paged.client("engineer").post(address.format(1), json=body).status_code == 403
    assert approver.post(address.format(9), json=body).status_code == 404
    promotion = approver.post(address.format(1), json=body).json()["promotion"]
    assert (promotion["version"], promotion["previous_version"], promotion["reason"]) == (
        1,
        2,
        "too long",
    )
    newest = paged.store.audit.page(AuditFilter(action="model.promote"))[0][0]
    assert (newest.object_id, newest.actor) == ("demo.policy@1", approver.user.user_id)

    gate = paged.store.gates.latest()  # a refusal
    paged.store.gates.record(gate.model_copy(update={"candidate": "demo.policy@2"}))
    browser = paged.browser(paged.add("approver"))
    page = browser.get(f"{paged.url}/evolution").text
    assert "Policy 1 and no reward model serve" in page
    assert "Reason to serve it again" in page
    assert "Serve policy 2</button>" in page
    form = {"model": "demo.policy@1", "reason": " "}
    assert browser.post(f"{paged.url}/evolution/promote", data=form).status_code == 422
    back = {"model": "demo.policy@2", "reason": "it was better"}
    assert browser.post(f"{paged.url}/evolution/promote", data=back).status_code == 303
    assert paged.store.promotions.champion("demo.policy").version == 2


def test_policy_names_its_clusters_and_their_later_errors(web: Web):
    put_reward_model(web)  # dates the policies to 2026-01-02, the day of its votes
    put_versions(web.store, web.settings.frames)  # 2 was trained on c0 to c4
    files = Artefacts(web.settings.frames)

    def put(day: str, error: float | None, ids: tuple[str, ...], cluster: str = "A") -> None:
        cluster_rows = failing_cluster(f"2025-12-30-{cluster}", ids)
        rate = None if error is None else interval_of_share(error, 20)
        write_clusters(files, day, cluster_rows.model_copy(update={"error_current": rate}))

    put("2025-12-01", 0.0, ("c0", "c9"))  # more than 28 days before
    put("2026-01-01", 0.7, ("c0", "c1", "x"), "B")
    put("2026-01-02", 0.6, ("c1", "c2", "c3"))
    put("2026-01-03", 0.2, ("n1", "n2"))
    put("2026-01-04", 1.0, ("n1", "n2", "n3"))  # a window of days: most are counted already
    put("2026-01-05", 0.3, ("n4", "n5"))
    put("2026-01-06", None, ("n6",))  # too few prompts
    reader = web.client("auditor")
    learnt = reader.get("/evolution/training", params={"model": "demo.policy@2"}).json()
    first, second = learnt["clusters"]
    assert (first["cluster_id"], first["n_pairs"]) == ("2025-12-30-A", 3)
    assert first["right_before"]["value"] == 0.4
    assert (round(first["right_since"]["value"], 9), first["right_since"]["n"]) == (0.75, 40)
    assert (second["cluster_id"], second["n_pairs"]) == ("2025-12-30-B", 1)
    assert second["right_since"] is None
    unknown = reader.get("/evolution/training", params={"model": "demo.policy@3"}).json()
    assert unknown["clusters"] == [], "its retraining set is not kept"
    missing = reader.get("/evolution/training", params={"model": "demo.policy@9"})
    assert (missing.status_code, web.client("approver").get("/evolution/training").status_code) == (
        404,
        403,
    )


def put_reward_model(web: Web) -> None:
    """Learnt from votes of 2026-01-02, by a run of today."""
    vote = NewVote(
        comparison_id=web.publish(1)[0],
        annotator_id="ann",
        annotator_kind="human",
        origin="api",
        choice="a",
        voted_at=NOON,
        idempotency_key="one",
    )
    seq = web.store.votes.cast(vote).seq
    web.store.promotions.record(
        Promotion(
            model_name="demo.reward_model",
            version=1,
            previous_version=None,
            data_seq=seq,
            reason="first reward model",
            actor="run run-1",
        )
    )


def test_session_of_the_gate_is_shown_with_its_progress(paged: Web):
    web = paged
    put_versions(web.store, web.settings.frames)
    params = GateParams(decided_by="people")
    decision = leave_to_people(decide_promotion(evaluate("demo", 2, 0.7), params))
    open_session(web.store, decision, params, make_samples(40))
    advance(web.store, "demo.policy@1", NOON)
    asking = web.client("auditor").get("/evolution").json()["asking"]
    assert (asking["candidate"], asking["n_votes"], asking["n_wanted"]) == ("demo.policy@2", 0, 20)
    text = "Policy 2 waits for people: 0 of 20 votes."
    assert web.client("auditor").get("/home").json()["headline"]["text"].endswith(text)
    page = web.browser(web.add("auditor")).get(f"{web.url}/evolution").text
    assert "Policy 2 waits for people" in page
    assert "0 of 20" in page
    assert web.client("annotator").get("/evolution").status_code == 403


def test_a_void_session_leaves_its_candidate_on_the_page(paged: Web):
    web = paged
    put_versions(web.store, web.settings.frames)
    params = GateParams(decided_by="people")
    decision = leave_to_people(decide_promotion(evaluate("demo", 4, 0.7), params))
    session = open_session(web.store, decision, params, make_samples(40))
    reader = web.client("auditor")

    def read_newest() -> dict[str, Any]:
        return reader.get("/evolution").json()["policies"][0]

    assert (read_newest()["version"], read_newest()["state"]) == (4, "asked about")
    void(web.store, session, "demo.policy@3 serves now")
    assert (read_newest()["version"], read_newest()["state"]) == (4, "void")
    assert read_newest()["gate"]["verdict"] == "not promoted"
    page = web.browser(web.add("auditor")).get(f"{web.url}/evolution").text
    assert "policy 3 serves now" in page
